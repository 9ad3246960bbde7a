"""Plots of runs, as PNG files."""
