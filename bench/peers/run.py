"""Run one peer library on one workload and print one JSON line: `python run.py PEER WORKLOAD [--to 475]`.

Runs in the peers' own environment (`setup.sh`). Two modes:

- speed (default): warm up, then time whole updates for about `--seconds`. `steps_per_second` counts only the
  timed part; `steps` and `seconds_total` count everything, warm-up and compilation included.
- `--to RETURN`: train once, at most the workload's budget, and stop when the mean return of the last 100
  finished training episodes reaches RETURN. The clock starts after the imports and includes compilation.

`compile_seconds` is trace + compile for rejax; for sb3 and sbx, what the first updates took beyond their
steady pace (speed mode only).
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
import warnings
from collections import deque
from dataclasses import dataclass

WINDOW = 100  # episodes behind every mean return


@dataclass(frozen=True)
class Workload:
    """One environment and PPO's settings on it, under CleanRL's names."""

    env: str
    num_envs: int
    num_steps: int
    num_minibatches: int
    update_epochs: int
    learning_rate: float
    anneal_lr: bool
    ent_coef: float
    clip_vloss: bool
    """Clip the value loss. Only sb3 can choose: rejax always clips, sbx cannot."""
    budget: int
    """Steps of a full run: the length of the annealing, and where `--to` gives up."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers (tanh) of the actor and, separately, of the critic."""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps


WORKLOADS = {
    "cartpole": Workload("CartPole-v1", 4, 128, 4, 4, 2.5e-4, True, 0.01, True, budget=500_000),
    "halfcheetah": Workload("HalfCheetah-v4", 1, 2048, 32, 10, 3e-4, False, 0.0, False, budget=1_000_000),
}


@dataclass(frozen=True)
class Timing:
    """What one run measured; becomes the JSON line."""

    steps: int
    seconds_total: float
    compile_seconds: float | None
    steps_per_second: float | None
    seconds_to: float | None
    return_mean: float | None


# Stable-Baselines3 and SBX: the same interface.


def make_stable(peer: str, work: Workload, seed: int):
    """SB3's or SBX's PPO on a DummyVecEnv with Monitor (for the returns), nothing logged."""
    from stable_baselines3.common.env_util import make_vec_env

    if peer == "sb3":
        from stable_baselines3 import PPO
    else:
        from sbx import PPO

    only_sb3 = {"clip_range_vf": work.clip_coef} if peer == "sb3" and work.clip_vloss else {}
    envs = make_vec_env(work.env, work.num_envs, seed=seed)
    rate = (lambda left: work.learning_rate * left) if work.anneal_lr else work.learning_rate
    return PPO(
        "MlpPolicy",  # both: tanh, Adam with eps 1e-5
        envs,
        learning_rate=rate,
        n_steps=work.num_steps,
        batch_size=work.batch_size // work.num_minibatches,
        n_epochs=work.update_epochs,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        clip_range=work.clip_coef,
        ent_coef=work.ent_coef,
        vf_coef=work.vf_coef,
        max_grad_norm=work.max_grad_norm,
        policy_kwargs={"net_arch": {"pi": list(work.hidden), "vf": list(work.hidden)}},
        seed=seed,
        device="cpu",
        **only_sb3,
    )


def stable_return(model) -> float | None:
    episodes = [episode["r"] for episode in model.ep_info_buffer]
    return sum(episodes) / len(episodes) if episodes else None


def time_stable(peer: str, work: Workload, seed: int, seconds: float) -> Timing:
    start = time.perf_counter()
    model = make_stable(peer, work, seed)

    def learn(steps: int) -> tuple[int, float]:
        before, began = model.num_timesteps, time.perf_counter()
        model.learn(steps, log_interval=None, reset_num_timesteps=before == 0)
        return model.num_timesteps - before, time.perf_counter() - began

    first_steps, first_seconds = learn(2 * work.batch_size)
    probe_steps, probe_seconds = learn(max(work.batch_size, 4096))
    steps, took = learn(int(seconds * probe_steps / probe_seconds))
    rate = steps / took
    return Timing(
        steps=model.num_timesteps,
        seconds_total=time.perf_counter() - start,
        compile_seconds=max(0.0, first_seconds - first_steps / rate),
        steps_per_second=rate,
        seconds_to=None,
        return_mean=stable_return(model),
    )


def reach_stable(peer: str, work: Workload, seed: int, target: float) -> Timing:
    from stable_baselines3.common.callbacks import BaseCallback

    class StopAt(BaseCallback):
        """Ends training at the first update whose window of episodes is full and good enough."""

        reached = None

        def _on_step(self) -> bool:
            return self.reached is None

        def _on_rollout_end(self) -> None:
            episodes = self.model.ep_info_buffer
            if len(episodes) == WINDOW and stable_return(self.model) >= target:
                self.reached = time.perf_counter() - start

    start = time.perf_counter()
    model, stop = make_stable(peer, work, seed), StopAt()
    model.learn(work.budget, callback=stop, log_interval=None)
    return Timing(
        steps=model.num_timesteps,
        seconds_total=time.perf_counter() - start,
        compile_seconds=None,
        steps_per_second=None,
        seconds_to=stop.reached,
        return_mean=stable_return(model),
    )


# rejax: the whole of training compiled, environment included.


