"""The flags of `shoal train`: a flag for every setting, read by tyro."""

import re
from dataclasses import dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import tyro
from annotated_types import Interval

from shoal.cli.arguments import read_arguments
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.registry import EXCHANGES
from shoal.islands.options import Islands
from shoal.learners.registry import ALGORITHMS
from shoal.runs.config import refuse_of_others
from shoal.runs.milestones import Milestones
from shoal.runs.naming import ROOT
from shoal.setting_names import SHORT_NAMES
from shoal.settings import check, helps, hints, long_name, types, unknown
from shoal.training.config import TrainConfig

NOT_FLAGS = {"env", "algo", "exchanges", "hyper_plan", "learner_hypers", "distinct_seeds"}
"""Settings of a run that are given in another way."""


@dataclass(frozen=True)
class Start:
    """Where the settings start from."""

    algo: str | None = None
    """The algorithm."""
    config: Path | None = None
    """Start from the settings in a file, such as RUN/config.yaml."""
    param_name: str | None = None
    """Start from a named preset (easy-200 for Procgen, curiosity for MountainCar-v0)."""
    follow: Path | None = None
    """Train one learner with the hyperparameters of the ancestors of another run's best learner."""
    preset: bool = True
    """Start from the environment's preset, where there is one."""
    help: tuple[str, ...] | None = None
    """Show the settings people change most; with the name of a group, that group; with `all`, everything."""


@dataclass(frozen=True)
class Output:
    """The run's folder and devices."""

    out: Path | None = None
    """The run's folder; in runs/, named after the settings unless given."""
    name: str | None = None
    """The run's folder in runs/, by its name."""
    note: str | None = None
    """A few words on the run, for shoal runs; they stay until another command gives others."""
    clobber: bool = False
    """Start over: remove the run that is there."""
    track: tuple[str, ...] = ()
    """Also record the run with a tracker: wandb, mlflow or trackio; several with commas."""
    mesh: str | None = None
    """Devices that learners, and their environments, are divided over, e.g. 4x2; chosen unless given."""
    processes: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """Processes on this machine that train together. mpirun and srun need no flag."""
    rank: Annotated[int, Interval(ge=0, le=10_000)] | None = None
    """The number of this process, where each is started by hand."""
    coordinator: str | None = None
    """HOST:PORT of the first process, where each is started by hand."""
    profile: bool = False
    """Time the stages of every iteration: rollout, optimisation, exchange, logging."""
    trust: bool = False
    """With --follow: import the code that its settings name, though you did not train it here."""
    debug: bool = False
    """Show the whole traceback of an error."""

    def __post_init__(self):
        check(self)
        if self.name and self.out:
            raise ShoalError(f"--name {self.name} and --out {self.out} are two folders; give one of them")
        if self.name in ("", "..") or (self.name and Path(self.name).name != self.name):
            raise ShoalError(f"--name is a folder's name in runs/, not {self.name!r}; --out takes a path")

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it is given."""
        return ROOT / self.name if self.name else self.out


Words: TypeAlias = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""One word each time a flag is given, so that an environment may follow."""

OPTIONS = (Start, Output, Milestones, Islands)
"""Classes whose flags are not settings that decide a run's numbers."""


class Flag(NamedTuple):
    """A setting on the command line."""

    type: Any
    help: str
    hint: Any = None  # the type with its range


def flags_of(cls: type) -> dict[str, Flag]:
    """The flags of a class of settings, by the settings' dotted names."""
    texts = helps(cls)
    given = {
        "env_params": Path | None,
        "comm_matrix": Path | None,
        "env_options": tuple[str, ...],
        "track": Words,
    }
    return {
        name: Flag(given.get(name, hint), texts[name], hints(cls)[name])
        for name, hint in types(cls).items()
        if cls is not TrainConfig or name not in NOT_FLAGS
    }


@cache
def all_flags(algo: str) -> dict[str, Flag]:
    """Every flag of a run with this algorithm."""
    classes = (TrainConfig, ALGORITHMS[algo].config, ExchangeConfig, *OPTIONS)
    found = {name: flag for cls in classes for name, flag in flags_of(cls).items()}
    choices = Literal[tuple(ALGORITHMS)]  # type: ignore[valid-type]
    exchanges = f"How learners learn together: {', '.join(EXCHANGES)}. {found['exchange'].help}"
    seeds = "How many learners train that differ in nothing but their seed."
    return found | {
        "algo": Flag(choices, "The algorithm."),
        "exchange": Flag(str, exchanges),
        "seeds": Flag(int | None, seeds),
    }


