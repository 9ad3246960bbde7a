"""What `shoal watch` costs and how soon it shows: training beside it, 200 runs, 4,096 learners, memory.

python bench/watch.py              everything, about 10 minutes; needs playwright and chromium
python bench/watch.py --only cost      or list, learners, memory
python bench/watch.py --only hour      as memory, at the pace of a run: an hour

`cost`: steps/s of training with the page open in a browser, and without, in turn. `list` and `learners`:
seconds from opening the address to the last row, or to the heatmap, of a server that has read nothing, and
how many the server and the browser computed, which other work on the machine hardly changes. `memory`: of the
server, early and late in the reports of an hour, which are written in a few minutes; `hour` writes one each
second.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from playwright.sync_api import CDPSession, Page, sync_playwright

from shoal.runs.config import write_config
from shoal.runs.metrics import MetricsWriter
from shoal.runs.presets import preset
from shoal.runs.summary import write_summary

REPEATS = 5
STEPS = 400_000
METRICS = 17
"""Columns beside step, learner and seconds."""
HOUR = 3600
"""Reports of an hour: one each second."""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """The page's address and the server's process."""
    command = [sys.executable, "-m", "shoal.cli", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "the server prints its address"
        try:
            yield found[0], process.pid
        finally:
            process.kill()


@contextmanager
def browsing() -> Iterator[Page]:
    """A page of a browser without a window."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def write_run(folder: Path, learners: int, reports: int) -> None:
    """A run with random metrics."""
    random, folder = np.random.default_rng(0), folder / f"run{len(list(folder.iterdir())):03d}"
    folder.mkdir()
    write_config(folder / "config.yaml", preset("CartPole-v1", learners=learners, steps=1024 * reports))
    names = ["return_mean", *(f"loss/part{index:02d}" for index in range(METRICS - 1))]
    with MetricsWriter(folder, None) as writer:
        for report in range(reports):
            values = random.normal(report, 5, (METRICS, learners)).astype(np.float32)
            writer.write(1024 * (report + 1), 1.0 + report, dict(zip(names, values, strict=True)))
    write_summary(folder, {"steps": 1024 * reports, "return_mean": values[0], "interrupted": False})


def cost(folder: Path) -> dict[str, float]:
    """Medians of steps/s, without and with the page, and the share of a processor that the server has."""
    speeds: dict[str, list[float]] = {"without": [], "with": []}
    shares = []
    train(folder / "warm")
    for repeat in range(REPEATS):
        for kind, found in speeds.items():
            run = folder / kind / str(repeat)
            run.mkdir(parents=True)
            if kind == "without":
                found.append(train(run))
                continue
            with serving(run.parent) as (url, process), browsing() as page:
                page.goto(url)
                began, computed = time.perf_counter(), computed_seconds(process)
                found.append(train(run))
                shares.append((computed_seconds(process) - computed) / (time.perf_counter() - began))
    without, beside = (float(np.median(found)) for found in speeds.values())
    return {
        "without": without,
        "with": beside,
        "change_percent": 100 * (beside / without - 1),
        "server_cpu_share": float(np.median(shares)),
    }


def train(folder: Path) -> float:
    """Steps/s of eight CartPole learners."""
    command = ["train", "CartPole-v1", "--learners", "8", "--steps", str(STEPS), "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "shoal.cli", *command], check=True, capture_output=True)
    return json.loads((folder / "summary.json").read_text())["steps_per_second_compiled"]


def listing(folder: Path) -> dict[str, float]:
    """Seconds until 200 runs are listed."""
    for _ in range(200):
        write_run(folder, learners=4, reports=20)
    return opened(folder, "", "tbody tr:nth-child(200)")


def learners(folder: Path) -> dict[str, float]:
    """Seconds until the heatmap of 4,096 learners and 100 reports is there."""
    write_run(folder, learners=4096, reports=100)
    megabytes = sum(path.stat().st_size for path in folder.rglob("metrics.csv")) / 1e6
    with serving(folder) as (url, _), browsing() as page:
        page.goto(url)
        link = page.locator("tbody a").first.get_attribute("href")
    return opened(folder, link or "", "canvas.heat") | {"metrics_megabytes": megabytes}


def opened(folder: Path, place: str, selector: str) -> dict[str, float]:
    """Seconds from opening an address to what is waited for, and seconds that the server computed."""
    with serving(folder) as (url, process), browsing() as page:
        page.goto("about:blank")
        browser = page.context.browser
        assert browser is not None
        session = browser.new_browser_cdp_session()
        began, computed, drawn = time.perf_counter(), computed_seconds(process), browser_seconds(session)
        page.goto(f"{url}/{place}")
        page.wait_for_selector(selector)
        return {
            "seconds": time.perf_counter() - began,
            "server_cpu_seconds": computed_seconds(process) - computed,
            "browser_cpu_seconds": browser_seconds(session) - drawn,
        }


def browser_seconds(session: CDPSession) -> float:
    """Seconds of a processor that the browser's processes have had."""
    return sum(one["cpuTime"] for one in session.send("SystemInfo.getProcessInfo")["processInfo"])


def computed_seconds(process: int) -> float:
    """Seconds of a processor that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(folder: Path, pause: float = 0.03) -> dict[str, float]:
    """Megabytes of the server while the reports of an hour are written, its page open."""
    run = folder / "run"
    run.mkdir()
    write_config(run / "config.yaml", preset("CartPole-v1", learners=8, steps=1024 * HOUR))
    found = {}
    with serving(folder) as (url, process), browsing() as page, MetricsWriter(run, None) as writer:
        for report in range(HOUR):
            values = {f"loss/{index}": np.full(8, float(report)) for index in range(METRICS)}
            writer.write(1024 * (report + 1), 1.0 + report, values | {"return_mean": np.arange(8.0)})
            if report == 0:
                page.goto(url)
                page.locator("tbody a").first.click()
                page.wait_for_selector("figure.chart svg")
            if report in (HOUR // 60, HOUR // 10, HOUR // 2, HOUR - 1):
                page.wait_for_timeout(3000)
                status = Path(f"/proc/{process}/status").read_text()
                found[f"after_{report + 1}_reports"] = int(status.split("VmRSS:")[1].split()[0]) / 1e3
            time.sleep(pause)
    return found


def hour(folder: Path) -> dict[str, float]:
    """The same while a report is written each second."""
    return memory(folder, 1.0)


QUICK = {"cost": cost, "list": listing, "learners": learners, "memory": memory}
PARTS = QUICK | {"hour": hour}


def main() -> None:
    """Print a line of JSON for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    for name in [only] if only else QUICK:
        with TemporaryDirectory() as folder:
            print(json.dumps({"part": name, **PARTS[name](Path(folder))}), flush=True)


if __name__ == "__main__":
    main()
