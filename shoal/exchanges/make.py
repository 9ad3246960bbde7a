"""An exchange from settings: what --exchange and a config file's list can say."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import optax
from jax.sharding import Mesh

from shoal.errors import ShoalError, check_choices
from shoal.exchanges import channels, mixing, robust, selection, topology
from shoal.exchanges.combinators import chain, common_start, every, participate, select
from shoal.exchanges.exploration import Prior
from shoal.exchanges.mixing import Channel, MixingRule
from shoal.exchanges.neighbours import anchor, neighbours, neighbours_in_pairs
from shoal.exchanges.population import population
from shoal.exchanges.routing import Transport, Way
from shoal.types import Exchange, Learner

MIXING = "those that mix parameters"
ROBUST = ", ".join(robust.RULES)
SELECTING = ", ".join(selection.RULES)
MEANT_FOR = {
    "gossip, neighbours": ("topology", "degree", "comm_matrix", "symmetrise"),
    "average": ("weights",),
    f"average, {ROBUST}": ("server", "server_lr", "server_momentum"),
    "neighbours": ("average_weights",),
    ROBUST: ("bad",),
    MIXING: (
        *("parts", "clip", "noise_multiplier", "privacy_delta", "compress", "keep"),
        *("attack", "attackers", "attack_strength", "share_statistics", "share_moments"),
    ),
    f"average, gossip, neighbours, {ROBUST}": ("use_comm_penalty",),
    f"average, gossip, neighbours, {ROBUST}, {SELECTING}": ("participation", "local_updates"),
    "truncation": ("fraction", "middle"),
    "tournament": ("rivals",),
    f"gossip, neighbours, {SELECTING}": ("transport",),
    SELECTING: ("resample", "min_episodes", "warm_up", "groups", "migrate_every"),
}
"""Which exchanges each setting is meant for; with others it would silently do nothing."""
NEEDS: dict[str, tuple[str, Callable[["ExchangeConfig"], bool]]] = {
    "degree": ("topology random-regular", lambda c: c.topology == "random-regular"),
    "symmetrise": ("comm_matrix", lambda c: c.comm_matrix is not None),
    "server_lr": ("server momentum or adam", lambda c: c.server != "none"),
    "server_momentum": ("server momentum or adam", lambda c: c.server != "none"),
    "attackers": ("attack", lambda c: c.attack != "none"),
    "attack_strength": ("attack sign-flip, noise or scale", lambda c: c.attack not in ("none", "zero")),
    "privacy_delta": ("noise_multiplier", lambda c: c.noise_multiplier > 0),
    "keep": ("compress top-k", lambda c: c.compress == "top-k"),
    "migrate_every": ("groups", lambda c: c.groups > 1),
}
"""What a setting does nothing without: told, not refused, so that another can be varied beside it."""


@dataclass(frozen=True)
class ExchangeConfig:
    """How learners learn together; a federation may have several of these."""

    exchange: Literal[
        "none",
        "gradients",
        "average",
        "gossip",
        "neighbours",
        "median",
        "trimmed-mean",
        "krum",
        "multi-krum",
        "geometric-median",
        "truncation",
        "winner",
        "tournament",
    ] = "none"
    """Nothing; every gradient averaged; parameters averaged by a server (FedAvg), with neighbours, or by a
    rule that withstands liars; neighbours' policies as a penalty; the worst become copies of the best."""
    local_updates: int = 4
    """Updates between two exchanges."""
    participation: float = 1.0
    """The part of the learners that takes part in an exchange, drawn anew each time."""
    parts: tuple[str, ...] = ()
    """Parameters to exchange, by the names of the network's parts (ppo: actor, critic, encoder; td3: actor,
    critic, target_actor, target_critic); all if empty. critic:50 actor:100 meet at clocks of their own, every
    50 and 100 updates."""
    topology: Literal["complete", "ring", "star", "torus", "random-regular", "pairs"] = "ring"
    """Who meets whom (gossip, neighbours); pairs are drawn anew each time."""
    degree: int = 4
    """Neighbours of each learner in a random regular graph."""
    comm_matrix: Any = None
    """A graph of your own: a JSON file, {"comm_matrix": {"0": {"1": 100}}}; i -> j -> how much i heeds j."""
    symmetrise: bool = False
    """Read every edge of comm_matrix in both directions."""
    weights: Literal["uniform", "samples", "returns"] = "uniform"
    """What a learner counts by in an average."""
    server: Literal["none", "momentum", "adam"] = "none"
    """The server's own optimiser (FedAvgM, FedAdam)."""
    server_lr: float | None = None
    """Its step size; 1 with momentum and 0.01 with Adam unless given."""
    server_momentum: float = 0.9
    """Its momentum."""
    use_comm_penalty: bool | None = None
    """Hold policies near those last received, by their KL (comm_penalty_coeff); on for neighbours."""
    average_weights: bool = False
    """Let neighbours average their parameters too."""
    bad: int | None = None
    """How many liars a robust rule allows for; a third, or as many as it can, unless given."""
    attack: Literal["none", "sign-flip", "noise", "zero", "scale"] = "none"
    """Let the last learners lie, to see what it does."""
    attackers: int = 0
    """How many of them."""
    attack_strength: float = 10.0
    """How far their messages are scaled, or how large the noise is."""
    clip: float | None = None
    """Bound on the norm of the change a learner sends."""
    noise_multiplier: float = 0.0
    """Gaussian noise on it, in units of clip: differential privacy."""
    privacy_delta: float = 1e-5
    """The delta for which the privacy budget spent is reported."""
    compress: Literal["none", "top-k", "int8"] = "none"
    """Send less; what is left out is sent later."""
    keep: float = 0.01
    """The part of the numbers that top-k sends."""
    share_statistics: bool | None = None
    """Merge the running statistics of observations and returns; not with noise, which does not cover them."""
    share_moments: bool = False
    """Average Adam's moments like the parameters."""
    common_start: bool | None = None
    """Begin from the same parameters; unless given, where parameters are averaged."""
    fraction: float = 0.25
    """The part of a population that is replaced, and the part that replaces it (truncation)."""
    middle: bool = False
    """Change those in between, too (truncation)."""
    rivals: int = 2
    """How many others a learner meets in a tournament."""
    resample: float = 0.25
    """How often a changed hyperparameter is drawn anew instead of perturbed."""
    min_episodes: int = 20
    """Episodes a learner must have finished since it was last replaced, to be ranked."""
    warm_up: int = 0
    """Updates before the first selection."""
    groups: int = 1
    """Select within so many groups, which act at every 1st, 5th, 10th and 25th selection (MF-PBT)."""
    migrate_every: int = 1
    """The best of other groups may come at every so many of a group's selections."""
    transport: Way = "point-to-point"
    """Between devices, send only what is needed to who needs it, or (collective) everything to everyone."""

    def __post_init__(self):
        check_choices(self)
        if self.local_updates < 1:
            raise ShoalError(f"local_updates must be at least 1, not {self.local_updates}")
        if self.exchange == "none" and (changed := self.changed()):
            raise ShoalError(f"{', '.join(changed)} without an exchange: say which, e.g. exchange average")
        for kinds, names in MEANT_FOR.items():
            idle = [name for name in self.changed() if name in names and not self.is_any_of(kinds)]
            if idle:
                raise ShoalError(
                    f"exchange {self.exchange} has no use for {', '.join(idle)}: for {kinds} only"
                )
        if self.comm_matrix is not None and self.topology != "ring":
            raise ShoalError(f"topology {self.topology} or comm_matrix: both say who meets whom")
        if self.server_lr is not None and not self.server_lr > 0:
            raise ShoalError(f"server_lr must be above 0, not {self.server_lr}")
        if not 1 <= self.groups <= 4 or self.migrate_every < 1:
            raise ShoalError("groups must be 1 to 4, and migrate_every at least 1")
        if self.warm_up < 0 or self.min_episodes < 1:
            raise ShoalError("warm_up must not be negative, and min_episodes at least 1")
        if self.noise_multiplier and self.clip is None:
            raise ShoalError("noise_multiplier needs clip, the bound that the noise is measured by")
        if self.noise_multiplier and self.share_statistics:
            raise ShoalError("noise does not cover running statistics; leave share_statistics off with it")
        if self.noise_multiplier and self.share_moments:
            raise ShoalError("noise does not cover Adam's moments; leave share_moments off with it")
        if self.noise_multiplier and self.exchange == "neighbours" and self.penalises:
            raise ShoalError(
                "neighbours see each other's policies without noise; use exchange gossip with it"
            )
        if self.attack != "none" and self.attackers < 1:
            raise ShoalError(f"attack {self.attack} needs attackers, how many learners lie")

    def is_any_of(self, kinds: str) -> bool:
        """Whether this exchange is one of those named."""
        return self.exchange in kinds.split(", ") or (self.mixes and kinds == MIXING)

    @property
    def mixes(self) -> bool:
        """Whether parameters change hands."""
        if self.exchange == "neighbours":
            return self.average_weights
        return self.exchange not in ("none", "gradients") and not self.selects

    @property
    def selects(self) -> bool:
        """Whether learners are replaced by others."""
        return self.exchange in selection.RULES

    @property
    def penalises(self) -> bool:
        """Whether policies are held near others."""
        return self.exchange == "neighbours" if self.use_comm_penalty is None else self.use_comm_penalty

    def idle(self) -> list[str]:
        """What was set that does nothing, a line each."""
        needed = {name: NEEDS[name] for name in self.changed() if name in NEEDS}
        return [
            f"{name} does nothing without {what}"
            for name, (what, is_there) in needed.items()
            if not is_there(self)
        ]

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


