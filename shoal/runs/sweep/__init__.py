"""Sweeps: many settings, several seeds each, in as few programs as possible."""
