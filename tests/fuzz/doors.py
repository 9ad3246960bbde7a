"""The doors that cases are brought to, and what must hold behind them."""

import json
import math
import resource
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from time import process_time
from typing import Annotated, Any, Literal, get_args, get_origin

import jax
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt

import shoal
from shoal.cli.parse import parse_train
from shoal.envs.classic import BUILTIN
from shoal.envs.registry import make
from shoal.envs.worlds.parameters import read_worlds
from shoal.errors import ShoalError
from shoal.exchanges.comm_matrix import read_matrix
from shoal.ranges import MayBeInfinite, is_union
from shoal.runs.config import differences, load_config, write_config
from shoal.runs.files import read_json
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.naming import folder_name
from shoal.runs.sweep.sweep import as_yaml, make_plan
from shoal.settings import flatten, hints
from shoal.training.config import TrainConfig
from shoal.training.parts import make_exchange_for, make_learner, worlds_of

SECONDS = 5
"""The processor's seconds that a case may take: others may be at work beside it."""
WAITING = 60
"""The seconds that it may take in all."""
MEMORY = 2**30
"""The most bytes that a case may add to the memory of the process."""
LONGEST_MESSAGE = 2_000
NUM_LEARNERS = 4
MOST_TRIALS = 50
"""Larger sweeps are not described: each of their settings is made, which takes a moment."""


class Broken(AssertionError):
    """A case broke something."""


def bring(kind: str, content: str, folder: Path) -> ShoalError | None:
    """Bring a case to its door: None where it was taken, else the error; `Broken` where that is wrong."""
    before, start = _memory(), process_time()
    try:
        with warnings.catch_warnings(), _alarm():
            warnings.simplefilter("ignore")
            DOORS[kind](content, folder)
        refused = None
    except ShoalError as error:
        refused = error
        if "\n" in str(error) or len(str(error)) > LONGEST_MESSAGE:
            raise Broken(f"{kind}: the message is not a line: {str(error)[:300]!r}") from error
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{kind}: {type(error).__name__}: {str(error)[:300]}") from error
    if (seconds := process_time() - start) > SECONDS:
        raise Broken(f"{kind}: it took {seconds:.1f} s")
    if (more := _memory() - before) > MEMORY:
        raise Broken(f"{kind}: it took {more / 2**20:.0f} MB")
    return refused


def open_config(content: str, folder: Path) -> None:
    """A run's file, up to the parts of its program, which is not compiled."""
    path = folder / "config.yaml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    examine(load_config(path), folder)


def open_preset(content: str, folder: Path) -> None:
    """Keyword arguments."""
    settings = json.loads(content)
    examine(
        shoal.preset(settings.pop("env"), **{str(name): value for name, value in settings.items()}), folder
    )


def examine(config: TrainConfig, folder: Path) -> None:
    """What holds of every configuration that was taken."""
    for part in (config, config.algo, *config.exchanges):
        check_ranges(part)
    config.check()
    assert folder_name(config)
    write_config(folder / "again.yaml", config)
    if changes := differences(load_config(folder / "again.yaml"), config):
        raise Broken(f"written and read again it differs: {changes}")
    if config.env.removeprefix("jax:") in BUILTIN and config.own == type(config.own)():
        build(config)


def build(config: TrainConfig) -> None:
    """The environment, the learner and the exchange of a run."""
    spec = make(config.env, **config.options).spec
    learner = make_learner(config, spec)
    jax.eval_shape(learner.init, jax.random.key(0))
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("learners",))
    make_exchange_for(config, learner, spec, mesh, 4)
    worlds_of(config, spec)


def open_flags(content: str, folder: Path) -> None:
    """The words of a command line."""
    config, (_, milestones) = parse_train(json.loads(content))
    check_ranges(milestones)
    examine(config, folder)


def open_matrix(content: str, folder: Path) -> None:
    """A communication matrix of four learners."""
    (folder / "matrix.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    matrix = read_matrix(read_json(folder / "matrix.json"), NUM_LEARNERS, symmetrise=len(content) % 2 == 1)
    if not (matrix.shape == (NUM_LEARNERS, NUM_LEARNERS) and (matrix >= 0).all() and matrix.any()):
        raise Broken(f"{matrix} is no communication matrix")


def open_worlds(content: str, folder: Path) -> None:
    """The worlds of four learners."""
    (folder / "worlds.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    read = read_worlds(BUILTIN["CartPole-v1"].spec, read_json(folder / "worlds.json"), range(NUM_LEARNERS))
    for values in read:
        if values.shape != (NUM_LEARNERS,) or not all(map(math.isfinite, values)):
            raise Broken(f"{values} are no parameters")


def open_sweep(content: str, folder: Path) -> None:
    """A sweep's plan, up to its description."""
    asked = json.loads(content)
    base = shoal.preset("CartPole-v1", steps=1000)
    named = {name: asked.pop(name, None) for name in ("grid", "random", "tpe")}
    plan = make_plan(base, **named, priors=asked.pop("priors", ()), **asked)
    check_ranges(plan)
    assert as_yaml(plan)
    if plan.num_trials <= MOST_TRIALS:
        assert plan.describe()


def open_milestones(content: str, folder: Path) -> None:
    """The milestones of a run's last command."""
    (folder / "milestones.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    check_ranges(Milestones(**keep_milestones(folder, Milestones())))


DOORS = {
    "config": open_config,
    "preset": open_preset,
    "flags": open_flags,
    "matrix": open_matrix,
    "worlds": open_worlds,
    "sweep": open_sweep,
    "milestones": open_milestones,
}


def check_ranges(config: Any) -> None:
    """Every setting has its type and lies in its range; said anew here, not by what took it."""
    for name, hint in hints(type(config)).items():
        value = flatten(config)[name]
        if not within(value, hint):
            raise Broken(f"{name} is {value!r:.100}, which is not in its range")


def within(value: Any, hint: Any) -> bool:
    """Whether a value has a type and lies in its range."""
    if get_origin(hint) is Annotated:
        kind, *more = get_args(hint)
        constraints = [y for x in more for y in (x if isinstance(x, GroupedMetadata) else [x])]
        infinite = MayBeInfinite() in constraints
        return (within(value, kind) or (infinite and value in (math.inf, -math.inf))) and all(
            _obeys(value, x) for x in constraints
        )
    if is_union(hint):
        return any(within(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return type(value) is str and value in get_args(hint)
    if get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis:
        return type(value) is tuple and all(within(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is tuple:
        return len(value) == len(get_args(hint)) and all(map(within, value, get_args(hint)))
    if get_origin(hint) is list:
        return type(value) is list and all(within(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) in (dict, Mapping):
        return isinstance(value, Mapping) and all(within(item, get_args(hint)[1]) for item in value.values())
    if hint is float:
        return type(value) is float and math.isfinite(value)
    return is_dataclass(hint) or hint not in (int, str, bool, type(None)) or type(value) is hint


def _obeys(value: Any, constraint: Any) -> bool:
    match constraint:
        case Ge(ge=bound):
            return value >= bound
        case Gt(gt=bound):
            return value > bound
        case Le(le=bound):
            return value <= bound
        case Lt(lt=bound):
            return value < bound
    return True


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _alarm() -> Iterator[None]:
    """Ends what takes too long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"longer than {SECONDS} s of work, or {WAITING} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAITING)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
