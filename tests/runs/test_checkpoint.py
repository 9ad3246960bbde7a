"""Checkpoints come back bit for bit, survive damage, and never lose what was saved."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.runs import checkpoint


class State(NamedTuple):
    params: dict
    key: jax.Array


def state(seed: int) -> State:
    """A tree with every kind of leaf a run has."""
    random = np.random.default_rng(seed)
    params = {
        "weight": jnp.asarray(random.normal(size=(3, 5)), jnp.float32),
        "half": jnp.asarray(random.normal(size=(4,)), jnp.bfloat16),
        "layers": [jnp.asarray(random.integers(-9, 9, (2, 2)), jnp.int32), (jnp.float32(seed),)],
        "frames": random.integers(0, 256, (2, 3), dtype=np.uint8),
        "mask": jnp.asarray([True, False, seed % 2 == 0]),
        "transposed": np.asfortranarray(random.normal(size=(3, 2))),
        "nothing": jnp.zeros((0, 4)),
        "not_a_number": jnp.asarray([jnp.nan, -0.0, jnp.inf]),
        "absent": None,
    }
    return State(params, jax.random.split(jax.random.key(seed), 3))


def bits(leaf) -> tuple:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert [bits(leaf) for leaf in jax.tree.leaves(found)] == [
        bits(leaf) for leaf in jax.tree.leaves(expected)
    ]


def steps(folder: Path) -> list[int]:
    """The steps whose two files are there; nothing else may be."""
    names = sorted(path.name for path in folder.iterdir())
    found = sorted({int(name[5:].split(".")[0]) for name in names})
    assert names == sorted(
        f"step_{step:09d}.{suffix}" for step in found for suffix in ("json", "safetensors")
    )
    return found


def flip(path: Path, byte: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[byte] ^= 1
    path.write_bytes(contents)


def test_round_trip_is_bitwise(tmp_path):
    path = checkpoint.save(tmp_path, 512, state(1), {"score": 3.5, "note": "á"})
    assert path == tmp_path / "step_000000512.safetensors"
    assert steps(tmp_path) == [512]
    tree, meta = checkpoint.load(path, state(2))
    assert_same(tree, state(1))
    assert meta == {"score": 3.5, "note": "á"}


def test_the_structure_may_be_given_as_shapes_alone(tmp_path):
    checkpoint.save(tmp_path, 1, state(1), {})
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state(2))
    tree, _ = checkpoint.load_latest(tmp_path, shapes)
    assert_same(tree, state(1))


def test_leaves_come_back_on_the_host_and_keys_still_draw_the_same(tmp_path):
    checkpoint.save(tmp_path, 1, state(1), {})
    tree, _ = checkpoint.load_latest(tmp_path, state(2))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree.params))
    assert jax.random.normal(tree.key[0]) == jax.random.normal(state(1).key[0])


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_of_every_kind(tmp_path, kind):
    key = jax.random.key(7, impl=kind)
    checkpoint.save(tmp_path, 1, {"key": key}, {})
    tree, _ = checkpoint.load_latest(tmp_path, {"key": jax.eval_shape(lambda: key)})
    assert tree["key"].dtype == key.dtype
    assert_same(tree, {"key": key})


def test_sharded_arrays(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices(), ("learners",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("learners"))
    tree = {"x": jax.device_put(jnp.arange(8.0 * len(jax.devices())), rows)}
    checkpoint.save(tmp_path, 1, tree, {})
    assert_same(checkpoint.load_latest(tmp_path, tree)[0], tree)


def test_a_tree_that_is_one_leaf_and_python_numbers(tmp_path):
    checkpoint.save(tmp_path / "leaf", 1, jnp.arange(3), {})
    assert_same(checkpoint.load_latest(tmp_path / "leaf", jnp.arange(3))[0], jnp.arange(3))
    checkpoint.save(tmp_path / "number", 1, {"count": 5, "rate": 0.5}, {})
    assert checkpoint.load_latest(tmp_path / "number", {"count": 0, "rate": 0.0})[0] == {
        "count": 5,
        "rate": 0.5,
    }


def test_meta_may_hold_arrays_and_odd_keys(tmp_path):
    meta = {
        "score": jnp.float32(2),
        "returns": np.arange(3),
        "by_learner": {10: 1, 9: 2},
        "nan": float("nan"),
    }
    path = checkpoint.save(tmp_path, 1, state(1), meta)
    _, found = checkpoint.load(path, state(1))
    assert np.isnan(found.pop("nan"))
    assert found == {"score": 2.0, "returns": [0, 1, 2], "by_learner": {"10": 1, "9": 2}}


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": {"x": jnp.zeros(3)}}, "it has a/y"),
        ({"a": {"x": jnp.zeros(3), "y": jnp.zeros(2), "z": jnp.zeros(1)}}, "it lacks a/z"),
        ({"a": {"x": jnp.zeros(4), "y": jnp.zeros(2)}}, r"a/x is float32\[3\], not float32\[4\]"),
        ({"a": {"x": jnp.zeros((3, 1)), "y": jnp.zeros(2)}}, r"a/x is float32\[3\], not float32\[3, 1\]"),
        ({"a": {"x": jnp.zeros(3), "y": jnp.zeros(2, int)}}, r"a/y is float32\[2\], not int32\[2\]"),
        ({"a": {"x": jnp.zeros(3), "y": jax.random.key(0)}}, r"a/y is float32\[2\], not uint32\[2\]"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused_by_name(tmp_path, like, message):
    checkpoint.save(tmp_path, 1, {"a": {"x": jnp.zeros(3), "y": jnp.zeros(2)}}, {})
    with pytest.raises(ShoalError, match=message):
        checkpoint.load_latest(tmp_path, like)


@pytest.mark.parametrize(
    ("leaf", "error"), [(jnp.zeros(2, jnp.complex64), ShoalError), (jnp.tanh, TypeError)]
)
def test_a_leaf_that_no_file_can_hold_is_named(tmp_path, leaf, error):
    with pytest.raises(error, match="the leaf net/f"):
        checkpoint.save(tmp_path, 1, {"net": {"f": leaf}}, {})


def test_no_checkpoint_yet(tmp_path):
    assert checkpoint.load_latest(tmp_path / "none", state(1)) is None
    assert checkpoint.load_latest(tmp_path, state(1)) is None
    assert checkpoint.load_best(tmp_path, state(1)) is None


def damage_truncate(data):
    data.write_bytes(data.read_bytes()[:-1])


def damage_flip_first(data):
    flip(data, 20)


def damage_flip_last(data):
    flip(data, -1)


def damage_empty(data):
    data.write_bytes(b"")


def damage_remove_data(data):
    data.unlink()


def damage_remove_record(data):
    data.with_suffix(".json").unlink()


def damage_garble_record(data):
    data.with_suffix(".json").write_bytes(b"\xff\x00{")


def damage_list_record(data):
    data.with_suffix(".json").write_text("[1, 2]")


def damage_flip_meta(data):
    record = data.with_suffix(".json")
    record.write_text(record.read_text().replace('"learner": 2', '"learner": 3'))


DAMAGES = [value for name, value in list(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path, damage):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, state(step), {"learner": step})
    damage(tmp_path / "step_000000002.safetensors")
    with pytest.warns(RuntimeWarning, match="step_000000002") as caught:
        tree, meta = checkpoint.load_latest(tmp_path, state(0))
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert meta == {"learner": 1}
    assert_same(tree, state(1))


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_all_are_damaged_it_says_so(tmp_path, damage):
    path = checkpoint.save(tmp_path, 2, state(2), {"learner": 2, "score": 1.0})
    damage(path)
    for load in (checkpoint.load_latest, checkpoint.load_best):
        with (
            pytest.warns(RuntimeWarning, match="step_000000002"),
            pytest.raises(ShoalError, match="every checkpoint"),
        ):
            load(tmp_path, state(0))
    with pytest.raises(ShoalError, match="step_000000002"):
        checkpoint.load(path, state(0))


def test_a_flip_of_any_byte_is_noticed(tmp_path):
    path = checkpoint.save(tmp_path, 1, {"x": jnp.arange(4)}, {"score": 12.0})
    for file in (path, path.with_suffix(".json")):
        whole = file.read_bytes()
        for byte in range(len(whole)):
            flip(file, byte)
            if file.suffix == ".json" and _same_json(file.read_bytes(), whole):
                continue  # one kind of white space became another
            with pytest.raises(ShoalError):
                checkpoint.load(path, {"x": jnp.arange(4)})
        file.write_bytes(whole)
    assert checkpoint.load(path, {"x": jnp.arange(4)})[1] == {"score": 12.0}


def _same_json(first: bytes, second: bytes) -> bool:
    try:
        return json.loads(first) == json.loads(second)
    except ValueError:
        return False


def test_the_last_three_and_the_best_are_kept(tmp_path):
    for step, score in enumerate([1, 9, 2, 3, 4, 5], start=1):
        checkpoint.save(tmp_path, step, state(step), {"score": score})
    assert steps(tmp_path) == [2, 4, 5, 6]
    tree, meta = checkpoint.load_best(tmp_path, state(0))
    assert meta == {"score": 9}
    assert_same(tree, state(2))
    checkpoint.save(tmp_path, 7, state(7), {"score": 10})
    assert steps(tmp_path) == [5, 6, 7]


def test_those_to_be_kept_stay_besides(tmp_path):
    for step in range(1, 8):
        checkpoint.save(tmp_path, step, state(step), {"score": -step, "kept": step % 2 == 0})
    assert steps(tmp_path) == checkpoint.saved_steps(tmp_path) == [1, 2, 4, 5, 6, 7]


def test_one_that_was_evaluated_is_better_than_any_that_was_not(tmp_path):
    for step, score, evaluated in ((1, 9, False), (2, 3, True), (3, 2, True), (4, 8, False)):
        checkpoint.save(tmp_path, step, state(step), {"score": score, "evaluated": evaluated})
    assert checkpoint.load_best(tmp_path, state(0))[1]["score"] == 3


def test_scores_that_are_no_numbers_are_never_the_best(tmp_path):
    for step, score in enumerate([1.0, float("nan"), None, float("inf"), "high"], start=1):
        checkpoint.save(tmp_path, step, state(step), {"score": score})
    assert steps(tmp_path) == [1, 3, 4, 5]
    assert checkpoint.load_best(tmp_path, state(0))[1] == {"score": 1.0}


def test_among_equal_scores_the_newest_is_the_best(tmp_path):
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, state(step), {"score": 500, "step": step})
    assert steps(tmp_path) == [3, 4, 5]
    assert checkpoint.load_best(tmp_path, state(0))[1]["step"] == 5


def test_a_damaged_best_gives_the_second_best(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, state(step), {"score": -step})
    flip(tmp_path / "step_000000001.safetensors", -1)
    with pytest.warns(RuntimeWarning, match="step_000000001"):
        assert checkpoint.load_best(tmp_path, state(0))[1] == {"score": -2}


def test_damaged_checkpoints_do_not_push_out_whole_ones(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, state(step), {})
    damage_truncate(tmp_path / "step_000000003.safetensors")
    damage_garble_record(tmp_path / "step_000000002.safetensors")
    checkpoint.save(tmp_path, 4, state(4), {})
    assert steps(tmp_path) == [1, 2, 3, 4]
    checkpoint.save(tmp_path, 5, state(5), {})
    checkpoint.save(tmp_path, 6, state(6), {})
    assert steps(tmp_path) == [4, 5, 6]


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (999_999_998, 999_999_999, 1_000_000_000, 1_000_000_001):
        checkpoint.save(tmp_path, step, state(0), {"step": step})
    assert steps(tmp_path) == [999_999_999, 1_000_000_000, 1_000_000_001]
    assert checkpoint.load_latest(tmp_path, state(0))[1] == {"step": 1_000_000_001}


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 1, state(1), {"run": 1})
    checkpoint.save(tmp_path, 1, state(2), {"run": 2})
    tree, meta = checkpoint.load_latest(tmp_path, state(0))
    assert meta == {"run": 2}
    assert_same(tree, state(2))


@pytest.mark.parametrize("file", ["data", "record"])
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, file):
    checkpoint.save(tmp_path, 1, state(1), {"score": 1})

    def half(path, *_, **options):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((checkpoint, "write_leaves") if file == "data" else (Path, "write_text")), half)
    for step in (1, 2):
        with pytest.raises(ShoalError, match="No space left on device; free some space") as caught:
            checkpoint.save(tmp_path, step, state(2), {})
        assert f"step_{step:09d}" in str(caught.value)
        assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert steps(tmp_path) == [1]
    assert_same(checkpoint.load_latest(tmp_path, state(0))[0], state(1))


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ShoalError, match="Read-only file system; choose a folder you may write to"):
        checkpoint.save(tmp_path, 1, state(1), {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "checkpoints"):
        with pytest.raises(ShoalError, match="move the file that is in the way"):
            checkpoint.save(folder, 1, state(1), {})
    with pytest.raises(ShoalError, match="cannot read"):
        checkpoint.load_latest(tmp_path / "file", state(1))
    assert (tmp_path / "file").read_text() == "mine"


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from shoal.runs import checkpoint

replace, deadline = os.replace, int(sys.argv[2])
def replace_or_die(source, target):
    global deadline
    if deadline == 0:
        os._exit(9)
    deadline -= 1
    replace(source, target)
os.replace = replace_or_die
checkpoint.save(Path(sys.argv[1]), 2, {"x": np.full(1000, 2.0)}, {"step": 2})
"""


@pytest.mark.parametrize("replaced", [0, 1])
def test_killed_between_the_two_files(tmp_path, replaced):
    like = {"x": np.full(1000, 1.0)}
    checkpoint.save(tmp_path, 1, like, {"step": 1})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(replaced)], check=False)
    assert killed.returncode == 9
    assert not (tmp_path / "step_000000002.json").exists()
    if replaced:
        with pytest.warns(RuntimeWarning, match="step_000000002"):
            tree, meta = checkpoint.load_latest(tmp_path, like)
    else:
        tree, meta = checkpoint.load_latest(tmp_path, like)
    assert meta == {"step": 1}
    assert_same(tree, like)
    checkpoint.save(tmp_path, 3, like, {"step": 3})
    assert not list(tmp_path.glob(".tmp-*"))
    assert checkpoint.load_latest(tmp_path, like)[1] == {"step": 3}
