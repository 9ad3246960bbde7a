"""The settings of an exchange, in groups, and what its builder knows of the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jax.sharding import Mesh

from shoal.errors import ShoalError
from shoal.exchanges.exploration import Prior
from shoal.settings import changed, check_at_least, check_choices
from shoal.types import Learner


@dataclass(frozen=True)
class ServerConfig:
    """The server's own optimiser: the change of the average is its gradient (Reddi et al. 2021)."""

    optimiser: Literal["none", "momentum", "adam"] = "none"
    """None, momentum (FedAvgM) or Adam (FedAdam)."""
    lr: float | None = None
    """Its learning rate; 1 for momentum and 0.01 for Adam unless given."""
    momentum: float = 0.9
    """Its momentum, and Adam's first decay rate."""

    def __post_init__(self):
        check_choices(self, "server")
        if self.lr is not None and not self.lr > 0:
            raise ShoalError(f"server.lr must be above 0, not {self.lr}")


@dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy: messages are clipped, and Gaussian noise is added."""

    clip: float | None = None
    """Upper bound on the norm of the change that a learner sends; no clipping unless given."""
    noise_multiplier: float = 0.0
    """Standard deviation of the noise, in units of `clip`."""
    delta: float = 1e-5
    """The delta for which the privacy budget epsilon is reported."""

    def __post_init__(self):
        if self.noise_multiplier and self.clip is None:
            raise ShoalError("privacy.noise_multiplier needs privacy.clip: the noise is measured in it")


@dataclass(frozen=True)
class AttackConfig:
    """A simulated attack: the last learners send false messages."""

    kind: Literal["none", "sign-flip", "noise", "zero", "scale"] = "none"
    """What an attacker sends instead of its change."""
    count: int = 0
    """The number of attackers."""
    strength: float = 10.0
    """The factor of sign-flip and scale, or the standard deviation of noise."""

    def __post_init__(self):
        check_choices(self, "attack")
        if self.kind != "none" and self.count < 1:
            raise ShoalError(f"attack {self.kind} needs attack.count, the number of attackers")


@dataclass(frozen=True)
class CompressConfig:
    """Compression of messages, with error feedback: what is left out is added to the next message."""

    kind: Literal["none", "top-k", "int8"] = "none"
    """The largest coordinates only, or one byte per coordinate."""
    keep: float = 0.01
    """The fraction of the coordinates that top-k sends."""

    def __post_init__(self):
        check_choices(self, "compress")


@dataclass(frozen=True)
class PopulationConfig:
    """Population-based training: who is replaced, when, and how hyperparameters change."""

    fraction: float = 0.25
    """The fraction that is replaced, and the fraction that is copied (truncation)."""
    middle: bool = False
    """Also change the hyperparameters of the learners in between (truncation)."""
    rivals: int = 2
    """The number of other learners that a learner is compared with (tournament)."""
    resample: float = 0.25
    """The probability that a hyperparameter is drawn from its prior instead of perturbed."""
    min_episodes: int = 20
    """Episodes that a learner must finish after it was replaced, to be ranked again."""
    warm_up: int = 0
    """Updates before the first selection."""
    groups: int = 1
    """The number of groups; selection is within each, at every 1st, 5th, 10th and 25th meeting (MF-PBT)."""
    migrate_every: int = 1
    """Selections of a group between two migrations from other groups."""

    def __post_init__(self):
        check_at_least(self, 1, "min_episodes", "migrate_every", group="population")
        check_at_least(self, 0, "warm_up", group="population")
        if not 1 <= self.groups <= 4:
            raise ShoalError(f"population.groups must be 1 to 4, not {self.groups}")


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
    local_updates: int = 4
    """Updates between two exchanges."""
    participation: float = 1.0
    """The fraction of the learners that takes part in an exchange, drawn anew each time."""
    parts: tuple[str, ...] = ()
    """Parameters to exchange, by the names of the network's parts (ppo: actor, critic, encoder; td3: actor,
    critic, target_actor, target_critic); all if empty. critic:50 actor:100 exchanges the critic every 50
    updates and the actor every 100."""
    topology: Literal["complete", "ring", "star", "torus", "random-regular", "pairs"] = "ring"
    """The communication graph (gossip, neighbours); pairs are drawn anew each time."""
    degree: int = 4
    """Neighbours of each learner in a random regular graph."""
    comm_matrix: Any = None
    """A graph of your own: a JSON file, {"comm_matrix": {"0": {"1": 100}}}; i -> j -> weight of j for i."""
    symmetrise: bool = False
    """Read every edge of comm_matrix in both directions."""
    weights: Literal["uniform", "samples", "returns"] = "uniform"
    """The weight of a learner in an average."""
    bad: int | None = None
    """Byzantine learners that a robust rule tolerates; a third, or as many as it can, unless given."""
    average_weights: bool = False
    """Let neighbours average their parameters too."""
    use_comm_penalty: bool | None = None
    """Penalise the KL from the policies last received (comm_penalty_coeff); on for neighbours."""
    share_statistics: bool | None = None
    """Merge the running statistics of observations and returns; on unless there is noise for privacy."""
    share_moments: bool = False
    """Mix the optimiser's moments like the parameters."""
    common_start: bool | None = None
    """Start all learners from the same parameters; on where parameters or gradients are averaged."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """The server's optimiser."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """Clipping and noise."""
    attack: AttackConfig = field(default_factory=AttackConfig)
    """Simulated attackers."""
    compress: CompressConfig = field(default_factory=CompressConfig)
    """Compression of messages."""
    population: PopulationConfig = field(default_factory=PopulationConfig)
    """Selection and exploration."""

    def __post_init__(self):
        check_choices(self)
        check_at_least(self, 1, "local_updates")
        if self.comm_matrix is not None and self.topology != "ring":
            raise ShoalError(f"topology {self.topology} or comm_matrix: both give the communication graph")
        if self.share_moments and self.parts:
            raise ShoalError("share_moments goes with all parameters, not with some of the parts")
        if self.privacy.noise_multiplier:
            self._refuse_what_noise_does_not_cover()

    def _refuse_what_noise_does_not_cover(self) -> None:
        """Raise where something would be sent without noise beside what is sent with it."""
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
            f"{name} does nothing without {what}" for name, (what, met) in needed.items() if not met(self)
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
"""What a setting needs to have an effect. Without it there is a warning, so that the other can be varied."""


class ExchangeContext(NamedTuple):
    """What a builder knows of the run beside the exchange's settings."""

    num_learners: int
    learner: Learner
    seed: int = 0
    mesh: Mesh | None = None  # the devices that the learners are divided over; None for one
    group: int = 4  # how many policies a device evaluates at a time
    priors: Mapping[str, Prior] = {}  # of the hyperparameters that a population changes
    anchored: bool = False  # whether learners stay near `LearnerState.anchor` (FedProx)
