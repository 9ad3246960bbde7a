"""Replay: one learner's past, in a ring on the device, as steps to learn from again.

A transition is `n` steps of one episode, or those that were left of it. Its rewards are kept apart, so that
a discount that changes is the one that counts.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.settings import check_at_least, check_choices
from shoal.types import EnvSpec, ObservationSpace, Rollout, Tree


@dataclass(frozen=True)
class ReplayNetworkConfig:
    """Pictures and first weights."""

    images: Literal["nature", "impala", "mlp"] = "nature"
    """What pictures go through, before the hidden layers."""
    init: Literal["orthogonal", "xavier", "fan_in"] = "fan_in"
    """How weights begin."""

    def __post_init__(self):
        check_choices(self, "network")


@dataclass(frozen=True)
class ReplayPeersConfig:
    """The penalty on the distance to other learners (exchange neighbours)."""

    coef: float = 0.1
    """Weight of the distance to what an exchange shows the learner."""

    def __post_init__(self):
        check_at_least(self, 0, "coef", group="peers")


@dataclass(frozen=True)
class ReplayConfig:
    """What learners with a replay have in common; names are Stable-Baselines3's where it has one."""

    num_envs: int = 1
    """Environments per learner, stepped together."""
    num_steps: int = 2
    """Steps per environment between updates."""
    gradient_steps: int | None = None
    """Critic updates per rollout; one for each environment step unless given."""
    batch_size: int = 256
    """Transitions per update."""
    buffer_size: int = 1_000_000
    """Transitions that the replay buffer holds."""
    learning_starts: int = 10_000
    """Steps of uniformly random actions, and no learning, at the start."""
    learning_rate: float = 1e-3
    """The critics' step size."""
    gamma: float = 0.99
    """Discount."""
    n_step: int = 1
    """Rewards that are added up before the target network's estimate of the rest."""
    tau: float = 0.005
    """The step of target networks towards the networks (Polyak averaging)."""
    norm_obs: bool = False
    """Standardise observations, but no pictures, by running statistics."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers."""
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "relu"
    """Activation between layers."""
    clip_obs: float = 10.0
    """Bound on standardised observations."""
    prox_coef: float = 0.0
    """Weight of the squared distance to the model last received (FedProx)."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """The optimiser."""
    network: ReplayNetworkConfig = field(default_factory=ReplayNetworkConfig)
    peers: ReplayPeersConfig = field(default_factory=ReplayPeersConfig)

    divisible: ClassVar[bool] = False
    """Whether several devices may share a learner's environments; a replay is in one place."""

    @property
    def rollout_size(self) -> int:
        """Samples per rollout."""
        return self.num_envs * self.num_steps

    @property
    def rows(self) -> int:
        """Samples per step of the optimiser."""
        return self.batch_size

    @property
    def work(self) -> int:
        """Multiplications in the largest layer of a step of the optimiser."""
        return self.rows * max(self.hidden, default=1) ** 2

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters that change nothing as configured, each with what it takes."""
        return {} if self.prox_coef else {"prox_coef": "a prox_coef to begin with"}

    @property
    def layers(self) -> dict[str, Any]:
        """What networks are made with."""
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
        check_choices(self)
        check_at_least(self, 1, "num_envs", "num_steps", "batch_size", "buffer_size", "n_step")
        check_at_least(self, 0, "prox_coef")
        if self.num_gradients < 1 or self.learning_starts < 0:
            raise ShoalError("gradient_steps must be at least 1, and learning_starts not negative")
        if self.learning_rate <= 0 or not 0 <= self.gamma <= 1 or not 0 < self.tau <= 1:
            raise ShoalError(
                "learning_rate must be positive, gamma between 0 and 1, tau above 0 and at most 1"
            )


class Transition(NamedTuple):
    """What was done and what came of it."""

    obs: Tree  # (...)
    action: Tree  # (...)
    reward: Array  # (n,), 0 after the episode's end
    steps: Array  # () int32, of the n how many there were
    next_obs: Tree  # (...) after those steps: the true final observation, where the episode ended
    terminated: Array  # () bool: nothing follows


class Ring(NamedTuple):
    """The last transitions; the next one goes to `count` modulo the capacity."""

    data: Transition  # (capacity, ...)
    count: Array  # () int32, so far


Tail = Rollout | tuple[()]
"""The last n - 1 steps, whose returns are not known yet; with n = 1 nothing, rather than arrays of no steps:
compiling those for several devices crashes jaxlib 0.11.2."""


class ReplayBuffer(NamedTuple):
    """What a learner remembers of its steps."""

    ring: Ring
    tail: Tail
    num_steps: Array  # () int32, environment steps so far
    warming_up: Array  # () bool: too few of them to learn from, so actions are random


def on_restart(buffer: ReplayBuffer) -> ReplayBuffer:
    """The past of a learner about to begin new episodes: what waits for later steps waits in vain."""
    if not buffer.tail:
        return buffer
    return buffer._replace(tail=buffer.tail._replace(valid=jnp.zeros_like(buffer.tail.valid)))


def empty_buffer(
    spec: EnvSpec, action: jax.ShapeDtypeStruct, capacity: int, num_envs: int, n: int, warming_up: bool
) -> ReplayBuffer:
    """Nothing yet; `action` is one action's shape and type."""
    tail = no_tail(spec, action, num_envs, n)
    return ReplayBuffer(empty(spec, action, capacity, n), tail, jnp.int32(0), jnp.bool_(warming_up))


