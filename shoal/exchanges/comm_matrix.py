"""Communication matrices from files: JSON objects or lists of rows, checked."""

import json
import re
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.ranges import NonNegative
from shoal.schema import LARGEST, convert


def read_matrix(data: Any, num_learners: int, symmetrise: bool = False) -> np.ndarray:
    """W (num_learners, num_learners) from parsed JSON: i -> j -> weight of j for learner i.

    Learners are counted from 0. Missing entries are 0. The diagonal and one-way edges are allowed. A list of
    rows, alone or as the value of "comm_matrix", is allowed too. With `symmetrise` an edge given in one
    direction holds in both (a 0 in a list of rows is no edge).

    >>> read_matrix({"comm_matrix": {"0": {"1": 100}}}, 2).tolist()
    [[0.0, 100.0], [0.0, 0.0]]
    >>> read_matrix([[0, 1], [0, 0]], 2, symmetrise=True).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    named = _named_entries(data, num_learners)
    if symmetrise:
        _check_both_ways(named)
        named |= {(j, i): weight for (i, j), weight in named.items()}
    matrix = np.zeros((num_learners, num_learners), np.float32)
    for edge, weight in named.items():
        matrix[edge] = weight
    if not matrix.any():
        raise ShoalError(
            "comm_matrix is zero everywhere, so no learner receives anything; give a weight above 0"
        )
    return matrix


def _named_entries(data: Any, num_learners: int) -> dict[tuple[int, int], float]:
    """(i, j) -> weight, for the entries that the data gives."""
    if isinstance(data, dict):
        if "comm_matrix" not in data:
            found = ", ".join(_brief(key) for key in list(data)[:4]) or "nothing"
            raise ShoalError(
                'the communication matrix has no key "comm_matrix"; write '
                f'{{"comm_matrix": {{"0": {{"1": 1.0}}}}}} (found {found})'
            )
        data = data["comm_matrix"]
    if isinstance(data, dict):
        return _from_objects(data, num_learners)
    if isinstance(data, list | tuple):
        return _from_rows(data, num_learners)
    raise ShoalError(
        'comm_matrix must be an object such as {"0": {"1": 1.0}} or a list of rows, not ' + _brief(data)
    )


def _from_objects(data: dict, num_learners: int) -> dict[tuple[int, int], float]:
    named = {}
    for i, row in _by_index(data, "comm_matrix").items():
        if not isinstance(row, dict):
            raise ShoalError(
                f'comm_matrix: learner {i} must have an object such as {{"1": 1.0}}, not {_brief(row)}'
            )
        for j, weight in _by_index(row, f"comm_matrix, learner {i}").items():
            named[i, j] = weight
        named.setdefault((i, i), 0.0)  # so that the index of an empty row is checked
    _check_range({index for edge in named for index in edge}, num_learners)
    return {edge: _weight(weight, *edge) for edge, weight in named.items()}


def _by_index(data: dict, where: str) -> dict[int, Any]:
    """The object with integer keys."""
    for key in data:
        if isinstance(key, bool) or not re.fullmatch("-?[0-9]{1,18}", str(key)):
            raise ShoalError(
                f"{where}: {_brief(key)} is not the number of a learner; they are counted from 0"
            )
    found = {int(key): value for key, value in data.items()}
    if len(found) < len(data):
        raise ShoalError(f"{where}: a learner is named twice, among {_brief(list(data))}; keep one of them")
    return found


def _check_range(indices: set[int], num_learners: int) -> None:
    outside = sorted(index for index in indices if not 0 <= index < num_learners)
    if not outside:
        return
    learners = "1 learner only 0" if num_learners == 1 else f"{num_learners} learners 0 to {num_learners - 1}"
    hint = ""
    if outside == [num_learners] and 0 not in indices:
        hint = "; these seem to be counted from 1: subtract 1 from every number"
    raise ShoalError(f"comm_matrix: learners are counted from 0; with {learners}, found {outside[0]}{hint}")


def _from_rows(rows: list | tuple, num_learners: int) -> dict[tuple[int, int], float]:
    wanted = f"{num_learners} learners need {num_learners} rows of {num_learners} weights"
    if len(rows) != num_learners:
        raise ShoalError(f"comm_matrix: {wanted}, found {len(rows)} rows")
    for i, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            raise ShoalError(f"comm_matrix: {wanted}, but row {i} is {_brief(row)}")
        if len(row) != num_learners:
            raise ShoalError(f"comm_matrix: {wanted}, but row {i} has {len(row)}")
    weights = {(i, j): _weight(x, i, j) for i, row in enumerate(rows) for j, x in enumerate(row)}
    return {edge: weight for edge, weight in weights.items() if weight != 0}


def _weight(weight: Any, i: int, j: int) -> float:
    if type(weight) is float and 0 <= weight <= LARGEST:  # most of them: tables may be large
        return weight
    return convert(f"comm_matrix: the weight of learner {i} for {j}", weight, NonNegative)


def _check_both_ways(named: dict[tuple[int, int], float]) -> None:
    for (i, j), weight in named.items():
        back = named.get((j, i), weight)
        if back != weight:
            raise ShoalError(
                f"comm_matrix: learner {i} receives from {j} with weight {weight:g}, but {j} from {i} with "
                f"{back:g}; to symmetrise, give one of the two or make them equal"
            )


def _brief(value: Any) -> str:
    """The value as in the file, cut to fit a line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
