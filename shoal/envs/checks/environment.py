"""Checks of an environment, one after another, as `shoal check` prints them."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from shoal.envs.adapters.host import EnvironmentCrashed, one_line_errors
from shoal.envs.adapters.workers import WORKERS
from shoal.envs.checks import rules
from shoal.envs.checks.findings import Finding, ok, warning
from shoal.envs.checks.gymnasium import check_gymnasium, speed_alone
from shoal.envs.checks.sample import Player, Sample, make_player, play
from shoal.envs.describe import describe
from shoal.envs.registry import make, suite_of
from shoal.envs.worlds.parameters import default_worlds, named, read_worlds
from shoal.errors import ShoalError
from shoal.imports import MissingPackage
from shoal.types import EnvRecipe, EnvSpec, Tree

ROWS = 4
"""Environments that are stepped together; the first two have equal seeds."""
SECONDS = 5.0
"""About how long random episodes are played, where steps are slow."""
FEW = 64
"""Steps of episodes that are played again: after a second reset, in other worlds."""
SLOW = 10_000
"""Steps per second of a Python environment below which workers pay."""


def check_environment(
    name: str, options: dict[str, Any] | None = None, steps: int = 1000, seed: int = 0
) -> Iterator[Finding]:
    """Everything that can be found out about an environment by random actions.

    >>> [finding.topic for finding in check_environment("CartPole-v1") if finding.level == "problem"]
    []
    """
    options = options or {}
    suite, identifier = suite_of(name), name.split(":")[-1]
    try:
        if suite == "gym":
            yield from check_gymnasium(identifier, options)
        recipe = make(name, **options)
        yield ok("spaces", "; ".join(f"{key} {value}" for key, value in describe(recipe.spec).items()))
        yield from rules.check_actions(recipe.spec)
        yield from _check_episodes(recipe, steps, seed)
        alone = speed_alone(identifier, options) if suite == "gym" else None
    except ShoalError as error:
        if suite is None or isinstance(error, MissingPackage):
            raise
        yield found_by("spaces" if not isinstance(error, EnvironmentCrashed) else "steps", error)
        return
    yield from _check_pictures(recipe, seed)
    if alone:
        hint = (
            "; --env-options workers=N steps it on N cores" if alone < SLOW and WORKERS not in options else ""
        )
        yield ok("speed", f"{alone:,.0f} steps/s by itself, in Python{hint}")


def found_by(topic: str, error: ShoalError) -> Finding:
    """The problem that an exception tells of."""
    return Finding("problem", topic, str(error), error.traceback_text)


def _check_episodes(recipe: EnvRecipe, steps: int, seed: int) -> Iterator[Finding]:
    """The rules, on random episodes."""
    spec = recipe.spec
    worlds = default_worlds(spec, ROWS)
    player = _player(recipe, worlds, seed)
    sample = play(player, worlds, steps, SECONDS)
    again = None if spec.backend == "envpool" else play(player, worlds, FEW)  # a pool's reset goes on
    yield from rules.check_observations(spec, sample)
    yield from rules.check_masks(spec, sample)
    yield from rules.check_rewards(sample)
    yield from rules.check_resets(sample)
    yield from rules.check_repeats(sample, again)
    yield from rules.check_ends(spec, sample)
    if again and spec.params:
        yield _check_worlds(spec, player, again)
    rate = sample.steps_per_second
    yield ok(
        "speed", f"{rate:,.0f} steps/s in Shoal, {ROWS} at a time; a million take {_duration(1e6 / rate)}"
    )


def _duration(seconds: float) -> str:
    """A time in words.

    >>> _duration(8.2), _duration(300), _duration(36_000)
    ('8 seconds', '5 minutes', '10 hours')
    """
    for unit, length in (("seconds", 1), ("minutes", 60)):
        if seconds < 120 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 3600:.0f} hours"


def _player(recipe: EnvRecipe, worlds: Tree, seed: int) -> Player:
    """Random episodes of ROWS environments, the first two from one seed."""
    seeds = np.random.SeedSequence([seed, 5]).generate_state(ROWS)
    seeds[1] = seeds[0]
    return make_player(recipe.build(seeds[None], False), jax.vmap(jax.random.key)(seeds), worlds)


def _check_worlds(spec: EnvSpec, player: Player, default: Sample) -> Finding:
    """Every physical parameter makes a difference."""
    idle = []
    for name, value in named(spec.params).items():
        world = {name: _another(spec, name, float(value))}
        changed = play(player, read_worlds(spec, [world] * ROWS, range(ROWS)), FEW)
        same = rules.first_difference(rules.course(changed), rules.course(default)) is None
        idle += [name] if same else []
    if len(idle) == len(named(spec.params)):
        text = (
            f"in {FEW} random steps nothing depends on {', '.join(idle)}; does reset take options['world']?"
        )
        return warning("worlds", text)
    told = f"; {', '.join(idle)} not in {FEW} random steps" if idle else ""
    return ok("worlds", f"{', '.join(n for n in named(spec.params) if n not in idle)} matter{told}")


def _another(spec: EnvSpec, name: str, value: float) -> float:
    """Another value of a parameter."""
    if name not in spec.spread:
        return 1.5 * value or 1.0
    scale, low, high = spec.spread[name]
    return value + scale if value + scale <= high else max(value - scale, low)


def _check_pictures(recipe: EnvRecipe, seed: int) -> Iterator[Finding]:
    """`shoal play` can show it."""
    spec = recipe.spec
    try:
        env = recipe.build(np.uint32([[seed]]), True)
        state, _ = jax.jit(env.reset)(jax.random.key(seed)[None], default_worlds(spec, 1))
        with one_line_errors(spec.name):
            picture = env.render(state, 0)
    except ShoalError as error:
        yield warning("pictures", f"{error}; shoal play needs them")
        return
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        yield warning(
            "pictures", f"render gives {picture.dtype}{list(picture.shape)}; it must be uint8 (H, W, 3)"
        )
    else:
        yield ok("pictures", f"{picture.shape[1]} x {picture.shape[0]}")
