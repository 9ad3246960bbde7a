"""lineage.csv: by hand, and as a population's run leaves it, stopped or not."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs.learners import load_learners
from shoal.runs.lineage import ancestors, begin_lineage, extend_lineage, hyper_plan, read_lineage
from shoal.runs.metrics import read_metrics
from shoal.settings import with_settings
from shoal.training.config import TrainConfig

SMALL = PPOConfig(
    num_envs=4, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(4,), learning_rate=0.05
)
SELECT = with_settings(ExchangeConfig(exchange="truncation", local_updates=2), min_episodes=1, fraction=0.5)
CONFIG = TrainConfig("jax:CartPole-v1", algo=SMALL, steps=512, learners=4, reports=4, exchanges=(SELECT,))
EVOLVED = ("learning_rate", "clip_coef", "ent_coef")
HAND = """\
step,learner,parent,score,learning_rate,gamma
0,0,0,,0.1,0.9
0,1,1,,0.2,0.9
0,2,2,,0.3,0.9
10,0,0,5,0.1,0.9
10,1,0,1,0.12,0.95
10,2,2,,0.3,0.9
20,0,1,2,0.15,0.95
20,1,1,7.5,0.12,0.95
20,2,2,3,0.3,0.9
"""


@pytest.fixture
def hand(tmp_path) -> Path:
    """At 10, learner 1 becomes 0; at 20, learner 0 becomes 1; learner 2 is left alone throughout."""
    rates, gammas = np.float32([0.1, 0.2, 0.3]), np.float32([0.9, 0.9, 0.9])
    begin_lineage(tmp_path, {"learning_rate": rates, "gamma": gammas}, None)
    rates, gammas = np.float32([0.1, 0.12, 0.3]), np.float32([0.9, 0.95, 0.9])
    score = np.float32([5, 1, np.nan])
    extend_lineage(tmp_path, 10, np.float32([0, 0, 2]), score, {"learning_rate": rates, "gamma": gammas})
    rates, gammas = np.float32([0.15, 0.12, 0.3]), np.float32([0.95, 0.95, 0.9])
    score = np.float32([2, 7.5, 3])
    extend_lineage(tmp_path, 20, np.float32([1, 1, 2]), score, {"learning_rate": rates, "gamma": gammas})
    return tmp_path


def nine(text):
    """The same table with the nine digits that a 32-bit number needs."""
    head, *lines = text.splitlines()
    long = lambda line: [*line.split(",")[:4], *(f"{np.float32(x):.9g}" for x in line.split(",")[4:])]
    return "\n".join([head, *(",".join(long(line)) for line in lines)]) + "\n"


def test_a_row_for_every_learner_and_event(hand):
    assert (hand / "lineage.csv").read_text() == nine(HAND)


def test_what_is_written_is_read(hand):
    lineage = read_lineage(hand)
    assert lineage.steps.tolist() == [0, 10, 20]
    assert lineage.parent.tolist() == [[0, 1, 2], [0, 0, 2], [1, 1, 2]]
    nan = np.nan
    np.testing.assert_array_equal(lineage.score, [[nan, nan, nan], [5, 1, nan], [2, 7.5, 3]])
    rates = np.float32([[0.1, 0.2, 0.3], [0.1, 0.12, 0.3], [0.15, 0.12, 0.3]])
    assert list(lineage.hypers) == ["learning_rate", "gamma"]
    np.testing.assert_array_equal(np.float32(lineage.hypers["learning_rate"]), rates)  # to the bit


def test_any_number_comes_back_to_the_bit(tmp_path):
    values = np.exp(np.random.default_rng(0).uniform(-12, 1, 200)).astype(np.float32)
    begin_lineage(tmp_path, {"x": values}, None)
    np.testing.assert_array_equal(np.float32(read_lineage(tmp_path).hypers["x"][0]), values)


@pytest.mark.parametrize(
    ("learner", "line", "schedule"),
    [
        (0, [0, 1, 0], [(0, 0.1, 0.9), (10, 0.12, 0.95), (20, 0.15, 0.95)]),
        (1, [0, 1, 1], [(0, 0.1, 0.9), (10, 0.12, 0.95)]),
        (2, [2, 2, 2], [(0, 0.3, 0.9)]),
    ],
)
def test_a_line_of_descent_and_its_hyperparameters(hand, learner, line, schedule):
    lineage = read_lineage(hand)
    assert ancestors(lineage, learner).tolist() == line
    found = hyper_plan(lineage, learner)
    assert [(step, *map(np.float32, values.values())) for step, values in found] == [
        (step, np.float32(rate), np.float32(gamma)) for step, rate, gamma in schedule
    ]
    assert all(list(values) == ["learning_rate", "gamma"] for _, values in found)


def test_resuming_drops_the_rows_that_will_be_written_again(hand):
    path = hand / "lineage.csv"
    lines = path.read_text().splitlines(keepends=True)
    with path.open("a") as file:
        file.write("30,0,0,1,0.5,0.9\n30,1,1")  # where it was killed
    begin_lineage(hand, {"learning_rate": np.zeros(3), "gamma": np.zeros(3)}, 20)
    assert path.read_text() == "".join(lines)
    begin_lineage(hand, {"learning_rate": np.zeros(3), "gamma": np.zeros(3)}, 19)
    assert path.read_text() == "".join(lines[:7])
    begin_lineage(hand, {"learning_rate": np.zeros(3), "gamma": np.zeros(3)}, 0)
    assert path.read_text() == "".join(lines[:4])


def test_a_damaged_step_is_left_out_with_all_after_it(hand):
    path = hand / "lineage.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:4], "²" + lines[4][1:], *lines[5:]]), encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="damaged in line 5"):
        begin_lineage(hand, {"learning_rate": np.zeros(3), "gamma": np.zeros(3)}, 20)
    assert path.read_text(encoding="utf-8").startswith("".join(lines[:4]) + "20,")


def test_beginning_anew_starts_a_new_lineage(hand):
    begin_lineage(hand, {"gamma": np.float32([0.5, 0.25])}, None)
    assert (hand / "lineage.csv").read_text() == "step,learner,parent,score,gamma\n0,0,0,,0.5\n0,1,1,,0.25\n"


def test_a_folder_without_a_lineage_is_named(tmp_path):
    with pytest.raises(ShoalError, match=r"has no lineage.csv; give the folder of a population's run"):
        read_lineage(tmp_path)


# Whole runs


@pytest.fixture(scope="module")
def runs(go_on, tmp_path_factory):
    """A run of eight updates, a selection at every second; the same, stopped after five and resumed.

    What was written after the checkpoint, as by a run that was killed, is there when it resumes.
    """
    whole, halves = (tmp_path_factory.mktemp(name) for name in ("whole", "halves"))
    go_on(CONFIG, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["shoal.training.loop"], "PROGRESS_SECONDS", 0)  # look up after every update
        assert go_on(CONFIG, halves, until=320)[0] is None
    for name in ("lineage.csv", "metrics.csv"):
        shutil.copy(whole / name, halves / name)
    with (halves / "lineage.csv").open("a") as file:
        file.write("640,0,0")
    assert go_on(CONFIG, halves)[0] == 320
    return whole, halves


def test_a_run_leaves_a_row_per_learner_and_selection(runs):
    lineage, table = read_lineage(runs[0]), read_metrics(runs[0])
    assert lineage.steps.tolist() == [0, 128, 256, 384, 512]
    assert table["step"].tolist() == [step for step in (128, 256, 384, 512) for _ in range(4)]
    assert tuple(lineage.hypers) == EVOLVED
    for name, values in lineage.hypers.items():
        np.testing.assert_allclose(values[1:].reshape(-1), table[f"hypers/{name}"], rtol=1e-6)
    np.testing.assert_array_equal(lineage.parent[1:].reshape(-1), table["population/parent"])
    np.testing.assert_allclose(lineage.score[1:].reshape(-1), table["population/score"], rtol=1e-5)
    assert np.isnan(lineage.score[0]).all()
    assert lineage.parent[0].tolist() == [0, 1, 2, 3]
    assert all(len(np.unique(values[0])) == 4 for values in lineage.hypers.values())


def test_the_worst_become_the_best_and_the_others_keep_their_hyperparameters(runs):
    lineage = read_lineage(runs[0])
    selections = 0
    for event in range(1, 5):
        parent, score = lineage.parent[event], lineage.score[event]
        replaced = parent != np.arange(4)
        selections += replaced.any()
        assert (score[parent[replaced]] >= score[replaced]).all()
        assert not replaced[np.argmax(score)]
        for values in lineage.hypers.values():
            assert (values[event] == values[event - 1])[~replaced].all()
    assert selections >= 2


def test_the_last_rows_are_what_the_learners_have(runs):
    lineage, opened = read_lineage(runs[0]), load_learners(runs[0])
    for name in EVOLVED:
        np.testing.assert_array_equal(
            np.float32(lineage.hypers[name][-1]), getattr(opened.cohort.hypers, name)
        )


def test_a_killed_run_resumed_has_the_same_lineage_and_the_same_learners(runs):
    whole, halves = runs
    for name in ("lineage.csv", "checkpoints/step_000000512.safetensors"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name


def test_half_an_event_is_not_read(tmp_path):
    begin_lineage(tmp_path, {"gamma": np.array([0.9, 0.8])}, None)
    extend_lineage(tmp_path, 64, np.array([0, 0]), np.array([3.0, 1.0]), {"gamma": np.array([0.9, 0.85])})
    path = tmp_path / "lineage.csv"
    path.write_text(path.read_text() + "128,0,0,4,0.9\n")
    assert read_lineage(tmp_path).steps.tolist() == [0, 64]