def read_start(arguments: list[str]) -> tuple[str | None, Start]:
    """The environment, and where settings start from; before their types and defaults are known."""
    every = {name: flag for algo in ALGORITHMS for name, flag in all_flags(algo).items()}
    algo = _algorithm_in(arguments)
    refuse_unknown(arguments, every | (all_flags(algo) if algo in ALGORITHMS else {}), algo)
    start = flags_of(Start)
    loose = {name: flag if name in start else Flag(_loose(flag.type), "") for name, flag in every.items()}
    defaults = {name: _nothing(flag.type) for name, flag in loose.items()} | vars(Start())
    parsed, _ = _parse(loose | start, defaults, arguments, return_unknown_args=True)
    if len(parsed["env"]) > 1:
        raise ShoalError(f"one environment at a time, not {' and '.join(parsed['env'])}")
    found = Start(**{name: parsed[name] for name in start})
    if found.algo and found.algo not in ALGORITHMS:
        raise ShoalError(f"unknown algorithm {found.algo!r}; choose from {', '.join(ALGORITHMS)}")
    return (parsed["env"][0] if parsed["env"] else None), found


def read_flags(algo: str, defaults: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    """Every setting by dotted name: the value of its flag, or the default."""
    refuse_unknown(arguments, all_flags(algo), algo)
    return _parse(all_flags(algo), defaults, arguments)


def refuse_unknown(arguments: list[str], flags: dict[str, Flag], algo: str) -> None:
    """Raise where an argument is no flag, with its name here, the algorithms that have it, or the nearest.

    Raise, too, where a flag lacks its value, with what the flag is about.
    """
    names = {*flags, *(short for short, long in SHORT_NAMES.items() if long in flags)}
    switches = [name for name in names if flags[long_name(name, flags)].type is bool]
    names |= {re.sub(r"([^.]+)$", r"no_\1", name) for name in switches}
    for argument, following in zip(arguments, [*arguments, "--"][1:], strict=True):
        if not argument.startswith("--"):
            continue
        name = argument[2:].partition("=")[0].replace("-", "_")
        if name not in names:
            refuse_of_others(name, algo, spell)
            raise unknown(name, flags, spell)
        flag = flags.get(long_name(name, flags))
        if flag and following.startswith("--") and "=" not in argument and not _may_stand_alone(flag):
            raise ShoalError(f"{argument} needs a value: {flag.help.split('. ')[0].rstrip('.')}")


def _may_stand_alone(flag: Flag) -> bool:
    """Whether no word need follow a flag."""
    several = any(get_origin(option) is tuple for option in (flag.type, *get_args(flag.type)))
    return flag.type is bool or (several and flag.type is not Words)


def spell(name: str) -> str:
    """A flag as it is typed.

    >>> spell("num_envs")
    '--num-envs'
    """
    return f"--{name.replace('_', '-')}"


def _algorithm_in(arguments: list[str]) -> str:
    """The algorithm that the arguments name, before they are read."""
    words = " ".join(arguments).replace("=", " ").split()
    return words[words.index("--algo") + 1] if "--algo" in words[:-1] else "ppo"


def _parse(
    flags: dict[str, Flag], defaults: dict[str, Any], arguments: list[str], return_unknown_args: bool = False
) -> Any:
    """The arguments as tyro parses them, by dotted name."""
    short = {long: name for name, long in SHORT_NAMES.items() if long in flags and name not in flags}
    fields: list[tuple[str, Any, Any]] = [("env", tyro.conf.Positional[tuple[str, ...]], ())]
    for name, flag in flags.items():
        aliases = [f"--{short[name].replace('_', '-')}"] if name in short else []
        aliases += ["-h"] * (name == "help")
        config = tyro.conf.arg(name=name, help=flag.help, aliases=aliases)
        fields.append((name.replace(".", "__"), Annotated[flag.type, config], defaults[name]))
    how = {"add_help": False, "registry": whole_numbers(), "return_unknown_args": return_unknown_args}
    parsed = read_arguments(make_dataclass("Train", fields), "shoal train", arguments, **how)
    by_name = lambda values: {name.replace("__", "."): value for name, value in vars(values).items()}
    return (by_name(parsed[0]), parsed[1]) if return_unknown_args else by_name(parsed)


@cache
def whole_numbers() -> tyro.constructors.ConstructorRegistry:
    """Whole numbers may be written 1e6 or 1_000_000."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def whole_number(info: tyro.constructors.PrimitiveTypeInfo):
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda texts: whole(texts[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def whole(text: str) -> int:
    """A whole number, also as 1e6 or 1_000_000.

    >>> whole("1e6"), whole("1_000_000"), whole("-3")
    (1000000, 1000000, -3)
    """
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number % 1:
        raise ValueError(f"{text} is not a whole number")
    return int(number)


def _loose(hint: Any) -> Any:
    """A type that takes as many words as the setting's own type and accepts all."""
    if hint in (bool, Words):
        return hint
    several = any(get_origin(option) is tuple for option in (hint, *get_args(hint)))
    return tuple[str, ...] if several else str | None


def _nothing(hint: Any) -> Any:
    return False if hint is bool else () if hint is Words or get_origin(hint) is tuple else None
