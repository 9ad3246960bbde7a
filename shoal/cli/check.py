"""`shoal check`: what an environment does wrong, before a learner suffers from it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import tyro

from shoal.cli import show
from shoal.cli.arguments import read_arguments
from shoal.cli.parse import read_options
from shoal.cli.status import STATUS
from shoal.envs.checks.environment import check_environment
from shoal.envs.checks.findings import Finding, ok, problem
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.learners.context import LearnerContext
from shoal.learners.registry import ALGORITHMS, make_registered
from shoal.runs.cache import cache_compilations
from shoal.runs.presets import preset, preset_settings


@dataclass(frozen=True)
class Check:
    """Try an environment with random actions: spaces, numbers, resets, ends, repeats, pictures, speed."""

    env: tyro.conf.Positional[str]
    """The environment, as for shoal train."""
    algo: str | None = None
    """An algorithm that must be able to train it; all are tried unless given."""
    env_options: tuple[str, ...] = ()
    """Options of the environment's constructor, NAME=VALUE each."""
    steps: int = 1000
    """Random steps in each of four environments; fewer where they are slow."""
    seed: int = 0
    """The seed of the episodes and the actions."""
    json: bool = False
    """Print one JSON list instead of a table."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Print what was found; 1 where there are problems."""
    options = read_arguments(Check, "shoal check", arguments)
    cache_compilations()
    STATUS.clear()
    if options.json:
        with show.stdout_to_stderr():
            found = list(_findings(options))
        print(json.dumps([finding._asdict() for finding in found], indent=1))
    else:
        found = list(map(show.finding, _findings(options)))
        show.verdict(options.env, found)
    return int(any(finding.level == "problem" for finding in found))


def _findings(options: Check) -> Iterator[Finding]:
    env_options = read_options(options.env_options)
    broken = False
    for finding in check_environment(options.env, env_options, options.steps, options.seed):
        yield finding
        broken = broken or (finding.topic, finding.level) == ("spaces", "problem")
    if not broken:
        yield from _algorithms(options.env, env_options, options.algo)


def _algorithms(env: str, env_options: dict, wanted: str | None) -> Iterator[Finding]:
    """Which algorithms can train it, and whether there is a preset."""
    spec, fitting = make(env, **env_options).spec, []
    for name in [wanted] if wanted else ALGORITHMS:
        try:
            make_registered(preset(env, algo=name).algo, spec, LearnerContext())
            fitting.append(f"{name} (with a preset)" if preset_settings(env, name) else name)
        except ShoalError as error:
            if wanted:
                yield problem("algorithms", str(error))
                return
    if fitting:
        yield ok("algorithms", f"{', '.join(fitting)} can train it")
    else:
        yield problem("algorithms", "none can train it")
