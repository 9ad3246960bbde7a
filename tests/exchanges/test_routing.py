"""Rows that change hands between devices: what is sent, and that it arrives as it was."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from shoal.errors import ShoalError
from shoal.exchanges import selection, topology
from shoal.exchanges.routing import ONE_DEVICE, Transport, as_words, plan
from shoal.ops import trees
from shoal.ops.trees import ByDevice

TWO = Transport(Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data")))


@pytest.mark.slow
def test_four_devices():
    """Plans, draws, exchanges and their state are the same to the bit on 1, 2 and 4 devices."""
    script = Path(__file__).with_name("on_four_devices.py")
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    cache = str(jax.config.jax_compilation_cache_dir)
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_a_ring_sends_one_row_each_way():
    """Eight on two devices: each needs the other's first and last."""
    targets, sources, _ = topology.edges(topology.ring(8))
    route = plan(sources, 8, TWO)
    (hop,) = route.hops
    assert hop.pairs == ((0, 1), (1, 0))
    assert hop.rows.tolist() == [[0, 3], [0, 3]]
    assert targets.tolist() == np.repeat(np.arange(8), 2).tolist()
    assert route.positions[:8].tolist() == [1, 5, 0, 2, 1, 3, 2, 4]


def test_a_row_needed_often_travels_once_and_own_rows_not_at_all():
    (hop,) = plan(np.array([3, 3, 3, 2, 2, 3]), 4, TWO).hops
    assert hop.pairs == ((1, 0),)
    assert hop.rows[1].tolist() == [1]
    assert plan(np.array([1, 0, 1, 3, 2, 2]), 4, TWO).hops == ()
    assert plan(np.array([3, 2, 1, 0]), 4, ONE_DEVICE).hops == ()


def test_rows_that_cannot_be_divided():
    with pytest.raises(ShoalError, match="3 rows, 2 wanted, do not divide over 2 devices"):
        plan(np.array([0, 1]), 3, TWO)


def test_words_and_back():
    tree = {"a": jnp.array([[-0.0, jnp.nan]]), "b": (jnp.array([7]), jnp.array([True])), "c": ()}
    words, back = as_words(tree)
    assert [(x.shape, x.dtype) for x in words] == [((1, 1), jnp.uint8), ((1, 3), jnp.uint32)]
    same = lambda x, y: x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    assert jax.tree.all(jax.tree.map(same, jax.device_get(back(words)), jax.device_get(tree)))


def test_state_is_packed_and_laid_out_again():
    """Two edges on the first of two devices and one on the second, whose share is filled up."""
    state = ((ByDevice({"x": np.array([5, 6, 7, 0])}, (0, 1, 2)), np.arange(2)), 3)
    packed = trees.pack(state)
    assert packed[0][0]["x"].tolist() == [5, 6, 7]
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(packed)]
    assert names == ["[0][0]['x']", "[0][1]", "[1]"]
    like = ((ByDevice({"x": np.array([-1, -2, -3, -4])}, (0, 2, 3)), np.zeros(2)), 0)
    for convert in (lambda tree: tree, lambda tree: jax.tree.map(jnp.asarray, tree)):
        laid_out = trees.unpack(convert(packed), like)
        assert laid_out[0][0].rows["x"].tolist() == [5, -2, 6, 7]
        assert laid_out[0][0].slots == (0, 2, 3)
        assert laid_out[0][1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("num_learners", "fraction", "groups"),
    [
        (2, 0.1, 1),
        pytest.param(3, 1.0, 1, marks=pytest.mark.slow),
        (12, 0.29, 1),
        (8, 0.5, 2),
        pytest.param(12, 0.1, 2, marks=pytest.mark.slow),
    ],
)
def test_no_more_are_copied_than_a_rule_says(num_learners, fraction, groups):
    rng = np.random.default_rng(0)
    score = rng.normal(size=(8, num_learners)).astype(np.float32)
    eligible, keys = rng.random((8, num_learners)) < 0.8, jax.random.split(jax.random.key(0), 8)
    rules = (selection.truncation(fraction), selection.winner(), selection.tournament())

    @jax.jit
    @jax.vmap
    def parents(key, score, eligible):
        selects = [selection.subpopulations(groups, rule, ratios=(1, 1)) for rule in rules]
        return [select(key, score, eligible, 1).parent for select in selects]

    for rule, parent in zip(rules, jax.device_get(parents(keys, score, eligible)), strict=True):
        most = selection.num_donors(groups, rule, num_learners)
        for drawn in parent:
            assert len({*drawn[drawn != np.arange(num_learners)]}) <= most
