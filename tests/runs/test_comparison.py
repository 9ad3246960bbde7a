"""Comparisons of runs: answers known from their metrics."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shoal import ExchangeConfig, ShoalError, TrainConfig, compare
from shoal.cli.main import main
from shoal.ops.comparison import Group, improvement
from shoal.runs.config import write_config
from shoal.runs.metrics import MetricsWriter

CONFIG = TrainConfig("CartPole-v1", learners=4)


@pytest.fixture
def write_run(tmp_path):
    """A run with these returns of its learners at steps 100, 200, ..."""

    def write(name, config, *returns):
        folder = tmp_path / name
        folder.mkdir()
        write_config(folder / "config.yaml", config)
        with MetricsWriter(folder, None) as writer:
            for number, values in enumerate(returns, start=1):
                writer.write(100 * number, float(number), {"return_mean": np.array(values, float)})
        return folder

    return write


def alone(*scores):
    return Group(np.array(scores, float), np.arange(len(scores)))


def test_the_probability_of_improvement_is_the_share_of_pairs():
    found = improvement(alone(1, 2, 3), alone(2, 0))
    assert found.value == pytest.approx((1 + 1.5 + 2) / 6)
    assert 0 <= found.low < found.value < found.high <= 1
    assert improvement(alone(2, 0), alone(1, 2, 3)).value == pytest.approx(1 - found.value)


def test_equal_scores_are_even_and_a_score_beats_none():
    assert improvement(alone(1, 1), alone(1)) == (0.5, 0.5, 0.5)
    assert improvement(alone(0), alone(np.nan)).value == 1


def test_learners_that_depend_on_each_other_are_drawn_together():
    scores = np.array([1.0, 1.0, 3.0, 3.0])
    together = improvement(Group(scores, np.array([0, 0, 1, 1])), alone(2))
    apart = improvement(Group(scores, np.arange(4)), alone(2))
    assert together.value == apart.value == 0.5
    assert (together.low, together.high) == (0, 1)
    assert improvement(Group(scores, np.zeros(4)), alone(2)) == (0.5, 0.5, 0.5)


def test_runs_are_compared_at_the_last_step_of_all(write_run):
    one = write_run("one", CONFIG, [0] * 4, [1, 2, 3, 10])
    two = write_run("two", replace(CONFIG, steps=7), [0] * 4, [4, 4, 4, 4], [9] * 4)
    found = compare([one, two])
    first, second = found.groups
    assert (first.label, first.step, second.step) == ("one", 200, 200)
    assert (first.mean.value, first.iqm.value, second.mean.value) == (4.0, 2.5, 4.0)
    assert 1 <= first.mean.low < 4 < first.mean.high <= 10
    assert (first.area.value, second.mean.low, second.mean.high) == (2.0, 4.0, 4.0)
    assert found.improvements["one", "two"].value == 0.25
    assert compare([one, two], at=100).groups[0].mean.value == 0
    with pytest.raises(ShoalError, match="one has no report at step 300; it has them from 100 to 200"):
        compare([one, two], at=300)


def test_seeds_are_pooled(write_run):
    runs = [write_run(f"s{seed}", replace(CONFIG, seed=seed), [seed] * 4) for seed in (1, 2)]
    (found,) = compare(runs).groups
    assert (len(found.scores.scores), found.mean.value) == (8, 1.5)
    assert found.runs == runs


def test_learners_of_one_federation_are_told_to_depend_on_each_other(write_run):
    run = write_run("average", replace(CONFIG, exchanges=(ExchangeConfig("average"),)), [1, 2, 3, 4])
    assert compare([run]).dependent == ["average"]


def test_programs_of_a_sweep_are_refused(write_run):
    config = replace(CONFIG, learner_hypers={"gamma": [0.9, 0.9, 0.99, 0.99]}, distinct_seeds=2)
    with pytest.raises(ShoalError, match="program of a sweep"):
        compare([write_run("000", config, [1, 2, 3, 4])])


def test_the_command_prints_tables_and_json(write_run, capsys):
    one = write_run("one", CONFIG, [1, 2, 3, 10])
    two = write_run("two", replace(CONFIG, steps=7), [40, 40, 40, 40])
    out = one.parent / "both.png"
    assert main(["compare", str(one), str(two), "--label", "old", "new", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "100 % [100, 100]  new is better than old" in printed
    assert out.is_file()
    assert main(["compare", str(one), str(two), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [group["scores"] for group in said["groups"]] == [[1, 2, 3, 10], [40] * 4]
    assert said["improvements"][1] == {"better": "two", "than": "one", "value": 1.0, "low": 1.0, "high": 1.0}
    assert main(["compare"]) == 2
    assert main(["compare", str(one), "--metric", "los"]) == 2
