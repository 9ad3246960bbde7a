"""The command: shoal train | eval | play | plot | envs."""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.distributed.processes import ProcessInfo
    from shoal.training.config import TrainConfig
    from shoal.training.evaluate import Evaluation

USAGE = """\
usage: shoal COMMAND ...

  shoal train ENV [--algo ppo|td3|dqn] [--steps N] [--learners L] [--exchange KIND] [--seed S] [--out DIR]
                  [--clobber] [--config FILE] [--param-name NAME] [--mesh AxB] [--processes N] [--profile]
  shoal eval RUN [--episodes 100] [--learner best|mean|all|K] [--levels seen|unseen|all] [--json]
  shoal play RUN [--learner best] [--gif FILE] [--mp4 FILE] [--human]
  shoal plot RUN [RUN ...] [--out DIR] [--no-episode]
  shoal envs [PATTERN]

`shoal COMMAND --help` says more; `shoal train ENV --help` shows the settings for that environment.
"""


@dataclass(frozen=True)
class Eval:
    """Play whole episodes, greedily unless told otherwise, and print their returns."""

    run: tyro.conf.Positional[Path]
    """A run's folder."""
    episodes: int = 100
    """Episodes per learner, each from its own start."""
    learner: str = "all"
    """best, mean (the average of all learners' parameters), all, or a number."""
    sampled: bool = False
    """Draw actions as in training instead of taking the most likely ones."""
    each_world: bool = False
    """Where worlds differ, show every learner in every learner's world too."""
    against: Path | None = None
    """Another run of the same game between teams: its best learner plays this run's, each side in turn."""
    levels: Literal["seen", "unseen", "all"] | None = None
    """Which levels of a generated game (Procgen): those of training, those it never showed, or all."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which checkpoint to load."""
    seed: int = 0
    """Decides the episodes' starts; never those seen in training."""
    json: bool = False
    """Print one JSON list instead of a table."""


@dataclass(frozen=True)
class Play:
    """Watch a trained learner: as a GIF, an MP4 or in a window."""

    run: tyro.conf.Positional[Path]
    """A run's folder."""
    learner: str = "best"
    """best, mean, or a number."""
    sampled: bool = False
    """Draw actions as in training instead of taking the most likely ones."""
    gif: Path | None = None
    """Write a GIF; the default when nothing else is asked for, into RUN/videos."""
    mp4: Path | None = None
    """Write an MP4."""
    human: bool = False
    """Show a window."""
    steps: int = 1000
    """Stop after so many steps, if the episode has not ended before."""
    fps: int = 30
    """Frames per second."""
    seed: int = 0
    """Decides the episode's start."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which checkpoint to load."""


@dataclass(frozen=True)
class Plot:
    """Draw learning curves, what was learned and one episode; several runs make one comparison."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path | None = None
    """Where to put the pictures; each run's plots/ unless given."""
    episode: bool = True
    """Let the best learner play an episode, and draw it, and its policy and value over the state space."""
    seed: int = 0
    """Decides the episode's start."""


@dataclass(frozen=True)
class Envs:
    """List environments and what they run on."""

    pattern: tyro.conf.Positional[str] = ""
    """Part of a name, or a shell pattern."""


