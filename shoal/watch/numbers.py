"""Numbers for the page: JSON without NaN, in six digits; cells of a heatmap as bytes."""

import base64
import json
from typing import Any

import numpy as np


def plain(values: Any) -> Any:
    """An array as nested lists in six digits; what is not finite is null.

    >>> plain(np.array([1.0, np.nan, 1 / 3]))
    [1.0, None, 0.333333]
    """
    array = np.asarray(values, float)
    if array.ndim > 1:
        return [plain(row) for row in array]
    if not array.ndim:
        return float(f"{array:.6g}") if np.isfinite(array) else None
    return [float(f"{x:.6g}") if known else None for x, known in zip(array, np.isfinite(array), strict=True)]


def as_bytes(values: np.ndarray) -> dict[str, Any]:
    """A table as bytes from 1, the lowest, to 255, the highest; 0 is not finite."""
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    scaled = np.where(known, (values - low) / ((high - low) or 1.0), 0.0)
    cells = np.where(known, 1 + np.rint(254 * scaled), 0).astype(np.uint8)
    return {
        "rows": values.shape[0],
        "columns": values.shape[1],
        "low": low,
        "high": high,
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }


def as_json(data: Any) -> bytes:
    """What a browser is sent."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), default=str).encode()
