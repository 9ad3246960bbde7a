"""Exported policies beside the learners they come from.

    python bench/export.py actions    # the same actions for 1,000 observations, or 500 steps with resets
    python bench/export.py scores     # the returns of `shoal eval` on the same starts
    python bench/export.py latency    # one observation on one core, beside Stable-Baselines3's predict
    python bench/export.py start      # seconds of a process from its start to its first action

Runs are in runs/export (--runs), trained where they are not there yet. `latency` needs the peers' own
environment: bench/peers/setup.sh makes .venv-peers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "latency" in sys.argv:  # before XLA counts the cores
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import shoal
from shoal.runs.export.play import Policy
from shoal.runs.learners import load_policy
from shoal.training.evaluate import play_episodes
from shoal.types import (
    Box,
    Discrete,
    EnvSpec,
    JaxEnv,
    Learner,
    LearnerState,
    MultiBinary,
    MultiDiscrete,
    Tree,
)

ROOT = Path(__file__).parent.parent
SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "steps": 256,
    "learners": 2,
    "learning_rate": 0.03,  # so that outputs are not as small as a new policy's
}
REPLAY = {"num_envs": 2, "buffer_size": 200, "batch_size": 8, "learning_starts": 32, "steps": 128}
VECTOR, PICTURE = Box((5,)), Box((64, 64, 3), 0, 255, "uint8")
MADE = {
    "MultiDiscrete-v0": ({"obs": VECTOR, "action_mask": Box((7,), 0.0, 1.0)}, MultiDiscrete((3, 4))),
    "MultiBinary-v0": ({"obs": VECTOR, "action_mask": Box((4,), 0.0, 1.0)}, MultiBinary(4)),
    "Parts-v0": ({"eye": PICTURE, "ear": VECTOR, "foot": Box((2, 2))}, Box((3,), -2.0, 0.5)),
    "Picture-v0": (PICTURE, Discrete(15)),
}
"""Environments for spaces that the others lack: random observations, episodes of 20 steps."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo, discrete": ("CartPole-v1", SMALL | {"norm_obs": True}),
    "ppo, continuous": ("Pendulum-v1", SMALL | {"norm_obs": True}),
    "ppo, multi-discrete, masks": ("MultiDiscrete-v0", SMALL),
    "ppo, multi-binary, masks": ("MultiBinary-v0", SMALL),
    "ppo, split observation": ("Pendulum-v1", SMALL | {"network.split_start": 2}),
    "ppo, image (Nature) and vectors": ("Parts-v0", SMALL | {"norm_obs": True}),
    "ppo, image (IMPALA)": ("Picture-v0", SMALL | {"network.images": "impala"}),
    "ppo, lstm": ("Pendulum-v1", SMALL | {"memory": "lstm"}),
    "ppo, gru": ("CartPoleNoVel-v1", SMALL | {"memory": "gru"}),
    "ppo, 4 stacked images": ("Picture-v0", SMALL | {"frame_stack": 4}),
    "td3": ("Pendulum-v1", REPLAY | {"algo": "td3", "norm_obs": True}),
    "sac": ("Pendulum-v1", REPLAY | {"algo": "sac"}),
    "dqn": ("Acrobot-v1", REPLAY | {"algo": "dqn"}),
    "team of two, one policy": ("Foraging-8x8-2p-2f-coop-v3", SMALL),
    "teams, two policies": ("simple_tag_v3", SMALL | {"memory": "gru"}),
}
PLAYED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", 100, {"steps": 100_000}),
    "LSTM": ("CartPoleNoVel-v1", 100, {"steps": 200_000, "memory": "lstm"}),
    "HalfCheetah": ("HalfCheetah-v4", 20, {"steps": 200_000}),
    "Breakout": ("Breakout-v5", 20, {"steps": 20_000}),
}
"""Environment, episodes and settings of the policies whose scores and latency are measured."""
SB3 = {"CartPole": "mlp", "HalfCheetah": "wide", "Breakout": "pixels"}


def made_up(name: str, observation: Any, action: Any) -> JaxEnv:
    """An environment of random observations with these spaces."""

    def observe(state: Tree, params: Tree) -> Tree:
        key = jax.random.fold_in(jax.random.key(1), state)
        return jax.tree.map(lambda box: jax.random.uniform(key, box.shape).astype(box.dtype), observation)

    return JaxEnv(
        EnvSpec(name, "jax", observation, action, max_episode_steps=20),
        reset=lambda key, params: jnp.int32(0),
        step=lambda key, state, action, params: (state + 1, 0.0 * jnp.sum(action), jnp.bool_(False)),
        observe=observe,
    )


