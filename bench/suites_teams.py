"""Teams beside JaxMARL's own IPPO: the same worlds and settings, steps per second and what is reached.

    git clone https://github.com/FLAIROx/JaxMARL
    python bench/suites_teams.py --baselines JaxMARL/baselines/IPPO [--case spread smax] [--steps 10000000]
    python bench/suites_teams.py --quick        # ours alone where --baselines is not given

Both train once as one compiled program; compiling is not counted, nor are our reset steps. Returns are those
of training, at its end: of the team in spread, of an agent in SMAX. JaxMARL's scripts need distrax; wandb,
hydra and omegaconf, with which they log and read settings, are left out where they are not installed.

The settings are those of JaxMARL's ippo_ff_mpe.yaml and ippo_rnn_smax.yaml. What differs: our actor and
critic have a recurrent core each, theirs share one; ours learns nothing from units that have fallen.
"""

import argparse
import importlib.util
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal import preset
from shoal.training.program import make_trainer

COMMON = {
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "ANNEAL_LR": True,
}


class Case(NamedTuple):
    """A world, JaxMARL's script for it, and the settings of that script."""

    env: str
    script: str
    settings: dict[str, Any]
    agents: int
    """Our returns are of a team: divided by so many they are on JaxMARL's scale."""


CASES = {
    "spread": Case(
        "jaxmarl:MPE_simple_spread_v3",
        "ippo_ff_mpe.py",
        COMMON
        | {"LR": 2.5e-4, "NUM_ENVS": 16, "CLIP_EPS": 0.2, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh"}
        | {"ENV_NAME": "MPE_simple_spread_v3", "ENV_KWARGS": {}},
        agents=1,
    ),
    "smax": Case(
        "jaxmarl:HeuristicEnemySMAX-3m",
        "ippo_rnn_smax.py",
        COMMON
        | {"LR": 0.004, "NUM_ENVS": 128, "CLIP_EPS": 0.05, "SCALE_CLIP_EPS": False, "MAX_GRAD_NORM": 0.25}
        | {"GRU_HIDDEN_DIM": 128, "FC_DIM_SIZE": 128, "ACTIVATION": "relu", "MAP_NAME": "3m"}
        | {"ENV_KWARGS": {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"}},
        agents=3,
    ),
}


class Measured(NamedTuple):
    """What one training did."""

    speed: float  # steps per second
    seconds: float
    compiling: float
    reached: float


def ours(case: Case, steps: int, num_envs: int, seeds: int) -> Measured:
    """Our training; the first iteration compiles and is not timed."""
    config = preset(case.env, steps=steps, num_envs=num_envs, learners=seeds)
    trainer = make_trainer(config)
    began = time.perf_counter()
    state, _ = jax.block_until_ready(trainer.advance(trainer.init(), jax.numpy.int32(1)))
    compiling, began = time.perf_counter() - began, time.perf_counter()
    state, progress = jax.block_until_ready(
        trainer.advance(state, jax.numpy.int32(config.num_iterations - 1))
    )
    seconds = time.perf_counter() - began
    returns = np.asarray(state.envs.episodes.returns).sum(-1) / case.agents  # (L, the last episodes)
    return Measured(float(np.sum(progress.valid_steps)) / seconds, seconds, compiling, np.nanmean(returns))


def theirs(case: Case, folder: Path, steps: int, num_envs: int, seeds: int) -> Measured:
    """JaxMARL's training, by its script."""
    logged: list[float] = []
    module = load_script(folder / case.script, logged)
    train = module.make_train(case.settings | {"NUM_ENVS": num_envs, "TOTAL_TIMESTEPS": steps})
    began = time.perf_counter()
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    program = jax.jit(jax.vmap(train)).lower(keys).compile()
    compiling, began = time.perf_counter() - began, time.perf_counter()
    jax.block_until_ready(program(keys))
    seconds = time.perf_counter() - began
    jax.effects_barrier()
    updates = steps // num_envs // case.settings["NUM_STEPS"]
    trained = updates * num_envs * case.settings["NUM_STEPS"] * seeds
    return Measured(trained / seconds, seconds, compiling, np.nanmean(logged[-seeds * 5 :]))


def load_script(path: Path, logged: list[float]) -> types.ModuleType:
    """The script as a module; what it logs of returns goes into `logged`."""

    def log(metrics: dict) -> None:
        found = metrics.get("returns", metrics.get("returned_episode_returns"))
        logged.append(float(np.mean(found)))

    for name in ("wandb", "hydra", "omegaconf"):
        if name not in sys.modules and (name == "wandb" or importlib.util.find_spec(name) is None):
            sys.modules[name] = types.ModuleType(name)
    vars(sys.modules["wandb"])["log"] = log
    vars(sys.modules["hydra"]).setdefault("main", lambda **_: lambda main: main)
    vars(sys.modules["omegaconf"]).setdefault("OmegaConf", None)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(name: str, who: str, found: Measured, beside: Measured | None) -> str:
    times = f"{found.speed / beside.speed:.2f}" if beside else "-"
    cells = (f"{found.speed:,.0f}", f"{found.seconds:.1f}", f"{found.compiling:.1f}", f"{found.reached:.2f}")
    return f"| {name} | {who} | {' | '.join(cells)} | {times} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--baselines", type=Path)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--num-envs", type=int, help="environments; JaxMARL's number unless given")
    parser.add_argument("--seeds", type=int, default=1, help="trained at once")
    parser.add_argument("--quick", action="store_true", help="40,000 steps in 16 environments")
    options = parser.parse_args()
    device = jax.devices()[0].device_kind
    print(f"{options.seeds} at once, on one {device}; jax {jax.__version__}, {time.strftime('%Y-%m-%d')}.\n")
    print("| case | trainer | steps/s | s | compile s | return | times |\n|---|---|---|---|---|---|---|")
    for name in options.case:
        case = CASES[name]
        num_envs = 16 if options.quick else options.num_envs or case.settings["NUM_ENVS"]
        size = (40_000 if options.quick else options.steps, num_envs, options.seeds)
        peer = theirs(case, options.baselines, *size) if options.baselines else None
        if peer:
            print(row(name, "JaxMARL", peer, None), flush=True)
        print(row(name, "Shoal", ours(case, *size), peer), flush=True)


if __name__ == "__main__":
    main()
