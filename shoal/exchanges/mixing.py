"""Mixing: learners combine their parameters, through a server or with neighbours.

`mix` makes an exchange of a `MixingRule` (how messages are combined) and a `Channel` (how a message changes
on its way). Messages are a matrix (L, D): row i is the flattened parameters of learner i.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges.channels import PLAIN, Channel, FeedbackState, send
from shoal.exchanges.merging import is_running
from shoal.exchanges.mixing_rules import MixingRule, from_neighbours, from_partner, from_server
from shoal.exchanges.robust import mean
from shoal.exchanges.routing import ONE_DEVICE, Transport
from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.ops.statistics import pool
from shoal.types import Exchange, ExchangeState, LearnerState, Scores, Tree


class Server(NamedTuple):
    """The parameters of a server and the state of its optimiser."""

    model: Array  # (D,)
    opt_state: Tree


Weighting: TypeAlias = Literal["uniform", "samples", "returns"]


def average(
    *,
    weights: Weighting = "uniform",
    server: optax.GradientTransformation | None = None,
    channel: Channel = PLAIN,
    **share: bool,
) -> Exchange:
    """Federated averaging (McMahan et al. 2017): x_i <- sum_j n_j x_j / sum_j n_j.

    A `server` optimiser takes the server's parameters minus the average as its gradient:
    `optax.sgd(1.0, momentum=0.9)` is FedAvgM, `optax.adam(0.01, eps=1e-3)` FedAdam (Reddi et al. 2021).

    >>> import shoal
    >>> config = shoal.TrainConfig("CartPole-v1", steps=1024, learners=2, reports=1)
    >>> for report in shoal.train(config, exchange=average()):
    ...     print(report.metrics["disagreement/params"].tolist())
    [0.0, 0.0]
    """
    return mix(from_server(mean()), weights=weights, server=server, channel=channel, **share)


def gossip(
    matrix: np.ndarray, *, channel: Channel = PLAIN, transport: Transport = ONE_DEVICE, **share: bool
) -> Exchange:
    """x_i <- sum_j W_ij x_j with a constant row-stochastic W (L, L)."""
    return mix(from_neighbours(matrix, transport), channel=channel, **share)


def gossip_in_pairs(
    *, channel: Channel = PLAIN, transport: Transport = ONE_DEVICE, **share: bool
) -> Exchange:
    """x_i, x_j <- (x_i + x_j) / 2 for random pairs, drawn anew each time (Boyd et al. 2006)."""
    return mix(from_partner(transport), channel=channel, **share)


def mix(
    rule: MixingRule,
    *,
    weights: Weighting = "uniform",
    server: optax.GradientTransformation | None = None,
    channel: Channel = PLAIN,
    share_statistics: bool = True,
    share_moments: bool = False,
) -> Exchange:
    """An exchange that mixes parameters by a rule.

    With `share_statistics`, running statistics are merged by their counts; with `share_moments`, Adam's
    moments are mixed like parameters.
    """
    if server is not None and not rule.broadcast:
        raise ShoalError("a server optimiser needs a server: use it with average or a robust rule")
    if weights != "uniform" and not rule.broadcast:
        raise ShoalError(f"weights {weights} need a server: the weights of gossip are those of its matrix")

    def init(cohort: LearnerState):
        own, _ = trees.as_matrix(cohort.params)
        model = jnp.mean(own, 0)
        feedback = () if channel.is_plain else FeedbackState(own, jnp.zeros_like(own))
        served = () if server is None else Server(model, server.init(model))
        rounds, sent = jnp.zeros(own.shape[0], jnp.int32), jnp.zeros((own.shape[0], 2), jnp.int32)
        return ExchangeState((rounds, sent, feedback), served), cohort

    def apply(key, state, cohort, scores):
        (rounds, sent, feedback), served = state
        key_rule, key_channel = jax.random.split(key)
        own, back = trees.as_matrix(cohort.params)
        weight, present = weigh(weights, scores), scores.present
        messages, updated = (own, feedback) if channel.is_plain else send(channel, key_channel, own, feedback)
        target = rule.combine(key_rule, own, messages, weight)
        if server is not None:
            served = step_server(server, served, target[0], jnp.any(present))
            target = jnp.broadcast_to(served.model, own.shape)
        if not channel.is_plain:
            # After a broadcast all learners know `target`. In gossip they know only what was sent; the lost
            # part is in the difference to that copy, so it is not added again.
            updated = (
                FeedbackState(target, updated.residual)
                if rule.broadcast
                else FeedbackState(updated.public, 0 * updated.residual)
            )
            feedback = trees.where_rows(present, updated, feedback)
        cohort = cohort._replace(params=back(jnp.where(present[:, None], target, own)))
        if share_statistics:
            cohort = cohort._replace(statistics=merge_statistics(rule, key_rule, cohort, weight, present))
        if share_moments:
            moments = mix_moments(rule, key_rule, cohort.opt_state, weight, present)
            cohort = cohort._replace(opt_state=moments)
        rounds = rounds + present
        receivers = rule.count_messages(key_rule, weight, False)
        followers = receivers if channel.is_plain else rule.count_messages(key_rule, weight, True)
        sent = sent + jnp.where(present[:, None], jnp.stack([followers, receivers], 1), 0)
        uncompressed = _row_bytes(cohort.statistics) if share_statistics else 0
        uncompressed += _row_bytes(_real(cohort.opt_state)) if share_moments else 0
        num_bytes = (
            jnp.float32(sent[:, 0]) * channel.message_bytes(own.shape[1])
            + jnp.float32(sent[:, 1]) * uncompressed
        )
        metrics = {"exchange/bytes": num_bytes, "exchange/rounds": jnp.float32(rounds)}
        return ExchangeState((rounds, sent, feedback), served), cohort, metrics

    return Exchange(init, apply)


def step_server(server: optax.GradientTransformation, state: Server, target: Array, anyone: Array) -> Server:
    """The server's step, if anyone is present; its gradient is model - target."""
    updates, opt_state = server.update(state.model - target, state.opt_state, state.model)
    moved = Server(optax.apply_updates(state.model, updates), opt_state)
    return trees.where(anyone, moved, state)


