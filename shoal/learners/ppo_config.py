"""PPO's settings, each with what it does, and which of them are data."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from jax import Array

from shoal.errors import ShoalError, check_choices
from shoal.learners import hyper_schedules
from shoal.learners.hyper_schedules import Schedule
from shoal.learners.sequences import check_division
from shoal.learners.wrappers.team_config import TeamConfig

ANNEALED = {"learning_rate": "anneal_lr", "clip_coef": "anneal_clip", "ent_coef": "anneal_ent"}
"""Hyperparameters with a setting that lets them fall linearly to 0 over the run."""

OPTIONAL = ("prox_coef", "target_kl", "clip_reward", "reward_floor", "bootstrap_clip", "bootstrap_floor")
"""Hyperparameters of what is not done unless they are given."""


class Hypers(NamedTuple):
    """What populations evolve and schedules change: data, so a change never recompiles. Every leaf is ()."""

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


@dataclass(frozen=True)
class PPOConfig(TeamConfig):
    """PPO's settings; names and defaults are CleanRL's where CleanRL has one."""

    num_envs: int = 4
    """Environments per learner, stepped together."""
    num_steps: int = 128
    """Steps per environment between updates."""
    num_minibatches: int = 4
    """Minibatches per epoch; must divide num_envs * num_steps, with memory num_envs."""
    update_epochs: int = 4
    """Passes over each rollout."""
    learning_rate: float = 2.5e-4
    """Adam's step size."""
    anneal_lr: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 one step, 1 the whole episode."""
    objective: Literal["clip", "kl", "mdpo", "none"] = "clip"
    """What holds the policy near the one that acted: clipping, an adaptive KL penalty, mirror descent
    (a reverse KL penalty that grows as the run ends), nothing."""
    clip_coef: float = 0.2
    """How far the probability ratio may move before clipping."""
    anneal_clip: bool = False
    """Let clip_coef fall linearly to 0 over the run."""
    kl_coef: float = 1.0
    """The KL penalty's first weight (objectives kl and mdpo)."""
    kl_goal: float = 0.01
    """The KL per update that the penalty's weight is steered to (objective kl)."""
    target_kl: float | None = None
    """Skip the epochs that remain once an epoch's mean KL exceeds this."""
    norm_adv: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over what advantages are standardised."""
    recalc_adv: bool = False
    """Compute values, advantages and targets anew at the start of every epoch after the first."""
    value_loss: Literal["squared", "huber"] = "squared"
    """The critic's error: its square, or no more than proportional to it beyond huber_delta."""
    huber_delta: float = 10.0
    """The error beyond which value_loss huber grows linearly."""
    norm_value: bool = False
    """Let the critic learn targets standardised by their running statistics."""
    bootstrap_clip: float | Literal["dynamic"] | None = None
    """Let the critic learn rewards to go, plus where they are cut off a value of at most this; dynamic: no
    less and no more than any reward so far."""
    bootstrap_floor: float | None = None
    """The least such value; -bootstrap_clip unless given."""
    clip_vloss: bool = False
    """Hold the value near its old one, by clip_coef. Off: it freezes critics of large returns."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    anneal_ent: bool = False
    """Let ent_coef fall linearly to 0 over the run."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Largest global norm of a gradient."""
    norm_obs: bool = False
    """Standardise observations by running statistics (pictures are left alone)."""
    clip_obs: float = 10.0
    """Bound on standardised observations."""
    norm_reward: bool = False
    """Divide rewards by the running spread of discounted returns."""
    clip_reward: float | None = None
    """Bound on rewards as the learner sees them, after standardising; scores stay raw."""
    reward_floor: float | None = None
    """The least such reward; -clip_reward unless given."""
    comm_penalty_coeff: float = 0.1
    """Weight of the KL to the policies an exchange shows the learner (exchange neighbours)."""
    comm_direction: Literal["forward", "reverse"] = "forward"
    """That KL is KL(theirs || own), or in reverse KL(own || theirs)."""
    comm_form: Literal["sum", "mixture"] = "sum"
    """Several policies make a weighted sum of KLs, or one KL to their mixture."""
    prox_coef: float = 0.0
    """Weight of the squared distance to the parameters last received (FedProx)."""
    grad_accumulation: int = 1
    """Compute each minibatch's gradient in this many pieces, to save memory."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers."""
    critic_hidden: tuple[int, ...] | None = None
    """Sizes of the critic's; those above unless given."""
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "tanh"
    """Activation between layers."""
    network: Literal["nature", "impala", "mlp"] = "nature"
    """What pictures go through; vectors always go through the hidden layers."""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """How weights begin; the heads are always orthogonal."""
    init_log_std: float = 0.0
    """Logarithm of the first standard deviation of continuous actions."""
    memory: Literal["none", "lstm", "gru"] = "none"
    """What remembers the episode so far, after the hidden layers: actor and critic have one each."""
    memory_size: int = 64
    """How many numbers it remembers (an lstm twice as many)."""
    schedules: tuple[str, ...] = ()
    """Hyperparameters that change over the run: NAME=SHAPE(END, N steps), or iterations, or the whole run,
    e.g. "learning_rate=linear(1e-4, 200 iterations)"; the shapes are linear, log and step."""
    split_start: int | None = None
    """Send the first so many numbers of an observation, and the rest, through layers of their own first."""
    split_keys: tuple[str, ...] = ()
    """The same for named observations: the names of those that go together."""
    split_hidden: tuple[int, ...] = (64, 64)
    """Sizes of those layers; their outputs, side by side, go on through the hidden layers."""
    curiosity: bool = False
    """Reward what the learner's own model of the world gets wrong (Pathak et al. 2017)."""
    intrinsic_coef: float = 1.0
    """Weight of that bonus."""
    extrinsic_coef: float = 1.0
    """Weight of the environment's own rewards beside it."""
    intrinsic_scale: float = 0.01
    """The bonus is half the model's squared error times this."""
    icm_beta: float = 0.8
    """How much of the model's loss is the inverse model's (which action was it?); the rest the forward's."""
    icm_size: int = 128
    """Features of an observation, and the width of the model's hidden layers."""
    icm_learning_rate: float = 3e-4
    """The step size of the model's own Adam."""
    augment: bool = False
    """Learn from the variants of every observation that the environment offers, too."""

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_coef", "ent_coef")
    """What a population changes unless told."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""
    divisible: ClassVar[bool] = True
    """Whether several devices may share a learner's environments."""

    @property
    def rollout_size(self) -> int:
        """Samples per rollout."""
        return self.num_envs * self.num_steps

    @property
    def rows(self) -> int:
        """Samples per step of the optimiser."""
        return self.rollout_size // self.num_minibatches

    @property
    def work(self) -> int:
        """Multiplications in the largest layer of a step of the optimiser."""
        if self.remembers:  # a sequence is read step by step
            return self.num_envs // self.num_minibatches * 4 * self.memory_size**2
        return self.rows * max(self.hidden + (self.critic_hidden or ()), default=1) ** 2

    @property
    def clips_bootstrap(self) -> bool:
        """Whether the critic learns rewards to go, with a bounded value at their end."""
        return self.bootstrap_clip is not None or self.bootstrap_floor is not None

    @property
    def annealed(self) -> dict[str, str]:
        """The hyperparameters that fall to 0 over the run, each with the setting that lets it."""
        return {name: switch for name, switch in ANNEALED.items() if getattr(self, switch)}

    @property
    def plan(self) -> tuple[Schedule, ...]:
        """How hyperparameters change over the run."""
        starts = {name: getattr(self, name) for name in Hypers._fields}
        to_zero = (Schedule(name, "linear", 0.0) for name in self.annealed)
        return *to_zero, *(hyper_schedules.read(text, starts, self.rollout_size) for text in self.schedules)

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters that change nothing as configured, each with what it takes."""
        off = {name: f"a {name} to begin with" for name in OPTIONAL if getattr(self, name) in (None, 0)}
        if not self.curiosity:
            off |= dict.fromkeys(("intrinsic_coef", "extrinsic_coef"), "curiosity")
        return off if self.objective == "kl" else off | {"kl_goal": "objective kl"}

    @property
    def remembers(self) -> bool:
        """Whether the policy is recurrent: it then learns from whole sequences."""
        return self.memory != "none"

    def __post_init__(self):
        check_choices(self)
        self.check_team()
        counts = (
            "num_envs",
            "num_steps",
            "num_minibatches",
            "update_epochs",
            "grad_accumulation",
            "memory_size",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ShoalError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 <= self.gamma <= 1 or not 0 <= self.gae_lambda <= 1:
            raise ShoalError("learning_rate must be positive, gamma and gae_lambda between 0 and 1")
        if self.split_start is not None and self.split_keys:
            raise ShoalError("observations are split at a number (split_start) or by split_keys, not both")
        if not self.split_hidden:
            raise ShoalError("split_hidden must have at least one layer, e.g. 64 64")
        if self.comm_penalty_coeff < 0 or self.prox_coef < 0:
            raise ShoalError("comm_penalty_coeff and prox_coef must not be negative")
        if self.huber_delta <= 0:
            raise ShoalError(f"huber_delta must be above 0, not {self.huber_delta}")
        self._check_bounds()
        hyper_schedules.check(self.plan, self.annealed)
        if idle := [schedule.name for schedule in self.plan if schedule.name in self.idle]:
            raise ShoalError(f"{idle[0]} has a schedule but no effect: that takes {self.idle[idle[0]]}")
        if self.rollout_size % (self.num_minibatches * self.grad_accumulation):
            raise ShoalError(
                f"num_minibatches {self.num_minibatches} x grad_accumulation {self.grad_accumulation} "
                f"does not divide num_envs {self.num_envs} x num_steps {self.num_steps} = {self.rollout_size}"
            )
        self._check_curiosity()
        if self.remembers:
            check_division(self.num_envs, self.num_minibatches * self.grad_accumulation)

    def _check_bounds(self):
        if isinstance(self.bootstrap_clip, str) and self.bootstrap_clip != "dynamic":
            raise ShoalError(f"bootstrap_clip must be a number or dynamic, not {self.bootstrap_clip!r}")
        if self.bootstrap_clip == "dynamic" and self.bootstrap_floor is not None:
            raise ShoalError("bootstrap_clip dynamic has a lower bound of its own: leave bootstrap_floor out")
        for clip, floor in (("clip_reward", "reward_floor"), ("bootstrap_clip", "bootstrap_floor")):
            high, low = getattr(self, clip), getattr(self, floor)
            if isinstance(high, int | float) and low is None and high < 0:
                raise ShoalError(f"{clip} must not be negative without a {floor}")
            if isinstance(high, int | float) and low is not None and low > high:
                raise ShoalError(f"{floor} {low} must not lie above {clip} {high}")

    def _check_curiosity(self) -> None:
        if self.icm_size < 1 or self.icm_learning_rate <= 0 or not 0 <= self.icm_beta <= 1:
            raise ShoalError("icm_size and icm_learning_rate must be positive, icm_beta between 0 and 1")
        if min(self.intrinsic_coef, self.extrinsic_coef, self.intrinsic_scale) < 0:
            raise ShoalError("intrinsic_coef, extrinsic_coef and intrinsic_scale must not be negative")
        if self.augment and self.remembers:
            raise ShoalError(
                "augment: what a policy with memory would remember of variants it never saw is not known; "
                "say --memory none or --no-augment"
            )
