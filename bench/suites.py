"""JAX suites beside their own trainers: the same environment and settings, on the same device.

python bench/suites.py                           brax:ant and halfcheetah, positional and mjx; MinAtar
python bench/suites.py --only brax:ant/positional gymnax:Breakout-MinAtar
python bench/suites.py --quick                   few steps and environments, for a CPU
python bench/suites.py --out bench/results/suites.md

Brax's robots are trained by Brax's own PPO, with the settings of its notebook; MinAtar by rejax's PPO, with
PureJaxRL's. Ours are the presets, which have the same settings. Needs the extras brax and gymnax, and rejax.

Each training is a process of its own. Steps per second leave out compiling and evaluations. Returns are those
of greedy policies at the end, over 128 episodes (Brax's and rejax's by their own evaluation).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = (
    "brax:ant/positional",
    "brax:ant/mjx",
    "brax:halfcheetah/positional",
    "brax:halfcheetah/mjx",
    "gymnax:Breakout-MinAtar",
    "gymnax:Asterix-MinAtar",
)
QUICK_CASES = ("brax:inverted_pendulum/positional", "gymnax:Breakout-MinAtar")
EPISODES = 128
UNROLL = {"halfcheetah": 20}
"""The steps of Brax's unrolls; 5 for the others."""
QUICK = {"steps": 60_000, "num_envs": 32, "num_steps": 40, "num_minibatches": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", help="these cases: ENV or ENV/ENGINE")
    parser.add_argument("--steps", type=int, help="instead of the presets'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=["shoal", "suite"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.only or (QUICK_CASES if options.quick else CASES)
    if options.one:
        train = ours if options.one == "shoal" else brax_own if cases[0].startswith("brax") else rejax
        print(json.dumps(train(cases[0], settings(cases[0], options), options.seed)))
        return
    lines = []
    for line in table(cases, sys.argv[1:], options):
        print(line, flush=True)
        lines.append(f"{line}\n")
        if options.out:
            options.out.write_text("".join(lines))


def table(cases: tuple[str, ...], arguments: list[str], options: argparse.Namespace) -> Iterator[str]:
    """A row for each trainer of each case, as soon as it is measured."""
    import jax

    yield f"`python bench/suites.py {' '.join(arguments)}` on {jax.devices()[0].device_kind}."
    yield ""
    yield "| environment | trainer | steps | steps/s | training, s | compiling, s | return | ratio |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in cases:
        speed = {}
        for who in ("suite", "shoal"):
            found = run_one(case, who, options)
            speed[who] = found["steps"] / found["seconds"]
            ratio = f"{speed['shoal'] / speed['suite']:.2f}" if who == "shoal" else ""
            yield (
                f"| {case} | {found['trainer']} | {found['steps']:,} | {speed[who]:,.0f} | "
                f"{found['seconds']:.1f} | {found['compiling']:.1f} | {found['return']:.1f} | {ratio} |"
            )


def run_one(case: str, who: str, options: argparse.Namespace) -> dict[str, Any]:
    """One training in a process of its own."""
    command = [sys.executable, __file__, "--only", case, "--one", who, "--seed", str(options.seed)]
    command += ["--quick"] * options.quick + (["--steps", str(options.steps)] if options.steps else [])
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{case} by {who} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def settings(case: str, options: argparse.Namespace) -> Any:
    """The preset of a case, with the engine it names."""
    import shoal

    env, _, engine = case.partition("/")
    changed: dict[str, Any] = {"seed": options.seed, "reports": 20} | (QUICK if options.quick else {})
    if options.steps:
        changed["steps"] = options.steps
    if engine:
        changed["env_options"] = {"backend": engine}
    return shoal.preset(env, **changed)


def ours(case: str, config: Any, seed: int) -> dict[str, Any]:
    """Shoal, by its own clock; steps are those that are no resets."""
    import shoal

    for report in shoal.train(config):
        clock = report.clock
    score = shoal.evaluate(report, episodes=EPISODES)[0].return_mean
    seconds = clock.seconds - clock.compile_seconds - clock.eval_seconds
    return result("Shoal", clock.valid_steps, seconds, clock.compile_seconds, score)


def brax_own(case: str, config: Any, seed: int) -> dict[str, Any]:
    """Brax's PPO: the time of its own training epochs, as it counts them."""
    import jax
    import jax.numpy as jnp
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    # Brax 0.14 calls it; JAX 0.10 has it no more.
    stack = lambda x, devices: jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), x)
    vars(jax)["device_put_replicated"] = stack
    name = case.partition("/")[0].removeprefix("brax:")
    algo, unroll, told = config.algo, UNROLL.get(name, 5), []
    ppo.train(
        environment=envs.get_environment(name, backend=config.env_options["backend"]),
        num_timesteps=config.steps,
        num_evals=5,
        reward_scaling=algo.inputs.reward_scale,
        episode_length=1000,
        normalize_observations=True,
        action_repeat=1,
        unroll_length=unroll,
        num_minibatches=algo.num_minibatches,
        num_updates_per_batch=algo.update_epochs,
        discounting=algo.gamma,
        learning_rate=algo.learning_rate,
        entropy_cost=algo.ent_coef,
        num_envs=algo.num_envs,
        batch_size=algo.num_envs * algo.num_steps // algo.num_minibatches // unroll,
        num_eval_envs=EPISODES,
        deterministic_eval=True,
        seed=seed,
        progress_fn=lambda step, metrics: told.append((time.perf_counter(), step, metrics)),
    )
    epochs = told[2:]  # the first evaluation is before training, the first epoch compiles
    steps = epochs[-1][1] - told[1][1]
    seconds = sum(
        (now[1] - before[1]) / now[2]["training/sps"] for before, now in zip(told[1:], epochs, strict=False)
    )
    compiling = told[1][0] - told[0][0] - (told[1][1] / epochs[-1][2]["training/sps"])
    return result("Brax's PPO", steps, seconds, compiling, told[-1][2]["eval/episode_reward"])


