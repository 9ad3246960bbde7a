"""The contracts: time steps, environments, rollouts, learners, exchanges.

Axes have the same names everywhere: L learner, T time, E environment, N rows (all environments of one device,
learner-major, N = L * E), A agent, B batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax import Array

from shoal.spaces import ActionSpace as ActionSpace
from shoal.spaces import Box as Box
from shoal.spaces import Discrete as Discrete
from shoal.spaces import MultiBinary as MultiBinary
from shoal.spaces import MultiDiscrete as MultiDiscrete
from shoal.spaces import ObservationSpace as ObservationSpace

Tree: TypeAlias = Any
"""A pytree of arrays."""


class Augmentation(NamedTuple):
    """Variants of an environment's observations, in which the same actions earn the same rewards."""

    copies: int  # K, the observation itself included, as the first
    apply: Callable[[Tree], Tree]  # (B, ...) -> (B, K, ...), called inside compiled code


@dataclass(frozen=True)
class EnvSpec:
    """What a learner must know of an environment before the first step.

    >>> import shoal
    >>> spec = shoal.make("Pendulum-v1").spec
    >>> spec.observation.shape, spec.max_episode_steps, spec.params.gravity
    ((3,), 200, 10.0)
    """

    name: str
    backend: str
    """The suite it comes from, by its prefix: `jax`, `envpool`, `gym`, `gymnax` ..."""
    observation: ObservationSpace
    action: ActionSpace
    max_episode_steps: int | None = None
    params: Tree = field(default=(), hash=False)
    """The default physical parameters, a NamedTuple or dictionary of scalars; `()` where there are none."""
    spread: dict[str, tuple[float, float, float]] = field(default_factory=dict, hash=False)
    """The parameters that differ between drawn worlds: name -> (scale, low, high). With `env_spread` s a
    world has the value clip(default + scale s N(0, 1), low, high)."""
    agents: int | None = None
    """The number of agents; None where there is no axis of agents. Spaces are those of one agent."""
    teams: tuple[int, ...] = ()
    """The team of each agent, counted from 0; () where all are one team."""
    shortest: int = 1
    """No episode ends in fewer steps. Starts of new episodes are drawn only this often."""
    parallel: bool = True
    """Whether several devices can step it at once; not so in Python, because of its lock."""
    exact_resume: bool = True
    """Whether a saved environment continues mid-episode, bit for bit."""
    augment: Augmentation | None = field(default=None, hash=False)
    """Equivalent variants of observations; None where it has none."""

    @property
    def agent_axis(self) -> tuple[int, ...]:
        """(A,), or () where there is no axis of agents."""
        return () if self.agents is None else (self.agents,)


class TimeStep(NamedTuple):
    """The output of N environments.

    The step after an episode's end is the reset: its action is ignored, its reward is 0, its
    observation is the new episode's first, and `valid` is False. So the observation that comes with
    `terminated` or `truncated` is the true final one, and one that comes without `valid`, like the very
    first, begins an episode.
    """

    obs: Tree  # (N, ...)
    reward: Array  # (N,) float32
    terminated: Array  # (N,) bool; both set counts as terminated
    truncated: Array  # (N,) bool
    valid: Array  # (N,) bool: False for the reset step, which nobody learns from
    info: dict[str, Array]  # `raw_reward`, `episode_over`: the score, where it differs from the above


class Env(NamedTuple):
    """An environment for N rows at once, called inside compiled code.

    reset(keys, params) -> (state, TimeStep)            keys (N,), params (N,) per leaf
    draw(keys, state, num_steps) -> noise               keys (N,), noise (T, N, ...) per leaf
    step(state, action, noise) -> (state, TimeStep)     one time slice of the noise
    render(state, row) -> RGB array (H, W, 3) uint8     outside compiled code
    restart(keys, state) -> (state, TimeStep)           new episodes in the same worlds, at any time; None
                                                        where that is impossible
    abandon(state, rows) -> state                       whose next step is a reset, as after an episode's end;
                                                        rows (N,) bool; None where that is impossible
    renew(seeds)                                        other seeds (D, N), for the programs that are compiled
                                                        already; None where they are tied to the first ones
    containment                                         what failing environments cost (`faults.Containment`);
                                                        None where they cannot fail alone

    `draw` makes all the random numbers of a rollout at once, because drawing them step by step costs
    more than the physics. The state may be arrays, an EnvPool handle or a callback
    token; the leading axis of its leaves divides evenly over the devices.
    """

    spec: EnvSpec
    reset: Callable[[Array, Tree], tuple[Tree, TimeStep]]
    draw: Callable[[Array, Tree, int], Tree]
    step: Callable[[Tree, Tree, Tree], tuple[Tree, TimeStep]]
    render: Callable[[Tree, int], np.ndarray]
    restart: Callable[[Array, Tree], tuple[Tree, TimeStep]] | None = None
    renew: Callable[[np.ndarray], None] | None = None
    abandon: Callable[[Tree, Array], Tree] | None = None
    containment: Any = None