@dataclass(frozen=True)
class Output:
    """Where a run goes, how it begins, and what it runs on."""

    out: Path | None = None
    """The run's folder; a function of the settings unless given."""
    clobber: bool = False
    """Start over, removing the run that is there."""
    preset: bool = True
    """Begin from the environment's preset, where there is one."""
    mesh: str | None = None
    """Devices that learners, and their environments, are divided over, e.g. 4x2; chosen unless given."""
    processes: int = 1
    """Processes on this machine that train together. mpirun and srun need no flag."""
    rank: int | None = None
    """Which of the processes this is, where each is started by hand."""
    coordinator: str | None = None
    """HOST:PORT at which they meet; the first process listens there."""
    profile: bool = False
    """Time the parts of every iteration: rollout, optimisation, exchange, logging."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "eval": evaluate,
        "play": play,
        "plot": plot,
        "envs": envs,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        return _complain(f"unknown command {name!r}; choose from {', '.join(commands)}")
    warnings.showwarning = lambda message, *_, **__: print(f"shoal: warning: {message}", file=sys.stderr)
    try:
        return commands[name](rest)
    except ShoalError as error:
        if "--debug" in rest:
            raise
        print(error.traceback_text, file=sys.stderr, end="")
        return _complain(str(error))
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


def train(arguments: list[str]) -> int:
    """Train, or go on training, alone or together with other processes."""
    from shoal.distributed import launch
    from shoal.distributed.processes import launched_as, run_distributed

    config, output = parse_train(arguments)
    place = place_of(output) or launched_as()
    if output.processes > 1 and not place:
        return launch.launch([sys.executable, "-m", "shoal.cli", "train", *arguments], output.processes)
    _remember_compilations()
    if not place:
        return run(config, output)
    if launch.was_launched():
        launch.end_with_launcher()
    return run_distributed(place, lambda: run(config, output), quiet=launch.was_launched())


def run(config: "TrainConfig", output: Output) -> int:
    """Train before the user's eyes."""
    from shoal.cli import show
    from shoal.distributed.processes import first_rank_where, rank
    from shoal.runs import session
    from shoal.runs.config import default_folder

    opened = session.open_session(
        config, output.out, output.clobber, mesh=output.mesh, profile=output.profile
    )
    if isinstance(opened, int):
        if rank() == 0:
            show.nothing_to_do(output.out or default_folder(config), opened)
        return 0
    report = None
    with session.stop_signals() as caught, show.ProgressBar(opened) as bar:
        reports = session.watch(opened)
        for report in reports:
            bar.update(report)
            if first_rank_where(bool(caught)) is not None:
                break
        reports.close()
    assert report is not None, "a session has at least one iteration to go"
    finished = session.finish(opened, report, interrupted=report.iteration < config.num_iterations)
    if rank() == 0:
        show.ending(finished, opened)
    return 130 if finished.interrupted else 0


def place_of(output: Output) -> "ProcessInfo | None":
    """Which process this is, where that was said by hand."""
    from shoal.distributed.processes import ProcessInfo

    if output.processes < 1:
        raise ShoalError(f"processes must be at least 1, not {output.processes}")
    if output.rank is None and output.coordinator is None:
        return None
    if output.rank is None or output.coordinator is None or not 0 <= output.rank < output.processes:
        raise ShoalError(
            "processes started by hand need --processes N, --rank R (0 to N - 1) and --coordinator HOST:PORT"
        )
    return ProcessInfo(output.rank, output.processes, output.coordinator)


