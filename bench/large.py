"""Many reports and many learners: does writing a run's files stay linear?

    python bench/large.py [--out bench/results/large.md]

Reports are those of a run, 12 metrics each; checkpoints hold 3 KB a learner.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from shoal.runs import checkpoint
from shoal.runs.metrics import MetricsWriter, read_last_report, read_metrics

NAMES = [f"loss/{i}" for i in range(10)] + ["return_mean", "episodes"]


def report(learners: int, number: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    return {name: random.normal(size=learners).astype(np.float32) for name in NAMES}


def metrics(reports: int, learners: int, batch: int) -> str:
    """A row: reports written, in batches as a run has them, read, resumed from the middle."""
    made = [report(learners, number) for number in range(min(reports, 50))]
    with tempfile.TemporaryDirectory() as name:
        folder, tenths = Path(name), []
        with MetricsWriter(folder, None) as writer:
            for tenth in range(10):
                began = time.perf_counter()
                steps = range(tenth * reports // 10, (tenth + 1) * reports // 10)
                for start in range(steps.start, steps.stop, batch):
                    several = range(start, min(start + batch, steps.stop))
                    writer.write_all([(step + 1, 0.0, made[step % len(made)]) for step in several])
                    writer.write_events()
                tenths.append(time.perf_counter() - began)
        began = time.perf_counter()
        read_metrics(folder)
        read = time.perf_counter() - began
        began = time.perf_counter()
        read_last_report(folder, learners)
        last = time.perf_counter() - began
        size = (folder / "metrics.csv").stat().st_size / 1e6
        began = time.perf_counter()
        MetricsWriter(folder, reports // 2).close()
        resumed = time.perf_counter() - began
    return (
        f"| {reports:,} | {learners:,} | {size:,.0f} | {tenths[0]:.2f} | {tenths[-1]:.2f} | {read:.2f} | "
        f"{1000 * last:.1f} | {resumed:.2f} |"
    )


def checkpoints(kept: int, learners: int) -> str:
    """A row: checkpoints that are all kept."""
    arrays = {"cohort/params/weight": np.zeros((learners, 16, 48), np.float32)}
    meta = {"kept": True, "score": 1.0, "scores": [0.0] * learners, "iteration": 1}
    with tempfile.TemporaryDirectory() as name:
        tenths = []
        for tenth in range(10):
            began = time.perf_counter()
            for step in range(tenth * kept // 10, (tenth + 1) * kept // 10):
                checkpoint.write(Path(name), step + 1, arrays, meta)
                checkpoint.prune(Path(name))
            tenths.append(time.perf_counter() - began)
    each = 10 / kept
    return f"| {kept:,} | {learners:,} | {1000 * tenths[0] * each:.1f} | {1000 * tenths[-1] * each:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "Seconds to write the first and the last tenth of the reports, to read all, and to resume from the",
        "middle; milliseconds to read the last report. By `python bench/large.py`.",
        "",
        "| reports | learners | MB | first tenth, s | last tenth, s | read, s | end, ms | resume, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in ((10_000, 1, 20), (100_000, 1, 20), (20, 16_384, 1), (40, 16_384, 1)):
        lines.append(metrics(*case))
        print(lines[-1], flush=True)
    lines += [
        "",
        "Milliseconds to save one of the first and of the last tenth of checkpoints that are all kept.",
        "",
        "| checkpoints | learners | first tenth, ms | last tenth, ms |",
        "|---|---|---|---|",
    ]
    for case in ((200, 16), (1_000, 16), (40, 16_384)):
        lines.append(checkpoints(*case))
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