class EnvRecipe(NamedTuple):
    """An environment that is known but not yet built: the cohort decides how many rows it has.

    build(seeds, rendering) -> Env; seeds is a uint32 array (D, N), one seed per row and device of
    this process. Equal seeds and equal actions give equal episodes. `rendering` says whether the
    caller will ask for pictures.
    """

    spec: EnvSpec
    build: Callable[[np.ndarray, bool], Env]
    may_raise: bool = False  # whether its steps call Python, which can raise an exception


class JaxEnv(NamedTuple):
    """One environment in plain JAX functions: the way to add your own.

    reset(key, params) -> state
    step(key, state, action, params) -> (state, reward, terminated)
    observe(state, params) -> obs
    render(state, params) -> RGB array, outside compiled code; None where there are no pictures
    truncated(state, params) -> bool, whether the environment ends the episode by a rule of its own, though
        it has not terminated; None where only the time limit does
    augment(obs) -> (K, ...), variants of an observation, itself first, in which the same actions earn the
        same rewards; None where there are none

    `envs/adapters/jax_env.py` adds the time limit (`spec.max_episode_steps`), the automatic reset, the batch
    and the clipping of actions to `spec.action`.

    Where `spec.agents` is A, actions, rewards and every part of an observation have a leading axis A;
    `terminated` is one flag for all.

    >>> import jax.numpy as jnp
    >>> import shoal
    >>> walk = shoal.JaxEnv(
    ...     spec=shoal.EnvSpec("Walk-v0", "jax", shoal.Box((1,)), shoal.Discrete(2), max_episode_steps=20),
    ...     reset=lambda key, params: jnp.zeros(1),
    ...     step=lambda key, x, action, params: (x + 2.0 * action - 1.0, x[0], jnp.abs(x[0]) > 5),
    ...     observe=lambda x, params: x,
    ... )
    >>> shoal.register("Walk-v0", walk)
    >>> shoal.make("Walk-v0").spec.max_episode_steps
    20
    """

    spec: EnvSpec
    reset: Callable[[Array, Tree], Tree]
    step: Callable[[Array, Tree, Array, Tree], tuple[Tree, Array, Array]]
    observe: Callable[[Tree, Tree], Tree]
    render: Callable[[Tree, Tree], np.ndarray] | None = None
    augment: Callable[[Tree], Tree] | None = None
    truncated: Callable[[Tree, Tree], Array] | None = None


class Rollout(NamedTuple):
    """One learner's T steps in E environments, and the observation after the last."""

    obs: Tree  # (T, E, ...) the observation before the action
    action: Tree  # (T, E, ...) as the learner gave it, before the environment clips it
    reward: Array  # (T, E)
    terminated: Array  # (T, E)
    truncated: Array  # (T, E)
    valid: Array  # (T, E)
    last_obs: Tree  # (E, ...)
    peer_targets: tuple["PeerTargets", ...] = ()  # peers' policies at `obs`, one per exchange
    episode_starts: Array | tuple[()] = ()  # (T, E) whether `obs` is an episode's first
    bonus: Array | tuple[()] = ()  # (T, E) intrinsic rewards, where there are any


class PeerTargets(NamedTuple):
    """Peers' policies at a rollout's observations: sum_j w_ij policy_terms_j(obs_i)."""

    weight: Array  # (T, E) sum_j w_ij; 0 for a learner without peers
    terms: Tree  # (T, E, ...) the weighted sum of `Learner.policy_terms`


class LearnerState(NamedTuple):
    """One learner; a cohort is the same tuple with a leading axis. Fields say who may touch them."""

    params: Tree  # mixed by exchanges
    statistics: Tree  # merged by exchanges: counts, means, M2 (never averaged)
    opt_state: Tree  # travels only when a whole learner is copied
    hypers: Tree  # perturbed by selection; every leaf a scalar array
    private: Tree  # never leaves the learner (replay, recurrent carry, counters); exchanges do not see it
    anchor: Tree = ()  # the parameters to stay near (FedProx); set by exchanges


