"""Devices and processes that run one program."""
