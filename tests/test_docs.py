"""What the documentation says is tried: Python runs, commands parse, flags exist, links lead somewhere."""

import re
import runpy
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest
import tyro

import shoal
from bench.commands import PAGES, ROOT, blocks, commands, covering, lines, run_blocks, uses
from shoal.cli.check import Check
from shoal.cli.compare import Compare
from shoal.cli.envs import Envs
from shoal.cli.eval import Eval
from shoal.cli.export import Export
from shoal.cli.flags import all_flags
from shoal.cli.parse import parse_train
from shoal.cli.play import Play
from shoal.cli.plot import Plot
from shoal.cli.runs import Runs
from shoal.cli.sweep import SweepFlags, parse_sweep
from shoal.cli.watch import Watch
from shoal.envs.procgen import LEVELS
from shoal.envs.registry import SUITES
from shoal.learners.registry import ALGORITHMS
from shoal.runs.naming import ROOT as RUNS_ROOT
from shoal.runs.naming import folder_name
from shoal.setting_names import SHORT_NAMES
from shoal.training.program import make_trainer

OPTIONS = {
    "eval": Eval,
    "play": Play,
    "plot": Plot,
    "watch": Watch,
    "compare": Compare,
    "export": Export,
    "runs": Runs,
    "envs": Envs,
    "check": Check,
}


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working folder; registries are afterwards as they were."""
    import gymnasium

    monkeypatch.chdir(tmp_path)
    before = [(registry, dict(registry)) for registry in (gymnasium.registry, ALGORITHMS, SUITES)]
    yield tmp_path
    for registry, kept in before:
        for name in registry.keys() - kept.keys():
            del registry[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_on_the_page_runs(page, in_folder):
    run_blocks(page)


SLOW = pytest.mark.slow  # tyro takes a quarter of a second for each; flags are looked up below in any case


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[SLOW] * (page != "README.md")) for page in PAGES if commands(page)],
)
def test_commands_parse(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command, *arguments in commands(page):
        if command == "train" and "--help" not in arguments:
            parse_train(arguments)[0].check()
        elif command == "sweep":
            parse_sweep(arguments)[0].describe()
        elif command != "train":
            tyro.cli(OPTIONS[command], args=arguments)


def named_runs(page: str) -> set[str]:
    """The folders on a page that are named after settings."""
    return set(re.findall(r"\bruns/[\w.+-]+__[\w.+-]*\w", (ROOT / page).read_text()))


def folder_of(arguments: list[str]) -> str:
    config, (output, _) = parse_train(arguments)
    return str(output.folder or RUNS_ROOT / folder_name(config))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if named_runs(page) and "run-folder" not in page])
def test_run_folders_are_those_of_the_commands(page, monkeypatch):
    """Of the page's, or of README's first ones."""
    monkeypatch.chdir(ROOT)
    trained = [arguments for command, *arguments in commands(page) if command == "train"]
    known = {folder_of(arguments) for arguments in trained if "--help" not in arguments}
    assert named_runs(page) - known <= {"runs/CartPole-v1__ppo__s1", "runs/CartPole-v1__ppo__s1__L64"}


def test_run_folders_are_named_as_their_page_says():
    text = (ROOT / "docs" / "reference" / "run-folder.md").read_text()
    lines = re.findall(r"^\| `(shoal train|\.\.\.)( .*?)` \| `([^`]+)`", text, re.MULTILINE)
    assert len(lines) == 8
    for start, arguments, folder in lines:
        env = ["CartPole-v1"] * (start == "...")
        assert folder_of([*env, *arguments.split()]) == folder


def test_chosen_commands_cover_all():
    chosen = covering(PAGES)
    used = lambda found: set().union(*(uses(line) for _, line in found))
    every = [(page, line) for page in PAGES for line in lines(page)]
    assert used(chosen) == used(every)
    assert len(chosen) < len(every) * 2 / 3
    needed = ("docs/how-to/compare.md", ["shoal", "train", "CartPole-v1", "--seeds", "8", "--name", "old"])
    assert needed in chosen, "shoal compare old new takes this one's run"


@pytest.mark.slow
def test_commands_work_as_written():
    """Those that use a flag, an environment or a choice that no other does; without --covering it runs all.

    Some need what is not installed here.
    """
    script = [sys.executable, "bench/commands.py", "--only", "commands", "--covering"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


ELSEWHERE = "--render --logdir --seeds --as-published --prox --form --version --help --directory"
ELSEWHERE += " --project --rm --gpus --build-arg --signal"
ELSEWHERE += " --superlink --root-certificates --auth-supernode-private-key --node-config --run-config --show"
ELSEWHERE += (
    " --ssl-certfile --ssl-keyfile --ssl-ca-certfile --enable-supernode-auth --trusted-entities --database"
)
ELSEWHERE += " --disable-runtime-dependency-installation --generate"
"""Flags of other programs, and those that no class has."""


@pytest.mark.parametrize("page", PAGES)
def test_flags_in_the_text_exist(page):
    names = {name for algo in ALGORITHMS for name in all_flags(algo)}
    names |= {field.name for options in (*OPTIONS.values(), SweepFlags) for field in fields(options)}
    names |= {short for short, name in SHORT_NAMES.items() if name in names} | {*LEVELS}  # Procgen's
    flags = {f"--{name}".replace("_", "-") for name in names}
    flags |= {flag.replace("--", "--no-") for flag in flags} | set(ELSEWHERE.split())
    text = re.sub(
        r"^(#SBATCH|\|---|.*(bench/|pip |srun |mpirun |wsl |ray (start|get-auth-token) )).*$",
        "",
        (ROOT / page).read_text(),
        flags=re.M,
    )
    if "coming-from" in page:  # the left column is of the other library
        text = re.sub(r"^\|(?:[^|]|\\\|)*\|", "", text, flags=re.M)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", text)) <= flags


RUNS = {
    "ppo": {"env": "CartPole-v1", "objective": "kl", "curiosity": True, "anneal_clip": True},
    "td3": {"env": "Pendulum-v1", "exchange": "truncation"},
    "sac": {"env": "Pendulum-v1", "exchange": "average", "prox_coef": 0.1},
    "dqn": {"env": "CartPole-v1", "exchange": "neighbours"},
}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_metrics_are_on_their_page(algo):
    trainer = make_trainer(shoal.preset(algo=algo, learners=2, **RUNS[algo]))
    _, progress = jax.eval_shape(trainer.advance, jax.eval_shape(trainer.init), jnp.int32(1))
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = [re.escape(name).replace("NAME", r"\w+") for name in re.findall(r"`([^`]+)`", page)]
    assert not [name for name in progress.metrics if not re.fullmatch("|".join(known), name)]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"])
def test_links_outside_the_site_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert not [link for link in links if not ((ROOT / page).parent / link).exists()]


def test_files_named_in_explanations_are_there():
    """By their path here or in `shoal/`, or by their name alone."""
    pages = [*(ROOT / "docs/explanation").glob("*.md"), ROOT / "docs/how-to/add-an-environment-suite.md"]
    named = {name for page in pages for name in re.findall(r"`([\w/]+\.py)`", page.read_text())}
    files = [path.relative_to(ROOT) for path in (ROOT / "shoal").rglob("*.py")]
    known = {str(path) for path in files} | {str(path.relative_to("shoal")) for path in files}
    known |= {path.name for path in files}
    assert len(named) > 20
    assert not named - known


def test_settings_page_is_up_to_date():
    written = runpy.run_path(str(ROOT / "docs" / "reference" / "settings.py"))["page"]()
    page = ROOT / "docs" / "reference" / "settings.md"
    assert page.read_text() == written, "run python docs/reference/settings.py"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mkdocs"), reason="make docs installs mkdocs")
def test_site_builds_and_fetches_nothing_from_elsewhere(tmp_path):
    """A link that leads nowhere, or a name without documentation, fails the build."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tags = "script|img|iframe|source|link|video|audio|embed|object"
    fetched = rf"<(?:{tags})\b[^>]*?(?:src|href|data)=[\"']?(?:https?:)?//"
    for page in tmp_path.rglob("*.html"):
        assert not re.search(fetched, page.read_text()), page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()), sheet
    assert "exchange/bytes" in (tmp_path / "search" / "search_index.json").read_text()
