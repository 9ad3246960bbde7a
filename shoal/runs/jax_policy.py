"""Policies that act by their learner's own functions, in JAX: of networks and learners of your own."""

from functools import partial
from typing import Any

import jax
import numpy as np

from shoal.envs.frame_stack import append, fill
from shoal.ops import trees
from shoal.runs.policy import Actor, Policy, clip_action
from shoal.training.players import set_sampling
from shoal.types import EnvSpec, Learner, LearnerState, Tree


def jax_policy(
    spec: EnvSpec,
    learner: Learner,
    state: LearnerState,
    *,
    num_frames: int = 1,
    sampled: bool = False,
    seed: int = 0,
) -> Policy:
    """`spec` is the environment's without stacked frames; `state` is one learner's, without L."""
    learner, key = set_sampling(learner, sampled), jax.random.key(seed)
    compiled = jax.jit(partial(_act, learner, num_frames))

    def begin(rows: int, obs: Tree) -> tuple[Tree, Tree]:
        frames = fill(obs, num_frames) if num_frames > 1 else ()
        return learner.for_evaluation(state, rows).private, frames

    def act(step: int, kept: tuple[Tree, Tree], obs: Tree, starts: np.ndarray) -> tuple[np.ndarray, Any]:
        private, frames = kept
        now = state._replace(private=private)
        action, private, frames = compiled(jax.random.fold_in(key, step), now, frames, obs, starts)
        return clip_action(spec.action, action), (private, frames)

    has_state = learner.policy_terms is None or num_frames > 1
    return Policy(spec.name, spec.observation, spec.action, Actor(begin, act, has_state), spec.agents)


def _act(
    learner: Learner,
    num_frames: int,
    key: jax.Array,
    state: LearnerState,
    frames: Tree,
    obs: Tree,
    episode_starts: jax.Array,
) -> tuple[Tree, Tree, Tree]:
    """Actions (B, ...), the learner's private state, and the stacked frames."""
    if num_frames > 1:
        obs = frames = append(frames, obs, episode_starts, num_frames)
    noise = trees.take(learner.draw(key, (1, episode_starts.shape[0])), 0)
    action, private = learner.act(state, obs, noise, episode_starts)
    return action, private, frames
