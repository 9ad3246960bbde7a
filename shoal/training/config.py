"""A run's settings: everything that decides its numbers."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Interval, MaxLen

from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.exploration import Prior, names_of, read_priors
from shoal.exchanges.population import check_hyper_plan
from shoal.exchanges.registry import check_exchange, mixes, penalises, selects
from shoal.learners.ppo import PPOConfig
from shoal.ranges import Count, NonNegative, Steps
from shoal.schema import convert
from shoal.settings import check, hints, long_name

AlgorithmConfig: TypeAlias = Any
"""A learner's settings (`PPOConfig`, `TD3Config` ...); their class says which algorithm it is."""
HyperPlan: TypeAlias = list[tuple[Annotated[int, Interval(ge=0, le=10**12)], dict[str, float]]]
"""Values of hyperparameters, each from a step on."""


@dataclass(frozen=True)
class OwnConfig:
    """Parts of your own, each by its import path MODULE:NAME."""

    network: str | None = None
    """A function that makes the network (ppo): (key, spec, number of outputs) -> module."""
    learner: str | None = None
    """A function that makes the learner, instead of the algorithm's: (spec, context) -> Learner."""
    exchange: str | None = None
    """An `Exchange`, used as it is; --exchange MODULE:FUNCTION makes one from the settings."""

    def __post_init__(self):
        check(self, "own")