def parse_train(arguments: list[str]):
    """The configuration: a flag beats the file, the file beats the preset, the preset the default."""
    from shoal.exchanges.make import ExchangeConfig
    from shoal.runs.config import (
        from_settings,
        named_settings,
        preset_settings,
        read_exchanges,
        read_settings,
    )
    from shoal.training.config import TrainConfig

    first = arguments[0] if arguments and not arguments[0].startswith("-") else None
    flags = arguments[1:] if first else arguments
    file, flags = _take(flags, "--config")
    algo, flags = _take(flags, "--algo")
    replay, flags = _take(flags, "--replay")
    param_name, flags = _take(flags, "--param-name")
    world_file, flags = _take(flags, "--env-params")
    matrix_file, flags = _take(flags, "--comm-matrix")
    options, flags = _take_options(flags)
    settings = read_settings(Path(file)) if file else {}
    if replay:
        from shoal.runs.config import to_settings
        from shoal.runs.session import replayed

        file, settings = replay, to_settings(replayed(Path(replay))) | settings
    wants_help = any(flag in ("-h", "--help") for flag in flags)
    env = first or settings.get("env") or ("CartPole-v1" if wants_help else None)
    if env is None:
        raise ShoalError("which environment? e.g. shoal train CartPole-v1 (shoal envs lists them)")
    algo = algo or settings.get("algo", "ppo")
    if param_name and (file or "--no-preset" in flags):
        raise ShoalError("--param-name begins from a preset; leave out --config, --replay and --no-preset")
    if param_name:
        settings = named_settings(env, param_name, algo)
    elif not file and "--no-preset" not in flags:
        settings = preset_settings(env, algo)
    settings |= {"env": env, "algo": algo, "env_options": settings.get("env_options", {}) | options}
    settings |= {"env_params": world_file} if world_file else {}
    default = from_settings(settings)
    listed = default.exchanges if len(default.exchanges) > 1 else ()
    single = default.exchanges[0] if default.exchanges else ExchangeConfig()
    matrix = matrix_file or single.comm_matrix
    single = replace(single, comm_matrix=None)

    @dataclass(frozen=True)
    class Train:  # what is itself a mapping is not for flags, and put back below
        run: TrainConfig = field(
            default_factory=lambda: replace(default, exchanges=(), env_params=None, schedule=None)
        )
        exchange: ExchangeConfig = field(default_factory=lambda: single)
        output: Output = field(default_factory=Output)

    parsed = tyro.cli(
        Train,
        prog="shoal train ENV",
        description="Train on an environment. The same command again resumes where it stopped. Beside the "
        "options below: --config FILE takes settings from a file (RUN/config.yaml, say), --env-options "
        "NAME=VALUE ... hands options to the environment's constructor, --env-params FILE gives every "
        "learner its world's physical parameters, --comm-matrix FILE says who listens to whom, --replay RUN "
        "trains one learner with the hyperparameters of a population's best line of descent, --param-name "
        "NAME begins from a preset that has a name (easy-200, for Procgen).",
        args=_whole_numbers(flags),
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
    )
    if listed and (matrix_file or parsed.exchange != single):
        raise ShoalError(f"{file} lists several exchanges; change them there")
    changes = parsed.exchange.changed() | ({"comm_matrix": matrix} if matrix else {})
    exchanges = listed or read_exchanges(changes)
    kept = {"exchanges": exchanges, "env_params": default.env_params, "schedule": default.schedule}
    return replace(parsed.run, **kept), parsed.output


def evaluate(arguments: list[str]) -> int:
    """Print the returns of a run's learners."""
    options = _parse(Eval, "eval", arguments)
    if options.episodes < 1:
        raise ShoalError(f"episodes must be at least 1, not {options.episodes}")
    _remember_compilations()
    from shoal.cli import show

    if options.json:
        with show.stdout_to_stderr():
            rows = _evaluated(options)
        print(json.dumps([row.printed() for row in rows], indent=1))
    else:
        show.evaluations(_evaluated(options))
    return 0


def _evaluated(options: Eval) -> "Sequence[Evaluation]":
    from shoal.runs import session
    from shoal.training.evaluate import evaluate, evaluate_worlds, summarise

    opened = session.open_run(options.run, options.checkpoint)
    names, cohort = session.choose(opened, options.learner)
    opened, world = session.on_levels(opened, options.levels)
    places = session.places(opened, names, options.episodes, options.each_world)
    how = {"seed": options.seed, "sampled": options.sampled}
    if options.against:
        other = session.open_run(options.against, options.checkpoint)
        return session.matches(opened, other, options.learner, options.episodes, **how)
    if places is None:
        returns, lengths = evaluate(opened.recipe, opened.learner, cohort, options.episodes, **how)
        spec = opened.recipe.spec
        return [summarise(*row, world, spec) for row in zip(names, returns, lengths, strict=True)]
    return evaluate_worlds(opened.recipe, opened.learner, cohort, names, places, **how)


