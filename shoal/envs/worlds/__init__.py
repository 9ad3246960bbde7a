"""Worlds that differ: physical parameters, levels, variants."""
