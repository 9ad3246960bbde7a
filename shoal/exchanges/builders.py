"""The built-in exchanges, each from its settings: (config, context) -> Exchange."""

from collections.abc import Sequence

import numpy as np
import optax

from shoal.errors import ShoalError
from shoal.exchanges import channels, mixing, mixing_rules, robust, selection, topology
from shoal.exchanges.channels import Channel
from shoal.exchanges.combinators import chain, only_parts
from shoal.exchanges.comm_matrix import read_matrix
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.mixing_rules import MixingRule
from shoal.exchanges.neighbours import anchor, neighbours, neighbours_in_pairs
from shoal.exchanges.population import population
from shoal.exchanges.routing import Transport
from shoal.exchanges.selection import SelectionRule
from shoal.types import Exchange


def nothing(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """No exchange between updates; `gradients` are averaged within an update."""
    return chain()


def average(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """A server averages parameters (FedAvg)."""
    return mix_then_penalise(mixing_rules.from_server(robust.mean()), config, context)


def robust_average(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """A server aggregates parameters by a rule that tolerates Byzantine learners."""
    rule = robust.RULES[config.exchange](tolerated(config, context.num_learners))
    return mix_then_penalise(mixing_rules.from_server(rule, robust=True), config, context)


def gossip(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Neighbours average their parameters."""
    return mix_then_penalise(gossip_rule(config, context), config, context)


def neighbours_policies(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Neighbours' policies are a penalty; with `average_weights` they average their parameters first."""
    mixed = [mix_parameters(gossip_rule(config, context), config, context)] if config.average_weights else []
    if config.use_comm_penalty is False:
        return chain(*mixed)
    learner, spec, transport = context.learner, context.spec, Transport(context.mesh)
    if config.topology == "pairs" and config.comm_matrix is None:
        penalty = neighbours_in_pairs(learner, spec, context.num_learners, transport, context.group)
    else:
        penalty = neighbours(learner, spec, penalty_weights(config, context), transport, context.group)
    return chain(*mixed, penalty)


def truncation(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """The worst learners become copies of the best."""
    return evolve(selection.truncation(config.population.fraction, config.population.middle), config, context)


def winner(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """All learners become copies of the best."""
    return evolve(selection.winner(), config, context)


def tournament(config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Each learner becomes a copy of the best of a few."""
    return evolve(selection.tournament(config.population.rivals), config, context)


def evolve(rule: SelectionRule, config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Population-based training with a selection rule."""
    settings = config.population
    return chain(
        population(
            rule,
            context.priors,
            min_episodes=settings.min_episodes,
            warm_up=settings.warm_up // config.local_updates,
            resample=settings.resample,
            groups=settings.groups,
            migrate_every=settings.migrate_every,
            transport=Transport(context.mesh),
        )
    )


def mix_then_penalise(rule: MixingRule, config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Mix parameters; with `use_comm_penalty`, penalise the distance from the policy that results."""
    mixed = mix_parameters(rule, config, context)
    if not config.use_comm_penalty:
        return chain(mixed)
    own = np.eye(context.num_learners, dtype=np.float32)
    return chain(
        mixed, neighbours(context.learner, context.spec, own, Transport(context.mesh), context.group)
    )


def mix_parameters(rule: MixingRule, config: ExchangeConfig, context: ExchangeContext) -> Exchange:
    """Parameters mixed by a rule, with server optimiser, channel, privacy report, anchor and parts."""
    share_statistics, noise = config.share_statistics, config.privacy.noise_multiplier
    mixed = mixing.mix(
        rule,
        weights=config.weights,
        server=server_optimiser(config),
        channel=make_channel(config, context.num_learners),
        share_statistics=not noise if share_statistics is None else share_statistics,
        share_moments=config.share_moments,
    )
    mixed = report_privacy(config, mixed) if noise else mixed
    mixed = chain(mixed, anchor()) if context.anchored else mixed
    return only_parts(config.parts, mixed) if config.parts else mixed


def gossip_rule(config: ExchangeConfig, context: ExchangeContext) -> MixingRule:
    """Gossip with the weights of a graph, or in random pairs."""
    transport = Transport(context.mesh)
    if config.comm_matrix is not None:
        matrix = read_matrix(config.comm_matrix, context.num_learners, config.symmetrise)
        return mixing_rules.from_neighbours(topology.row_stochastic(matrix), transport)
    if config.topology == "pairs":
        return mixing_rules.from_partner(transport)
    graph = named_graph(config, context.num_learners, context.seed)
    return mixing_rules.from_neighbours(topology.metropolis(graph), transport)


def penalty_weights(config: ExchangeConfig, context: ExchangeContext) -> np.ndarray:
    """W_ij of the penalty: a file's weights as they are; for a named topology, the mean over neighbours."""
    if config.comm_matrix is not None:
        return read_matrix(config.comm_matrix, context.num_learners, config.symmetrise)
    return topology.neighbour_weights(named_graph(config, context.num_learners, context.seed))


def communication_graph(config: ExchangeConfig, num_learners: int, seed: int) -> np.ndarray | None:
    """The weights between neighbours; None for a server and for random pairs."""
    if config.exchange not in ("gossip", "neighbours"):
        return None
    if config.comm_matrix is not None:
        return read_matrix(config.comm_matrix, num_learners, config.symmetrise)
    return None if config.topology == "pairs" else named_graph(config, num_learners, seed)


def communication_graphs(configs: Sequence[ExchangeConfig], num_learners: int, seed: int) -> list[np.ndarray]:
    """Those of a run's exchanges that have one."""
    graphs = (communication_graph(config, num_learners, seed) for config in configs)
    return [graph for graph in graphs if graph is not None]


def named_graph(config: ExchangeConfig, num_learners: int, seed: int) -> np.ndarray:
    """The adjacency matrix of a named topology."""
    if config.topology == "random-regular":
        return topology.random_regular(num_learners, config.degree, seed)
    return topology.GRAPHS[config.topology](num_learners)


def tolerated(config: ExchangeConfig, num_learners: int) -> int:
    """The number of Byzantine learners to tolerate: `bad`, or a third, or as many as the rule can."""
    if config.bad is None:
        return min(num_learners // 3, robust.largest_bad(config.exchange, num_learners))
    robust.check_bad(config.exchange, num_learners, config.bad)
    return config.bad


def server_optimiser(config: ExchangeConfig) -> optax.GradientTransformation | None:
    """The server's optimiser (Reddi et al. 2021)."""
    match config.server.optimiser:
        case "momentum":
            return optax.sgd(config.server.lr or 1.0, momentum=config.server.momentum)
        case "adam":
            return optax.adam(config.server.lr or 0.01, b1=config.server.momentum, b2=0.99, eps=1e-3)
        case _:
            return None


def make_channel(config: ExchangeConfig, num_learners: int) -> Channel:
    """The configured privacy, compression and attack."""
    privacy, compress, attack = config.privacy, config.compress, config.attack
    if attack.count > num_learners:
        raise ShoalError(f"{attack.count} attackers are more than the {num_learners} learners")
    return Channel(
        privacy=None if privacy.clip is None else channels.privatise(privacy.clip, privacy.noise_multiplier),
        compressor=None if compress.kind == "none" else channels.COMPRESSORS[compress.kind](compress.keep),
        attack=None if attack.kind == "none" else channels.attack(attack.kind, attack.count, attack.strength),
    )


def report_privacy(config: ExchangeConfig, exchange: Exchange) -> Exchange:
    """Add the privacy budget to the metrics: the cost n / z^2, which adds up over exchanges, and epsilon.

    n Gaussian mechanisms of noise z compose to one of noise z / sqrt(n).
    """

    def apply(key, state, cohort, scores):
        state, cohort, metrics = exchange.apply(key, state, cohort, scores)
        cost = metrics["exchange/rounds"] / config.privacy.noise_multiplier**2
        return state, cohort, metrics | {"privacy/cost": cost}

    def derive_metrics(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        delta = config.privacy.delta
        epsilon = [
            channels.epsilon(cost**-0.5, 1, delta) if cost else 0.0 for cost in metrics["privacy/cost"]
        ]
        return {"privacy/epsilon": np.array(epsilon, np.float32)}

    return exchange._replace(apply=apply, derive_metrics=derive_metrics)
