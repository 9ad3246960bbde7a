"""Rules that random episodes are held to: spaces, numbers, resets, ends, randomness, masks."""

from collections.abc import Iterator

import jax
import numpy as np

from shoal.envs.checks.findings import Finding, ok, problem, warning
from shoal.envs.checks.sample import Sample
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, EnvSpec

LARGE = 100.0
"""Observations and rewards beyond this slow learning down, unless they are normalised."""


def check_observations(spec: EnvSpec, sample: Sample) -> Iterator[Finding]:
    """Every part of an observation: numbers that are finite, within the bounds and not large."""
    if isinstance(spec.observation, Box):
        yield from _check_part("observation", spec.observation, sample.obs)
        return
    for name, box in spec.observation.items():
        if name != ACTION_MASK:
            yield from _check_part(f"observation[{name!r}]", box, sample.obs[name])


def _check_part(label: str, box: Box, values: np.ndarray) -> Iterator[Finding]:
    bad = ~np.isfinite(values)
    if bad.any():
        yield problem(
            "observations",
            f"{label} is not finite {_where(bad)}; one such number ends a learner: look for a division by "
            "zero or the root of a negative number in the environment",
        )
        return
    low, high = (np.broadcast_to(np.asarray(x, np.float32), box.shape) for x in (box.low, box.high))
    slack = 1e-5 * np.maximum(1, np.abs(values))
    outside = (values < low - slack) | (values > high + slack)
    least, most = float(values.min()), float(values.max())
    if outside.any():
        yield warning(
            "observations",
            f"{label} is outside its bounds {_where(outside)}: {values[outside][0]:g}; widen the space, or "
            "clip the observation",
        )
    else:
        between = f"from {least:.4g} to {most:.4g}"
        yield ok("observations", f"{label} is finite and within its bounds, {between}")
    if box.dtype != "uint8" and (large := max(-least, most)) > LARGE:
        yield warning("observations", f"{label} is as large as {large:.3g}; train with --norm-obs")


def _where(marked: np.ndarray) -> str:
    """Where something (T + 1, N, ...) first is, and how often."""
    time, _, *index = np.argwhere(marked)[0]
    number = f"in number {', '.join(map(str, index))} " if index else ""
    share = np.mean(marked.reshape(*marked.shape[:2], -1).any(-1))
    return f"{number}at step {time} ({100 * share:.3g} % of all steps)"


def check_rewards(sample: Sample) -> Iterator[Finding]:
    """Rewards that are finite, not always 0 and not large."""
    rewards = sample.reward[sample.valid]
    if not np.isfinite(rewards).all():
        yield problem("rewards", f"a reward is not finite {_where(~np.isfinite(sample.reward))}")
    elif not rewards.any():
        yield warning(
            "rewards",
            f"every reward in {len(rewards):,} random steps was 0; if they are that rare, try --curiosity, "
            "or reward progress",
        )
    else:
        yield ok("rewards", f"finite, from {rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.3g}")
        if np.abs(rewards).max() > LARGE:
            yield warning(
                "rewards", f"as large as {np.abs(rewards).max():.3g}; train with --norm-reward, or scale them"
            )


def check_resets(sample: Sample) -> Iterator[Finding]:
    """Starts: equal where seeds are (the first two environments), else different."""
    first = jax.tree.map(lambda x: x[0], sample.obs)
    if not _equal(_row(first, 0), _row(first, 1)):
        yield problem(
            "resets",
            "equal seeds give different starts; draw every random number from self.np_random after "
            "super().reset(seed=seed) (Gymnasium), or from the key (JAX)",
        )
        return
    num = sample.valid.shape[1]
    starts = [_row(first, i) for i in range(1, num)]
    starts += [_at(sample.obs, t, i) for t, i in np.argwhere(~sample.valid) if t > 0]
    if all(_equal(starts[0], other) for other in starts[1:]):
        yield warning(
            "resets",
            f"all {len(starts)} episodes began alike, whatever the seed; if that is not meant, draw the "
            "start from self.np_random (Gymnasium) or the key (JAX)",
        )
    elif all(_equal(starts[0], other) for other in starts[1 : num - 1]):
        yield warning(
            "resets", "different seeds give the same first episode; use the seed that reset is given"
        )
    else:
        yield ok("resets", "equal seeds give equal starts, different seeds different ones")