@dataclass(frozen=True)
class TrainConfig:
    """A run: everything that decides its numbers.

    >>> import shoal
    >>> config = shoal.TrainConfig("CartPole-v1", shoal.PPOConfig(num_envs=8), steps=10_000, learners=4)
    >>> config.num_iterations, config.steps_after(1)
    (10, 1024)
    """

    env: str
    """Environment id, e.g. CartPole-v1; jax:, envpool: or gym: before it forces a backend. MODULE:NAME is one
    of your own."""
    algo: AlgorithmConfig = field(default_factory=PPOConfig)
    """The learner's settings."""
    steps: Steps = 100_000
    """Environment steps per learner, rounded up to whole rollouts."""
    anneal_to: Steps | None = None
    """The step at which annealing and schedules over the run reach their end; after it they keep that value.
    Unless given it is `steps`, of a run that is continued the `steps` it began with."""
    learners: Count = 1
    """How many learners train, each with its own seed."""
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 1
    """The seed of everything random."""
    first_member: Annotated[int, Interval(ge=0, le=2**30)] = 0
    """Number of the first learner: member 3 of a cohort, alone, is --learners 1 --first-member 3."""
    on_nan: Literal["drop", "restart", "stop"] = "drop"
    """What becomes of a learner whose numbers are no longer finite: drop leaves it out of exchanges and means
    (a population replaces it), restart undoes the update, stop ends the run. The same where its environment
    fails and there are several: restart makes it anew."""
    env_timeout: Annotated[float, Interval(gt=0, le=1_000_000)] | None = None
    """Seconds that a step or a reset of an environment in worker processes may take; after them it counts as
    failed."""
    hard_resets: bool = False
    """Begin new episodes with every rollout instead of continuing those under way."""
    reports: Annotated[int, Interval(ge=1, le=10**9)] = 100
    """About how many times the run reports its metrics."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment's constructor, NAME=VALUE each."""
    frame_stack: Annotated[int, Interval(ge=1, le=1024)] = 1
    """How many of the last observations a learner sees at once."""
    env_spread: NonNegative = 0.0
    """How far the learners' worlds differ: the relative deviation of their physical parameters."""
    env_params: Any = None
    """Physical parameters of all worlds: a JSON file, {"0": {"gravity": 9.8, "length": 0.7}, ...}."""
    evolve: Annotated[tuple[str, ...], MaxLen(64)] = ()
    """Hyperparameters that each learner draws, and populations change: names, or name=PRIOR, e.g.
    learning_rate "gamma=one-minus-log 0.9 0.999". Populations have a default (PPO's: learning_rate, clip_coef
    and ent_coef)."""
    hyper_plan: HyperPlan | None = None
    """Values of hyperparameters from each step on: [[step, {learning_rate: 0.001, ...}], ...]. --follow RUN
    takes those of the ancestors of a population's best learner."""
    learner_hypers: dict[str, list[float]] | None = None
    """Hyperparameters in which the learners differ, a list of numbers each: {learning_rate: [0.001, 0.003]}.
    A sweep's programs have them."""
    distinct_seeds: Count | None = None
    """After so many learners their numbers, so their seeds and worlds, begin again; never unless given."""
    exchanges: tuple[ExchangeConfig, ...] = ()
    """How the learners learn together."""
    own: OwnConfig = field(default_factory=OwnConfig)
    """Parts of your own, each by its import path MODULE:NAME."""

    def __post_init__(self):
        check(self)
        if "frame_stack" in self.env_options:
            raise ShoalError("frame_stack is not an option of the environment; use --frame-stack N")
        if self.env_spread and self.env_params is not None:
            raise ShoalError("env_spread and env_params do not go together; leave one of them out")
        for exchange in self.exchanges:
            check_exchange(exchange)

    def check(self) -> None:
        """Raise where settings that belong together do not fit."""
        if self.exchanges and self.learners < 2:
            raise ShoalError(f"an exchange needs at least 2 learners, not {self.learners}; use --learners N")
        self.check_part()

    def check_part(self) -> None:
        """The same of some of a run's learners, which exchange with others elsewhere."""
        if self.algo.prox_coef and not any(map(mixes, self.exchanges)):
            raise ShoalError("prox_coef needs an exchange of parameters; add --exchange average")
        if self.algo.prox_coef and self.parts and not self.algo.learns <= self.parts:
            needed = " and ".join(sorted(self.algo.learns))
            raise ShoalError(f"prox_coef needs an exchange of {needed}; add them to --parts")
        if (
            self.frame_stack > 1
            and isinstance(self.algo, PPOConfig)
            and self.algo.network.split_start is not None
        ):
            raise ShoalError("network.split_start does not work with frame_stack; leave one of them out")
        if sum(map(selects, self.exchanges)) > 1:
            raise ShoalError("several exchanges select learners; keep one of them")
        if idle := [name for name in names_of(self.evolve) if name in self.idle]:
            raise ShoalError(f"evolve {idle[0]} has no effect; it needs {self.idle[idle[0]]}")
        if self.hyper_plan is not None:
            check_hyper_plan(self.hyper_plan)
        for name, values in (self.learner_hypers or {}).items():
            if len(values) != self.learners:
                raise ShoalError(f"learner_hypers has {len(values)} of {name} for {self.learners} learners")
        self._check_hypers()
        self._check_size()

    def _check_hypers(self) -> None:
        """Raise where a hyperparameter that differs or changes would leave its range."""
        known = hints(type(self.algo))
        names = {name for text in self.evolve for name in names_of([text]) if long_name(name, known) in known}
        given = read_priors(text for text in self.evolve if "=" in text and names_of([text])[0] in names)
        numbers = [("evolve", name, x) for name, prior in given.items() for x in prior.ends]
        numbers += [("hyper_plan", *pair) for _, values in self.hyper_plan or () for pair in values.items()]
        numbers += [
            ("learner_hypers", name, x) for name, xs in (self.learner_hypers or {}).items() for x in xs
        ]
        for setting, name, x in numbers:
            if (full := long_name(name, known)) in known:
                convert(f"{name} in {setting}", x, known[full])

    def _check_size(self) -> None:
        """Raise where there are more environments, samples or iterations than a program can count."""
        for what, number, most in (
            ("learners x num_envs", self.learners * self.algo.num_envs, 2**24),
            ("learners x num_envs x num_steps", self.learners * self.algo.rollout_size, 2**31 - 1),
            ("steps / (num_envs x num_steps)", self.num_iterations, 2**31 - 1),
            ("anneal_to / (num_envs x num_steps)", self.num_annealed, 2**31 - 1),
        ):
            if number > most:
                raise ShoalError(f"{what} must be at most {most:,}, not {number:,}")

    @property
    def members(self) -> list[int]:
        """The numbers of the learners: what their seeds and worlds depend on.

        >>> TrainConfig("CartPole-v1", learners=4, first_member=3, distinct_seeds=2).members
        [3, 4, 3, 4]
        """
        return [self.first_member + i % (self.distinct_seeds or self.learners) for i in range(self.learners)]

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters without effect in these settings, each with what it needs."""
        unused = {"comm_penalty_coeff": "an exchange that penalises"}
        return self.algo.idle | ({} if any(map(penalises, self.exchanges)) else unused)

    @property
    def parts(self) -> set[str]:
        """The parts of the parameters that are exchanged; empty where all are."""
        return {part.partition(":")[0] for exchange in self.exchanges for part in exchange.parts}

    @property
    def options(self) -> dict[str, Any]:
        """The options of `make`, beside the environment's name."""
        return self.env_options | ({"frame_stack": self.frame_stack} if self.frame_stack > 1 else {})

    def steps_after(self, iteration: int) -> int:
        """Environment steps per learner after `iteration` iterations."""
        return iteration * self.algo.rollout_size

    def next_reaching(self, iteration: int, every: int) -> int:
        """The first iteration after this one that reaches a multiple of `every` steps; at most the last one.

        >>> config = TrainConfig("CartPole-v1", PPOConfig(num_envs=4, num_steps=25), steps=1000)
        >>> tuple(config.next_reaching(iteration, 250) for iteration in (0, 2, 3, 9))
        (3, 3, 5, 10)
        """
        multiple = (self.steps_after(iteration) // every + 1) * every
        return min(-(-multiple // self.algo.rollout_size), self.num_iterations)

    def reaches(self, iteration: int, every: int) -> bool:
        """Whether an iteration is the first to reach a multiple of `every` steps, or the last one."""
        return self.next_reaching(iteration - 1, every) == iteration

    @property
    def num_iterations(self) -> int:
        """Rollouts, and updates, in the run."""
        return -(-self.steps // self.algo.rollout_size)

    @property
    def num_annealed(self) -> int:
        """Updates until annealing and schedules over the run reach their end."""
        return -(-(self.anneal_to or self.steps) // self.algo.rollout_size)

    @property
    def report_every(self) -> int:
        """Iterations between two reports."""
        return max(1, self.num_iterations // self.reports)

    @property
    def priors(self) -> dict[str, Prior]:
        """The priors of the hyperparameters that learners draw and populations change."""
        return read_priors(self.evolve or (self.algo.evolved if any(map(selects, self.exchanges)) else ()))

    @property
    def evolving(self) -> tuple[str, ...]:
        """The hyperparameters that are not the same for every learner at all times."""
        planned = self.hyper_plan[0][1] if self.hyper_plan else ()
        return (*self.priors, *planned, *(self.learner_hypers or ()))

    @property
    def selection_every(self) -> int | None:
        """Iterations between selections, where there are any."""
        return next((exchange.local_updates for exchange in self.exchanges if selects(exchange)), None)

    @property
    def revives(self) -> bool:
        """Whether lost learners go on: replaced in a population, or restarted."""
        return self.on_nan == "restart" or any(map(selects, self.exchanges))

    @property
    def shares_gradients(self) -> bool:
        """Whether the learners average every gradient."""
        return any(exchange.exchange == "gradients" for exchange in self.exchanges)
