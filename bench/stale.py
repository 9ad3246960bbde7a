"""Which rows of docs/results/index.md are stale: their algorithm, environment or preset has changed since.

    python bench/stale.py            prints a line for each row; exit status 1 where one is stale
    python bench/stale.py --write    also writes the states into the page

A row is stale where git has a commit after the row's that touches what decides it. A change of a comment
counts, too: stale means to be done again, not wrong. Of a row whose commit is not in the repository nothing
is known.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rows import ROOT, Row, read_rows, write_page

from shoal.envs.classic import BUILTIN
from shoal.envs.registry import suite_of
from shoal.errors import ShoalError
from shoal.runs.config import expanded
from shoal.runs.presets import find

PRESETS = "shoal/runs/presets.yaml"
ACTING = ("shoal/training/iteration.py", "shoal/training/rollout.py", "shoal/nets", "shoal/ops")
"""What every algorithm runs through."""
PARTS = {
    "ppo": ("ppo*.py", "epochs.py", "gradients.py", "minibatches.py", "sequences.py"),
    "td3": ("td3.py", "twin_critics.py", "off_policy*.py", "replay.py", "bounded_actions.py", "gradients.py"),
    "sac": ("sac.py", "twin_critics.py", "off_policy*.py", "replay.py", "bounded_actions.py", "gradients.py"),
    "dqn": ("dqn.py", "off_policy*.py", "replay.py", "gradients.py"),
}
"""The files of an algorithm in shoal/learners, beside those that all have."""
SHARED = ("hyper_schedules.py", "observations.py")
ADAPTERS = {
    "jax": ("jax_env.py",),
    "envpool": ("envpool.py", "pool_env.py", "observations.py"),
    "gym": ("gymnasium.py", "gym_*.py", "host.py"),
}
"""The files of a suite in shoal/envs/adapters."""


def main(arguments: list[str]) -> int:
    rows = read_rows()
    states = {row: state(row) for row in rows}
    for row, found in states.items():
        print(f"{found:40} {row.env} {row.algo}")
    if "--write" in arguments:
        write_page(rows, states.__getitem__)
    return int(any(found.startswith("stale") for found in states.values()))


def state(row: Row, repo: Path = ROOT) -> str:
    """`current`, `unknown`, or `stale` with what has changed."""
    if row.commit is None or _git(repo, "cat-file", "-e", f"{row.commit}^{{commit}}") is None:
        return "unknown"
    changed = [
        *(["algorithm"] if _touched(repo, row.commit, algorithm_files(row.algo)) else []),
        *(["environment"] if _touched(repo, row.commit, environment_files(row.env)) else []),
        *(["preset"] if preset_at(repo, row.commit, row) != preset_at(repo, "HEAD", row) else []),
    ]
    return f"stale: {', '.join(changed)}" if changed else "current"


def algorithm_files(algo: str) -> list[str]:
    """What decides an algorithm's numbers."""
    return [*ACTING, *(f"shoal/learners/{name}" for name in (*PARTS[algo], *SHARED))]


def environment_files(env: str) -> list[str]:
    """What decides an environment's: its adapter, and the file of one that is built in."""
    try:
        suite = suite_of(env) or "gym"  # Gymnasium knows more once their packages are installed
    except ShoalError:
        suite = "gym"
    files = [f"shoal/envs/adapters/{name}" for name in ADAPTERS.get(suite, (f"{suite}.py",))]
    if suite == "jax" and env in BUILTIN:
        files.append(f"{BUILTIN[env].step.__module__.replace('.', '/')}.py")
    return files


def preset_at(repo: Path, commit: str, row: Row) -> Any:
    """The settings of a row's preset at a commit, by their present names where they have one."""
    text = _git(repo, "show", f"{commit}:{PRESETS}")
    if text is None:
        return None
    presets = _parsed(text)
    if "--param-name" in row.flags:
        entry = presets["named"].get(row.flags[row.flags.index("--param-name") + 1])
    else:
        match = find(row.env, presets.get(row.algo, {}))
        entry = presets[row.algo][match] if match else {}
    said = {name: value for name, value in (entry or {}).items() if name not in ("source", "for", "algo")}
    return dict(_renamed(said, row.algo))


def _renamed(settings: dict[str, Any], algo: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        try:
            yield from expanded({name: value}, algo).items()
        except ShoalError:  # a setting that there is no longer
            yield name, value


@cache
def _parsed(text: str) -> dict[str, Any]:
    return yaml.safe_load(text)


def _touched(repo: Path, commit: str, paths: list[str]) -> bool:
    """Whether a commit after this one touches any of the paths."""
    return bool(_git(repo, "log", "-1", "--format=%h", f"{commit}..HEAD", "--", *paths))


def _git(repo: Path, *arguments: str) -> str | None:
    """What git says; None where it fails."""
    done = subprocess.run(["git", "-C", str(repo), *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
