"""Mixing: learners combine their parameters, through a server or with neighbours.

`mix` makes an exchange of a `MixingRule` (how messages are combined) and a `Channel` (how a message changes
on its way). Messages are a matrix (L, D): row i is the flattened parameters of learner i.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges import channels, routing
from shoal.exchanges.channels import Alteration, Compressor
from shoal.exchanges.products import linear, times
from shoal.exchanges.robust import Aggregator, mean, median
from shoal.exchanges.routing import ONE_DEVICE, Transport
from shoal.ops import trees
from shoal.ops.statistics import Running, pool, variance
from shoal.types import Exchange, ExchangeState, LearnerState, Scores, Tree


class MixingRule(NamedTuple):
    """How learners combine their messages.

    combine(key, own, messages, weight) -> (L, D)     own, messages (L, D); weight (L,), 0 for absent learners
    merge(key, statistics, weight) -> statistics      `Running` with leading L
    count_messages(key, weight, changes) -> (L,)      how often each learner sends its message

    `broadcast`: all learners receive the same result. `changes`: messages are changes instead of parameters,
    so every learner that may receive from the sender later needs each of them.
    """

    combine: Callable[[Array, Array, Array, Array], Array]
    merge: Callable[[Array, Running, Array], Running]
    count_messages: Callable[[Array, Array, bool], Array]
    broadcast: bool


class Channel(NamedTuple):
    """How a message changes on its way: privacy, then compression, then attack.

    With any of these, learners send their change since the last message instead of their parameters. What
    compression loses is sent later (error feedback, Seide et al. 2014; in gossip the receivers' copies have
    the same effect, Koloskova et al. 2019). An attacker sends a false message, but its `FeedbackState` is
    that of the true one.
    """

    privacy: Alteration | None = None
    compressor: Compressor | None = None
    attack: Alteration | None = None

    @property
    def is_plain(self) -> bool:
        """Whether messages are the parameters, unchanged."""
        return self == (None, None, None)


class FeedbackState(NamedTuple):
    """Error feedback, (L, D) each."""

    public: Array  # the receivers' copy of each learner's parameters
    residual: Array  # what compression has lost and a later message will add


PLAIN = Channel()
"""Messages are the parameters, unchanged."""


class Server(NamedTuple):
    """The parameters of a server and the state of its optimiser."""

    model: Array  # (D,)
    opt_state: Tree


Weighting: TypeAlias = Literal["uniform", "samples", "returns"]
Operator: TypeAlias = Callable[[Tree, Tree], Tree]
"""(own, messages) -> mixed: the same linear function along the learner axis for every leaf (L, n)."""


def average(
    *,
    weights: Weighting = "uniform",
    server: optax.GradientTransformation | None = None,
    channel: Channel = PLAIN,
    **kept: bool,
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
    return mix(from_server(mean()), weights=weights, server=server, channel=channel, **kept)


def gossip(
    matrix: np.ndarray, *, channel: Channel = PLAIN, transport: Transport = ONE_DEVICE, **kept: bool
) -> Exchange:
    """x_i <- sum_j W_ij x_j with a constant row-stochastic W (L, L)."""
    return mix(from_neighbours(matrix, transport), channel=channel, **kept)


def gossip_in_pairs(*, channel: Channel = PLAIN, transport: Transport = ONE_DEVICE, **kept: bool) -> Exchange:
    """x_i, x_j <- (x_i + x_j) / 2 for random pairs, drawn anew each time (Boyd et al. 2006)."""
    return mix(from_partner(transport), channel=channel, **kept)


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
        size = (channel.compressor or channels.none()).message_bytes(own.shape[1])
        uncompressed = _row_bytes(cohort.statistics) if share_statistics else 0
        uncompressed += _row_bytes(_real(cohort.opt_state)) if share_moments else 0
        num_bytes = jnp.float32(sent[:, 0]) * size + jnp.float32(sent[:, 1]) * uncompressed
        metrics = {"exchange/bytes": num_bytes, "exchange/rounds": jnp.float32(rounds)}
        return ExchangeState((rounds, sent, feedback), served), cohort, metrics

    return Exchange(init, apply)


def send(channel: Channel, key: Array, own: Array, feedback: FeedbackState) -> tuple[Array, FeedbackState]:
    """The parameters as receivers see them, (L, D), and the feedback as the senders keep it."""
    key_privacy, key_attack = jax.random.split(key)
    delta = own - feedback.public
    delta = channel.privacy(key_privacy, delta) if channel.privacy else delta
    delta = delta + feedback.residual
    sent = channel.compressor.apply(delta) if channel.compressor else delta
    arrived = channel.attack(key_attack, sent) if channel.attack else sent
    return feedback.public + arrived, FeedbackState(feedback.public + sent, delta - sent)


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


def from_server(aggregate: Aggregator, robust: bool = False) -> MixingRule:
    """All learners receive one aggregate of all messages."""

    def combine(key, own, messages, weight):
        return jnp.broadcast_to(aggregate(messages, weight), own.shape)

    def merge(key, statistics, weight):
        merged = median_statistics(statistics, weight) if robust else pool_statistics(statistics, weight)
        return jax.tree.map(lambda one, like: jnp.broadcast_to(one, like.shape), merged, statistics)

    def count_messages(key, weight, changes):
        return jnp.ones_like(weight, jnp.int32)

    return MixingRule(combine, merge, count_messages, broadcast=True)


def from_neighbours(matrix: np.ndarray, transport: Transport = ONE_DEVICE) -> MixingRule:
    """x_i <- W_ii x_i + sum_j W_ij m_j; the weight of an absent neighbour goes to x_i.

    The cost of a sparse W is proportional to its edges (`linear`).
    """
    matrix = np.asarray(matrix, np.float32)
    if not np.allclose(matrix.sum(1), 1, atol=1e-5):
        raise ShoalError("each row of a gossip matrix must sum to 1")
    others = matrix * (1 - np.eye(len(matrix), dtype=np.float32))
    product, whole_product = linear(others, transport), linear(others)

    def operator(weight: Array, product: Callable[[Tree], Tree]) -> Operator:
        present = (weight > 0).astype(jnp.float32)[:, None]

        def apply(own: Tree, messages: Tree) -> Tree:
            sent = jax.tree.map(lambda x: jnp.where(present > 0, x, 0.0), messages)
            from_others, received = product((present, sent))
            from_others = jnp.minimum(from_others, 1.0)
            return jax.tree.map(lambda x, new: times(1 - from_others, x) + new, own, received)

        return apply

    def combine(key, own, messages, weight):
        return operator(weight, product)(own, messages)

    def merge(key, statistics, weight):
        mixed = operator(weight, whole_product)
        return mix_statistics(lambda sums: mixed(sums, sums), statistics)

    receives = others != 0  # (L, L): i from j
    count = transport.replicated(lambda weight: jnp.sum(jnp.asarray(receives) & (weight > 0)[:, None], 0))

    def count_messages(key, weight, changes):
        return jnp.asarray(receives.sum(0), jnp.int32) if changes else count(weight)

    return MixingRule(combine, transport.replicated(merge), count_messages, broadcast=False)


def from_partner(transport: Transport = ONE_DEVICE) -> MixingRule:
    """x_i <- (x_i + m_j) / 2 with a random partner j, drawn anew each time; one of an odd number has none."""

    def draw_partners(key: Array, weight: Array) -> tuple[Array, Array]:
        """Each learner's partner, and whether it has one."""
        num_learners = weight.shape[0]
        # Present learners come first, in random order; two that are next to each other are partners.
        order = jnp.argsort(jnp.where(weight > 0, jax.random.uniform(key, (num_learners,)), 2.0))
        other = jnp.argsort(order) ^ 1
        partner = order[jnp.minimum(other, num_learners - 1)]
        return partner, (other < num_learners) & (weight > 0) & (weight[partner] > 0)

    def average_pairs(paired: Array, own: Tree, messages: Tree) -> Tree:
        return jax.tree.map(lambda x, new: jnp.where(paired[:, None], (x + new) / 2, x), own, messages)

    def combine(key, own, messages, weight):
        partner, paired = transport.replicated(draw_partners)(key, weight)
        return average_pairs(paired, own, routing.take_dynamic(messages, partner, len(weight), transport))

    def merge(key, statistics, weight):
        partner, paired = draw_partners(key, weight)
        return mix_statistics(lambda sums: average_pairs(paired, sums, trees.take(sums, partner)), statistics)

    def count_messages(key, weight, changes):
        if changes:
            return jnp.full_like(weight, len(weight) - 1, jnp.int32)
        _, paired = transport.replicated(draw_partners)(key, weight)
        return jnp.int32(paired)

    return MixingRule(combine, transport.replicated(merge), count_messages, broadcast=False)


