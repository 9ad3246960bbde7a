"""Which runs are plotted, and which are one curve: those that differ in the seed alone."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import shoal
from shoal.errors import ShoalError
from shoal.runs.config import write_config
from shoal.runs.metrics import MetricsWriter
from shoal.runs.plots.groups import find_runs, group_runs, label_groups, read_all, read_config, title_of
from shoal.runs.plots.run import PlotOptions, plot

CONFIG = shoal.TrainConfig("CartPole-v1", learners=2)


def make_run(folder: Path, **settings) -> Path:
    with MetricsWriter(folder, None) as writer:
        for step in (1000, 2000):
            writer.write(step, 1.0, {"return_mean": [1.0, 2.0]})
    write_config(folder / "config.yaml", replace(CONFIG, **settings))
    return folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 3):
        make_run(Path(f"runs/env__ppo__s{seed}"), seed=seed)
        make_run(Path(f"runs/other/env__ppo__s{seed}__long"), seed=seed, steps=200_000)
    return Path("runs")


def grouped(*given: Path | str) -> dict[str, list[str]]:
    groups = label_groups(group_runs(read_all(find_runs(given), read_config)), ())
    return {label: [run.name for run in group.runs] for label, group in groups.items()}


def test_runs_that_differ_in_the_seed_alone_are_one_curve(runs):
    assert grouped(runs) == {
        "env__ppo, 3 seeds": [f"env__ppo__s{seed}" for seed in (1, 2, 3)],
        "env__ppo__long, 3 seeds": [f"env__ppo__s{seed}__long" for seed in (1, 2, 3)],
    }


def test_folders_patterns_and_runs_are_found_once_and_in_order(runs):
    assert grouped("runs/*s2", "runs/other/*1*", runs / "env__ppo__s2") == {
        "env__ppo__s2": ["env__ppo__s2"],
        "env__ppo__s1__long": ["env__ppo__s1__long"],
    }
    with pytest.raises(ShoalError, match=r"no folder matches runs/x\*"):
        find_runs(["runs/x*"])


def test_groups_of_one_name_are_told_apart(runs):
    for name, seed, steps in (("a", 1, 100_000), ("b", 2, 100_000), ("c", 1, 50_000), ("d", 2, 50_000)):
        make_run(runs / "named" / name, seed=seed, steps=steps)
    assert list(grouped(runs / "named")) == ["a, 2 seeds", "c, 2 seeds"]


def test_labels_are_one_for_each_curve(runs):
    plot([runs], "figure.png", PlotOptions(label=("short", "long")))
    with pytest.raises(ShoalError, match="1 label for 2 curves: env__ppo, 3 seeds; env__ppo__long, 3 seeds"):
        plot([runs], "figure.png", PlotOptions(label=("short",)))
    with pytest.raises(ShoalError, match="two curves have one label"):
        plot([runs], "figure.png", PlotOptions(label=("same", "same")))


def test_a_run_that_cannot_be_read_is_left_out_of_several(runs):
    (runs / "env__ppo__s2" / "metrics.csv").write_text("nonsense\n")
    with pytest.warns(RuntimeWarning, match="a run is left out: .*env__ppo__s2.metrics.csv is not a metrics"):
        plot([runs], "figure.png")
    with pytest.raises(ShoalError, match="is not a metrics file"):
        plot([runs / "env__ppo__s2"], "figure.png")
    with pytest.raises(ShoalError, match=r"no run .*nowhere"):
        plot(["nowhere"], "figure.png")


def test_a_run_without_settings_is_a_curve_of_its_own(runs):
    for seed in (1, 2):
        (runs / f"env__ppo__s{seed}" / "config.yaml").unlink()
    with warnings.catch_warnings(action="error"):
        assert len(grouped("runs/*s?")) == 3


def test_learners_that_exchange_are_drawn_by_runs(runs):
    average = shoal.ExchangeConfig("average")
    configs = {Path(f"{seed}"): replace(CONFIG, seed=seed, exchanges=(average,)) for seed in (1, 2)}
    (group,) = group_runs(configs)
    assert group.dependent
    assert not group_runs({Path("1"): configs[Path("1")]})[0].dependent  # of one run, its learners are all
    assert title_of(group.config, "") == "CartPole-v1, PPO, 2 learners, average"