def observations(space: Any, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random observations by name: pictures of different light, masks of zeros and ones."""
    parts = {}
    for name, box in (space if isinstance(space, dict) else {"obs": space}).items():
        scale = rng.random(shape).reshape(*shape, *[1] * len(box.shape))
        match name, box.dtype:
            case "action_mask", _:
                parts[name] = np.float32(rng.random((*shape, *box.shape)) < 0.5)
            case _, "uint8":
                parts[name] = np.uint8(scale * rng.integers(0, 256, (*shape, *box.shape)))
            case _:
                parts[name] = np.float32(rng.normal(size=(*shape, *box.shape)))
    return parts


def differences(run: shoal.Run, folder: Path) -> tuple[int, int, float, float]:
    """Rows, steps, and how far the actions of JAX are from NumPy's and from the files' at most."""
    reference, policy = load_policy(run.folder, run.parts, "best", "latest"), run.policy()
    card = json.loads((folder / "policy.json").read_text())
    players = [Policy(folder, one["name"]) for one in card["policies"]]
    has_state = any(port["kind"] == "state" for player in players for port in player.inputs)
    rows, steps = (2, 500) if has_state else (1000, 1)
    agents = [player.card["agents"] for player in players]
    shape = (rows,) if agents[0] is None else (rows, sum(map(len, agents)))
    rng, numpy_largest, onnx_largest = np.random.default_rng(0), 0.0, 0.0
    apart = lambda a, b: float(np.max(np.abs(a - b)))
    for step in range(steps):
        parts = observations(policy.observation, shape, rng)
        if step and has_state:
            ended = rng.random(rows) < 0.05
            policy.reset(ended)
            reference.reset(ended)
            for player, who in zip(players, agents, strict=True):
                player.reset(np.repeat(ended, len(who or [0])))
        given = parts if isinstance(policy.observation, dict) else parts["obs"]
        expected = reference(given)
        numpy_largest = max(numpy_largest, apart(policy(given), expected))
        for player, who in zip(players, agents, strict=True):
            of = lambda x, who=who: x if who is None else x[:, who].reshape(-1, *x.shape[2:])
            found = player({name: of(part) for name, part in parts.items()})
            onnx_largest = max(onnx_largest, apart(found, of(expected)))
    return rows, steps, numpy_largest, onnx_largest


def exported_learner(folder: Path) -> Learner:
    """A learner that acts by the exported policy, for evaluations from the same starts as the run's own."""
    player = Policy(folder)
    ports = {port["name"]: port for port in player.inputs if port["kind"] == "state"}
    output = next(port for port in player.outputs if port[0] == "action")[1]
    described = player.card["greedy"]["outputs"]
    action = next(port for port in described if port["name"] == output)
    dtype = "int32" if action["dtype"] == "int64" else action["dtype"]

    def host(obs: Any, state: dict, starts: np.ndarray) -> tuple[np.ndarray, dict]:
        parts = obs if isinstance(obs, dict) else {"obs": obs}
        player.state, player.starts = jax.tree.map(np.asarray, state), np.asarray(starts)
        acted = player(jax.tree.map(np.asarray, parts))
        return acted.astype(dtype), player.state

    def act(state: LearnerState, obs: Tree, noise: Tree, starts: Array) -> tuple[Array, Tree]:
        like = jax.ShapeDtypeStruct((len(starts), *action["shape"]), dtype)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.private)
        return jax.pure_callback(host, (like, shapes), obs, state.private, starts, vmap_method="sequential")

    def for_evaluation(state: LearnerState, num_envs: int) -> LearnerState:
        zeros = {name: jnp.zeros((num_envs, *port["shape"]), port["dtype"]) for name, port in ports.items()}
        return state._replace(private=zeros)

    def refuse(*_: Any) -> Any:
        raise NotImplementedError

    draw = lambda key, shape: jnp.zeros(shape)
    return Learner(init=refuse, draw=draw, act=act, update=refuse, for_evaluation=for_evaluation)