def pool_statistics(statistics: Running, weight: Array) -> Running:
    """The weighted mean and variance of all data; the count is the weighted mean of the learners' counts.

    The count is not the sum, so that repeated merging counts no sample twice.
    """
    share = weight / jnp.maximum(jnp.sum(weight), 1e-8)
    return pool(statistics._replace(count=statistics.count * share, m2=_scale(share, statistics.m2)))


def median_statistics(statistics: Running, weight: Array) -> Running:
    """The coordinate-wise medians of counts, means and variances, which a few attackers cannot move far."""
    middle = lambda x: median()(x.reshape(x.shape[0], -1), weight).reshape(x.shape[1:])
    count = middle(statistics.count)
    return Running(count, middle(statistics.mean), middle(jax.vmap(variance)(statistics)) * count)


def mix_statistics(operator: Callable[[Tree], Tree], statistics: Running) -> Running:
    """Statistics of the mixed data: counts, sums and sums of squares mix linearly.

    n' = W n,  mean' = W (n mean) / n',  M2' = W (M2 + n mean^2) - n' mean'^2

    Means are measured from a centre common to all learners. So each device computes all of it; statistics are
    small.
    """
    flat = lambda x: x.reshape(x.shape[0], -1)
    count, mean, m2 = flat(statistics.count), flat(statistics.mean), flat(statistics.m2)
    centre = _midrange(count, mean)
    offset = mean - centre[None]
    sums = (count, times(count, offset), m2 + times(count, offset**2))
    total, sum_, squares = operator(sums)
    moved = sum_ / jnp.maximum(total, 1e-8)
    squares = squares + times(-total, moved**2)
    shaped = lambda x, like: x.reshape(like.shape)
    return Running(
        shaped(total, statistics.count),
        shaped(centre[None] + moved, statistics.mean),
        shaped(jnp.maximum(squares, 0.0), statistics.m2),
    )


def _midrange(count: Array, mean: Array) -> Array:
    """Halfway between the smallest and the largest mean; it does not depend on the learners' order."""
    known = (count > 0) & jnp.isfinite(mean)
    low = jnp.min(jnp.where(known, mean, jnp.inf), 0)
    high = jnp.max(jnp.where(known, mean, -jnp.inf), 0)
    return jnp.where(low <= high, (low + high) / 2, 0.0)


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

    It is one compiled program: several programs that gather from devices at the same time can deadlock where
    there are few cores.
    """
    params = jax.tree.map(lambda x: jnp.mean(x, 0, keepdims=True), cohort.params)
    statistics = jax.tree.map(lambda s: trees.stack([pool(s)]), cohort.statistics, is_leaf=is_running)
    return trees.take(cohort, jnp.array([0]))._replace(params=params, statistics=statistics)


def is_running(tree: Tree) -> bool:
    """Whether this part of a tree is running statistics."""
    return isinstance(tree, Running)


def _real(tree: Tree) -> list[Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def _row_bytes(tree: Tree) -> int:
    return sum(x.size // x.shape[0] * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _scale(weight: Array, x: Array) -> Array:
    return weight.reshape(-1, *[1] * (x.ndim - 1)) * x
