"""Curiosity (Pathak et al. 2017): a learner is also paid for what its own model of the world gets wrong.

phi(o)               features of an observation
inverse(phi, phi')   which action led from one to the next: so phi keeps what actions change, and no more
forward(phi, a)      the features that come next
bonus                scale / 2 |forward(phi, a) - phi'|^2

Both errors train the features, those that are predicted too (equation 7 of the paper, no gradient stopped).
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from shoal.distributed.mesh import DATA, psum
from shoal.learners import gradients, observations
from shoal.learners.minibatches import arrange, shuffles, stratify
from shoal.learners.ppo_config import PPOConfig
from shoal.nets.actor_critic import Encoder, make_encoder
from shoal.nets.convolutions import is_image
from shoal.nets.layers import MLP
from shoal.ops import trees
from shoal.ops.advantages import discounted_returns
from shoal.ops.distributions import distribution_for
from shoal.ops.statistics import weighted_mean
from shoal.types import (
    ActionSpace,
    Box,
    Discrete,
    EnvSpec,
    Learner,
    LearnerState,
    MultiDiscrete,
    Rollout,
    Tree,
)


class WithCuriosity(NamedTuple):
    """What belongs to the policy and what to its curiosity: parameters, optimisers, memories, anchors."""

    policy: Tree
    curiosity: Tree


PAIRED = ("params", "opt_state", "private", "anchor")
"""Of which fields of its state a curious learner has two, where they are there at all."""


class Model(eqx.Module):
    """What a curious learner knows of how its world goes on."""

    encoder: Encoder
    features: MLP
    inverse: MLP
    forward: MLP

    def look(self, obs: Tree) -> Array:
        """phi(o), (..., size)."""
        return self.features(self.encoder(obs))


class Intrinsic(NamedTuple):
    """Sums of bonuses: of the episodes under way, and the mean of those that ended last."""

    running: Array  # (E,)
    finished: Array  # (), NaN until one has


class Transitions(NamedTuple):
    """Steps to learn from."""

    obs: Tree  # (B, ...)
    action: Tree  # (B, ...)
    next_obs: Tree  # (B, ...) what came of it: at an episode's end its true final observation
    weight: Array  # (B,) 1 where valid


class CuriositySetup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: PPOConfig
    spec: EnvSpec
    learner: Learner
    axes: tuple[str, ...] = ()
    shards: int = 1

    @property
    def data(self) -> tuple[str, ...]:
        """The mapped axes over which a learner's environments are divided."""
        return (DATA,) if self.shards > 1 else ()


def curious(
    learner: Learner, config: PPOConfig, spec: EnvSpec, axes: tuple[str, ...] = (), shards: int = 1
) -> Learner:
    """The learner with a model of its world, whose errors are rewards to it (`Rollout.bonus`).

    Its parameters, optimiser and private state become pairs (`WithCuriosity`): exchanges mix both, and name
    the second `curiosity`. The moments of observations are the learner's own.
    """
    setup = CuriositySetup(config, spec, learner, axes, shards)
    bound = {f.__name__: partial(f, setup) for f in (init, act, update, for_evaluation, on_restart)}
    judging = {name: of_policies(getattr(learner, name)) for name in ("policy_terms", "distance", "value")}
    by_env = WithCuriosity(learner.by_env, Intrinsic(running=True, finished=False))
    return learner._replace(**bound, **judging, by_env=by_env)


def policy_of(state: LearnerState) -> LearnerState:
    """The learner as it is without its curiosity."""
    inner = lambda part: part.policy if isinstance(part, WithCuriosity) else part
    return state._replace(**{name: inner(getattr(state, name)) for name in PAIRED})


def with_policy(state: LearnerState, policy: LearnerState) -> LearnerState:
    """The same curiosity beside another policy."""
    put = lambda name: getattr(state, name)._replace(policy=getattr(policy, name))
    pairs = {name: put(name) for name in PAIRED if isinstance(getattr(state, name), WithCuriosity)}
    return policy._replace(**pairs)


def of_policies(function: Callable | None) -> Callable | None:
    """The function of states, and of other things, asked about their policies alone."""
    if function is None:
        return None
    inner = lambda argument: policy_of(argument) if isinstance(argument, LearnerState) else argument
    return lambda *arguments: function(*map(inner, arguments))


def init(setup: CuriositySetup, key: Array) -> LearnerState:
    """A learner that has seen nothing, and will be surprised by everything."""
    key_policy, key_model = jax.random.split(key)
    state = setup.learner.init(key_policy)
    model = make_model(key_model, setup.config, setup.spec)
    num_envs = setup.config.num_envs // setup.shards
    params = WithCuriosity(state.params, model)
    return state._replace(
        params=params,
        opt_state=WithCuriosity(state.opt_state, optimiser(setup.config, jnp.float32(1)).init(model)),
        private=WithCuriosity(state.private, Intrinsic(jnp.zeros(num_envs), jnp.float32(jnp.nan))),
        anchor=params if setup.config.prox_coef else (),
    )


