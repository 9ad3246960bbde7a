"""PPO's settings, each with what it does."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.learners.sequences import check_division
from shoal.learners.team_config import TeamConfig
from shoal.types import ShoalError, check_choices


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
        return self.rows * max(self.hidden, default=1) ** 2

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
        if self.comm_penalty_coeff < 0 or self.prox_coef < 0:
            raise ShoalError("comm_penalty_coeff and prox_coef must not be negative")
        if self.rollout_size % (self.num_minibatches * self.grad_accumulation):
            raise ShoalError(
                f"num_minibatches {self.num_minibatches} x grad_accumulation {self.grad_accumulation} "
                f"does not divide num_envs {self.num_envs} x num_steps {self.num_steps} = {self.rollout_size}"
            )
        if self.remembers:
            check_division(self.num_envs, self.num_minibatches * self.grad_accumulation)
