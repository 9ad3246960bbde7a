"""Writes docs/reference/settings.md from the settings' dataclasses: `python docs/reference/settings.py`."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from shoal import ExchangeConfig, TrainConfig
from shoal.learners.registry import ALGORITHMS
from shoal.range_words import describe, is_bounded
from shoal.runs.milestones import Milestones
from shoal.settings import flatten, helps, hints

PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """\
# Settings

Every setting with its flag, its default, its meaning and, in brackets, what it may be.
`shoal train ENV --help` shows the values that an environment's [preset](presets.md) gives. In Python and in
`config.yaml` the names have underscores: `--num-envs` is `num_envs`, and `--curiosity.coef` is `coef` of the
group `curiosity`.

This page is written by `python docs/reference/settings.py` from the settings' own descriptions.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *section("The run", TrainConfig("CartPole-v1"))]
    for name, algorithm in ALGORITHMS.items():
        parts += section(f"`--algo {name}`", algorithm.config())
    parts += section("Learning together", ExchangeConfig())
    return "\n".join([*parts, *section("While it trains", Milestones())])


def section(title: str, config: Any) -> list[str]:
    """A table of the settings of a class, then one for each of its groups."""
    texts, allowed, groups = helps(type(config)), hints(type(config)), {"": []}
    for name, value in flatten(config).items():
        if name not in ("env", "algo", "exchanges", "hyper_plan", "learner_hypers", "distinct_seeds"):
            groups.setdefault(name.rpartition(".")[0], []).append(
                table_line(name, value, f"{texts[name]} {choices(allowed[name])}".strip())
            )
    lines = []
    for group, entries in groups.items():
        heading = f"### {title}: group `{group}`" if group else f"## {title}"
        about = texts[group] if group else " ".join((type(config).__doc__ or "").partition("\n\n")[0].split())
        lines += [f"{heading}\n\n{about}\n\n| flag | default | meaning |\n|---|---|---|", *entries, ""]
    return lines


def table_line(name: str, value: Any, text: str) -> str:
    """A setting as a line of a table."""
    escaped = text.replace("|", "\\|")
    return f"| `--{name.replace('_', '-')}` | {written(value)} | {escaped} |"


def choices(hint: Any) -> str:
    """The range or the choices of a setting, in brackets; empty where any value is allowed."""
    if is_bounded(hint):
        return f"({describe(hint)})"
    options = [hint, *get_args(hint)]
    names = [name for option in options if get_origin(option) is Literal for name in get_args(option)]
    return f"({', '.join(f'`{name}`' for name in names)})" if names else ""


def written(value: Any) -> str:
    """A default as it is typed."""
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
