"""What the documentation says is tried: Python runs, commands parse, flags exist, links lead somewhere."""

import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tyro

import shoal
from shoal.cli.envs import Envs
from shoal.cli.eval import Eval
from shoal.cli.flags import all_flags
from shoal.cli.main import main
from shoal.cli.parse import parse_train
from shoal.cli.play import Play
from shoal.cli.plot import Plot
from shoal.envs.registry import SUITES
from shoal.learners.registry import ALGORITHMS
from shoal.setting_names import SHORT_NAMES
from shoal.training.program import make_trainer

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
OPTIONS = {"eval": Eval, "play": Play, "plot": Plot, "envs": Envs}


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def commands(page: str) -> list[list[str]]:
    """The arguments of every `shoal` on a page, those behind mpirun and srun too."""
    text = "\n".join(blocks(page, "sh", "bash")).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[line.index("shoal") + 1 :] for line in words if "shoal" in line]


def shortened(code: str) -> str:
    """The same with few steps and episodes."""
    assert "steps=" in code or not re.search(r"shoal\.(run|train)\(", code), "say for how many steps"
    code = re.sub(r"\b[\d *]*\d+_000\b", "1_024", code)
    return re.sub(r"\b(episodes=|EPISODES = .*?)\d+", r"\g<1>2", code)


def run_python(page: str) -> None:
    """Run the blocks of a page in one namespace, but those that need what is not installed."""
    names: dict = {"__name__": "docs"}
    for block in blocks(page, "python"):
        if all(find_spec(module) for module in re.findall(r"^# needs: (\w+)", block)):
            exec(compile(shortened(block), page, "exec"), names)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working folder; registries are afterwards as they were."""
    import gymnasium

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.cli.cache.cache_compilations", lambda: None)  # tests have their own cache
    before = [(registry, dict(registry)) for registry in (gymnasium.registry, ALGORITHMS, SUITES)]
    yield tmp_path
    for registry, kept in before:
        for name in registry.keys() - kept.keys():
            del registry[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_on_the_page_runs(page, in_folder):
    run_python(page)


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
        elif command != "train":
            tyro.cli(OPTIONS[command], args=arguments)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "tutorial/" in page])
def test_every_command_of_a_tutorial_works(page, in_folder):
    short = {"train": ["--steps", "1024"], "eval": ["--episodes", "2"]}
    for command, *arguments in commands(page):
        extra = [] if "--help" in arguments else short.get(command, [])
        assert main([command, *arguments, *extra]) == 0, arguments


ELSEWHERE = "--logdir --seeds --as-published --prox --form --version --help --directory"
ELSEWHERE += " --project --rm --gpus --build-arg"
"""Flags of other programs, and those that no class has."""


@pytest.mark.parametrize("page", [page for page in PAGES if "coming-from" not in page])
def test_flags_in_the_text_exist(page):
    names = {name for algo in ALGORITHMS for name in all_flags(algo)}
    names |= {field.name for options in OPTIONS.values() for field in fields(options)}
    names |= {short for short, name in SHORT_NAMES.items() if name in names}
    flags = {f"--{name}".replace("_", "-") for name in names}
    flags |= {flag.replace("--", "--no-") for flag in flags} | set(ELSEWHERE.split())
    text = re.sub(
        r"^(#SBATCH|\|---|.*(bench/|pip |srun |mpirun )).*$", "", (ROOT / page).read_text(), flags=re.M
    )
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
