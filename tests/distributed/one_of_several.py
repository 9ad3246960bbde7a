"""What a process of several finds out, for `test_processes.py`: run by `launch`, once per rank."""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

from shoal.distributed.launch import end_with_launcher
from shoal.distributed.processes import ProcessInfo, connect, fetch, join
from shoal.envs.registry import make
from shoal.learners.ppo import PPOConfig
from shoal.training.config import TrainConfig
from shoal.training.parts import mesh_for
from shoal.training.program import make_trainer

PPO = PPOConfig(num_envs=4, num_steps=16, num_minibatches=2, update_epochs=2, hidden=(8,), norm_obs=True)
CONFIG = TrainConfig("CartPole-v1", algo=PPO, steps=64 * 101, seed=3)


def digest(tree) -> str:
    """A hash of what this process's devices hold."""
    sums = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            sums.update(np.asarray(shard.data).tobytes())
    return sums.hexdigest()


def main(size: int, folder: Path, rank: int, coordinator: str) -> None:
    end_with_launcher()
    join(ProcessInfo(rank, size, coordinator))
    recipe = make(CONFIG.env)
    mesh = mesh_for(CONFIG, recipe.spec, None)
    connect()
    trainer = make_trainer(CONFIG, recipe=recipe, mesh=mesh)
    state = trainer.init()
    found = {"mesh": list(mesh.devices.shape), "begun": digest(state.cohort.params)}
    found["obs"] = np.asarray(state.envs.step.obs.addressable_shards[0].data).tolist()
    state, _ = trainer.advance(state, np.int32(1))
    found["first"] = [x.tolist() for x in jax.tree.leaves(fetch(state.cohort.params))]
    state, progress = trainer.advance(state, np.int32(100))
    found["advanced"] = digest(state.cohort.params)
    found["valid_steps"] = fetch(progress.valid_steps).tolist()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[4]), sys.argv[6])
