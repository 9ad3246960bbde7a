"""Observations of Python environments beside their spaces: what fits, and what is said of what does not."""

import gymnasium.spaces as gs
import numpy as np
import pytest

from shoal.envs.adapters.observations import batch_observations
from shoal.errors import ShoalError

VECTOR, PICTURE = gs.Box(-1, 1, (2,)), gs.Box(0, 255, (2, 2, 1), np.uint8)
NAMED = gs.Dict({"place": VECTOR, "kind": gs.Discrete(3)})
GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (VECTOR, [0, 1]),  # a list of whole numbers
        (VECTOR, np.zeros((1, 2))),  # float64, and an axis of length 1
        (PICTURE, np.zeros((2, 2), np.int64)),
        (NAMED, {"place": GOOD, "kind": 2, "more": "unread"}),
        (gs.Tuple((VECTOR, gs.MultiBinary(2))), (GOOD, [True, False])),
    ],
)
def test_what_can_become_the_spaces_numbers_fits(space, observation):
    batch_observations([observation, observation], space, "Robot-v0")


@pytest.mark.parametrize(
    ("space", "observation", "said"),
    [
        (VECTOR, np.zeros(3), " is float64 of shape (3,), but observation_space says float32 of shape (2,)"),
        (VECTOR, {"place": GOOD}, " is a dict, but"),
        (VECTOR, [[1.0], [1.0, 2.0]], " is a list, but"),
        (PICTURE, np.zeros((2, 2, 1)), " is float64 of shape (2, 2, 1), but observation_space says uint8"),
        (NAMED, {"place": GOOD}, "['kind'] is missing, but"),
        (NAMED, GOOD, " is a ndarray, but observation_space says Dict"),
        (gs.Tuple((VECTOR, VECTOR)), (GOOD,), "[1] is missing, but"),
    ],
)
def test_what_does_not_fit_is_said_with_both_shapes(space, observation, said):
    with pytest.raises(ShoalError) as error:
        batch_observations([observation], space, "Robot-v0")
    assert str(error.value).startswith(f"Robot-v0: observation{said}")


def test_the_one_that_differs_is_found_among_the_rows():
    with pytest.raises(ShoalError, match=r"^Robot-v0: observation is float32 of shape \(1,\), but"):
        batch_observations([GOOD, GOOD, GOOD[:1]], VECTOR, "Robot-v0")
