"""Run Stable-Baselines3's or SBX's TD3 and print one JSON line: `python td3.py sb3|sbx halfcheetah|pendulum`.

Runs in the peers' own environment (`setup.sh`). One environment, one gradient step per environment step.
`steps_per_second` is of the timed part only, after compiling and 1,000 steps of warming up.
"""

import argparse
import json
import time

WORKLOADS = {"halfcheetah": ("HalfCheetah-v4", [256, 256]), "pendulum": ("Pendulum-v1", [64, 64])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["sb3", "sbx"])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    if options.peer == "sb3":
        from stable_baselines3 import TD3
    else:
        from sbx import TD3

    env, hidden = WORKLOADS[options.workload]
    start = time.perf_counter()
    model = TD3(
        "MlpPolicy",
        env,
        batch_size=256,
        learning_starts=256,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": hidden},
        seed=1,
        device="cpu",
    )

    def learn(steps: int) -> float:
        before, began = model.num_timesteps, time.perf_counter()
        model.learn(steps, log_interval=None, reset_num_timesteps=before == 0)
        return (model.num_timesteps - before) / (time.perf_counter() - began)

    learn(1000)
    rate = learn(200)
    rate = learn(max(200, int(options.seconds * rate)))
    print(json.dumps({"steps_per_second": rate, "seconds_total": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
