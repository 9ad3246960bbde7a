"""Pictures of every view of `shoal watch`, light and dark: python docs/images/watch.py [--runs FOLDER]

Without --runs it first trains the runs that are shown. Needs playwright, and chromium or google-chrome.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
SIZE = {"width": 1000, "height": 960}
COLOURS = 96
POPULATION = "CartPole-v1__ppo__s1__L16__truncation-k10__evolve-learning_rate-ent_coef"
RING = "CartPole-v1__ppo__s1__L8__spread1__gossip"
MANY = "CartPole-v1__ppo__s1__L64"
TRAIN = (
    "train CartPole-v1 --steps 100000 --learners 16 --exchange truncation --local-updates 10 "
    "--evolve learning_rate ent_coef",
    "train CartPole-v1 --steps 60000 --learners 8 --env-spread 1 --exchange gossip --topology ring",
    "train CartPole-v1 --steps 60000 --learners 64",
    "train Pendulum-v1 --steps 60000 --learners 4 --film-every 30000",
    "sweep CartPole-v1 --grid learning_rate=1e-4,3e-4,1e-3 gamma=0.98,0.99 --seeds 2 --steps 30000",
)


def main() -> None:
    """Write watch_VIEW_THEME.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args().runs
    with TemporaryDirectory() as folder:
        for command in () if given else TRAIN:
            subprocess.run([sys.executable, "-m", "shoal.cli", *shlex.split(command)], cwd=folder, check=True)
        command = [sys.executable, "-m", "shoal.cli", "watch", "--port", "0"]
        place = given.parent if given else folder
        with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                take_all(server.stdout.readline().split()[2])
            finally:
                server.kill()


def take_all(url: str) -> None:
    """Every view in both themes."""
    listed = json.load(urlopen(f"{url}/api/runs"))
    ids = {run["name"]: run["id"] for run in listed["runs"]}
    compared = "&".join(f"run={ids[name]}" for name in (POPULATION, RING, MANY))
    views = {
        "runs": ("", None),
        "run": (f"run/{ids[MANY]}", None),
        "population": (f"run/{ids[POPULATION]}", "Lineage"),
        "graph": (f"run/{ids[RING]}", "Who sends to whom"),
        "worlds": (f"run/{ids[RING]}", "Worlds"),
        "learner": (f"run/{ids[RING]}/learner/3", None),
        "compare": (f"compare?{compared}", None),
        "sweep": (f"sweep/{listed['sweeps'][0]['id']}", None),
    }
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            for name, (address, card) in views.items():
                page = browser.new_page(color_scheme=theme, viewport=SIZE)
                page.goto(f"{url}/#/{address}")
                page.wait_for_selector("main svg")
                page.wait_for_timeout(4000)  # all charts
                take(page, card, HERE / f"watch_{name}_{theme}.png")
                page.close()
        browser.close()


def take(page: Page, card: str | None, path: Path) -> None:
    """The page's beginning, or one of its cards."""
    if card:
        page.locator("section.card", has=page.get_by_role("heading", name=card)).screenshot(path=path)
    else:
        page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
