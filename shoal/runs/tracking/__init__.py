"""Runs in other records: Weights & Biases, MLflow, Trackio."""