def make_exchange(
    configs: tuple[ExchangeConfig, ...],
    learner: Learner,
    num_learners: int,
    *,
    anchored: bool = False,
    priors: Mapping[str, Prior] | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    group: int = 4,
) -> Exchange:
    """The exchange a run's settings describe; `priors` are of the hyperparameters a population evolves.

    `anchored` learners stay near what they last received; their rows are divided over the devices of `mesh`,
    which evaluate `group` policies at a time.
    """

    def link(config: ExchangeConfig) -> Exchange:
        """Mixing, then what depends on the mixed parameters; or a selection."""
        links = []
        transport = Transport(mesh, config.transport)
        if config.mixes:
            mixed = mixing_exchange(config, num_learners, seed, transport)
            mixed = chain(mixed, anchor()) if anchored else mixed
            links.append(select(config.parts, mixed) if config.parts else mixed)
        if config.penalises:
            links.append(penalty_exchange(config, learner, num_learners, seed, transport, group))
        if config.selects:
            links.append(selecting_exchange(config, priors or {}, transport))
        return every(config.local_updates, participate(config.participation, chain(*links)))

    for line in (line for config in configs for line in config.idle()):
        warnings.warn(line, RuntimeWarning)
    meetings = [one for config in configs for one in by_clock(config)]
    exchange = chain(*(link(one) for one in meetings if one.exchange not in ("none", "gradients")))
    asked = [c.common_start for c in configs if c.common_start is not None]
    start = any(asked) if asked else any(c.mixes or c.exchange == "gradients" for c in configs)
    return common_start(exchange) if start else exchange


