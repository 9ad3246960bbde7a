"""The rows of docs/results/index.md: kept in bench/results/rows.json, written into the page as tables."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from published import PAF, PUBLISHED

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "results" / "rows.json"
PAGE = ROOT / "docs" / "results" / "index.md"
LEARNERS = 4
"""Learners of a row unless it says another number."""


@dataclass(frozen=True)
class Row:
    """What a preset reached, and how to do it again."""

    env: str
    algo: str
    flags: tuple[str, ...]
    """Flags of `shoal train` beside the preset."""
    learners: int
    steps: int
    """Per learner."""
    of: int | None
    """The steps that were planned, where the run was stopped before."""
    seconds: int | None
    training: str
    """The last returns in training, where the run was stopped before."""
    mean: float
    each: tuple[float, ...]
    """The learners' own means."""
    spread: float | None
    commit: str | None
    """The commit that added the row, or at which it was done again."""
    hardware: str

    @property
    def command(self) -> str:
        """What does the row again."""
        algo = f" --algo {self.algo}" if self.algo != "ppo" else ""
        learners = f" --learners {self.learners}" if self.learners != LEARNERS else ""
        return f"python bench/results.py {self.env}{algo}{learners}{''.join(f' {x}' for x in self.flags)}"

    @property
    def scores(self) -> str:
        """The mean over learners, and each one's."""
        return f"**{self.mean}**" + (f" ({', '.join(map(str, self.each))})" if self.each else "")


def read_rows(path: Path = FILE) -> list[Row]:
    """The rows in their order."""
    tuples = lambda row: row | {"flags": tuple(row["flags"]), "each": tuple(row["each"])}
    return [Row(**tuples(row)) for row in json.loads(path.read_text(encoding="utf-8"))]


def write_rows(rows: list[Row], path: Path = FILE) -> None:
    """A line for each, so that a change of one is a change of a line."""
    lines = ",\n".join(f" {json.dumps(asdict(row))}" for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def find_row(rows: list[Row], env: str, algo: str) -> Row | None:
    """The row of an environment and an algorithm."""
    return next((row for row in rows if (row.env, row.algo) == (env, algo)), None)


def replace_row(rows: list[Row], new: Row) -> list[Row]:
    """The rows with this one in the place of the older one, or at the end."""
    same = lambda row: (row.env, row.algo) == (new.env, new.algo)
    return [new if same(row) else row for row in rows] + [new] * (not any(map(same, rows)))


def write_page(rows: list[Row], state: Callable[[Row], str], page: Path = PAGE) -> None:
    """The tables of the page anew; what is between them stays."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables(rows, state).items():
        begin, end = f"<!-- table: {name} -->", "<!-- end of table -->"
        found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert found.search(text), f"{page} has no {begin}"
        text = found.sub(lambda _, table=table: f"{begin}\n\n{table}\n\n{end}", text)  # noqa: B023
    page.write_text(text, encoding="utf-8")


def tables(rows: list[Row], state: Callable[[Row], str]) -> dict[str, str]:
    """The tables of the page by name."""
    ended = [row for row in rows if row.of is None]
    long = [row for row in rows if row.of is not None and row.algo == "ppo"]
    others = [row for row in rows if row.algo != "ppo"]
    return {
        "ppo": _table(PPO_COLUMNS, [row for row in ended if row.algo == "ppo"]),
        "others": _table(OTHER_COLUMNS, others),
        "long": _table(LONG_COLUMNS, long),
        "made": _table(MADE_COLUMNS | {"state": state}, rows),
    }


def _table(columns: dict[str, Callable[[Row], str]], rows: list[Row]) -> str:
    lines = [[*columns], ["---"] * len(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _settings(row: Row) -> str:
    return f"`{shlex.join(row.flags)}`" if row.flags else "preset"


def _steps(row: Row) -> str:
    return f"{row.steps:,}" + (f" of {row.of:,}" if row.of else "")


def _time(row: Row) -> str:
    return "" if row.seconds is None else f"{row.seconds:,} s"


def _spread(row: Row) -> str:
    return "" if row.spread is None else str(row.spread)


def _paf(row: Row) -> str:
    return str(PAF.get(row.env, ""))


def _published(row: Row) -> str:
    return PUBLISHED.get(row.algo, {}).get(row.env, "")


PPO_COLUMNS = {
    "environment": lambda row: row.env,
    "settings": _settings,
    "learners": lambda row: str(row.learners),
    "steps": _steps,
    "time": _time,
    "return": lambda row: row.scores,
    "spread": _spread,
    "PAF": _paf,
    "other published PPO": _published,
}
OTHER_COLUMNS = {
    "environment": lambda row: row.env,
    "algorithm": lambda row: row.algo,
    "settings": _settings,
    "learners": lambda row: str(row.learners),
    "steps": _steps,
    "time": _time,
    "return": lambda row: row.scores,
    "spread": _spread,
    "published, same algorithm": _published,
}
LONG_COLUMNS = {
    "environment": lambda row: row.env,
    "settings": _settings,
    "learners": lambda row: str(row.learners),
    "steps": _steps,
    "time": _time,
    "training": lambda row: row.training,
    "greedy": lambda row: row.scores,
    "PAF": _paf,
    "other published PPO": _published,
}
MADE_COLUMNS = {
    "environment": lambda row: row.env,
    "command": lambda row: f"`{row.command}`",
    "commit": lambda row: row.commit or "unknown",
    "hardware": lambda row: row.hardware,
}
