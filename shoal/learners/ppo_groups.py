"""Groups of PPO's settings."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, Len, MaxLen

from shoal.errors import ShoalError
from shoal.ranges import (
    Bound,
    Count,
    Layers,
    MayBeInfinite,
    NonNegative,
    Positive,
    Unbounded,
    Width,
    ZeroToOne,
)
from shoal.settings import check


def check_bounds(settings: Any, group: str, upper: str, lower: str) -> None:
    """Raise where a range is empty, or needs a lower bound and has none."""
    high, low = getattr(settings, upper), getattr(settings, lower)
    if isinstance(high, int | float) and low is None and high < 0:
        raise ShoalError(f"{group}.{upper} must not be negative without {group}.{lower}")
    if isinstance(high, int | float) and low is not None and low > high:
        raise ShoalError(f"{group}.{lower} {low} must not lie above {group}.{upper} {high}")


@dataclass(frozen=True)
class NetworkConfig:
    """Encoders of images, initial weights, the critic's size, split observations."""

    images: Literal["nature", "impala", "mlp"] = "nature"
    """The encoder of images. Vectors have none: they go to the hidden layers."""
    critic_hidden: Layers | None = None
    """Sizes of the critic's hidden layers; `hidden` unless given."""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """Initialisation of the weights; that of the output layers is always orthogonal."""
    init_log_std: Annotated[float, Interval(ge=-20, le=20)] = 0.0
    """Initial logarithm of the standard deviation of continuous actions."""
    split_start: Count | None = None
    """Split an observation after this many numbers; each part has layers of its own before the others."""
    split_keys: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Split named observations: the names of those that make the first part."""
    split_hidden: Annotated[tuple[Width, ...], Len(1, 64)] = (64, 64)
    """Sizes of each part's own layers; their outputs are concatenated."""
    grad_accumulation: Count = 1
    """Compute each minibatch's gradient in this many parts, to save memory."""

    def __post_init__(self):
        check(self, "network")
        if self.split_start is not None and self.split_keys:
            raise ShoalError("give network.split_start or network.split_keys, not both")


@dataclass(frozen=True)
class MemoryConfig:
    """A recurrent policy."""

    kind: Literal["none", "lstm", "gru"] = "none"
    """The recurrent cores of actor and critic, after the hidden layers."""
    size: Width = 64
    """Size of the core's state (an lstm has two states)."""

    def __post_init__(self):
        check(self, "memory")


@dataclass(frozen=True)
class CuriosityConfig:
    """A bonus for what the learner cannot predict yet (Pathak et al. 2017)."""

    enabled: bool = False
    """Add the prediction errors of a learned model of the environment to the rewards."""
    coef: NonNegative = 1.0
    """Weight of the bonus."""
    extrinsic_coef: NonNegative = 1.0
    """Weight of the environment's own rewards."""
    scale: NonNegative = 0.01
    """The bonus is this times half the model's squared error."""
    beta: ZeroToOne = 0.8
    """Share of the inverse model, which predicts the action, in the model's loss; the rest is the forward
    model's."""
    size: Width = 128
    """Number of features of an observation, and size of the model's hidden layers."""
    learning_rate: Positive = 3e-4
    """Step size of the model's Adam."""

    def __post_init__(self):
        check(self, "curiosity")


@dataclass(frozen=True)
class KLConfig:
    """Limits on how far the policy moves per update, by the KL divergence."""

    limit: Annotated[float, Ge(0), MayBeInfinite()] | None = None
    """Skip the remaining epochs once an epoch's mean KL exceeds this (target_kl)."""
    coef: NonNegative = 1.0
    """Initial weight of the KL penalty (objectives kl and mdpo)."""
    goal: NonNegative = 0.01
    """The KL per update that the weight of the penalty adapts to (objective kl)."""

    def __post_init__(self):
        check(self, "kl")


@dataclass(frozen=True)
class ValueConfig:
    """The critic's loss and targets, its epochs and its learning rate."""

    loss: Literal["squared", "huber"] = "squared"
    """The loss of the critic's error: its square, or Huber's, which is linear beyond huber_delta."""
    huber_delta: Positive = 10.0
    """The error beyond which the loss huber is linear."""
    clip: bool = False
    """Clip the value to within clip_coef of its old value. Off by default: with large returns the critic
    hardly learns."""
    norm: bool = False
    """Standardise the critic's targets by running statistics."""
    recalculate: bool = False
    """Recompute values, advantages and targets at the start of every epoch after the first."""
    bootstrap_clip: Unbounded | Literal["dynamic"] | None = None
    """The critic's targets become rewards to go, plus, where the rollout or the episode is cut off, a value
    of at most this; dynamic: a value between the least and the largest reward so far."""
    bootstrap_floor: Unbounded | None = None
    """Lower bound of that value; -bootstrap_clip unless given."""
    epochs: Annotated[int, Interval(ge=1, le=10_000)] | None = None
    """Epochs of the critic, at least update_epochs; those beyond change its own layers alone."""
    learning_rate: Positive | None = None
    """The step size of the critic's own layers; learning_rate unless given. anneal_lr lets both fall."""

    @property
    def apart(self) -> bool:
        """Whether the critic has an Adam of its own."""
        return self.epochs is not None or self.learning_rate is not None

    @property
    def clips_bootstrap(self) -> bool:
        """Whether the critic's targets are rewards to go with a bounded value at their end."""
        return self.bootstrap_clip is not None or self.bootstrap_floor is not None

    def __post_init__(self):
        check(self, "value")
        if self.bootstrap_clip == "dynamic" and self.bootstrap_floor is not None:
            raise ShoalError(
                "value.bootstrap_clip dynamic has its own lower bound: leave out bootstrap_floor"
            )
        check_bounds(self, "value", "bootstrap_clip", "bootstrap_floor")


@dataclass(frozen=True)
class InputsConfig:
    """Bounds on observations and rewards that the learner sees; augmentation of observations."""

    clip_obs: Bound = 10.0
    """Bound on standardised observations; without norm_obs it does nothing."""
    reward_scale: Positive = 1.0
    """The learner sees rewards times this; scores stay raw."""
    clip_reward: Unbounded | None = None
    """Bound on rewards that the learner sees, after scaling; scores stay raw."""
    reward_floor: Unbounded | None = None
    """Lower bound of these rewards; -clip_reward unless given."""
    augment: bool = False
    """Learn also from the variants of observations that the environment offers (augmentation)."""

    def __post_init__(self):
        check(self, "inputs")
        check_bounds(self, "inputs", "clip_reward", "reward_floor")


@dataclass(frozen=True)
class PeersConfig:
    """The penalty on the distance to other learners' policies (exchange neighbours)."""

    coef: NonNegative = 0.1
    """Weight of the KL divergence to the neighbours' policies."""
    direction: Literal["forward", "reverse"] = "forward"
    """forward: KL(theirs || own); reverse: KL(own || theirs)."""
    form: Literal["sum", "mixture"] = "sum"
    """For several neighbours: a weighted sum of KLs, or one KL to their mixture."""

    def __post_init__(self):
        check(self, "peers")