def by_clock(config: ExchangeConfig) -> list[ExchangeConfig]:
    """An exchange for each clock that the parts have; those without one of their own meet at `local_updates`.

    >>> config = ExchangeConfig("average", parts=("critic:50", "actor"))
    >>> [(one.parts, one.local_updates) for one in by_clock(config)]
    [(('critic',), 50), (('actor',), 4)]
    """
    clocks: dict[int, list[str]] = {}
    for text in config.parts:
        name, colon, updates = text.partition(":")
        if colon and not (updates.isdecimal() and int(updates)):
            raise ShoalError(f"{text}: after the colon comes a number of updates, e.g. critic:50")
        clocks.setdefault(int(updates) if colon else config.local_updates, []).append(name)
    whole = {config.local_updates: list(config.parts)}
    return [replace(config, parts=tuple(p), local_updates=n) for n, p in (clocks or whole).items()]


def selecting_exchange(config: ExchangeConfig, priors: Mapping[str, Prior], transport: Transport) -> Exchange:
    """A population that evolves."""
    rules = {
        "truncation": lambda: selection.truncation(config.fraction, config.middle),
        "winner": selection.winner,
        "tournament": lambda: selection.tournament(config.rivals),
    }
    return population(
        rules[config.exchange](),
        priors,
        min_episodes=config.min_episodes,
        warm_up=config.warm_up // config.local_updates,
        resample=config.resample,
        groups=config.groups,
        migrate_every=config.migrate_every,
        transport=transport,
    )


def mixing_exchange(config: ExchangeConfig, num_learners: int, seed: int, transport: Transport) -> Exchange:
    """Parameters that change hands."""
    if config.parts and config.share_moments:
        raise ShoalError("share_moments goes with all parameters, not with some of the parts")
    share = config.share_statistics
    exchange = mixing.mix(
        rule_for(config, num_learners, seed, transport),
        weights=config.weights,
        server=server_for(config),
        channel=channel_for(config, num_learners),
        share_statistics=not config.noise_multiplier if share is None else share,
        share_moments=config.share_moments,
    )
    return with_budget(config, exchange) if config.noise_multiplier else exchange