def make_model(key: Array, config: PPOConfig, spec: EnvSpec) -> Model:
    """Three networks of one hidden layer each; pictures go through convolutions first."""
    key_encoder, key_features, key_inverse, key_forward = jax.random.split(key, 4)
    size = config.curiosity.size
    init = jax.nn.initializers.he_uniform()
    encoder = make_encoder(key_encoder, spec.observation, config.network.images, init)
    layers = lambda key, num_in, num_out: MLP(key, (num_in, size, num_out), "relu", init, init)
    return Model(
        encoder=encoder,
        features=layers(key_features, encoder.num_out, size),
        inverse=layers(key_inverse, 2 * size, num_numbers(spec.action)),
        forward=layers(key_forward, size + num_numbers(spec.action), size),
    )


def act(
    setup: CuriositySetup, state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array | None = None
) -> tuple[Tree, WithCuriosity]:
    """The policy's actions."""
    action, private = setup.learner.act(policy_of(state), obs, noise, episode_starts)
    return action, state.private._replace(policy=private)


def for_evaluation(setup: CuriositySetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner in other environments than it trains in."""
    return with_policy(state, setup.learner.for_evaluation(policy_of(state), num_envs))


def on_restart(setup: CuriositySetup, state: LearnerState) -> LearnerState:
    """The learner about to begin new episodes, whose bonuses count from 0."""
    state = with_policy(state, setup.learner.on_restart(policy_of(state)))
    sums = state.private.curiosity
    return state._replace(
        private=state.private._replace(curiosity=sums._replace(running=jnp.zeros_like(sums.running)))
    )


def update(
    setup: CuriositySetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Learn from one rollout, whose surprises are judged by the model before it learns from them."""
    key_policy, key_model = jax.random.split(key)
    seen = standardised(setup, state, rollout)
    bonus = surprise(setup, state.params.curiosity, seen)
    sums, told = count(setup, state.private.curiosity, rollout, bonus)
    policy, metrics = setup.learner.update(key_policy, policy_of(state), rollout._replace(bonus=bonus))
    model, opt_state, learned = study(setup, key_model, state, seen)
    changed = with_policy(state, policy)
    changed = changed._replace(
        params=changed.params._replace(curiosity=model),
        opt_state=changed.opt_state._replace(curiosity=opt_state),
        private=changed.private._replace(curiosity=sums),
    )
    return changed, metrics | learned | told


def standardised(setup: CuriositySetup, state: LearnerState, rollout: Rollout) -> Rollout:
    """What was seen, as the policy that acted saw it."""
    look = lambda obs: observations.standardise(obs, state.statistics.obs, setup.config.inputs.clip_obs)
    return rollout._replace(obs=look(rollout.obs), last_obs=look(rollout.last_obs))


def surprise(setup: CuriositySetup, model: Model, rollout: Rollout) -> Array:
    """The bonus of every step, (T, E): 0 where an environment was reset."""
    obs = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), rollout.obs, rollout.last_obs)
    pictures = any(is_image(box) for box in observations.named(setup.spec.observation).values())
    # A whole rollout of pictures would not fit in memory at once.
    features = jax.lax.map(model.look, obs) if pictures else model.look(obs)
    error = forward_error(model, features[:-1], described(setup.spec.action, rollout.action), features[1:])
    return setup.config.curiosity.scale * jnp.where(rollout.valid, error, 0.0)


def count(
    setup: CuriositySetup, sums: Intrinsic, rollout: Rollout, bonus: Array
) -> tuple[Intrinsic, dict[str, Array]]:
    """The bonuses of every episode, added up, and what is told of them."""
    over = rollout.terminated | rollout.truncated
    running, totals = discounted_returns(sums.running, bonus, over, 1.0)
    mean = weighted_mean(totals, over.astype(jnp.float32), setup.data)
    any_over = psum(jnp.sum(over, dtype=jnp.int32), setup.data) > 0
    finished = jnp.where(any_over, mean, sums.finished)
    per_step = weighted_mean(bonus, rollout.valid.astype(jnp.float32), setup.data)
    return Intrinsic(running, finished), {"curiosity/bonus": per_step, "curiosity/return": finished}


