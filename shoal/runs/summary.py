"""summary.json: the result of a run, written where it ends, or later where a crash came between."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import read_json, write_text
from shoal.runs.rows import LARGEST_STEP


def read_summary(folder: Path) -> dict:
    """The content of summary.json in a run's folder; {} where there is none yet."""
    path = Path(folder) / "summary.json"
    if not path.exists():
        return {}
    summary = read_json(path)
    if not _is_summary(summary):
        raise ShoalError(f"{path} is damaged; remove it: the run writes it again when it ends")
    return summary


def _is_summary(summary: Any) -> bool:
    """Whether what others read of a summary has the types they expect."""
    is_number = lambda x: x is None or (isinstance(x, int | float) and not isinstance(x, bool))
    are_numbers = lambda x: isinstance(x, list) and all(map(is_number, x))
    if not isinstance(summary, dict):
        return False
    evaluations = [summary.get(name, {}) for name in ("evaluation", "best_evaluation")]
    return (
        isinstance(summary.get("steps", 0), int)
        and 0 <= summary.get("steps", 0) <= LARGEST_STEP
        and are_numbers(summary.get("return_mean") if "steps" in summary else [])
        and isinstance(summary.get("interrupted", False), bool)
        and all(isinstance(one, dict) and is_number(one.get("best_return")) for one in evaluations)
    )


def write_summary(folder: Path, summary: Mapping, flush: bool = True) -> Path:
    """Writes summary.json atomically; arrays become lists and NaN becomes null."""
    text = json.dumps(_plain(summary), indent=2, allow_nan=False)
    return write_text(Path(folder) / "summary.json", f"{text}\n", flush)


def _plain(value):
    """The same value in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _plain(np.asarray(value).tolist())
