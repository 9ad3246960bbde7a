"""PPO's settings, each with what it does, and which of them are data."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Interval, MaxLen
from jax import Array

from shoal.errors import ShoalError
from shoal.learners.hyper_schedules import Schedule, check_unique, parse_schedule
from shoal.learners.ppo_groups import (
    CuriosityConfig,
    InputsConfig,
    KLConfig,
    MemoryConfig,
    NetworkConfig,
    PeersConfig,
    ValueConfig,
)
from shoal.learners.sequences import check_division
from shoal.learners.team_config import TeamConfig
from shoal.ranges import Bound, Count, Layers, NonNegative, Positive, ZeroToOne
from shoal.settings import check, get

ANNEALED = {
    "learning_rate": "anneal_lr",
    "clip_coef": "anneal_clip",
    "ent_coef": "anneal_ent",
    "critic_learning_rate": "anneal_lr",
}
"""Hyperparameters that may fall linearly to 0 over the run, each with the setting that says so."""

OPTIONAL = (
    "prox_coef",
    "target_kl",
    "clip_reward",
    "reward_floor",
    "bootstrap_clip",
    "bootstrap_floor",
    "critic_learning_rate",
)
"""Hyperparameters of options that are off unless they are given."""


class Hypers(NamedTuple):
    """Hyperparameters that are data: a change never recompiles. Every leaf is ().

    One that is `()` is not in the program.
    """

    learning_rate: Array
    gamma: Array
    gae_lambda: Array
    clip_coef: Array
    ent_coef: Array
    vf_coef: Array
    max_grad_norm: Array
    target_kl: Array
    kl_goal: Array
    comm_penalty_coeff: Array
    prox_coef: Array
    clip_reward: Array
    reward_floor: Array
    bootstrap_clip: Array
    bootstrap_floor: Array
    intrinsic_coef: Array
    extrinsic_coef: Array
    critic_learning_rate: Array | tuple[()] = ()


@dataclass(frozen=True)
class PPOConfig:
    """PPO's settings; names and defaults are CleanRL's where CleanRL has one.

    >>> import shoal
    >>> shoal.PPOConfig(num_envs=8, num_steps=64).rollout_size
    512
    """

    num_envs: Count = 4
    """Environments per learner, stepped together."""
    num_steps: Count = 128
    """Steps per environment between updates."""
    num_minibatches: Count = 4
    """Minibatches per epoch; must divide num_envs * num_steps, or num_envs for a recurrent policy. Unless
    given, the largest number that does, up to the preset's."""
    update_epochs: Annotated[int, Interval(ge=1, le=10_000)] = 4
    """Epochs: passes over each rollout."""
    learning_rate: Positive = 2.5e-4
    """Adam's step size."""
    anneal_lr: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    gamma: ZeroToOne = 0.99
    """Discount."""
    gae_lambda: ZeroToOne = 0.95
    """Lambda of generalised advantage estimation: 0 is one step, 1 the whole episode."""
    clip_coef: NonNegative = 0.2
    """Clipping range of the probability ratio."""
    ent_coef: NonNegative = 0.01
    """Weight of the entropy bonus."""
    norm_obs: bool = False
    """Standardise observations, except images, by running statistics."""
    norm_reward: bool = False
    """Divide rewards by the running standard deviation of discounted returns."""
    hidden: Layers = (64, 64)
    """Sizes of the hidden layers."""
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "tanh"
    """Activation between layers."""
    objective: Literal["clip", "kl", "mdpo", "none"] = "clip"
    """What keeps the policy near the one that acted: clipping, an adaptive KL penalty, mirror descent
    (a reverse KL penalty that grows towards the end of the run), or nothing."""
    anneal_clip: bool = False
    """Let clip_coef fall linearly to 0 over the run."""
    anneal_ent: bool = False
    """Let ent_coef fall linearly to 0 over the run."""
    norm_adv: Literal["minibatch", "batch", "none"] = "minibatch"
    """Which samples advantages are standardised over."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Bound = 0.5
    """Largest global norm of a gradient."""
    prox_coef: NonNegative = 0.0
    """Weight of the squared distance to the parameters last received (FedProx)."""
    schedules: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Hyperparameters that change over the run: NAME=SHAPE(END, N steps), or N iterations, or without N over
    the whole run, e.g. "learning_rate=linear(1e-4, 200 iterations)". The shapes are linear, log and step."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    curiosity: CuriosityConfig = field(default_factory=CuriosityConfig)
    team: TeamConfig = field(default_factory=TeamConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    value: ValueConfig = field(default_factory=ValueConfig)
    inputs: InputsConfig = field(default_factory=InputsConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_coef", "ent_coef")
    """Hyperparameters that a population changes by default."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""
    divisible: ClassVar[bool] = True
    """Whether several devices may share a learner's environments."""

    @property
    def rollout_size(self) -> int:
        """Samples per rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Samples per step of the optimiser."""
        return self.rollout_size // self.num_minibatches

    def most_minibatches(self, limit: int) -> int:
        """The largest number of minibatches, up to a limit, that these settings can have.

        >>> PPOConfig(num_envs=6, num_steps=10).most_minibatches(64)
        60
        """
        samples = self.num_envs if self.recurrent else self.rollout_size
        parts = self.network.grad_accumulation
        return max((n for n in range(1, limit + 1) if samples % (n * parts) == 0), default=1)

    @property
    def work(self) -> int:
        """Multiplications in the largest layer of a step of the optimiser."""
        if self.recurrent:  # a sequence is computed step by step
            return self.num_envs // self.num_minibatches * 4 * self.memory.size**2
        return self.minibatch_size * max(self.hidden + (self.network.critic_hidden or ()), default=1) ** 2

    @property
    def annealed(self) -> dict[str, str]:
        """The hyperparameters that fall to 0 over the run, each with the setting that says so."""
        given = (pair for pair in ANNEALED.items() if get(self, pair[0]) is not None)
        return {name: switch for name, switch in given if getattr(self, switch)}

    @property
    def anneals(self) -> list[str]:
        """The hyperparameters that change over the whole run."""
        over_run = [schedule.name for schedule in self.plan if schedule.updates is None]
        return [*over_run, *(["kl_coef"] if self.objective == "mdpo" else [])]

    @property
    def plan(self) -> tuple[Schedule, ...]:
        """The schedules of hyperparameters over the run."""
        to_zero = (Schedule(name, "linear", 0.0) for name in self.annealed)
        given = (parse_schedule(text, self.hypers, self.rollout_size) for text in self.schedules)
        return *to_zero, *given

    @property
    def hypers(self) -> dict[str, Any]:
        """The hyperparameters, by their names in `Hypers`."""
        return {name: get(self, name) for name in Hypers._fields}

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters without effect as configured, each with what gives it one."""
        off = {name: f"a {name} to begin with" for name in OPTIONAL if get(self, name) in (None, 0)}
        if not self.curiosity.enabled:
            off |= dict.fromkeys(("intrinsic_coef", "extrinsic_coef"), "curiosity")
        return off if self.objective == "kl" else off | {"kl_goal": "objective kl"}

    @property
    def recurrent(self) -> bool:
        """Whether the policy is recurrent: then it learns from whole sequences."""
        return self.memory.kind != "none"

    def __post_init__(self):
        check(self)
        check_unique(self.plan, self.annealed)
        if idle := [schedule.name for schedule in self.plan if schedule.name in self.idle]:
            raise ShoalError(f"{idle[0]} has a schedule but no effect without {self.idle[idle[0]]}")
        num_parts = self.num_minibatches * self.network.grad_accumulation
        if self.rollout_size % num_parts:
            times = f" x network.grad_accumulation {self.network.grad_accumulation}" * (
                num_parts > self.num_minibatches
            )
            raise ShoalError(
                f"num_minibatches {self.num_minibatches}{times} does not divide "
                f"num_envs {self.num_envs} x num_steps {self.num_steps} = {self.rollout_size}"
            )
        if self.value.epochs is not None and self.value.epochs < self.update_epochs:
            raise ShoalError(
                f"value.epochs {self.value.epochs} must be at least update_epochs {self.update_epochs}: "
                "in those policy and critic learn together"
            )
        if self.recurrent:
            check_division(self.num_envs, num_parts)
        if self.inputs.augment and self.recurrent:
            raise ShoalError("inputs.augment does not work with memory: use only one of them")
