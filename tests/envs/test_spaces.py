"""Gymnasium's spaces at the door, each against numbers worked out by hand."""

import gymnasium.spaces as gs
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.spaces import adapt_action, adapt_observation, bounds
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, MultiBinary, MultiDiscrete


def observe(space, raw):
    """The converted batch, after checking that JAX's arrays pass the same door as NumPy's."""
    box, convert = adapt_observation(space, "Test-v0")
    ours = convert(np.asarray(raw))
    compiled = convert(jnp.asarray(raw))
    assert ours.dtype == compiled.dtype == box.dtype
    assert ours.shape[1:] == compiled.shape[1:] == box.shape
    np.testing.assert_array_equal(ours, compiled)
    return ours.tolist()


def test_reals_become_float32():
    assert observe(gs.Box(-1, 1, (2,), np.float64), [[0.5, -0.5]]) == [[0.5, -0.5]]
    assert observe(gs.Box(0, 31, (2,), np.int64), [[3, 31]]) == [[3.0, 31.0]]


def test_a_scalar_becomes_a_vector_of_one():
    assert observe(gs.Box(-1, 1, (), np.float32), [0.5, 1.0]) == [[0.5], [1.0]]


def test_bounds_are_kept():
    box, _ = adapt_observation(
        gs.Box(np.array([-1.0, 0.0]), np.array([2.0, np.inf]), dtype=np.float64), "Test-v0"
    )
    assert box.low.tolist() == [-1.0, 0.0]
    assert box.high.tolist() == [2.0, np.inf]


def test_the_smallest_positive_number_as_a_bound_means_none():
    limits = np.finfo(np.float32)
    low, high = bounds(gs.Box(limits.tiny, limits.max, (1,), np.float32))
    assert (low.item(), high.item()) == (-np.inf, np.inf)


def test_images_stay_bytes_with_channels_last():
    first = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(1, 2, 3, 4)  # two channels of 3 x 4
    assert observe(gs.Box(0, 255, (2, 3, 4), np.uint8), first)[0][1][2] == [
        first[0, 0, 1, 2],
        first[0, 1, 1, 2],
    ]
    last = first.reshape(1, 4, 3, 2)
    assert observe(gs.Box(0, 255, (4, 3, 2), np.uint8), last) == last.tolist()


def test_choices_become_one_hot():
    assert observe(gs.Discrete(3), [0, 2]) == [[1, 0, 0], [0, 0, 1]]
    assert observe(gs.Discrete(3, start=5), [5, 7]) == [[1, 0, 0], [0, 0, 1]]
    assert observe(gs.MultiDiscrete([2, 3]), [[1, 0]]) == [[0, 1, 1, 0, 0]]
    assert observe(gs.MultiDiscrete([2, 3], start=[4, 7]), [[5, 7]]) == [[0, 1, 1, 0, 0]]
    assert observe(gs.MultiBinary(3), np.array([[1, 0, 1]], np.int8)) == [[1, 0, 1]]


def test_nested_spaces_become_named_boxes():
    space = gs.Dict(
        {"a": gs.Dict({"b": gs.Box(-1, 1, (2,))}), "c": gs.Tuple((gs.Discrete(2), gs.Box(0, 1, (1,))))}
    )
    boxes, convert = adapt_observation(space, "Test-v0")
    assert {key: box.shape for key, box in boxes.items()} == {"a/b": (2,), "c/0": (2,), "c/1": (1,)}
    raw = {"a": {"b": np.array([[0.5, 0.25]])}, "c": (np.array([1]), np.array([[0.75]]))}
    ours = {key: value.tolist() for key, value in convert(raw).items()}
    assert ours == {"a/b": [[0.5, 0.25]], "c/0": [[0.0, 1.0]], "c/1": [[0.75]]}


@pytest.mark.parametrize("space", [gs.Text(5), gs.Sequence(gs.Discrete(2)), gs.Dict({"a": gs.Text(5)})])
def test_other_observations_are_refused_in_one_line(space):
    with pytest.raises(ShoalError, match=r"^Test-v0: cannot observe (Text|Sequence).*$"):
        adapt_observation(space, "Test-v0")


def test_actions_count_from_zero():
    ours, convert = adapt_action(gs.Discrete(3, start=5), "Test-v0")
    assert ours == Discrete(3)
    assert convert(np.array([0, 2], np.int32)).tolist() == [5, 7]
    ours, convert = adapt_action(gs.MultiDiscrete([2, 3], start=[4, 7]), "Test-v0")
    assert ours == MultiDiscrete((2, 3))
    assert convert(np.array([[0, 2]], np.int32)).tolist() == [[4, 9]]
    ours, convert = adapt_action(gs.MultiBinary((2, 2)), "Test-v0")
    assert ours == MultiBinary(4)
    assert convert(np.array([[1, 0, 0, 1]], np.int32)).tolist() == [[[1, 0], [0, 1]]]


def test_whole_numbers_between_bounds_are_choices():
    ours, convert = adapt_action(gs.Box(np.array([0, 1]), np.array([39, 19]), dtype=np.int32), "Test-v0")
    assert ours == MultiDiscrete((40, 19))
    assert convert(np.array([[3, 0]])).tolist() == [[3, 1]]
    with pytest.raises(ShoalError, match="close bounds"):
        adapt_action(gs.Box(0, 2**20, (1,), np.int32), "Test-v0")


def test_real_actions_are_clipped_in_the_environments_own_dtype():
    ours, convert = adapt_action(gs.Box(-0.4, 0.4, (1,), np.float64), "Test-v0")
    assert isinstance(ours, Box)
    assert ours.shape == (1,)
    clipped = convert(np.array([[5.0], [0.4], [-5.0]], np.float32))
    assert clipped.dtype == np.float64
    assert clipped.tolist() == [[0.4], [0.4], [-0.4]]  # float32(0.4) is above 0.4


def test_other_actions_are_refused_in_one_line():
    with pytest.raises(ShoalError, match=r"^Test-v0: cannot act in Dict.*Box work$"):
        adapt_action(gs.Dict({"a": gs.Discrete(2)}), "Test-v0")