class OneDone:
    """gymnax's environment as before 1.0, with one flag for both kinds of ends: what rejax 0.1 expects."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def rejax(case: str, config: Any, seed: int) -> dict[str, Any]:
    """rejax's PPO, compiled ahead."""
    import gymnax
    import jax
    import numpy as np
    import optax
    import rejax as library

    env, params = gymnax.make(case.removeprefix("gymnax:"))
    algo = config.algo
    updates = -(-config.steps // (algo.num_envs * algo.num_steps))
    steps = updates * algo.num_envs * algo.num_steps
    rate = optax.linear_schedule(algo.learning_rate, 0.0, updates * algo.update_epochs * algo.num_minibatches)
    learner = library.PPO.create(
        env=OneDone(env),
        env_params=params,
        agent_kwargs={"activation": algo.activation, "hidden_layer_sizes": algo.hidden},
        num_envs=algo.num_envs,
        num_steps=algo.num_steps,
        num_minibatches=algo.num_minibatches,
        num_epochs=algo.update_epochs,
        gamma=algo.gamma,
        gae_lambda=algo.gae_lambda,
        clip_eps=algo.clip_coef,
        ent_coef=algo.ent_coef,
        vf_coef=algo.vf_coef,
        max_grad_norm=algo.max_grad_norm,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(learning_rate=rate)
    evaluated = learner.eval_callback
    learner = learner.replace(eval_callback=lambda algo, state, key: ())
    began = time.perf_counter()
    state = jax.jit(learner.init_state)(jax.random.key(seed))
    train = jax.jit(lambda state: learner.train(train_state=state)[0]).lower(state).compile()
    compiling, began = time.perf_counter() - began, time.perf_counter()
    state = jax.block_until_ready(train(state))
    seconds = time.perf_counter() - began
    _, returns = evaluated(learner, state, jax.random.key(0))
    return result("rejax", steps, seconds, compiling, float(np.mean(returns)))


def result(trainer: str, steps: int, seconds: float, compiling: float, score: Any) -> dict[str, Any]:
    """What a training prints."""
    return {
        "trainer": trainer,
        "steps": int(steps),
        "seconds": seconds,
        "compiling": compiling,
        "return": float(score),
    }


if __name__ == "__main__":
    main()