def weigh(weighting: Weighting, scores: Scores) -> Array:
    """The weight of each learner in an average, (L,): 0 for absent learners.

    With `returns`: the mean raw return minus the smallest one, or minus 0 if none is negative.
    """
    present = scores.present.astype(jnp.float32)
    if weighting == "uniform":
        return present
    if weighting == "samples":
        weight = scores.samples * present
    else:
        known = scores.present & jnp.isfinite(scores.returns)
        floor = jnp.minimum(jnp.min(jnp.where(known, scores.returns, jnp.inf)), 0.0)
        weight = jnp.where(known, scores.returns - floor, 0.0)
    return jnp.where(jnp.sum(weight) > 0, weight, present)


def merge_statistics(
    rule: MixingRule, key: Array, cohort: LearnerState, weight: Array, present: Array
) -> Tree:
    """Present learners' running statistics, merged by the rule; absent learners' are not read."""
    zeros = jax.tree.map(jnp.zeros_like, cohort.statistics)
    sent = trees.where_rows(present, cohort.statistics, zeros)
    merged = jax.tree.map(lambda one: rule.merge(key, one, weight), sent, is_leaf=is_running)
    return trees.where_rows(present, merged, cohort.statistics)


def mix_moments(rule: MixingRule, key: Array, opt_state: Tree, weight: Array, present: Array) -> Tree:
    """The optimisers' real-valued state, mixed like the parameters; counters stay."""

    def mixed(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        own = x.reshape(x.shape[0], -1)
        return jnp.where(present[:, None], rule.combine(key, own, own, weight), own).reshape(x.shape)

    return jax.tree.map(mixed, opt_state)


@jax.jit
def mean_learner(cohort: LearnerState) -> LearnerState:
    """A cohort of one: the mean of the parameters, the pooled statistics, all else of the first learner.

    Lost learners do not count. It is one compiled program: several programs that gather from devices at the
    same time can deadlock where there are few cores.
    """
    sound, models = is_sound(cohort), (cohort.params, cohort.statistics)
    params, statistics = trees.where_rows(sound, models, jax.tree.map(jnp.zeros_like, models))
    params = jax.tree.map(lambda x: jnp.sum(x, 0, keepdims=True) / jnp.sum(sound), params)
    statistics = jax.tree.map(lambda s: trees.stack([pool(s)]), statistics, is_leaf=is_running)
    return trees.take(cohort, jnp.array([0]))._replace(params=params, statistics=statistics)


def _real(tree: Tree) -> list[Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _row_bytes(tree: Tree) -> int:
    return sum(x.size // x.shape[0] * x.dtype.itemsize for x in jax.tree.leaves(tree))
