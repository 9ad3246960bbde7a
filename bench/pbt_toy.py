"""The toy of the PBT paper (Jaderberg et al. 2017, figure 2): theta and Q, drawn into pbt_toy.png."""

from collections import namedtuple

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from shoal.exchanges.exploration import Prior, explore
from shoal.exchanges.selection import copy_parents, truncation
from shoal.types import LearnerState

Hypers = namedtuple("Hypers", "h0 h1")
PRIORS = dict.fromkeys(Hypers._fields, Prior("uniform", 0.0, 1.0))
PANELS = {"PBT": (1, 1), "exploit only": (1, 0), "explore only": (0, 1), "grid search": (0, 0)}
STEPS, EVERY, RATE = 200, 5, 0.02
quality = lambda theta: 1.2 - jnp.sum(theta**2, -1)


@jax.jit
def train(key, exploits, explores):
    """theta <- theta + RATE dq/dtheta, q = 1.2 - h . theta^2, for the sake of Q = 1.2 - theta . theta."""

    def step(workers, now):
        key_select, key_explore = jax.random.split(jax.random.fold_in(key, now))
        theta = workers.params - 2 * RATE * jnp.stack(workers.hypers, 1) * workers.params
        parent, mutate = truncation(0.5)(key_select, quality(theta), jnp.full(2, now % EVERY == 0))
        copied = lambda yes: jnp.where(yes, parent, jnp.arange(2))
        # Unless h is then explored each keeps its own: two equal workers would learn nothing more.
        state = copy_parents(workers._replace(params=theta), copied(exploits), copied(exploits & explores))
        h = explore(PRIORS, key_explore, state.hypers, jnp.logical_and(mutate, explores), resample=0)
        return state._replace(hypers=h), theta

    workers = LearnerState(jnp.full((2, 2), 0.9), (), (), Hypers(*jnp.eye(2)), ())
    return jax.lax.scan(step, workers, jnp.arange(1, STEPS + 1))[1]  # (step, worker, 2)


def draw(figure, paths):
    """Above the way of both workers through the plane; below their Q over the steps, its optimum dashed."""
    ways, scores = figure.subplots(2, len(paths), sharex="row", sharey="row")
    for way, score, (name, theta) in zip(ways, scores, paths.items(), strict=True):
        way.plot(theta[:, :, 0], theta[:, :, 1], ".", markersize=3)
        way.set(title=name, xlabel="theta 0", ylabel="theta 1")
        score.plot(range(1, STEPS + 1), quality(theta), label=["worker 0", "worker 1"])
        score.axhline(1.2, color="gray", linestyle="--", linewidth=0.8)
        score.set(xlabel="step", ylabel="Q")
    scores[0].legend(frameon=False)


if __name__ == "__main__":
    paths = {name: train(jax.random.key(0), *kind) for name, kind in PANELS.items()}
    for name, theta in paths.items():
        print(f"{name:>12}: best Q {quality(theta).max():.4f}")
    figure = Figure(figsize=(12, 6), layout="constrained")
    draw(figure, paths)
    figure.savefig("pbt_toy.png")