def play(arguments: list[str]) -> int:
    """Write or show one episode."""
    options = _parse(Play, "play", arguments)
    _remember_compilations()
    from shoal.cli import show
    from shoal.runs import session
    from shoal.runs.video import write_video
    from shoal.training.episode import episode

    opened = session.open_run(options.run, options.checkpoint)
    (name, *more), cohort = session.choose(opened, options.learner)
    if more:
        raise ShoalError("one learner at a time: --learner best, mean or a number")
    frames, total = [], 0.0
    world = session.world_of(opened, name)
    how = (options.seed, options.steps, world, options.sampled)
    for frame, reward in episode(opened.recipe, opened.learner, cohort, *how):
        frames.append(frame)
        total += reward
    default = None if options.mp4 or options.human else options.run / "videos" / f"learner_{name}.gif"
    for path in (options.gif or default, options.mp4):
        if path is not None:
            print(f"wrote {write_video(frames, path, options.fps)}")
    print(f"learner {name}: return {show.score(total)} in {len(frames) - 1} steps")
    if options.human:
        show.window(frames, options.fps)
    return 0


def plot(arguments: list[str]) -> int:
    """Draw learning curves, and what was learned."""
    options = _parse(Plot, "plot", arguments)
    if not options.runs:
        raise ShoalError("which run? e.g. shoal plot runs/CartPole-v1__ppo__s1")
    _remember_compilations()
    from shoal.runs.plots import destinations, plot

    for path in plot(options.runs, options.out):
        print(path)
    if options.episode:
        from shoal.runs.portrait import portrait

        for run, folder in destinations(options.runs, options.out).items():
            for path in portrait(run, folder, options.seed):
                print(path)
    return 0


def envs(arguments: list[str]) -> int:
    """List environments."""
    options = _parse(Envs, "envs", arguments)
    from shoal.envs.registry import list_environments

    found = list_environments(options.pattern or None)
    if not found:
        raise ShoalError(f"no environment matches {options.pattern!r}; shoal envs lists them all")
    for name, backend in found:
        print(f"{name:<48} {backend}")
    return 0


def _parse(command: type, name: str, arguments: list[str]):
    return tyro.cli(command, prog=f"shoal {name}", args=arguments)


def _take(flags: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value after a flag (or behind its `=`), the last where it is given twice, and the other flags."""
    value, rest, coming = None, [], iter(flags)
    for flag in coming:
        if flag.startswith(f"{name}="):
            value = flag.removeprefix(f"{name}=")
        elif flag == name:
            value = next(coming, "--")
            if value.startswith("--"):
                raise ShoalError(f"{name} needs a value")
        else:
            rest.append(flag)
    return value, rest


def _take_options(flags: list[str]) -> tuple[dict, list[str]]:
    """NAME=VALUE pairs after --env-options, values read as yaml, and the flags without them."""
    import yaml

    if "--env-options" not in flags:
        return {}, flags
    start = flags.index("--env-options")
    end = next((i for i in range(start + 1, len(flags)) if flags[i].startswith("--")), len(flags))
    pairs = [pair.partition("=") for pair in flags[start + 1 : end]]
    if not pairs or any(not equals for _, equals, _ in pairs):
        raise ShoalError("--env-options takes NAME=VALUE pairs, e.g. --env-options num_levels=200")
    return {name: yaml.safe_load(value) for name, _, value in pairs}, flags[:start] + flags[end:]


def _whole_numbers(flags: list[str]) -> list[str]:
    """1e6 as 1000000 after --steps, as everybody writes it."""
    value, rest = _take(flags, "--steps")
    try:
        return rest if value is None else [*rest, "--steps", str(int(float(value)))]
    except (ValueError, OverflowError):
        return flags


def _remember_compilations() -> None:
    """Keep compiled programs in the user's cache, so that the second run of a kind starts at once."""
    import os

    import jax

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(home / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _complain(message: str) -> int:
    print(f"shoal: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
