"""Worlds: sets of physical parameters, and environments that have them."""
