"""The toy of the PBT paper: closed-form bounds, over twenty seeds."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

PATH = Path(__file__).parent.parent / "bench" / "pbt_toy.py"


@pytest.fixture(scope="module")
def toy():
    spec = importlib.util.spec_from_file_location("pbt_toy", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paths(toy):
    """Twenty runs of every kind: name -> (seed, step, worker, 2)."""
    keys, panels = jax.random.split(jax.random.key(7), 20), jnp.array([*toy.PANELS.values()])
    seeds = jax.vmap(toy.train, (0, None, None))
    found = jax.vmap(seeds, (None, 0, 0))(keys, panels[:, 0], panels[:, 1])
    return dict(zip(toy.PANELS, np.asarray(found), strict=True))


def best(toy, path):
    return np.asarray(toy.quality(path)).max((1, 2))


def test_pbt_finds_the_optimum_and_grid_search_cannot(toy, paths):
    """Q is at most 1.2; with h = [1, 0] theta_1 stays 0.9, so grid search ends below 1.2 - 0.81 = 0.39."""
    assert (best(toy, paths["PBT"]) > 1.19).all()
    assert (best(toy, paths["exploit only"]) > 1.19).all()
    assert (best(toy, paths["grid search"]) <= 0.39 + 1e-6).all()
    for path in paths.values():
        assert (best(toy, path) <= 1.2 + 1e-6).all()


def test_exploring_alone_is_worse_than_both(toy, paths):
    alone, both = best(toy, paths["explore only"]), best(toy, paths["PBT"])
    assert (alone > 0.39).all()
    assert alone.min() < both.min()


def test_the_paths(paths):
    """Nobody leaves the square, grid search goes along its edges, theta_0 = 0.9 (1 - 2 * 0.02)^t."""
    for path in paths.values():
        assert path.min() >= 0
        assert path.max() <= np.float32(0.9)
    steps = np.arange(1, 201)
    for grid in paths["grid search"]:
        np.testing.assert_allclose(grid[:, 0, 0], 0.9 * 0.96**steps, rtol=1e-4)
        np.testing.assert_array_equal(grid[:, 0, 1], np.float32(0.9))
        np.testing.assert_array_equal(grid[:, 1], grid[:, 0, ::-1])


def test_exploiting_alone_takes_turns(paths):
    """After five steps both are equal, and the worker copied falls behind, so it copies at the next."""
    path = paths["exploit only"][0]
    first = 0.9 * 0.96**5
    np.testing.assert_allclose(path[4], [[first, 0.9], [0.9, first]], rtol=1e-5)
    np.testing.assert_allclose(path[5], [[first * 0.96, 0.9], [first, 0.9 * 0.96]], rtol=1e-5)
    np.testing.assert_allclose(path[-1, 0], path[-1, 1], atol=0.01)


def test_q_is_drawn_over_the_steps(toy, paths):
    """Grid search's Q = 1.2 - 0.81 (0.96^(2t) + 1) for both workers, and the optimum as a line."""
    from matplotlib.figure import Figure

    figure = Figure()
    toy.draw(figure, {name: path[0] for name, path in paths.items()})
    score = figure.axes[len(toy.PANELS) + [*toy.PANELS].index("grid search")]
    assert (score.get_xlabel(), score.get_ylabel()) == ("step", "Q")
    steps = np.arange(1, 201)
    for line in score.lines[:2]:
        np.testing.assert_array_equal(line.get_xdata(), steps)
        np.testing.assert_allclose(line.get_ydata(), 1.2 - 0.81 * (0.96 ** (2 * steps) + 1), atol=1e-4)
    assert np.asarray(score.lines[2].get_ydata()).tolist() == [1.2, 1.2]


def test_it_runs_as_a_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(PATH.read_text(), "pbt_toy.py", "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "PBT",
        "exploit only",
        "explore only",
        "grid search",
    ]
    assert lines[-1].endswith("best Q 0.3900")
    assert (tmp_path / "pbt_toy.png").read_bytes().startswith(b"\x89PNG")
