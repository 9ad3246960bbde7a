"""Optuna driving Stable-Baselines3 on LunarLander for some minutes: prints the best policy's return.

Runs in the peers' own environment, with optuna and gymnasium[box2d]. Two processes share a study, one a core,
as a user with two cores would. A trial has one seed and is pruned below the median of earlier trials.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import optuna
import torch
from optuna.storages.journal import JournalFileBackend
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

REPORTS = 10


class Pruning(BaseCallback):
    """Reports the mean return of the last 100 episodes; stops a pruned trial, and all when time is over."""

    def __init__(self, trial, steps, deadline):
        super().__init__()
        self.trial, self.every, self.deadline = trial, steps // REPORTS, deadline
        self.reported, self.pruned = 0, False

    def _on_step(self) -> bool:
        if self.num_timesteps >= (self.reported + 1) * self.every and self.model.ep_info_buffer:
            self.reported += 1
            self.trial.report(score(self.model), self.reported)
            self.pruned = self.trial.should_prune()
        return not self.pruned and time.monotonic() < self.deadline


def score(model) -> float:
    """The mean return of the last 100 training episodes."""
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer] or [-np.inf]))


def search(folder: Path, seed: int, steps: int, deadline: float) -> None:
    """One process's share of the study."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner, sampler = optuna.pruners.MedianPruner(), optuna.samplers.TPESampler(seed=seed)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.log")))
    study = optuna.create_study(
        study_name="sweep",
        storage=storage,
        sampler=sampler,
        pruner=pruner,
        direction="maximize",
        load_if_exists=True,
    )

    def objective(trial) -> float:
        hypers = {
            "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
            "clip_range": trial.suggest_float("clip_range", 0.05, 0.5),
            "ent_coef": trial.suggest_float("ent_coef", 1e-5, 0.1, log=True),
        }
        env = make_vec_env("LunarLander-v3", 16, seed=seed + trial.number)
        fixed = {"n_steps": 1024, "batch_size": 128, "n_epochs": 4, "gamma": 0.999, "gae_lambda": 0.98}
        model = PPO("MlpPolicy", env, **fixed, **hypers, seed=seed + trial.number, device="cpu")
        pruning = Pruning(trial, steps, deadline)
        model.learn(steps, callback=pruning)
        model.save(folder / f"{trial.number}.zip")
        (folder / f"{trial.number}.json").write_text(json.dumps(score(model)))
        if pruning.pruned:
            raise optuna.TrialPruned
        return score(model)

    study.optimize(objective, timeout=max(1.0, deadline - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = [
            (folder, 1000 * options.seed + i, options.steps, deadline) for i in range(options.processes)
        ]
        workers = [multiprocessing.Process(target=search, args=each) for each in arguments]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        scores = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        best = PPO.load(folder / f"{max(scores, key=scores.__getitem__)}.zip", device="cpu")
        env = make_vec_env("LunarLander-v3", 1, seed=10_000 + options.seed)
        greedy, _ = evaluate_policy(best, env, 100)
        print(json.dumps({"return": float(greedy), "trials": len(scores)}))


if __name__ == "__main__":
    main()