def study(
    setup: CuriositySetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[Model, Tree, dict[str, Array]]:
    """Epochs of shuffled minibatches for the model; the policy is not looked at."""
    config = setup.config
    next_obs = jax.tree.map(
        lambda x, last: jnp.concatenate([x[1:], last[None]]), rollout.obs, rollout.last_obs
    )
    weight = rollout.valid.astype(jnp.float32)
    batch = trees.merge_axes(Transitions(rollout.obs, rollout.action, next_obs, weight))
    strata = stratify(config.num_steps, config.num_envs, config.num_minibatches, setup.shards)
    orders = shuffles(
        key, config.update_epochs, config.num_steps, strata, config.num_minibatches, setup.shards
    )
    step = partial(improve, setup, state.hypers.max_grad_norm)

    def epoch(carry, blocks):
        carry, metrics = jax.lax.scan(step, carry, arrange(batch, blocks))
        return carry, jax.tree.map(jnp.mean, metrics)

    start = (state.params.curiosity, state.opt_state.curiosity)
    (model, opt_state), metrics = jax.lax.scan(epoch, start, orders)
    return model, opt_state, jax.tree.map(jnp.mean, metrics)


def improve(
    setup: CuriositySetup, max_grad_norm: Array, carry: tuple[Model, Tree], batch: Transitions
) -> tuple[tuple[Model, Tree], dict[str, Array]]:
    """One step of the model's optimiser on one minibatch."""
    model, opt_state = carry
    gradient = jax.grad(partial(loss, setup), has_aux=True)
    found = gradients.accumulate_gradients(gradient, model, batch, setup.config.network.grad_accumulation)
    found, num_valid = psum((found, jnp.sum(batch.weight)), setup.data)  # sums, over devices too
    grads, metrics = jax.tree.map(lambda x: x / jnp.maximum(num_valid, 1.0), found)
    grads = gradients.pmean(grads, setup.axes)
    updates, opt_state = optimiser(setup.config, max_grad_norm).update(grads, opt_state, model)
    return (eqx.apply_updates(model, updates), opt_state), metrics


def loss(setup: CuriositySetup, model: Model, batch: Transitions) -> tuple[Array, dict[str, Array]]:
    """(1 - beta) forward + beta inverse, summed over the batch."""
    beta, space = setup.config.curiosity.beta, setup.spec.action
    before, after = model.look(batch.obs), model.look(batch.next_obs)
    forward = forward_error(model, before, described(space, batch.action), after)
    inverse = inverse_error(model, space, before, after, batch.action)
    total = lambda error: jnp.sum(error * batch.weight)
    metrics = {"curiosity/forward": total(forward), "curiosity/inverse": total(inverse)}
    return (1 - beta) * total(forward) + beta * total(inverse), metrics


def forward_error(model: Model, before: Array, action: Array, after: Array) -> Array:
    """|forward(phi, a) - phi'|^2 / 2; all but the last axis remain."""
    return jnp.sum((model.forward(jnp.concatenate([before, action], -1)) - after) ** 2, -1) / 2


def inverse_error(model: Model, space: ActionSpace, before: Array, after: Array, action: Tree) -> Array:
    """-log p(a | phi, phi'), summed over the parts of an action; of real ones the mean squared error."""
    guess = model.inverse(jnp.concatenate([before, after], -1))
    if isinstance(space, Box):
        return jnp.mean((guess - described(space, action)) ** 2, -1)
    return -distribution_for(space).log_prob(guess, action)


def described(space: ActionSpace, action: Tree) -> Array:
    """An action in numbers: choices one-hot, switches 0 and 1, real ones scaled.

    >>> described(MultiDiscrete((2, 3)), jnp.array([1, 0])).tolist()
    [0.0, 1.0, 1.0, 0.0, 0.0]
    """
    match space:
        case Discrete(num):
            return jax.nn.one_hot(action, num)
        case MultiDiscrete(nums):
            return jnp.concatenate([jax.nn.one_hot(action[..., i], num) for i, num in enumerate(nums)], -1)
        case Box():
            return scaled(space, action)
        case _:
            return action.astype(jnp.float32)


def scaled(box: Box, action: Array) -> Array:
    """Real actions as the environment takes them, inside their box, from -1 to 1 where it has bounds.

    >>> scaled(Box((2,), np.array([0.0, -np.inf]), np.array([4.0, np.inf])), jnp.array([5.0, 5.0])).tolist()
    [1.0, 5.0]
    """
    flat = action.reshape(*action.shape[: action.ndim - len(box.shape)], prod(box.shape))
    low, high = (np.broadcast_to(bound, box.shape).ravel() for bound in (box.low, box.high))
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    bottom, top = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    bounds = (low, high, (top + bottom) / 2, (top - bottom) / 2)
    low, high, middle, reach = (jnp.broadcast_to(jnp.float32(x), flat.shape) for x in bounds)
    return (jnp.clip(flat, low, high) - middle) / reach


def num_numbers(space: ActionSpace) -> int:
    """How many numbers describe an action."""
    return prod(space.shape) if isinstance(space, Box) else distribution_for(space).num_outputs


def optimiser(config: PPOConfig, max_grad_norm: Array) -> optax.GradientTransformation:
    """Adam of the model's own on a gradient of bounded norm."""
    bounded = optax.clip_by_global_norm(max_grad_norm)
    return optax.flatten(optax.chain(bounded, gradients.optimiser("adam", config.curiosity.learning_rate)))
