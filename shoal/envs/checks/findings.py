"""Findings: what a check of an environment says, and how serious it is."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of a check's report."""

    level: Literal["ok", "warning", "problem"]
    topic: str
    text: str
    traceback: str = ""
    """The environment's own traceback, where it raised."""


def ok(topic: str, text: str) -> Finding:
    """Something that is as it should be."""
    return Finding("ok", topic, text)


def warning(topic: str, text: str) -> Finding:
    """Something that training survives, but suffers from."""
    return Finding("warning", topic, text)


def problem(topic: str, text: str) -> Finding:
    """Something that breaks training."""
    return Finding("problem", topic, text)
