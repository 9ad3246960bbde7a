"""Environments of other libraries, brought to Shoal's contract."""
