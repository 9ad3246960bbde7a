"""The settings of an exchange, in groups, and the context that its builder receives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval, MaxLen
from jax.sharding import Mesh

from shoal.errors import ShoalError
from shoal.exchanges.exploration import Prior
from shoal.ranges import Count, NonNegative, Number, Positive, Share, Updates, ZeroToOne
from shoal.settings import changed, check
from shoal.types import EnvSpec, Learner


@dataclass(frozen=True)
class ServerConfig:
    """The server's optimiser; its gradient is the server's parameters minus the average (FedOpt)."""

    optimiser: Literal["none", "momentum", "adam"] = "none"
    """momentum is FedAvgM, adam is FedAdam; with none the server takes the average."""
    lr: Positive | None = None
    """The server's learning rate; 1 for momentum and 0.01 for adam unless given."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """The server's momentum, or Adam's beta_1."""

    def __post_init__(self):
        check(self, "server")


@dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy: messages are clipped, and Gaussian noise is added to them."""

    clip: Positive | None = None
    """Bound on the L2 norm of the change that a learner sends; no clipping unless given."""
    noise_multiplier: NonNegative = 0.0
    """Standard deviation of the noise, in units of privacy.clip; needs privacy.clip."""
    delta: Annotated[float, Interval(gt=0, lt=1)] = 1e-5
    """The delta for which the privacy budget epsilon is reported."""

    def __post_init__(self):
        check(self, "privacy")
        if self.noise_multiplier and self.clip is None:
            raise ShoalError("privacy.noise_multiplier needs privacy.clip, which is the unit of the noise")


@dataclass(frozen=True)
class AttackConfig:
    """A simulated attack: the last attack.count learners send false messages."""

    kind: Literal["none", "sign-flip", "noise", "zero", "scale"] = "none"
    """What an attacker sends: its change times -strength (sign-flip) or strength (scale), its change plus
    noise, or zero."""
    count: Number = 0
    """The number of attackers: the last learners."""
    strength: float = 10.0
    """The factor of sign-flip and scale, or the standard deviation of the noise."""

    def __post_init__(self):
        check(self, "attack")
        if self.kind != "none" and self.count < 1:
            raise ShoalError(f"attack {self.kind} needs attack.count, the number of attackers")


@dataclass(frozen=True)
class CompressConfig:
    """Compression of messages, with error feedback: what is lost is added to the next message."""

    kind: Literal["none", "top-k", "int8"] = "none"
    """top-k sends the largest coordinates only; int8 sends one byte per coordinate."""
    keep: Share = 0.01
    """The fraction of the coordinates that top-k sends."""

    def __post_init__(self):
        check(self, "compress")


@dataclass(frozen=True)
class PopulationConfig:
    """Population-based training: which learners are replaced, when, and how hyperparameters change."""

    fraction: Share = 0.25
    """The fraction of the learners that is replaced; as many of the best are copied (truncation)."""
    middle: bool = False
    """Also change the hyperparameters of the learners that are neither replaced nor copied (truncation)."""
    rivals: Annotated[int, Interval(ge=1, le=1024)] = 2
    """The number of random learners that each learner is compared with (tournament)."""
    resample: ZeroToOne = 0.25
    """The probability that a hyperparameter is drawn from its prior instead of perturbed."""
    min_episodes: Updates = 20
    """Episodes that a learner finishes after it was replaced before it is ranked again."""
    warm_up: Annotated[int, Interval(ge=0, le=10**9)] = 0
    """Updates before the first selection."""
    groups: Annotated[int, Interval(ge=1, le=4)] = 1
    """The number of groups, 1 to 4. Selection is within a group: in the first at every meeting, in the others
    at every 5th, 10th and 25th (MF-PBT)."""
    migrate_every: Updates = 1
    """Selections of a group between two migrations from other groups; needs population.groups."""

    def __post_init__(self):
        check(self, "population")


@dataclass(frozen=True)
class ExchangeConfig:
    """How learners learn together; a run may have several of these.

    >>> import shoal
    >>> config = shoal.preset("CartPole-v1", learners=8, exchange="gossip", topology="ring")
    >>> config.exchanges == (shoal.ExchangeConfig(exchange="gossip", topology="ring"),)
    True
    """

    exchange: str = "none"
    """none; gradients (every gradient is averaged); average (FedAvg), median, trimmed-mean, krum, multi-krum,
    geometric-median (a server aggregates parameters); gossip (parameters are averaged with neighbours');
    neighbours (a penalty on the distance from neighbours' policies); truncation, winner, tournament
    (population-based training); or MODULE:FUNCTION, an exchange of your own."""
    local_updates: Updates = 4
    """The number of updates between two exchanges."""
    participation: Share = 1.0
    """The fraction of the learners that take part in an exchange, drawn anew each time."""
    parts: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """The parts of the network to exchange (ppo: actor, critic, encoder; td3: actor, critic, target_actor,
    target_critic); all if empty. critic:50 actor:100 exchanges the critic every 50 updates and the actor
    every 100."""
    topology: Literal["complete", "ring", "star", "torus", "random-regular", "pairs"] = "ring"
    """The communication graph (gossip, neighbours); pairs are random, drawn anew each time."""
    degree: Count = 4
    """The number of neighbours of each learner (random-regular)."""
    comm_matrix: Any = None
    """A graph of your own instead of a topology: a JSON file such as {"comm_matrix": {"0": {"1": 100}}},
    where learner 0 receives from learner 1 with weight 100."""
    symmetrise: bool = False
    """Read each edge of comm_matrix in both directions."""
    weights: Literal["uniform", "samples", "returns"] = "uniform"
    """The weight of a learner in an average: the same for all, or by its samples or returns."""
    bad: Number | None = None
    """The number of Byzantine learners that a robust rule tolerates; unless given, a third of the learners,
    or as many as the rule can."""
    average_weights: bool = False
    """Also average the parameters of neighbours (neighbours)."""
    use_comm_penalty: bool | None = None
    """Penalise the distance from the policies last received, with weight peers.coef; on for neighbours, else
    off."""
    share_statistics: bool | None = None
    """Merge the running statistics of observations and returns; on, but off with privacy.noise_multiplier."""
    share_moments: bool = False
    """Mix Adam's moments like the parameters."""
    common_start: bool | None = None
    """Start all learners from the same parameters; on where parameters or gradients are averaged."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """The server's optimiser."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """Differential privacy: clipping and noise."""
    attack: AttackConfig = field(default_factory=AttackConfig)
    """Simulated attackers."""
    compress: CompressConfig = field(default_factory=CompressConfig)
    """Compression of messages."""
    population: PopulationConfig = field(default_factory=PopulationConfig)
    """Population-based training."""

    def __post_init__(self):
        check(self)
        if self.comm_matrix is not None and self.topology != "ring":
            raise ShoalError(f"give topology {self.topology} or comm_matrix, not both: each is a graph")
        if self.share_moments and self.parts:
            raise ShoalError("share_moments needs all parameters: leave out parts or share_moments")
        if self.privacy.noise_multiplier:
            self._refuse_what_noise_does_not_cover()

    def _refuse_what_noise_does_not_cover(self) -> None:
        """Raise where a setting would send something without noise."""
        if self.share_statistics:
            raise ShoalError("noise does not cover running statistics: leave out share_statistics")
        if self.share_moments:
            raise ShoalError("noise does not cover the optimiser's moments: leave out share_moments")
        if self.weights != "uniform":
            raise ShoalError(f"noise does not cover the weights: leave out weights {self.weights}")
        if self.exchange == "neighbours" and self.use_comm_penalty is not False:
            raise ShoalError("noise does not cover the policies that neighbours receive: use exchange gossip")

    def without_effect(self) -> list[str]:
        """A line for each setting that has no effect as configured."""
        needed = {name: NEEDS[name] for name in changed(self) if name in NEEDS}
        return [
            f"{name} has no effect without {what}" for name, (what, met) in needed.items() if not met(self)
        ]


NEEDS: dict[str, tuple[str, Callable[[ExchangeConfig], bool]]] = {
    "degree": ("topology random-regular", lambda c: c.topology == "random-regular"),
    "symmetrise": ("comm_matrix", lambda c: c.comm_matrix is not None),
    "server.lr": ("server momentum or adam", lambda c: c.server.optimiser != "none"),
    "server.momentum": ("server momentum or adam", lambda c: c.server.optimiser != "none"),
    "attack.count": ("attack", lambda c: c.attack.kind != "none"),
    "attack.strength": ("attack sign-flip, noise or scale", lambda c: c.attack.kind not in ("none", "zero")),
    "privacy.delta": ("privacy.noise_multiplier", lambda c: c.privacy.noise_multiplier > 0),
    "compress.keep": ("compress top-k", lambda c: c.compress.kind == "top-k"),
    "population.migrate_every": ("population.groups", lambda c: c.population.groups > 1),
}
"""What a setting needs to have an effect. A setting without effect is a warning and not an error, so that the
setting it needs can be varied alone."""


class ExchangeContext(NamedTuple):
    """What a builder receives beside the exchange's settings."""

    num_learners: int
    learner: Learner
    spec: EnvSpec
    seed: int = 0
    mesh: Mesh | None = None  # the devices that the learners are divided over; None for one
    group: int = 4  # the number of policies that a device evaluates at a time
    priors: Mapping[str, Prior] = {}  # of the hyperparameters that a population changes
    anchored: bool = False  # whether learners stay near `LearnerState.anchor` (FedProx)
