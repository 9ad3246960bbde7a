"""Mixing: learners take up each other's parameters, from a server or from their neighbours.

What a round does is a `MixingRule` (who takes what from whom) and a `Channel` (what happens to a message on
its way); `mix` makes an exchange of the two. Messages are rows of a matrix (L, D): each learner's
parameters, flattened.
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
from shoal.exchanges.routing import HERE, Transport
from shoal.ops import trees
from shoal.ops.statistics import Running, pool, variance
from shoal.types import Exchange, ExchangeState, LearnerState, Scores, Tree


class MixingRule(NamedTuple):
    """What learners make of each other's messages.

    combine(key, own, messages, weight) -> (L, D)     own, messages (L, D), weight (L,), 0 for the absent
    merge(key, statistics, weight) -> statistics      `Running` rows, leading L
    copies(key, weight, books) -> (L,)                how often each sends its message

    `broadcast` says that all receive the same, so that each knows what the others hold afterwards. With
    `feedback`, a message tells how its sender changed: whoever may listen later has to hear it, too.
    """

    combine: Callable[[Array, Array, Array, Array], Array]
    merge: Callable[[Array, Running, Array], Running]
    copies: Callable[[Array, Array, bool], Array]
    broadcast: bool


class Channel(NamedTuple):
    """What happens to a message on its way.

    Learners then send how they changed since others last heard of them: bounded and blurred, then
    compressed. What compression leaves out is sent later (error feedback, Seide et al. 2014; in gossip
    the receivers' copies do the same, Koloskova et al. 2019). A liar sends something else, but keeps its
    own books honestly.
    """

    privacy: Alteration | None = None
    compressor: Compressor | None = None
    attack: Alteration | None = None

    @property
    def is_plain(self) -> bool:
        """Whether messages arrive as they were sent."""
        return self == (None, None, None)


class FeedbackState(NamedTuple):
    """What others know of each learner, and what it still owes them, (L, D) each."""

    public: Array
    residual: Array


PLAIN = Channel()
"""Messages arrive as they were sent."""


class Server(NamedTuple):
    """A server's own model and the state of its optimiser."""

    model: Array  # (D,)
    opt_state: Tree


Weighting: TypeAlias = Literal["uniform", "samples", "returns"]
Operator: TypeAlias = Callable[[Tree, Tree], Tree]
"""(own, messages) -> what learners make of them: the same linear function of rows (L, n) for every leaf."""


def average(
    *,
    weights: Weighting = "uniform",
    server: optax.GradientTransformation | None = None,
    channel: Channel = PLAIN,
    **kept: bool,
) -> Exchange:
    """Federated averaging (McMahan et al. 2017): x_i <- sum_j n_j x_j / sum_j n_j.

    A `server` optimiser treats what the average moved by as a gradient: `optax.sgd(1.0, momentum=0.9)`
    is FedAvgM, `optax.adam(0.01, eps=1e-3)` FedAdam (Reddi et al. 2021).

    >>> import shoal
    >>> config = shoal.TrainConfig("CartPole-v1", steps=1024, learners=2, reports=1)
    >>> for report in shoal.train(config, exchange=average()):
    ...     print(report.metrics["disagreement/params"].tolist())
    [0.0, 0.0]
    """
    return mix(from_server(mean()), weights=weights, server=server, channel=channel, **kept)


def gossip(
    matrix: np.ndarray, *, channel: Channel = PLAIN, transport: Transport = HERE, **kept: bool
) -> Exchange:
    """x_i <- sum_j W_ij x_j with a row-stochastic W (L, L) that never changes."""
    return mix(from_neighbours(matrix, transport), channel=channel, **kept)


def gossip_in_pairs(*, channel: Channel = PLAIN, transport: Transport = HERE, **kept: bool) -> Exchange:
    """x_i, x_j <- (x_i + x_j) / 2 for pairs drawn anew each time (Boyd et al. 2006)."""
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
    """An exchange of parameters by a rule; running statistics are merged by their counts.

    Adam's moments stay with their learner unless `share_moments`.
    """
    if server is not None and not rule.broadcast:
        raise ShoalError("a server optimiser needs a server: use it with average or a robust rule")
    if weights != "uniform" and not rule.broadcast:
        raise ShoalError(f"weights {weights} are for averages: in gossip the matrix says who counts")

    def init(cohort: LearnerState):
        own, _ = trees.as_matrix(cohort.params)
        model = jnp.mean(own, 0)
        feedback = () if channel.is_plain else FeedbackState(own, jnp.zeros_like(own))
        whole = () if server is None else Server(model, server.init(model))
        rounds, sent = jnp.zeros(own.shape[0], jnp.int32), jnp.zeros((own.shape[0], 2), jnp.int32)
        return ExchangeState((rounds, sent, feedback), whole), cohort

    def apply(key, state, cohort, scores):
        (rounds, sent, feedback), whole = state
        key_rule, key_channel = jax.random.split(key)
        own, back = trees.as_matrix(cohort.params)
        weight, present = weigh(weights, scores), scores.present
        heard, known = (own, feedback) if channel.is_plain else send(channel, key_channel, own, feedback)
        target = rule.combine(key_rule, own, heard, weight)
        if server is not None:
            whole = serve(server, whole, target[0], jnp.any(present))
            target = jnp.broadcast_to(whole.model, own.shape)
        if not channel.is_plain:
            # A broadcast tells everyone what all hold; gossip only what each has sent, debts included.
            known = (
                FeedbackState(target, known.residual)
                if rule.broadcast
                else FeedbackState(known.public, 0 * known.residual)
            )
            feedback = trees.where_rows(present, known, feedback)
        cohort = cohort._replace(params=back(jnp.where(present[:, None], target, own)))
        if share_statistics:
            cohort = cohort._replace(statistics=merge_statistics(rule, key_rule, cohort, weight, present))
        if share_moments:
            moments = mix_moments(rule, key_rule, cohort.opt_state, weight, present)
            cohort = cohort._replace(opt_state=moments)
        rounds = rounds + present
        listening = rule.copies(key_rule, weight, False)
        told = listening if channel.is_plain else rule.copies(key_rule, weight, True)
        sent = sent + jnp.where(present[:, None], jnp.stack([told, listening], 1), 0)
        size = (channel.compressor or channels.none()).message_bytes(own.shape[1])
        aside = _row_bytes(cohort.statistics) if share_statistics else 0  # does not go through the channel
        aside += _row_bytes(_real(cohort.opt_state)) if share_moments else 0
        num_bytes = jnp.float32(sent[:, 0]) * size + jnp.float32(sent[:, 1]) * aside
        metrics = {"exchange/bytes": num_bytes, "exchange/rounds": jnp.float32(rounds)}
        return ExchangeState((rounds, sent, feedback), whole), cohort, metrics

    return Exchange(init, apply)


def send(channel: Channel, key: Array, own: Array, feedback: FeedbackState) -> tuple[Array, FeedbackState]:
    """What others hear of every learner's parameters, and what each honestly told them."""
    key_privacy, key_attack = jax.random.split(key)
    delta = own - feedback.public
    delta = channel.privacy(key_privacy, delta) if channel.privacy else delta
    delta = delta + feedback.residual
    sent = channel.compressor.apply(delta) if channel.compressor else delta
    heard = channel.attack(key_attack, sent) if channel.attack else sent
    return feedback.public + heard, FeedbackState(feedback.public + sent, delta - sent)


def serve(server: optax.GradientTransformation, state: Server, target: Array, anyone: Array) -> Server:
    """The server's step toward what its clients sent: the gradient is model - target."""
    updates, opt_state = server.update(state.model - target, state.opt_state, state.model)
    moved = Server(optax.apply_updates(state.model, updates), opt_state)
    return trees.where(anyone, moved, state)


def weigh(weighting: Weighting, scores: Scores) -> Array:
    """How much each learner counts, (L,): 0 for the absent.

    By `returns`: in proportion to the mean raw return above the worst one's, or above 0 where none is
    below it.
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
    """Everyone receives one aggregate of all messages."""

    def combine(key, own, messages, weight):
        return jnp.broadcast_to(aggregate(messages, weight), own.shape)

    def merge(key, statistics, weight):
        mean_learner = typical(statistics, weight) if robust else pooled(statistics, weight)
        return jax.tree.map(lambda one, rows: jnp.broadcast_to(one, rows.shape), mean_learner, statistics)

    return MixingRule(
        combine, merge, lambda key, weight, feedback: jnp.ones_like(weight, jnp.int32), broadcast=True
    )


def from_neighbours(matrix: np.ndarray, transport: Transport = HERE) -> MixingRule:
    """x_i <- W_ii x_i + sum_j W_ij m_j; whoever is absent leaves its weight to the listener.

    A sparse W costs what its edges cost: a sum of rows taken from others instead of a product.
    """
    matrix = np.asarray(matrix, np.float32)
    if not np.allclose(matrix.sum(1), 1, atol=1e-5):
        raise ShoalError("each row of a gossip matrix must sum to 1")
    others = matrix * (1 - np.eye(len(matrix), dtype=np.float32))
    product, whole_product = linear(others, transport), linear(others)

    def operator(weight: Array, product: Callable[[Tree], Tree]) -> Operator:
        here = (weight > 0).astype(jnp.float32)[:, None]

        def apply(own: Tree, messages: Tree) -> Tree:
            audible = jax.tree.map(lambda x: jnp.where(here > 0, x, 0.0), messages)
            heard, received = product((here, audible))
            heard = jnp.minimum(heard, 1.0)
            return jax.tree.map(lambda x, new: times(1 - heard, x) + new, own, received)

        return apply

    def combine(key, own, messages, weight):
        return operator(weight, product)(own, messages)

    def merge(key, statistics, weight):
        mixed = operator(weight, whole_product)
        return mix_statistics(lambda rows: mixed(rows, rows), statistics)

    listens = others != 0  # (L, L): the row to the column
    count = transport.on_all(lambda weight: jnp.sum(jnp.asarray(listens) & (weight > 0)[:, None], 0))

    def copies(key, weight, feedback):
        return jnp.asarray(listens.sum(0), jnp.int32) if feedback else count(weight)

    return MixingRule(combine, transport.on_all(merge), copies, broadcast=False)


def from_partner(transport: Transport = HERE) -> MixingRule:
    """Halfway to a partner drawn anew each time; with an odd number, one stays alone."""

    def draw(key: Array, weight: Array) -> tuple[Array, Array]:
        """Everyone's partner, and who has one."""
        num_learners = weight.shape[0]
        # Those present first, in random order; neighbours in that order are partners.
        order = jnp.argsort(jnp.where(weight > 0, jax.random.uniform(key, (num_learners,)), 2.0))
        place = jnp.argsort(order)
        beside = place ^ 1
        partner = order[jnp.minimum(beside, num_learners - 1)]
        return partner, (beside < num_learners) & (weight > 0) & (weight[partner] > 0)

    def halfway(paired: Array, own: Tree, heard: Tree) -> Tree:
        return jax.tree.map(lambda x, new: jnp.where(paired[:, None], (x + new) / 2, x), own, heard)

    def combine(key, own, messages, weight):
        partner, paired = transport.on_all(draw)(key, weight)
        return halfway(paired, own, routing.take_drawn(messages, partner, len(weight), transport))

    def merge(key, statistics, weight):
        partner, paired = draw(key, weight)
        return mix_statistics(lambda rows: halfway(paired, rows, trees.take(rows, partner)), statistics)

    def copies(key, weight, feedback):
        if feedback:
            return jnp.full_like(weight, len(weight) - 1, jnp.int32)
        _, paired = transport.on_all(draw)(key, weight)
        return jnp.int32(paired)

    return MixingRule(combine, transport.on_all(merge), copies, broadcast=False)


def pooled(statistics: Running, weight: Array) -> Running:
    """All data as one sample, each learner's counting by its weight; the count is a learner's mean share.

    So mean and variance are those of the pooled data, and merging again and again counts nothing twice.
    """
    share = weight / jnp.maximum(jnp.sum(weight), 1e-8)
    return pool(statistics._replace(count=statistics.count * share, m2=_scale(share, statistics.m2)))


def typical(statistics: Running, weight: Array) -> Running:
    """The median learner's statistics, coordinate by coordinate, which a few liars cannot move far."""
    middle = lambda x: median()(x.reshape(x.shape[0], -1), weight).reshape(x.shape[1:])
    spread = jax.vmap(variance)(statistics)
    count = middle(statistics.count)
    return Running(count, middle(statistics.mean), middle(spread) * count)


def mix_statistics(operator: Callable[[Tree], Tree], statistics: Running) -> Running:
    """Statistics of the mixed data: counts, sums and sums of squares mix linearly.

    n' = W n,  mean' = W (n mean) / n',  M2' = W (M2 + n mean^2) - n' mean'^2, about a common centre, which
    takes all learners: statistics are small, so they are merged whole on every device.
    """
    rows = lambda x: x.reshape(x.shape[0], -1)
    count, mean, m2 = rows(statistics.count), rows(statistics.mean), rows(statistics.m2)
    centre = _middle(count, mean)
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


def _middle(count: Array, mean: Array) -> Array:
    """Halfway between the least and the largest mean: near all, and the same in whatever order they come."""
    known = (count > 0) & jnp.isfinite(mean)
    low = jnp.min(jnp.where(known, mean, jnp.inf), 0)
    high = jnp.max(jnp.where(known, mean, -jnp.inf), 0)
    return jnp.where(low <= high, (low + high) / 2, 0.0)


def merge_statistics(
    rule: MixingRule, key: Array, cohort: LearnerState, weight: Array, present: Array
) -> Tree:
    """The running statistics of everyone present, merged by the rule; those of the absent are not read."""
    nothing = jax.tree.map(jnp.zeros_like, cohort.statistics)
    there = trees.where_rows(present, cohort.statistics, nothing)
    mean_learner = jax.tree.map(lambda rows: rule.merge(key, rows, weight), there, is_leaf=is_running)
    return trees.where_rows(present, mean_learner, cohort.statistics)


def mix_moments(rule: MixingRule, key: Array, opt_state: Tree, weight: Array, present: Array) -> Tree:
    """The optimisers' real-valued state mixed like the parameters; counters stay."""

    def mixed(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        own = x.reshape(x.shape[0], -1)
        return jnp.where(present[:, None], rule.combine(key, own, own, weight), own).reshape(x.shape)

    return jax.tree.map(mixed, opt_state)


@jax.jit
def mean_learner(cohort: LearnerState) -> LearnerState:
    """A cohort of one: the mean of all parameters, all statistics together, the rest of the first.

    One program: several at a time that each gather rows from devices can wait for each other, on few cores
    for ever.
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