def median_time(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call, the median."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def actions(runs: Path) -> None:
    """The table of actions."""
    for name, (observation, action) in MADE.items():
        shoal.register(name, made_up(name, observation, action))
    print("| policy | environment | observations | NumPy | ONNX Runtime |\n|---|---|---|---|---|")
    brief = lambda largest: f"{largest:.1e}" if largest else "0"
    for kind, (env, settings) in KINDS.items():
        run = shoal.run(env, folder=runs / "".join(x for x in kind if x.isalnum()), **settings)
        run.export()
        rows, steps, *largest = differences(run, run.folder / "export")
        amount = f"{rows} rows x {steps} steps with resets" if steps > 1 else f"{rows:,}"
        print(f"| {kind} | {env} | {amount} | {' | '.join(map(brief, largest))} |")


def scores(runs: Path) -> None:
    """The table of scores."""
    print("| policy | episodes | shoal eval | exported |\n|---|---|---|---|")
    for kind, (env, episodes, settings) in PLAYED.items():
        run = shoal.run(env, folder=runs / kind, **settings)
        run.export()
        ours = run.evaluate(episodes, learner="best")[0]
        cohort = LearnerState(jnp.zeros(1), (), (), (), ())
        recipe = shoal.make(env, **run.config.env_options)
        returns, _ = play_episodes(recipe, exported_learner(run.folder / "export"), cohort, episodes)
        print(f"| {kind}, {env} | {episodes} | {ours.return_mean:.2f} | {returns.mean():.2f} |")


def latency(runs: Path) -> None:
    """The table of latencies: the least of three medians each, measured in turn."""
    print(
        "| policy | JAX | NumPy (Run.policy) | ONNX Runtime (play.py) | SB3 predict |\n|---|---|---|---|---|"
    )
    for kind, (env, _, settings) in PLAYED.items():
        run = shoal.run(env, folder=runs / kind, **settings)
        run.export()
        ours, player = run.policy(), Policy(run.folder / "export")
        compiled = load_policy(run.folder, run.parts, "best", "latest")
        obs = observations(ours.observation, (1,), np.random.default_rng(0))
        one = obs["obs"][0]
        calls: list[Callable[[], Any]] = [
            lambda compiled=compiled, one=one: compiled(one),
            lambda ours=ours, one=one: ours(one),
            lambda player=player, obs=obs: player(obs),
        ]
        times = [[median_time(call, 2000) for call in calls] + [peer_time(kind, run)] for _ in range(3)]
        best = [min(column) for column in zip(*times, strict=True)]
        print(f"| {kind}, {env} | {' | '.join(f'{time:.0f} us' if time else '' for time in best)} |")


def peer_time(kind: str, run: shoal.Run) -> float:
    """Microseconds of Stable-Baselines3's predict with networks of the same sizes; 0 where it has none."""
    if kind not in SB3:
        return 0.0
    python, hidden = str(ROOT / ".venv-peers" / "bin" / "python"), map(str, run.config.algo.hidden)
    command = [python, "bench/peers/predict.py", SB3[kind], "--hidden", *hidden]
    return json.loads(subprocess.check_output(command, cwd=ROOT, text=True))["microseconds"]


def start(runs: Path) -> None:
    """The table of starts: a new process, from its start to the first action and its end."""
    run = shoal.run(PLAYED["CartPole"][0], folder=runs / "CartPole", **PLAYED["CartPole"][2])
    folder, args = str(run.folder), "[0.0, 0.0, 0.05, 0.0]"
    numpy = f"import shoal; shoal.load({folder!r}).policy()({args})"
    compiled = (
        "import shoal; from shoal.runs.learners import load_policy; from pathlib import Path; "
        f"run = shoal.load({folder!r}); load_policy(run.folder, run.parts, 'best', 'latest')({args})"
    )
    programs = {
        "no program": "pass",
        "`import numpy`": "import numpy",
        "the learner in JAX": compiled,
        "`Run.policy` in NumPy": numpy,
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(5):
        for name, code in programs.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            times[name].append(time.perf_counter() - began)
    print("| process | seconds |\n|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", choices=["actions", "scores", "latency", "start"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "export")
    options = parser.parse_args()
    {"actions": actions, "scores": scores, "latency": latency, "start": start}[options.table](options.runs)


if __name__ == "__main__":
    main()