def remember(buffer: ReplayBuffer, rollout: Rollout, n: int, learning_starts: int) -> ReplayBuffer:
    """The past with a rollout in it."""
    rows, valid, tail = transitions(buffer.tail, rollout, n)
    num_steps = buffer.num_steps + rollout.reward.size
    replay = store(buffer.ring, trees.merge_axes(rows), valid.reshape(-1))
    return ReplayBuffer(replay, tail, num_steps, num_steps < learning_starts)


def empty(spec: EnvSpec, action: jax.ShapeDtypeStruct, capacity: int, n: int = 1) -> Ring:
    """Room for `capacity` transitions of an environment."""
    obs = _blank(spec.observation, (capacity,))
    data = Transition(
        obs=obs,
        action=jnp.zeros((capacity, *action.shape), action.dtype),
        reward=jnp.zeros((capacity, n)),
        steps=jnp.zeros(capacity, jnp.int32),
        next_obs=jax.tree.map(jnp.zeros_like, obs),
        terminated=jnp.zeros(capacity, bool),
    )
    return Ring(data, jnp.int32(0))


def size(replay: Ring) -> Array:
    """How many transitions there are to sample from."""
    return jnp.minimum(replay.count, replay.data.steps.shape[0])


def store(replay: Ring, rows: Transition, valid: Array) -> Ring:
    """Put in the valid ones of (B, ...) transitions, in their order; the oldest make room."""
    capacity = replay.data.steps.shape[0]
    place = replay.count + jnp.cumsum(valid)  # counted from 1
    count = place[-1]
    kept = valid & (place > count - capacity)  # so that no place is written twice
    place = jnp.where(kept, (place - 1) % capacity, capacity)
    put = lambda ring, new: ring.at[place].set(new.astype(ring.dtype), mode="drop")
    return Ring(jax.tree.map(put, replay.data, rows), count)


def sample(replay: Ring, key: Array, shape: tuple[int, ...]) -> Transition:
    """Transitions drawn evenly, with replacement."""
    index = jax.random.randint(key, shape, 0, jnp.maximum(size(replay), 1))
    return jax.tree.map(lambda ring: ring[index], replay.data)


def no_tail(spec: EnvSpec, action: jax.ShapeDtypeStruct, num_envs: int, n: int) -> Tail:
    """The steps before the first one: none of them valid."""
    if n == 1:
        return ()
    shape = (n - 1, num_envs)
    never = jnp.zeros(shape, bool)
    return Rollout(
        obs=_blank(spec.observation, shape),
        action=jnp.zeros((*shape, *action.shape), action.dtype),
        reward=jnp.zeros(shape),
        terminated=never,
        truncated=never,
        valid=never,
        last_obs=(),
    )


def transitions(tail: Tail, rollout: Rollout, n: int) -> tuple[Transition, Array, Tail]:
    """The transitions of T steps (T, E, ...), which of them are valid (T, E), and the tail for next time.

    A step is looked at once the n - 1 after it are known: `tail` holds those that still wait.
    """
    num_steps = rollout.reward.shape[0]
    new = rollout._replace(last_obs=(), peer_targets=(), episode_starts=())
    join = lambda old, new: jnp.concatenate([old, new])
    whole = jax.tree.map(join, tail, new) if tail else new  # (T + n - 1, E, ...)
    after = jax.tree.map(lambda x, last: jnp.concatenate([x[1:], last[None]]), whole.obs, rollout.last_obs)
    window = lambda tree, k: jax.tree.map(lambda x: x[k : k + num_steps], tree)
    first = window(whole, 0)
    alive, rewards = first.valid, []
    steps = jnp.zeros(alive.shape, jnp.int32)
    next_obs, terminated = window(after, 0), first.terminated
    for k in range(n):
        step = window(whole, k)
        rewards.append(jnp.where(alive, step.reward, 0.0))
        steps = steps + alive
        next_obs = jax.tree.map(lambda new, old: _where(alive, new, old), window(after, k), next_obs)  # noqa: B023
        terminated = jnp.where(alive, step.terminated, terminated)
        alive = alive & ~(step.terminated | step.truncated)
    rows = Transition(first.obs, first.action, jnp.stack(rewards, -1), steps, next_obs, terminated)
    waiting = jax.tree.map(lambda x: x[num_steps:], whole) if tail else ()
    return rows, first.valid, waiting


def discounted(batch: Transition, gamma: Array) -> tuple[Array, Array]:
    """sum_k gamma^k r_k over the steps of each transition, and the discount of what follows them."""
    powers = gamma ** jnp.arange(batch.reward.shape[-1])
    following = gamma**batch.steps * ~batch.terminated
    return batch.reward @ powers, following


def _blank(space: ObservationSpace, shape: tuple[int, ...]) -> Tree:
    if isinstance(space, dict):
        return {name: _blank(box, shape) for name, box in space.items()}
    return jnp.zeros((*shape, *space.shape), space.dtype)


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return jnp.where(condition.reshape(condition.shape + (1,) * (yes.ndim - condition.ndim)), yes, no)
