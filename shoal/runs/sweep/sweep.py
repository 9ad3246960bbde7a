"""A sweep in its folder: planned, trained or resumed, and what it found."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.errors import ShoalError
from shoal.learners.registry import name_of
from shoal.runs.catalogue import run_folders
from shoal.runs.config import expanded, from_settings, read_settings, to_settings, write_config
from shoal.runs.files import FolderLock, make_folder, write_text
from shoal.runs.naming import ROOT, digest, folder_name
from shoal.runs.presets import preset
from shoal.runs.progress import ProgressBar, on_terminal
from shoal.runs.session import Finished, Session, clear_folder, train_session
from shoal.runs.sweep.axes import combinations, read_axes
from shoal.runs.sweep.execute import Interrupted, run_plan
from shoal.runs.sweep.plan import Plan, Tried
from shoal.runs.sweep.table import Row, best_first
from shoal.schema import convert
from shoal.training.config import TrainConfig

FILES = ("sweep.yaml", "trials.csv", "best.yaml", "study.log")
"""The files of a sweep, beside its programs and pictures."""


class Sweep:
    """What a sweep found: `shoal.sweep` returns one.

    `trials` are in their order, `best` is the best of them: each with `values`, `scores` (one a seed),
    `mean`, `iqm`, `interval`, `steps`, `state`.

    >>> import shoal
    >>> rates = {"learning_rate": [1e-3, 1e-2]}
    >>> found = shoal.sweep("CartPole-v1", rates, seeds=2, steps=1_024, folder="runs/rates")
    >>> found
    Sweep('runs/rates': 2 settings x 2 seeds = 4 learners in 1 program, 1,024 steps each)
    >>> found.config.algo.learning_rate in rates["learning_rate"]
    True
    """

    def __init__(self, folder: Path, plan: Plan, rows: Iterable[Row]):
        self.folder, self.plan, self.trials = folder, plan, list(rows)

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}: {self.plan.describe()})"

    @property
    def best(self) -> Row:
        """The trial with the highest mean among those that came furthest."""
        return best_first(self.trials)[0]

    @property
    def config(self) -> TrainConfig:
        """The settings of the best trial: `shoal.run(sweep.config)` trains it."""
        return from_settings(to_settings(self.plan.base) | self.best.values)


def sweep(
    env: str | TrainConfig,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    random: int | None = None,
    tpe: int | None = None,
    priors: Sequence[str] = (),
    seeds: int = 4,
    halving: bool = False,
    batch: int | None = None,
    folder: Path | str | None = None,
    clobber: bool = False,
    **settings: Any,
) -> Sweep:
    """Train many settings with several seeds each, as `shoal sweep` does; the same call again resumes.

    `grid` has lists of values by the settings' names, and every combination of them is tried; with `random`
    or `tpe` so many settings are drawn, or asked of Optuna: from the values of `grid` and from `priors`,
    names or `name=PRIOR` each, or the algorithm's own where there are neither. `settings` stay as they are.
    Ctrl-C saves and raises KeyboardInterrupt.

    >>> import shoal
    >>> found = shoal.sweep(
    ...     "CartPole-v1", {"learning_rate": [1e-3, 1e-2]}, seeds=2, steps=1_024, folder="runs/rates"
    ... )
    >>> len(found.trials), found.best.scores.shape, sorted(found.best.values)
    (2, (2,), ['learning_rate'])
    """
    if isinstance(env, str):
        base = preset(env, **settings)
    else:
        before = to_settings(env)
        base = from_settings(before | expanded(settings, before["algo"])) if settings else env
    plan = make_plan(base, grid or {}, random, tpe, priors, seeds=seeds, halving=halving, batch=batch)
    train = train_with_bar if on_terminal() else train_silently
    return run_sweep(plan, folder, clobber, train)


def make_plan(
    base: TrainConfig,
    grid: Mapping[str, Sequence[Any]] | None,
    random: int | None,
    tpe: int | None,
    priors: Sequence[str],
    **how: Any,
) -> Plan:
    """The plan of a grid, of random search, or of Optuna's."""
    random, tpe = (convert(name, x, Tried | None) for name, x in (("random", random), ("tpe", tpe)))
    priors = convert("priors", priors, tuple[str, ...])
    grid = convert("grid", grid or {}, dict[str, tuple[Any, ...]])
    if random is not None and tpe is not None:
        raise ShoalError(f"random {random} and tpe {tpe} are two ways to search; give one of them")
    drawn = random if random is not None else tpe
    if drawn is not None and not grid and not priors:
        priors = base.algo.evolved
    axes = read_axes(name_of(base.algo), grid, priors)
    if drawn is not None:
        return Plan(base, axes, "tpe" if random is None else "random", drawn, **how)
    number = 1 if priors else len(combinations(axes))
    return Plan(base, axes, "grid", number, **how)


