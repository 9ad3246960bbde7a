"""The pages of `shoal train ENV --help`: one screen, then a page for each group of settings."""

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args, get_origin

from shoal.cli.flags import Flag, Output, Start, all_flags, flags_of
from shoal.cli.parse import flag_defaults, start_config
from shoal.envs.registry import suite_of
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.islands.options import Islands
from shoal.learners.registry import name_of
from shoal.range_words import describe, is_bounded
from shoal.runs.milestones import Milestones
from shoal.setting_names import SWITCHES
from shoal.settings import helps
from shoal.training.config import TrainConfig

FIRST = ("algo", "steps", "learners", "seeds", "seed", "exchange", "name", "clobber")
"""The settings on the first screen, beside the algorithm's own."""
NUM_OWN = 13
"""How many of the algorithm's settings it shows: the first ones of its class."""


class Group(NamedTuple):
    """Settings that have a page of their own."""

    about: str
    names: list[str]


def help_page(env: str | None, start: Start) -> str:
    """The first screen, or the pages of the given groups."""
    words = list(start.help or ())
    envs = [word for word in words if env is None and word != "all" and suite_of(word)]
    env = env or next(iter(envs), None) or (None if start.config or start.follow else "CartPole-v1")
    config = start_config(env, start)
    words = [word for word in words if word != env]
    groups = all_groups(config)
    if not words:
        return first_screen(config, groups)
    chosen = list(groups) if "all" in words else words
    for word in chosen:
        if word not in groups:
            near = difflib.get_close_matches(word, groups, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(groups)} and all"
            raise ShoalError(f"no group of settings is called {word!r}; {hint}")
    return "\n\n".join(group_page(config, name, groups[name]) for name in chosen)


def all_groups(config: TrainConfig) -> dict[str, Group]:
    """Every setting, in groups by name."""
    algo = name_of(config.algo)
    output = list(flags_of(Output))
    run = _groups_of(TrainConfig, "run", "The run: its size, its environment, its folder.")
    run["run"].names[:] = [*flags_of(Start), *output[:4], *run["run"].names, "seeds"]
    found = {"run": run.pop("run")}
    found |= _groups_of(type(config.algo), algo, f"Every setting of {algo} that is in no group.")
    found |= _groups_of(ExchangeConfig, "exchange", "How learners learn together.")
    about = "Evaluation while training, checkpoints to keep, a return to stop at."
    found["milestones"] = Group(about, list(flags_of(Milestones)))
    devices = [*output[4:], *flags_of(Islands)]
    return found | run | {"devices": Group("Devices, processes, islands, timing.", devices)}


def _groups_of(cls: type, title: str, about: str) -> dict[str, Group]:
    """The settings of a class without a group, by its title, then its groups."""
    texts = helps(cls)
    found = {title: Group(about, [])}
    for name in flags_of(cls):
        group, dot, _ = name.partition(".")
        found.setdefault(group, Group(texts[group], [])) if dot else None
        found[group if dot else title].names.append(name)
    return found


def first_screen(config: TrainConfig, groups: dict[str, Group]) -> str:
    """The settings people change most, with their values here, and the names of the groups."""
    algo = name_of(config.algo)
    shown = [*FIRST, *groups[algo].names[:NUM_OWN]]
    flags = all_flags(algo)
    lines = [(_flag(name, flags[name]), _value(config, name), _brief(flags[name].help)) for name in shown]
    return "\n".join(
        [
            "usage: shoal train ENV [--FLAG VALUE ...]    The same command again resumes where it stopped.",
            "",
            f"The settings people change most, and their values for {config.env}:",
            *_table(lines),
            "",
            f"More settings, by group: shoal train {config.env} --help GROUP, or --help all",
            *_table([(name, _brief(group.about)) for name, group in groups.items()]),
        ]
    )


def group_page(config: TrainConfig, title: str, group: Group) -> str:
    """Every setting of a group, with its value, its whole text and its choices."""
    lines = [f"{title}: {group.about}"]
    for name in group.names:
        flag = all_flags(name_of(config.algo))[name]
        lines.append(f"  {_flag(name, flag)} {_value(config, name)}".rstrip())
        text = flag.help + _choices(flag)
        lines += textwrap.wrap(text, _width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _flag(name: str, flag: Flag) -> str:
    """A flag as it is typed; the short name where a group's switch has one.

    >>> _flag("curiosity.enabled", Flag(bool, "")), _flag("curiosity.size", Flag(int, ""))
    ('--[no-]curiosity', '--curiosity.size')
    """
    group, dot, last = name.partition(".")
    if SWITCHES.get(group) == name:
        group, dot, last = group, "", ""
    switch = "[no-]" if flag.type is bool else ""
    typed = f"{group}.{switch}{last}" if dot else f"{switch}{group}"
    return f"--{typed.replace('_', '-')}"


def _value(config: TrainConfig, name: str) -> str:
    value = config.env_options if name == "env_options" else flag_defaults(config)[name]
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def _choices(flag: Flag) -> str:
    """What may be given, where it is one of several names or has a range.

    >>> _choices(all_flags("ppo")["gamma"]), _choices(all_flags("ppo")["memory.kind"])
    (' Allowed: a number from 0 to 1.', ' Choices: none, lstm, gru.')
    """
    if is_bounded(flag.hint):
        return f" Allowed: {describe(flag.hint)}."
    options = [flag.type, *get_args(flag.type)]
    named = [str(choice) for hint in options if get_origin(hint) is Literal for choice in get_args(hint)]
    return f" Choices: {', '.join(named)}." if named else ""


def _brief(text: str) -> str:
    """The first sentence, without what follows a semicolon.

    >>> _brief("Noise (Li et al. 2020); none unless given. More.")
    'Noise (Li et al. 2020)'
    """
    return re.split(r"\. (?=[A-Z])|; ", text)[0].rstrip(".")


def _table(lines: Iterable[Sequence[str]]) -> list[str]:
    """Lines in columns, cut to the screen's width."""
    lines = list(lines)
    widths = [max(len(line[i]) for line in lines) + 2 for i in range(len(lines[0]) - 1)]
    room = _width() - 2 - sum(widths)
    brief = lambda text: textwrap.shorten(text, room, placeholder=" ...")
    return ["".join(["  ", *map(str.ljust, line, widths), brief(line[-1])]) for line in lines]


def _width() -> int:
    return min(100, shutil.get_terminal_size((100, 40)).columns)
