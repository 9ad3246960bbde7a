"""What the page of a run shows beside its curves: settings, metrics by group, films, its command."""

from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.exchanges.registry import selects
from shoal.islands.attendance import last_meeting
from shoal.runs.config import to_settings
from shoal.runs.metrics import LEADING
from shoal.runs.naming import from_preset
from shoal.runs.plots.words import metric_in_words
from shoal.watch.command import command_of
from shoal.watch.overview import described, written
from shoal.watch.shelf import Entry

FILMS = {".gif": "image/gif", ".mp4": "video/mp4"}
"""The films a browser plays, by the ends of their names."""
GROUPS = (
    ("Score", ("return_mean", "return_std", "length_mean", "episodes")),
    ("Evaluation", ("eval/",)),
    ("Teams and agents", ("return_agent", "return_team", "win_rate_")),
    ("Losses", ("loss/",)),
    (
        "Learning",
        (
            "entropy",
            "approx_kl",
            "clip_fraction",
            "explained_variance",
            "grad_norm",
            "learning_rate",
            "q_mean",
        ),
    ),
    ("Learning together", ("disagreement/", "exchange/", "privacy/", "islands/")),
    ("Population", ("population/", "hypers/")),
    ("Curiosity", ("curiosity/",)),
    ("Speed", ("steps_per_second", "seconds/", "updates_per_step")),
)
"""Titles, and the beginnings of the names of their metrics."""
REST = "More"


def run_page(entry: Entry) -> dict[str, Any]:
    """A run's row in the list, its metrics, films, settings and command."""
    found = described(entry) | {"folder": str(entry.folder), "metrics": {}, "notes": []}
    try:
        found["metrics"] = grouped(entry.tail.names())
    except ShoalError as error:
        found["notes"].append(str(error))
    meeting = last_meeting(entry.folder)
    found["meeting"] = meeting and meeting._asdict()
    if meeting and meeting.absent:
        found["notes"].append(f"absent from meeting {meeting.round:,}: island {meeting.absent}")
    found["films"] = [film.name for film in films(entry.folder)]
    found["lineage"] = (entry.folder / "lineage.csv").is_file()
    try:
        config = entry.config()
        found["settings"] = _settings(entry)
        found["command"] = command_of(config, entry.folder)
        kinds = {one.exchange for one in config.exchanges}
        found["graph"] = bool(kinds) and not all(map(selects, config.exchanges))
        found["worlds"] = bool(config.env_spread or config.env_params)
    except Exception as error:  # whatever a damaged file raises
        found["notes"].append(" ".join(str(error).split()))
        found |= {"settings": [], "command": "", "graph": False, "worlds": False}
    return found


def grouped(names: list[str]) -> dict[str, list[dict[str, str]]]:
    """Metrics in groups, each with its name in words."""
    found: dict[str, list[dict[str, str]]] = {title: [] for title, _ in GROUPS} | {REST: []}
    for name in names:
        if name not in LEADING:
            title = next((title for title, starts in GROUPS if name.startswith(starts)), REST)
            found[title].append({"name": name, "label": metric_in_words(name)})
    return {title: metrics for title, metrics in found.items() if metrics}


def films(folder: Path) -> list[Path]:
    """The films in a run's videos/, the newest first; none that a link brings from elsewhere."""
    inside = folder.resolve() / "videos"
    try:
        found = [path for path in inside.iterdir() if path.suffix.lower() in FILMS]
        here = [path for path in found if path.resolve().parent == inside and path.name[0] != "."]
        return sorted(here, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _settings(entry: Entry) -> list[dict[str, Any]]:
    """Every setting, and whether it differs from the preset."""
    config = entry.config()
    _, changed = from_preset(config)
    return [
        {"name": name, "value": written(value), "differs": name in changed}
        for name, value in to_settings(config).items()
    ]