def make_rejax(work: Workload, updates: int):
    """rejax's PPO whose `train` runs `updates` updates and never evaluates."""
    import optax
    from rejax import PPO

    steps = updates * work.batch_size
    algo = PPO.create(
        env=work.env,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": work.hidden},
        num_envs=work.num_envs,
        num_steps=work.num_steps,
        num_minibatches=work.num_minibatches,
        num_epochs=work.update_epochs,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        clip_eps=work.clip_coef,
        ent_coef=work.ent_coef,
        vf_coef=work.vf_coef,
        max_grad_norm=work.max_grad_norm,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    )
    gradient_steps = work.budget // work.batch_size * work.update_epochs * work.num_minibatches
    rate = optax.linear_schedule(work.learning_rate, 0.0, gradient_steps)
    return algo.replace(
        learning_rate=rate if work.anneal_lr else work.learning_rate,
        eval_callback=lambda algo, state, key: (),
    )


def compile_rejax(algo, seed: int):
    """(initial state, compiled state -> state, seconds of tracing and compiling)."""
    import jax

    began = time.perf_counter()
    state = jax.jit(algo.init_state)(jax.random.key(seed))
    train = jax.jit(lambda state: algo.train(train_state=state)[0]).lower(state).compile()
    return state, train, time.perf_counter() - began


def time_rejax(work: Workload, seed: int, seconds: float) -> Timing:
    import jax
    from rejax.evaluate import evaluate

    start = time.perf_counter()
    updates = 200
    algo = make_rejax(work, updates)
    state, train, compile_seconds = compile_rejax(algo, seed)
    state = jax.block_until_ready(train(state))
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        state = jax.block_until_ready(train(state))
        calls += 1
    took = time.perf_counter() - began
    total = time.perf_counter() - start
    _, returns = evaluate(algo.make_act(state), jax.random.key(seed), algo.env, algo.env_params, WINDOW)
    return Timing(
        steps=(calls + 1) * updates * work.batch_size,
        seconds_total=total,
        compile_seconds=compile_seconds,
        steps_per_second=calls * updates * work.batch_size / took,
        seconds_to=None,
        return_mean=float(returns.mean()),
    )


def count_episodes(env):
    """The environment, with the number and summed return of its finished episodes added to its state.

    rejax keeps no training returns, and its own measure (evaluation inside training) would cost it time.
    """
    import jax.numpy as jnp
    from gymnax.wrappers.purerl import GymnaxWrapper

    class Counted(GymnaxWrapper):
        # rejax deep-copies its fields, and on a copy in the making the wrapper's __getattr__ never ends.
        def __deepcopy__(self, memo):
            return self

        def reset(self, key, params):
            obs, state = self._env.reset(key, params)
            return obs, (state, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

        def step(self, key, counted, action, params):
            state, running, episodes, total = counted
            obs, state, reward, done, info = self._env.step(key, state, action, params)
            running = running + reward
            counted = (state, running * (1 - done), episodes + done, total + running * done)
            return obs, counted, reward, done, info

    return Counted(env)


def reach_rejax(work: Workload, seed: int, target: float) -> Timing:
    import numpy as np

    start = time.perf_counter()
    updates = 2
    algo = make_rejax(work, updates)
    algo = algo.replace(env=count_episodes(algo.env))
    state, train, compile_seconds = compile_rejax(algo, seed)
    calls, reached = 0, None
    history = deque([(0.0, 0.0)])  # (episodes, summed return) so far; the oldest lies WINDOW episodes back
    while reached is None and calls * updates * work.batch_size < work.budget:
        state = train(state)
        calls += 1
        now = tuple(float(np.sum(count)) for count in state.env_state[2:])
        history.append(now)
        while now[0] - history[1][0] >= WINDOW:
            history.popleft()
        episodes, total = now[0] - history[0][0], now[1] - history[0][1]
        if episodes >= WINDOW and total / episodes >= target:
            reached = time.perf_counter() - start
    return Timing(
        steps=calls * updates * work.batch_size,
        seconds_total=time.perf_counter() - start,
        compile_seconds=compile_seconds,
        steps_per_second=None,
        seconds_to=reached,
        return_mean=total / episodes if episodes else None,
    )


def load(peer: str, threads: int) -> None:
    """Import what the peer needs, before any clock starts."""
    if peer == "rejax":
        import rejax  # noqa: F401

        return
    import stable_baselines3  # noqa: F401
    import torch

    if threads:
        torch.set_num_threads(threads)
    if peer == "sbx":
        import sbx  # noqa: F401


def main() -> int:
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    parser.add_argument("peer", choices=["sb3", "sbx", "rejax"])
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the timed part")
    parser.add_argument("--to", type=float, help="train until this mean return instead of timing speed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="torch's threads for sb3 and sbx; 0 leaves torch's choice. 1 is as fast on an idle machine "
        "and does not collapse on a shared one",
    )
    args = parser.parse_args()
    if args.peer == "rejax" and args.workload != "cartpole":
        print(f"rejax has no {WORKLOADS[args.workload].env}: choose cartpole", file=sys.stderr)
        return 2

    warnings.filterwarnings("ignore")
    load(args.peer, args.threads)
    work = WORKLOADS[args.workload]
    measure = (time_rejax, time_stable) if args.to is None else (reach_rejax, reach_stable)
    until = args.seconds if args.to is None else args.to
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):  # MuJoCo logs where it stands
        if args.peer == "rejax":
            timing = measure[0](work, args.seed, until)
        else:
            timing = measure[1](args.peer, work, args.seed, until)
    row = {"peer": args.peer, "workload": args.workload, **vars(timing)}
    row[f"seconds_to_{args.to if args.to is not None else 475:g}"] = row.pop("seconds_to")
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
