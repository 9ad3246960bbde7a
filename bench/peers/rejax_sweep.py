"""Train rejax's PPO on CartPole with many settings, one after the other, and print one JSON line.

Learning rate, entropy and clip coefficients are data in rejax, too: the program is compiled once. Settings
are drawn log-uniformly; returns are not measured, so nothing but training takes time.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from run import WORKLOADS, make_rejax

RANGES = {"learning_rate": (1e-4, 1e-2), "ent_coef": (1e-4, 0.1), "clip_eps": (0.05, 0.5)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int)
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    work = WORKLOADS["cartpole"]
    updates = -(-options.steps // work.batch_size)
    algo, rng = make_rejax(work, updates), np.random.default_rng(0)

    def draw(number: int):
        values = {name: np.float32(np.exp(rng.uniform(*np.log(ends)))) for name, ends in RANGES.items()}
        return algo.replace(**values), jax.random.key(number)

    train = jax.jit(lambda algo, key: algo.train(key)[0])
    began = time.perf_counter()
    compiled = train.lower(*draw(0)).compile()
    compile_seconds, began = time.perf_counter() - began, time.perf_counter()
    for number in range(options.runs):
        jax.block_until_ready(compiled(*draw(number)))
    seconds, steps = time.perf_counter() - began, updates * work.batch_size
    print(json.dumps({"seconds": seconds, "compile_seconds": compile_seconds, "steps": steps}))


if __name__ == "__main__":
    main()
