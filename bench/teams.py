"""Worlds of several agents: ours in one compiled loop, the packages' in Python.

    python bench/teams.py [ID ...] [--rows 128] [--seconds 3]    # random actions
    python bench/teams.py --act rware-tiny-2ag-v2                # the preset's policy acts, on all cores
    python bench/teams.py --train rware-tiny-2ag-v2              # and learns

With random actions one core does it all and seconds are those it worked for us, since machines are shared;
the rest is timed by the clock, the two in turn. The packages' worlds are then stepped by a Python loop over
the rows, within the same program. Packages: pip install rware==2.0.0 lbforaging==2.0.0
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable

if hasattr(os, "sched_setaffinity") and not {"--act", "--train"} & {*sys.argv}:  # before XLA counts the cores
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import jax
import numpy as np

from shoal import make, preset
from shoal.training.program import make_trainer
from shoal.types import Env

WORLDS = (
    "rware-tiny-2ag-v2",
    "rware-tiny-4ag-v2",
    "rware-small-4ag-v2",
    "Foraging-8x8-2p-2f-coop-v3",
    "Foraging-2s-8x8-2p-2f-coop-v3",
    "Foraging-15x15-3p-4f-v3",
)
TURN = 128
"""Steps in one call of the compiled loop."""


def clock() -> float:
    """Seconds of one core, or of the accelerator."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def per_second(turn: Callable[[], int], seconds: float) -> float:
    """Steps per second in the best of five tries that last so long together, after a first call."""
    turn()
    rates = []
    for _ in range(5):
        steps, begin = 0, clock()
        while clock() - begin < seconds / 5:
            steps += turn()
        rates.append(steps / (clock() - begin))
    return max(rates)


def ours(name: str, rows: int) -> Callable[[], int]:
    """A turn of all rows; the result is how many steps were no resets."""
    env = make(name).build(np.zeros((1, rows), np.uint32), False)
    key = jax.random.key(0)
    state = [jax.jit(env.reset)(jax.random.split(key, rows), ())[0]]
    play = jax.jit(lambda key, state: roll(env, rows, key, state))

    def turn() -> int:
        nonlocal key
        key, now = jax.random.split(key)
        state[0], (_, _, valid) = play(now, state[0])
        return int(valid.sum())

    return turn


def roll(env: Env, rows: int, key: jax.Array, state):
    """The states after a turn, and the observations, rewards and validity of its steps."""
    key_env, key_act = jax.random.split(key)
    actions = jax.random.randint(key_act, (TURN, rows, env.spec.agents), 0, env.spec.action.num)

    def step(state, now):
        state, seen = env.step(state, *now)
        return state, (seen.obs, seen.reward, seen.valid)

    noise = env.draw(jax.random.split(key_env, rows), state, TURN)
    return jax.lax.scan(step, state, (actions, noise))


def theirs(name: str) -> Callable[[], int] | None:
    """A turn of the package's one world; None where it is not installed."""
    package = "rware" if name.startswith("rware") else "lbforaging"
    if importlib.util.find_spec(package) is None:
        return None
    import gymnasium

    importlib.import_module(package)
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    random = np.random.default_rng(0)

    def turn() -> int:
        for action in random.integers(env.action_space[0].n, size=(TURN, env.n_agents)).tolist():
            if env.step(action)[2]:
                env.reset()
        return TURN

    return turn


def playing(name: str, rows: int, learn: bool) -> Callable[[], float]:
    """Rollouts of the preset's policy, one after another, learned from or not: its steps per second."""
    trainer = make_trainer(preset(name, num_envs=rows))
    state = [trainer.init()]

    def turn() -> float:
        begin = time.perf_counter()
        if learn:
            state[0], progress = trainer.advance(state[0], jax.numpy.int32(1))
            steps = np.sum(progress.valid_steps)
        else:
            state[0], rollout = trainer.stages.collect(state[0])
            steps = np.sum(rollout.valid)
        return int(steps) / (time.perf_counter() - begin)

    turn()
    return turn


def compare(name: str, rows: int, learn: bool, rounds: int = 5) -> None:
    """Median steps per second in our world and in the package's, by turns."""
    package = "rware" if name.startswith("rware") else "lbforaging"
    ours, theirs = playing(name, rows, learn), playing(f"gym:{package}:{name}", rows, learn)
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    fast, slow = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    times = statistics.median(a / b for a, b in pairs)
    print(f"| {name}, {'learning' if learn else 'acting'} | {fast:,.0f} | {slow:,.0f} | {times:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("worlds", nargs="*", default=WORLDS)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--act", action="store_true")
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args()
    if options.act or options.train:
        for name in options.worlds:
            compare(name, options.rows, options.train)
        return
    print(f"| world | ours, {options.rows} rows: steps/s | the package: steps/s | times |\n|---|---|---|---|")
    for name in options.worlds:
        fast, package = per_second(ours(name, options.rows), options.seconds), theirs(name)
        slow = per_second(package, options.seconds) if package else None
        rest = f"{slow:,.0f} | {fast / slow:,.0f}" if slow else "- | -"
        print(f"| {name} | {fast:,.0f} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