def run_sweep(
    plan: Plan,
    folder: Path | str | None,
    clobber: bool,
    train: Callable[[Session, int], Finished],
    mesh: str | None = None,
) -> Sweep:
    """Run or resume a sweep in its folder, and write what it found."""
    from shoal.runs.sweep.pictures import draw_sweep

    folder, lock = Path(folder or default_folder(plan)), FolderLock()
    check_folder(folder, plan, clobber)
    plan.describe()  # raises here where the plan cannot be
    lock.take(make_folder(folder))
    if clobber:
        clear_sweep(folder)
    write_text(folder / "sweep.yaml", as_yaml(plan))
    try:
        rows = run_plan(plan, folder, train, mesh)
    except Interrupted:
        raise KeyboardInterrupt(f"{folder} is saved; the same sweep goes on there") from None
    finally:
        lock.release()
    found = Sweep(folder, plan, rows.values())
    write_config(folder / "best.yaml", found.config)
    draw_sweep(found.folder, found.trials, plan.axes)
    return found


def default_folder(plan: Plan) -> Path:
    """The folder of a sweep: its run's name, how it searches, and a hash of what it tries."""
    name = f"{folder_name(plan.base)}__sweep-{plan.method}{plan.num_trials}-{digest(plan.to_dict())}"
    return ROOT / name


def check_folder(folder: Path, plan: Plan, clobber: bool) -> None:
    """Raise where the folder has something else than this sweep."""
    saved = folder / "sweep.yaml"
    if saved.is_file() and not clobber and saved.read_text(encoding="utf-8") != as_yaml(plan):
        before, after = read_settings(saved), yaml.safe_load(as_yaml(plan))
        names = [name for name in after if before.get(name) != after[name]]
        raise ShoalError(
            f"{folder} holds another sweep (it differs in {', '.join(names)}); use --out for another folder, "
            "or --clobber to start over"
        )
    if (folder / "config.yaml").is_file():
        raise ShoalError(f"{folder} holds a run; use --out for another folder")


def as_yaml(plan: Plan) -> str:
    """The plan as sweep.yaml has it."""
    return yaml.safe_dump(plain(plan.to_dict()), sort_keys=False)


def plain(value: Any) -> Any:
    """The same value in lists and dictionaries."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def clear_sweep(folder: Path) -> None:
    """Remove the files of a sweep from its folder, and no others."""
    for run in run_folders(folder / "programs"):
        clear_folder(run)
        run.rmdir()
    for name in (*FILES, "parallel.png", "importance.png", "curves.png"):
        (folder / name).unlink(missing_ok=True)


def train_with_bar(session: Session, until: int) -> Finished:
    """Train a program to a step with a progress bar."""
    with ProgressBar(session) as bar:
        return train_session(session, bar.update, until)


def train_silently(session: Session, until: int) -> Finished:
    """Train a program to a step."""
    return train_session(session, lambda report: None, until)