def stateless_for_evaluation(state: LearnerState, num_envs: int) -> LearnerState:
    """The same state: nothing in it belongs to an environment."""
    return state


def stateless_on_restart(state: LearnerState) -> LearnerState:
    """The same state: nothing in it belongs to an episode."""
    return state


class Learner(NamedTuple):
    """One learner's pure functions, written without L; `jax.vmap` makes the cohort.

    init(key) -> LearnerState
    draw(key, shape) -> noise                      (T, E, ...), the noise of a rollout's actions
    act(state, obs, noise, episode_starts)         one step: obs (E, ...), episode_starts (E,) bool
        -> (action, private)
    update(key, state, rollout) -> (state, metrics)
    policy_terms(state, obs) -> Tree               the policy at obs (...), in terms summed over peers
    sequence_terms(state, obs, episode_starts)     the same along sequences, obs (T, E, ...), which a policy
        -> Tree                                    with memory begins without any
    distance(state, other, obs) -> (...)           how far two policies differ at obs
    for_evaluation(state, num_envs) -> state       ready to act in `num_envs` other environments
    on_restart(state) -> state                     its environments are about to start new episodes
    value(state, obs) -> (...)                     the expected discounted return from obs on

    Zero noise gives the greedy action of a learner made ready by `for_evaluation`. `policy_terms`, `distance`
    and `value` read `params` and `statistics` alone; they are None where a policy needs earlier observations,
    and then policy distances and value maps are not available; `sequence_terms` takes their place for
    neighbours' policies. `grouped` learners are
    updated a few at a time on a core; learners with a replay, which is too large to copy, are not. `by_env`
    says which parts of `private` have the environments as their first axis.

    >>> import jax, shoal
    >>> learner = shoal.ppo(shoal.PPOConfig(), shoal.make("CartPole-v1").spec)
    >>> cohort = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 8))  # eight learners
    >>> cohort.hypers.learning_rate.shape
    (8,)
    """

    init: Callable[[Array], LearnerState]
    draw: Callable[[Array, tuple[int, int]], Tree]
    act: Callable[[LearnerState, Tree, Tree, Array], tuple[Tree, Tree]]
    update: Callable[[Array, LearnerState, Rollout], tuple[LearnerState, dict[str, Array]]]
    policy_terms: Callable[[LearnerState, Tree], Tree] | None = None
    distance: Callable[[LearnerState, LearnerState, Tree], Array] | None = None
    for_evaluation: Callable[[LearnerState, int], LearnerState] = stateless_for_evaluation
    on_restart: Callable[[LearnerState], LearnerState] = stateless_on_restart
    grouped: bool = True
    value: Callable[[LearnerState, Tree], Array] | None = None
    by_env: Tree = False  # True or False for each part of `private`, or for all of it
    sequence_terms: Callable[[LearnerState, Tree, Array], Tree] | None = None


class Scores(NamedTuple):
    """The learners' scores for an exchange, (L,) each."""

    samples: Array  # valid environment steps since the last meeting
    returns: Array  # raw mean return of the last episodes; NaN until one has finished
    episodes: Array  # int32, finished so far
    present: Array  # bool: who takes part this time


class ExchangeState(NamedTuple):
    """The state of an exchange between meetings."""

    per_learner: Tree = ()  # leading axes that divide evenly over the devices: L, or edges laid out by device
    shared: Tree = ()  # the same on every device


def no_peer_targets(state: ExchangeState, rollout: Rollout) -> Rollout:
    """The same rollout."""
    return rollout


def no_derived_metrics(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """No metrics."""
    return {}


class Exchange(NamedTuple):
    """Pure functions along the learner axis, called between updates.

    init(cohort) -> (state, cohort)
    apply(key, state, cohort, scores) -> (state, cohort, metrics)
    add_peer_targets(state, rollout) -> rollout    before each update, on one device with its learners:
                                                   rollout (T, L, E, ...), state.per_learner of those learners
    derive_metrics(metrics) -> metrics             on the host, for each report: metrics computed from others

    cohort: LearnerState with leading L, without `private`. Metrics are (L,) each, the same names every time.
    """

    init: Callable[[LearnerState], tuple[ExchangeState, LearnerState]]
    apply: Callable[
        [Array, ExchangeState, LearnerState, Scores],
        tuple[ExchangeState, LearnerState, dict[str, Array]],
    ]
    add_peer_targets: Callable[[ExchangeState, Rollout], Rollout] = no_peer_targets
    derive_metrics: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = no_derived_metrics
