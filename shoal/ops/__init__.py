"""Arithmetic that knows no network, no environment and no learner axis."""
