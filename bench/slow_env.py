"""An environment for bench/interrupts.py: its first steps are quick, the later ones take as long as asked."""

import os
import time

import gymnasium
import numpy as np

QUICK_STEPS = 300
"""Steps without a pause."""


class Slow(gymnasium.Env):
    """Each step after the first ones sleeps for SHOAL_BENCH_PAUSE seconds."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > QUICK_STEPS:
            time.sleep(float(os.environ.get("SHOAL_BENCH_PAUSE", 0)))
        return np.zeros(3, np.float32), 1.0, self.steps % 10 == 0, False, {}


gymnasium.register("Slow-v0", Slow)
