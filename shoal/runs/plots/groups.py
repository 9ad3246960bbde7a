"""Which runs are plotted, and which of them are one curve because they differ in the seed alone."""

import glob
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal.errors import ShoalError
from shoal.runs.catalogue import find_run
from shoal.runs.config import to_settings
from shoal.runs.trust import Untrusted, look_at_config, trusted_config
from shoal.training.config import TrainConfig

SEEDS = ("seed", "first_member")
"""The settings that decide random numbers and nothing else."""

Read = TypeVar("Read")


class Group(NamedTuple):
    """Runs that differ in the seed alone."""

    runs: list[Path]
    config: TrainConfig | None  # of the first; None where there is only a metrics.csv

    @property
    def dependent(self) -> bool:
        """Whether the learners of one run depend on each other while those of another run do not."""
        return len(self.runs) > 1 and self.config is not None and bool(self.config.exchanges)


def find_runs(given: Sequence[Path | str]) -> list[Path]:
    """The runs in or below folders, by name, and in folders that match a pattern; each once, in order."""
    found = []
    for name in map(str, given):
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [find_run(name)]
        if not matches:
            raise ShoalError(
                f"no folder matches {name}; shoal plot takes folders of runs, or patterns of them"
            )
        found += [run for match in matches for run in _runs_below(Path(match))]
    return list(dict.fromkeys(found))


def _runs_below(folder: Path) -> list[Path]:
    """The folder itself where it is a run or nothing at all, so that reading it says what is wrong."""
    below = sorted(path.parent for path in folder.glob("**/metrics.csv"))
    return [folder] if (folder / "metrics.csv").exists() or not below else below


def read_all(runs: Sequence[Path], read: Callable[[Path], Read]) -> dict[Path, Read]:
    """What `read` makes of each run; of several, those that cannot be read are left out with a warning."""
    found, errors = {}, []
    for run in runs:
        try:
            found[run] = read(run)
        except ShoalError as error:
            errors.append(error)
    if not found and errors:
        raise errors[0]
    for error in errors:
        warnings.warn(f"a run is left out: {error}", RuntimeWarning)
    return found


def read_config(run: Path) -> TrainConfig | None:
    """A run's settings; None where it has no file of them."""
    path = run / "config.yaml"
    if not path.is_file():
        return None
    try:
        return trusted_config(run)
    except Untrusted:
        return look_at_config(path)  # its curves need none of its code


def group_runs(configs: dict[Path, TrainConfig | None]) -> list[Group]:
    """Runs that differ in the seed alone, in the order of the first of each."""
    groups: list[tuple[Any, Group]] = []
    for run, config in configs.items():
        key = _without_seeds(config) if config else run
        same = next((group for other, group in groups if other == key), None)
        if same:
            same.runs.append(run)
        else:
            groups.append((key, Group([run], config)))
    return [group for _, group in groups]


def _without_seeds(config: TrainConfig) -> dict[str, Any]:
    return {name: value for name, value in to_settings(config).items() if name not in SEEDS}


def label_groups(groups: Sequence[Group], given: Sequence[str]) -> dict[str, Group]:
    """The groups by their labels: those given, one for each, or what their runs' names have in common."""
    names = label_runs([run for group in groups for run in group.runs])
    found = [_in_common([names[run] for run in group.runs]) for group in groups]
    if given and len(given) != len(groups):
        counts = " for ".join(
            f"{n} {what}{'s' * (n != 1)}" for n, what in ((len(given), "label"), (len(groups), "curve"))
        )
        raise ShoalError(f"{counts}: {'; '.join(found)}; give each curve one, after the runs")
    if len(set(given)) < len(given):
        raise ShoalError(f"two curves have one label; give each its own, not {', '.join(given)}")
    unique = [
        label if found.count(label) == 1 else names[group.runs[0]]
        for label, group in zip(found, groups, strict=True)
    ]
    return dict(zip(given or unique, groups, strict=True))


def _in_common(names: list[str]) -> str:
    """The parts of folder names that all have, in the order of the first.

    >>> _in_common(["CartPole-v1__ppo__s1__L8", "CartPole-v1__ppo__s2__L8"])
    'CartPole-v1__ppo__L8, 2 seeds'
    """
    if len(names) == 1:
        return names[0]
    shared = [part for part in names[0].split("__") if all(part in name.split("__") for name in names)]
    return f"{'__'.join(shared) or names[0]}, {len(names)} seeds"


def label_runs(runs: list[Path]) -> dict[Path, str]:
    """The folder's name, with its parent's where two runs share it."""
    names = [run.resolve().name for run in runs]
    shared = Counter(names)
    return {
        run: name if shared[name] == 1 else f"{run.resolve().parent.name}-{name}"
        for run, name in zip(runs, names, strict=True)
    }


def title_of(config: TrainConfig | None, otherwise: str) -> str:
    """A run in words: environment, algorithm, learners, exchange."""
    if config is None:
        return otherwise
    settings = to_settings(config)
    learners = [f"{config.learners} learners"] if config.learners > 1 else []
    exchanges = [exchange.exchange.replace("-", " ") for exchange in config.exchanges]
    return ", ".join([config.env, settings["algo"].upper(), *learners, *exchanges])


def title_groups(groups: dict[str, Group]) -> str:
    """The title of a figure of these groups: one in words, or the environment that all have."""
    if len(groups) == 1:
        return title_of(next(iter(groups.values())).config, next(iter(groups)))
    envs = {group.config.env if group.config else "" for group in groups.values()}
    return envs.pop() if len(envs) == 1 else ""
