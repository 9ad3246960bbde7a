"""From arguments to settings: flags override the file, the file the preset, the preset the defaults."""

from textwrap import shorten
from typing import Any

from shoal.cli.flags import OPTIONS, Output, Start, read_flags, read_start, spell
from shoal.envs.procgen import LEVELS, MODE, by_id, is_procgen
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.islands.options import Islands
from shoal.runs.catalogue import find_run
from shoal.runs.config import (
    EXCHANGE,
    algorithm_of,
    errors_in,
    expanded,
    from_settings,
    options_of,
    read_settings,
    to_settings,
)
from shoal.runs.milestones import Milestones
from shoal.runs.presets import named_settings, preset_settings
from shoal.schema import convert
from shoal.settings import flatten, types
from shoal.training.config import TrainConfig

UNSAID = -1
"""The number of minibatches where no flag says one, even the preset's."""


def parse_train(arguments: list[str]) -> tuple[TrainConfig, tuple[Output, Milestones]]:
    """The configuration, the run's folder and devices, and its milestones."""
    return read_run(*read_env(arguments))[:2]


def read_env(arguments: list[str]) -> tuple[str | None, Start, list[str]]:
    """The environment, where settings start from, and the arguments with Procgen's flags as options.

    >>> read_env(["bigfish", "--distribution-mode", "easy", "--num-levels", "9"])[::2]
    ('BigfishEasy-v0', ['bigfish', '--env-options', 'num_levels=9'])
    """
    pairs, others = take_levels(arguments)
    env, start = read_start(others)
    if env is None or not is_procgen(env):
        return (*read_start(arguments), arguments) if others != arguments else (env, start, arguments)
    env, options = by_id(env, read_options(tuple(pairs)))
    texts = [f"{name}={value}" for name, value in options.items()]
    if texts and "--env-options" not in others:
        others.append("--env-options")
    at = others.index("--env-options") + 1 if texts else 0
    return env, start, [*others[:at], *texts, *others[at:]]


def take_levels(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Procgen's flags, and the mode among the options, as NAME=VALUE; and all other arguments."""
    names = {spell(name): name for name in LEVELS} | {f"--{name}": name for name in LEVELS}
    pairs, others, rest = [], [], list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in names and (equals or rest):
            pairs.append(f"{names[flag]}={value if equals else rest.pop(0)}")
        elif flag == MODE and equals:
            pairs.append(word)
        else:
            others.append(word)
    return pairs, others


def read_run(
    env: str | None, start: Start, arguments: list[str]
) -> tuple[TrainConfig, tuple[Output, Milestones], Islands]:
    """The same and the run's islands, where the start of the settings is known."""
    own, preset = start_settings(env, start)
    with errors_in(start.config):
        config = from_settings(own, preset)
    settings = to_settings(config)
    defaults = flag_defaults(config) | {"num_minibatches": UNSAID}
    flags = read_flags(settings["algo"], defaults, arguments)
    changed = {name: x for name, x in flags.items() if x != defaults[name]}
    output = Output(**{name: flags[name] for name in types(Output)})
    milestones = Milestones(**{name: flags[name] for name in types(Milestones)})
    islands = Islands(**{name: flags[name] for name in types(Islands)})
    if len(config.exchanges) > 1 and changed.keys() & EXCHANGE:
        raise ShoalError(f"{start.config or start.follow} lists several exchanges; change them there")
    if "env_options" in changed:
        changed["env_options"] = config.env_options | read_options(changed["env_options"])
    elsewhere = {"env"}.union(*map(types, OPTIONS))
    settings |= {name: x for name, x in changed.items() if name not in elsewhere}
    free = {"num_minibatches"} & settings.keys() - own.keys() - changed.keys()
    config = from_settings(settings, start={name: settings.pop(name) for name in free})
    return config, (output, milestones), islands


def start_config(env: str | None, start: Start) -> TrainConfig:
    """The configuration of the file, the run to follow, or the preset."""
    with errors_in(start.config):
        return from_settings(*start_settings(env, start))


def start_settings(env: str | None, start: Start) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file or the run to follow says, and what the preset says beside it."""
    if start.param_name and (start.config or start.follow or not start.preset):
        raise ShoalError("--param-name starts from a preset; leave out --config, --follow and --no-preset")
    said: dict[str, Any] = read_settings(start.config) if start.config else {}
    if start.follow:
        from shoal.runs.run import follow_best

        followed = to_settings(follow_best(find_run(start.follow)))
        said = followed | expanded(said, followed["algo"])
    env = env or said.get("env")
    with errors_in(start.config):
        algo = start.algo or algorithm_of(said)
        if env is not None:
            env, _ = by_id(convert("env", env, str), options_of(said))
    if env is None:
        raise ShoalError("no environment is given; try shoal train CartPole-v1 (shoal envs lists them)")
    preset: dict[str, Any] = {}
    if start.param_name:
        preset = named_settings(env, start.param_name, algo)
    elif start.preset and not (start.config or start.follow):
        preset = preset_settings(env, algo)
    return said | {"env": env, "algo": algo}, preset


def flag_defaults(config: TrainConfig) -> dict[str, Any]:
    """The defaults of all flags. Flags that name a file are empty."""
    exchange = config.exchanges[0] if len(config.exchanges) == 1 else ExchangeConfig()
    known = to_settings(config) | flatten(exchange)
    for cls in OPTIONS:
        known |= vars(cls())
    empty = {"comm_matrix": None, "env_params": None, "env_options": ()}
    return known | empty | {"seeds": None, "algo": to_settings(config)["algo"]}


def read_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Options of the environment from NAME=VALUE, values read as yaml.

    >>> read_options(("num_levels=200", "render=off"))
    {'num_levels': 200, 'render': False}
    """
    import yaml

    split = [pair.partition("=") for pair in pairs]
    if any(not equals for _, equals, _ in split):
        raise ShoalError(f"--env-options takes pairs such as num_levels=200, not {' '.join(pairs)}")
    try:
        return {name: yaml.safe_load(value) for name, _, value in split}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ShoalError(f"--env-options {' '.join(pairs)}: {shorten(str(error), 200)}") from error