def rule_for(config: ExchangeConfig, num_learners: int, seed: int, transport: Transport) -> MixingRule:
    """Who takes what from whom."""
    if config.exchange == "average":
        return mixing.from_server(robust.mean())
    if config.exchange in robust.RULES:
        bad = robust_bad(config, num_learners)
        return mixing.from_server(robust.RULES[config.exchange](bad), robust=True)
    if config.topology == "pairs" and config.comm_matrix is None:
        return mixing.from_partner(transport)
    if config.comm_matrix is not None:
        given = topology.read_matrix(config.comm_matrix, num_learners, config.symmetrise)
        return mixing.from_neighbours(topology.row_stochastic(given), transport)
    return mixing.from_neighbours(topology.metropolis(graph(config, num_learners, seed)), transport)


def robust_bad(config: ExchangeConfig, num_learners: int) -> int:
    """How many liars to allow for: what was asked, or a third, or as many as the rule can."""
    if config.bad is None:
        return min(num_learners // 3, robust.largest_bad(config.exchange, num_learners))
    robust.check_bad(config.exchange, num_learners, config.bad)
    return config.bad


def penalty_exchange(
    config: ExchangeConfig, learner: Learner, num_learners: int, seed: int, transport: Transport, group: int
) -> Exchange:
    """The policies that hold a learner back: its neighbours', or the one it just received."""
    if config.exchange == "neighbours":
        if config.topology == "pairs" and config.comm_matrix is None:
            return neighbours_in_pairs(learner, num_learners, transport, group)
        matrix = penalty_weights(config, num_learners, seed)
    else:
        matrix = np.eye(num_learners, dtype=np.float32)
    return neighbours(learner, matrix, transport, group)


def penalty_weights(config: ExchangeConfig, num_learners: int, seed: int) -> np.ndarray:
    """W_ij of the penalty: a file's as they are; a topology's give the mean over neighbours."""
    if config.comm_matrix is not None:
        return topology.read_matrix(config.comm_matrix, num_learners, config.symmetrise)
    return topology.neighbour_weights(graph(config, num_learners, seed))


def who_listens(config: ExchangeConfig, num_learners: int, seed: int) -> np.ndarray | None:
    """The graph of an exchange between neighbours; None where there is a server, or none that stays."""
    if config.exchange not in ("gossip", "neighbours"):
        return None
    if config.comm_matrix is not None:
        return topology.read_matrix(config.comm_matrix, num_learners, config.symmetrise)
    return None if config.topology == "pairs" else graph(config, num_learners, seed)


def graph(config: ExchangeConfig, num_learners: int, seed: int) -> np.ndarray:
    """The adjacency of a named topology."""
    if config.topology == "random-regular":
        return topology.random_regular(num_learners, config.degree, seed)
    return topology.GRAPHS[config.topology](num_learners)


def server_for(config: ExchangeConfig) -> optax.GradientTransformation | None:
    """The server's optimiser (Reddi et al. 2021)."""
    match config.server:
        case "momentum":
            return optax.sgd(config.server_lr or 1.0, momentum=config.server_momentum)
        case "adam":
            return optax.adam(config.server_lr or 0.01, b1=config.server_momentum, b2=0.99, eps=1e-3)
        case _:
            return None


def channel_for(config: ExchangeConfig, num_learners: int) -> Channel:
    """What happens to a message on its way."""
    if config.attackers > num_learners:
        raise ShoalError(f"{config.attackers} attackers are more than the {num_learners} learners")
    lies = config.attack != "none"
    return Channel(
        privacy=channels.privatise(config.clip, config.noise_multiplier) if config.clip is not None else None,
        compressor=channels.COMPRESSORS[config.compress](config.keep) if config.compress != "none" else None,
        attack=channels.attack(config.attack, config.attackers, config.attack_strength) if lies else None,
    )


def with_budget(config: ExchangeConfig, exchange: Exchange) -> Exchange:
    """Counts what noisy messages give away, so that several exchanges add up.

    n Gaussian mechanisms of noise z tell as much as one of noise z / sqrt(n): n / z^2 is the cost.
    """

    def apply(key, state, cohort, scores):
        state, cohort, metrics = exchange.apply(key, state, cohort, scores)
        cost = metrics["exchange/rounds"] / config.noise_multiplier**2
        return state, cohort, metrics | {"privacy/cost": cost}

    def derive_metrics(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        spent = [
            channels.epsilon(c**-0.5, 1, config.privacy_delta) if c else 0.0 for c in metrics["privacy/cost"]
        ]
        return {"privacy/epsilon": np.array(spent, np.float32)}

    return exchange._replace(apply=apply, derive_metrics=derive_metrics)
