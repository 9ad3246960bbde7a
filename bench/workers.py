"""A Gymnasium environment that computes for a millisecond a step, in one process and in several.

    python bench/workers.py [--workers 2] [--milliseconds 1] [--repeats 5] [--steps 16384]

Prints the medians of interleaved repeats, PPO's updates included.
"""

import argparse
import statistics
import time

import gymnasium
import numpy as np

import shoal


class Busy(gymnasium.Env):
    """Each step computes for so many milliseconds; an episode has 100."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, milliseconds: float = 1.0):
        self.seconds, self.steps = milliseconds / 1000, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        end = time.thread_time() + self.seconds  # of this thread alone: what others do does not count
        while time.thread_time() < end:
            pass
        return self._observe(), float(action), self.steps == 100, False, {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


def steps_per_second(workers: int, milliseconds: float, steps: int) -> float:
    """Environment steps per second after the first report, which compiles."""
    options = {"milliseconds": milliseconds, "workers": workers}
    reports = shoal.train(Busy, env_options=options, steps=steps, num_envs=8, num_steps=128)
    points = [(report.step, time.perf_counter()) for report in reports]
    (first_step, start), (last_step, end) = points[0], points[-1]
    return (last_step - first_step) / (end - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--milliseconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16_384)
    args = parser.parse_args()
    found: dict[int, list[float]] = {1: [], args.workers: []}
    for _ in range(args.repeats):
        for workers, speeds in found.items():
            speeds.append(steps_per_second(workers, args.milliseconds, args.steps))
    for workers, speeds in found.items():
        print(f"{workers} worker{'s' * (workers > 1)}: {statistics.median(speeds):,.0f} steps/s")
    ratios = [many / one for one, many in zip(*found.values(), strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
