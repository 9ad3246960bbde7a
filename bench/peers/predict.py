"""Time one call of Stable-Baselines3's predict and print one JSON line: `python predict.py mlp|pixels`.

Runs in the peers' own environment (`setup.sh`), on one core and one torch thread. An untrained PPO, with
default networks of the sizes of bench/export.py.
"""

import argparse
import json
import os
import statistics
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3 import PPO

SPACES = {
    "mlp": ("MlpPolicy", Box(-1.0, 1.0, (4,)), Discrete(2)),
    "wide": ("MlpPolicy", Box(-1.0, 1.0, (17,)), Box(-1.0, 1.0, (6,))),
    "pixels": ("CnnPolicy", Box(0, 255, (84, 84, 4), np.uint8), Discrete(4)),
}


class Still(gym.Env):
    """An environment that is never stepped."""

    def __init__(self, observation: gym.Space, action: gym.Space):
        self.observation_space, self.action_space = observation, action


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=SPACES)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    options = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    policy, observation, action = SPACES[options.kind]
    layers = {} if options.kind == "pixels" else {"policy_kwargs": {"net_arch": options.hidden}}
    model = PPO(policy, Still(observation, action), device="cpu", n_steps=2, batch_size=2, **layers)
    seen, times = observation.sample(), []
    for _ in range(options.calls):
        began = time.perf_counter()
        model.predict(seen, deterministic=True)
        times.append(time.perf_counter() - began)
    print(json.dumps({"microseconds": 1e6 * statistics.median(times)}))


if __name__ == "__main__":
    main()
