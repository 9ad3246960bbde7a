"""Settings that TD3, SAC and DQN share."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from shoal.ranges import Bound, Count, Layers, NonNegative, Positive, Share, ZeroToOne
from shoal.settings import check


@dataclass(frozen=True)
class OffPolicyNetworkConfig:
    """Encoders of images, initial weights."""

    images: Literal["nature", "impala", "mlp"] = "nature"
    """The encoder of images, before the hidden layers."""
    init: Literal["orthogonal", "xavier", "fan_in"] = "fan_in"
    """Initialisation of the weights."""

    def __post_init__(self):
        check(self, "network")


@dataclass(frozen=True)
class OffPolicyPeersConfig:
    """The penalty on the distance to other learners' policies (exchange neighbours)."""

    coef: NonNegative = 0.1
    """Weight of the squared distance to the neighbours' actions or values."""

    def __post_init__(self):
        check(self, "peers")


@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings of a learner with a replay buffer; names are Stable-Baselines3's where it has one."""

    num_envs: Count = 1
    """Environments per learner, stepped together."""
    num_steps: Count = 2
    """Steps per environment between updates."""
    gradient_steps: Count | None = None
    """Critic updates per rollout; one for each environment step unless given."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    buffer_size: Annotated[int, Interval(ge=1, le=10**9)] = 1_000_000
    """Transitions that the replay buffer holds."""
    learning_starts: Annotated[int, Interval(ge=0, le=10**12)] = 10_000
    """Environment steps at the start with uniformly random actions and no learning."""
    learning_rate: Positive = 1e-3
    """The critics' step size."""
    gamma: ZeroToOne = 0.99
    """Discount."""
    n_step: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """Rewards summed before the target network's value is added (n-step returns)."""
    tau: Share = 0.005
    """Step of the target networks towards the networks (Polyak averaging)."""
    norm_obs: bool = False
    """Standardise observations, except images, by running statistics."""
    hidden: Layers = (256, 256)
    """Sizes of the hidden layers."""
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "relu"
    """Activation between layers."""
    clip_obs: Bound = 10.0
    """Bound on standardised observations; without norm_obs it does nothing."""
    prox_coef: NonNegative = 0.0
    """Weight of the squared distance to the parameters last received (FedProx)."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """The optimiser."""
    network: OffPolicyNetworkConfig = field(default_factory=OffPolicyNetworkConfig)
    peers: OffPolicyPeersConfig = field(default_factory=OffPolicyPeersConfig)

    anneals: ClassVar[list[str]] = []
    """The hyperparameters that change over the whole run."""
    divisible: ClassVar[bool] = False
    """Whether several devices may share a learner's environments; a replay buffer is on one device."""

    @property
    def rollout_size(self) -> int:
        """Samples per rollout."""
        return self.num_envs * self.num_steps

    @property
    def work(self) -> int:
        """Multiplications in the largest layer of a gradient step."""
        return self.batch_size * max(self.hidden, default=1) ** 2

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters without effect as configured, each with what gives it one."""
        return {} if self.prox_coef else {"prox_coef": "a prox_coef to begin with"}

    @property
    def layers(self) -> dict[str, Any]:
        """The arguments of networks."""
        return {
            "hidden": self.hidden,
            "activation": self.activation,
            "images": self.network.images,
            "init": self.network.init,
        }

    @property
    def num_gradients(self) -> int:
        """Critic updates per rollout."""
        return self.rollout_size if self.gradient_steps is None else self.gradient_steps

    def __post_init__(self):
        check(self)
