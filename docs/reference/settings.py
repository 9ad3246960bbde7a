"""Writes docs/reference/settings.md from the settings' dataclasses: `python docs/reference/settings.py`."""

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

from shoal import ExchangeConfig, TrainConfig
from shoal.learners.registry import ALGORITHMS

PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """\
# Settings

Every setting with its flag, its default and its meaning. `shoal train ENV --help` shows the values that an
environment's [preset](presets.md) gives. In Python and in `config.yaml` the names have underscores:
`--num-envs` is `num_envs`, and `--curiosity.coef` is `coef` of the group `curiosity`.

This page is written by `python docs/reference/settings.py` from the settings' own descriptions.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *section("The run", TrainConfig, leave_out={"algo", "exchanges"})]
    for name, algorithm in ALGORITHMS.items():
        parts += section(f"`--algo {name}`", algorithm.config)
    parts += section("Learning together", ExchangeConfig)
    return "\n".join(parts)


def section(title: str, config: type, leave_out: set[str] = frozenset()) -> list[str]:
    """A heading, the settings of the class, then each of its groups."""
    hints, said = get_type_hints(config), descriptions(config)
    plain = [f for f in fields(config) if f.name not in leave_out and not is_dataclass(hints[f.name])]
    groups = [f.name for f in fields(config) if is_dataclass(hints[f.name])]
    lines = [f"## {title}\n", summary(config), *table(config, plain, said)]
    for name in groups:
        group = hints[name]
        rows = table(group, fields(group), descriptions(group), f"{name}.")
        lines += [f"### {title}: group `{name}`\n", summary(group), *rows]
    return lines


def summary(config: type) -> str:
    """The first paragraph of the class's docstring."""
    return " ".join(inspect.getdoc(config).partition("\n\n")[0].split()) + "\n"


def table(config: type, shown, said: dict[str, str], prefix: str = "") -> list[str]:
    """A row per setting."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for f in shown:
        flag = f"{prefix}{f.name}".replace("_", "-")
        default = (
            f.default if f.default_factory.__class__.__name__ == "_MISSING_TYPE" else f.default_factory()
        )
        rows.append(f"| `--{flag}` | {written(default)} | {said.get(f.name, '')} |")
    return [*rows, ""]


def written(value) -> str:
    """A default as a person types it."""
    if value is None or value in ((), {}):
        return ""
    if type(value).__name__ == "_MISSING_TYPE":
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"`{text}`"


def descriptions(config: type) -> dict[str, str]:
    """The docstring under each field, those of the classes it extends included."""
    said = {}
    for base in reversed(config.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and is_text(text):
                said[field.target.id] = " ".join(text.value.value.split()).replace("|", "\\|")
    return said


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a bare string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
