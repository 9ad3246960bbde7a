"""Worlds: environments whose physical parameters differ between learners."""
