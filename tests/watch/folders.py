"""Folders of runs as training writes them, without training."""

import numpy as np

from shoal.runs.config import write_config
from shoal.runs.lineage import begin_lineage, extend_lineage
from shoal.runs.metrics import MetricsWriter
from shoal.runs.presets import preset
from shoal.runs.summary import write_summary


def write_run(folder, learners=1, reports=3, ended=True, columns=0, **settings):
    """A run of CartPole-v1 with so many reports, 1,024 steps apart, and further columns of metrics."""
    config = preset("CartPole-v1", learners=learners, steps=1024 * reports, **settings)
    folder.mkdir(parents=True)
    write_config(folder / "config.yaml", config)
    with MetricsWriter(folder, None) as writer:
        for report in range(reports):
            write_report(writer, report, learners, columns)
    if ended:
        scores = 10.0 * reports + np.arange(learners)
        write_summary(folder, {"steps": 1024 * reports, "return_mean": scores, "interrupted": False})
    return folder


def add_report(folder, report, learners=1, columns=0):
    """The next report of a run that is there."""
    with MetricsWriter(folder, resume_step=1024 * report) as writer:
        write_report(writer, report, learners, columns)


def write_report(writer, report, learners, columns=0):
    """A return of 10 a report, and one more for each learner."""
    returns = 10.0 * (report + 1) + np.arange(learners)
    more = {f"loss/part{index}": np.full(learners, 0.1234567 * index) for index in range(columns)}
    writer.write(1024 * (report + 1), 1.0 + report, {"return_mean": returns, "loss/total": -returns} | more)


def write_population(folder):
    """Four learners, of which the third replaces the first at step 1,024."""
    write_run(folder, 4, exchange="truncation", evolve=("learning_rate",))
    rates = {"learning_rate": np.array([1e-4, 1e-3, 1e-2, 3e-3])}
    begin_lineage(folder, rates, None)
    changed = {"learning_rate": np.array([1.2e-2, 1e-3, 1e-2, 3e-3])}
    extend_lineage(folder, 1024, np.array([2, 1, 2, 3]), np.array([1.0, 2.0, 9.0, 3.0]), changed)
    return folder


def write_sweep(folder):
    """Four trials of two settings, in one program."""
    write_run(folder / "programs" / "000", learners=4)
    (folder / "sweep.yaml").write_text(
        "method: grid\ntrials: 4\nseeds: 1\nsettings: {algo: ppo}\n"
        "axes:\n  gamma: [0.9, 0.99]\n  learning_rate: [0.001, 0.01]\n"
    )
    header = "trial,gamma,learning_rate,seeds,state,steps,mean,iqm,low,high,scores,programs\n"
    settings = [(0.9, 0.001), (0.9, 0.01), (0.99, 0.001), (0.99, 0.01)]
    rows = [f"{i},{gamma},{rate},1,done,9,,,,,{i},000:{i}\n" for i, (gamma, rate) in enumerate(settings)]
    (folder / "trials.csv").write_text(header + "".join(rows))
    return folder
