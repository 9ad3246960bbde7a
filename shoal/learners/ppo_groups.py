"""Groups of PPO's settings."""

from dataclasses import dataclass
from typing import Any, Literal

from shoal.errors import ShoalError
from shoal.settings import check_at_least, check_choices


def check_bounds(settings: Any, group: str, upper: str, lower: str) -> None:
    """Raise where a range is empty, or lacks the lower bound that it needs."""
    high, low = getattr(settings, upper), getattr(settings, lower)
    if isinstance(high, int | float) and low is None and high < 0:
        raise ShoalError(f"{group}.{upper} must not be negative without {group}.{lower}")
    if isinstance(high, int | float) and low is not None and low > high:
        raise ShoalError(f"{group}.{lower} {low} must not lie above {group}.{upper} {high}")


@dataclass(frozen=True)
class NetworkConfig:
    """Pictures, initial weights, the critic's size, split observations."""

    images: Literal["nature", "impala", "mlp"] = "nature"
    """What pictures go through; vectors always go through the hidden layers."""
    critic_hidden: tuple[int, ...] | None = None
    """Sizes of the critic's hidden layers; those of `hidden` unless given."""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """How weights begin; the heads are always orthogonal."""
    init_log_std: float = 0.0
    """Logarithm of the first standard deviation of continuous actions."""
    split_start: int | None = None
    """Send the first so many numbers of an observation, and the rest, through layers of their own first."""
    split_keys: tuple[str, ...] = ()
    """The same for named observations: the names of those that go together."""
    split_hidden: tuple[int, ...] = (64, 64)
    """Sizes of those layers; their outputs, side by side, go on through the hidden layers."""
    grad_accumulation: int = 1
    """Compute each minibatch's gradient in this many pieces, to save memory."""

    def __post_init__(self):
        check_choices(self, "network")
        check_at_least(self, 1, "grad_accumulation", group="network")
        if self.split_start is not None and self.split_keys:
            raise ShoalError("give network.split_start or network.split_keys, not both")
        if not self.split_hidden:
            raise ShoalError("network.split_hidden must have at least one layer, e.g. 64 64")


@dataclass(frozen=True)
class MemoryConfig:
    """A recurrent policy."""

    kind: Literal["none", "lstm", "gru"] = "none"
    """The recurrent core after the hidden layers; actor and critic have one each."""
    size: int = 64
    """Size of the core's state (an lstm has two of them)."""

    def __post_init__(self):
        check_choices(self, "memory")
        check_at_least(self, 1, "size", group="memory")


@dataclass(frozen=True)
class CuriosityConfig:
    """A bonus for what the learner cannot predict yet (Pathak 2017)."""

    enabled: bool = False
    """Reward the errors of the learner's own model of the environment."""
    coef: float = 1.0
    """Weight of that bonus."""
    extrinsic_coef: float = 1.0
    """Weight of the environment's own rewards beside it."""
    scale: float = 0.01
    """The bonus is half the model's squared error times this."""
    beta: float = 0.8
    """How much of the model's loss is the inverse model's (which action was it?); the rest the forward's."""
    size: int = 128
    """Features of an observation, and the width of the model's hidden layers."""
    learning_rate: float = 3e-4
    """The step size of the model's own Adam."""

    def __post_init__(self):
        check_at_least(self, 1, "size", group="curiosity")
        check_at_least(self, 0, "coef", "extrinsic_coef", "scale", group="curiosity")
        if self.learning_rate <= 0 or not 0 <= self.beta <= 1:
            raise ShoalError("curiosity.learning_rate must be positive, curiosity.beta between 0 and 1")


@dataclass(frozen=True)
class KLConfig:
    """Limits on how far the policy moves per update, by the KL divergence."""

    limit: float | None = None
    """Skip the epochs that remain once an epoch's mean KL exceeds this."""
    coef: float = 1.0
    """The KL penalty's first weight (objectives kl and mdpo)."""
    goal: float = 0.01
    """The KL per update that the penalty's weight is steered to (objective kl)."""


@dataclass(frozen=True)
class ValueConfig:
    """The critic's loss and targets."""

    loss: Literal["squared", "huber"] = "squared"
    """The critic's error: its square, or no more than proportional to it beyond huber_delta."""
    huber_delta: float = 10.0
    """The error beyond which the loss huber grows linearly."""
    clip: bool = False
    """Hold the value near its old one, by clip_coef. Off: it freezes critics of large returns."""
    norm: bool = False
    """Let the critic learn targets standardised by their running statistics."""
    recalculate: bool = False
    """Compute values, advantages and targets anew at the start of every epoch after the first."""
    bootstrap_clip: float | Literal["dynamic"] | None = None
    """Let the critic learn rewards to go, plus where they are cut off a value of at most this; dynamic: no
    less and no more than any reward so far."""
    bootstrap_floor: float | None = None
    """The least such value; -bootstrap_clip unless given."""

    @property
    def clips_bootstrap(self) -> bool:
        """Whether the critic learns rewards to go, with a bounded value at their end."""
        return self.bootstrap_clip is not None or self.bootstrap_floor is not None

    def __post_init__(self):
        check_choices(self, "value")
        if self.huber_delta <= 0:
            raise ShoalError(f"value.huber_delta must be above 0, not {self.huber_delta}")
        if isinstance(self.bootstrap_clip, str) and self.bootstrap_clip != "dynamic":
            raise ShoalError(f"value.bootstrap_clip must be a number or dynamic, not {self.bootstrap_clip!r}")
        if self.bootstrap_clip == "dynamic" and self.bootstrap_floor is not None:
            raise ShoalError(
                "value.bootstrap_clip dynamic has its own lower bound: leave out bootstrap_floor"
            )
        check_bounds(self, "value", "bootstrap_clip", "bootstrap_floor")


@dataclass(frozen=True)
class InputsConfig:
    """Bounds on observations and rewards as the learner sees them; variants of observations."""

    clip_obs: float = 10.0
    """Bound on standardised observations."""
    clip_reward: float | None = None
    """Bound on rewards as the learner sees them, after standardising; scores stay raw."""
    reward_floor: float | None = None
    """The least such reward; -clip_reward unless given."""
    augment: bool = False
    """Learn from the variants of every observation that the environment offers, too."""

    def __post_init__(self):
        check_bounds(self, "inputs", "clip_reward", "reward_floor")


@dataclass(frozen=True)
class PeersConfig:
    """The penalty on the distance to other learners' policies (exchange neighbours)."""

    coef: float = 0.1
    """Weight of the KL to the policies that an exchange shows the learner."""
    direction: Literal["forward", "reverse"] = "forward"
    """That KL is KL(theirs || own), or in reverse KL(own || theirs)."""
    form: Literal["sum", "mixture"] = "sum"
    """Several policies make a weighted sum of KLs, or one KL to their mixture."""

    def __post_init__(self):
        check_choices(self, "peers")
        check_at_least(self, 0, "coef", group="peers")