def check_repeats(sample: Sample, again: Sample | None) -> Iterator[Finding]:
    """Equal seeds and actions give equal episodes: in two environments at once, and after a new reset."""
    side_by_side = first_difference(*(_column(course(sample), row) for row in (0, 1)))
    if side_by_side is not None:
        yield warning(
            "repeats",
            f"two environments with equal seeds and actions differ from step {side_by_side} on, so runs do "
            "not repeat; draw random numbers from the environment's own generator, share nothing between "
            "instances",
        )
        return
    later = again and first_difference(course(sample), course(again))
    if later is not None:
        yield warning(
            "repeats",
            f"after a second reset with the same seed, steps differ from step {later} on; reset must set "
            "everything that an episode changes",
        )
    else:
        yield ok("repeats", "equal seeds and actions give equal episodes")


def course(sample: Sample) -> tuple:
    return sample.obs, sample.reward, sample.terminated, sample.truncated


def first_difference(one: tuple, other: tuple) -> int | None:
    """The first step at which two courses (T + 1, ...) differ, as far as both go."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    common = min(len(x) for pair in pairs for x in pair)
    differ = [_unequal(a[:common], b[:common]).reshape(common, -1).any(1) for a, b in pairs]
    steps = np.flatnonzero(np.any(differ, 0))
    return int(steps[0]) if len(steps) else None


def _unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays differ; numbers that are none are equal."""
    return (a != b) & ((a == a) | (b == b))


def check_ends(spec: EnvSpec, sample: Sample) -> Iterator[Finding]:
    """Episodes end, by the rules or by a time limit."""
    lengths = episode_lengths(sample)
    limit, steps = spec.max_episode_steps, len(sample.action)
    if lengths and limit and max(lengths) > limit:
        yield problem("ends", f"an episode took {max(lengths)} steps, but the limit is {limit}")
    elif lengths:
        cut = int(np.sum(sample.truncated & ~sample.terminated))
        spread = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
        yield ok(
            "ends",
            f"{len(lengths)} episodes of {spread} steps, {len(lengths) - cut} terminated and {cut} truncated",
        )
    elif limit:
        yield ok("ends", f"no episode ended in {steps} random steps; the limit is {limit}")
    else:
        yield warning(
            "ends",
            f"no episode ended in {steps} random steps, and there is no time limit; returns are known when "
            "episodes end: --env-options max_episode_steps=1000",
        )


def episode_lengths(sample: Sample) -> list[int]:
    """The steps of every finished episode."""
    found = []
    for row in range(sample.ended.shape[1]):
        taken = np.cumsum(sample.valid[:, row])
        at_end = taken[sample.ended[:, row]]
        found += np.diff(at_end, prepend=0).tolist()
    return found


def check_actions(spec: EnvSpec) -> Iterator[Finding]:
    """Bounds of real actions that a policy can reach, which begins around 0 with a deviation of 1."""
    space = spec.action
    if not isinstance(space, Box):
        return
    low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
    if (low > high).any():
        yield problem("actions", f"a lower bound is above the upper one: {low.min():g} and {high.max():g}")
    elif not np.isfinite([low, high]).all():
        yield warning(
            "actions", "some have no bounds: nothing keeps them small; give the action space bounds"
        )
    elif max(-low.min(), high.max()) > 10 or (high - low).min() < 0.2:
        yield warning(
            "actions",
            f"bounds from {low.min():g} to {high.max():g}: a policy begins around 0 with a deviation of 1; "
            "rescale them to -1 and 1 (gymnasium.wrappers.RescaleAction)",
        )
    else:
        yield ok("actions", f"{list(space.shape)} real numbers from {low.min():g} to {high.max():g}")


def check_masks(spec: EnvSpec, sample: Sample) -> Iterator[Finding]:
    """Masks of zeros and ones that leave a choice."""
    if not isinstance(spec.observation, dict) or ACTION_MASK not in spec.observation:
        return
    mask = sample.obs[ACTION_MASK]
    mask = mask.reshape(*mask.shape[:2], *spec.agent_axis, -1)
    going_on = ~sample.ended
    empty = ~(mask != 0).any(-1) & going_on.reshape(*going_on.shape, *[1] * len(spec.agent_axis))
    if not np.isin(mask, (0, 1)).all():
        yield problem(
            "masks", f"action_mask holds {mask.max():g}; it must be 1 where a choice is allowed, else 0"
        )
    elif empty.any():
        yield warning(
            "masks", f"action_mask allows nothing {_where(empty)}; then every choice counts as allowed"
        )
    else:
        yield ok("masks", f"action_mask allows {100 * mask.mean():.3g} % of the choices on average")


def _row(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def _column(tree, i):
    return jax.tree.map(lambda x: x[:, i], tree)


def _at(tree, t, i):
    return jax.tree.map(lambda x: x[t, i], tree)


def _equal(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
