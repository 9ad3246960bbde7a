"""A run's folder before training: what it holds, whether it may be used, what is left in it, and its end."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

from shoal.distributed.processes import rank
from shoal.errors import ShoalError
from shoal.runs import checkpoint
from shoal.runs.config import differences, load_config, read_settings, write_config
from shoal.runs.files import FolderLock, make_folder, remove_leftovers
from shoal.runs.filming import FILMING
from shoal.runs.numpy_policy import DESCRIPTION
from shoal.runs.trust import SIGNATURE, other_exchange, sign
from shoal.training.config import TrainConfig


def find_checkpoint(folder: Path, config: TrainConfig) -> dict | None:
    """The record of the newest checkpoint there and the step its run is annealed to; None without one.

    An error if the run there has other settings.
    """
    saved = folder / "config.yaml"
    other = other_exchange(read_settings(saved), config) if saved.exists() else None
    old = load_config(saved) if saved.exists() and not other else config
    if changes := [f"its exchange is {other}"] if other else differences(old, config):
        raise ShoalError(
            f"{folder} holds a run with other settings ({'; '.join(changes)}); "
            "use --out for another folder, or --clobber to start over"
        )
    meta = checkpoint.newest_meta(folder / "checkpoints", resumes=True)
    return meta and meta | {"anneal_to": old.anneal_to or old.steps}


def refuse_islands(folder: Path, found: dict | None) -> None:
    """Raise where the run in a folder is on islands, which keep what one program would go on from."""
    if found and "islands" in found:
        raise ShoalError(f"{folder} holds a run on islands; add --islands, or --clobber to start over")


def keep_annealing(config: TrainConfig, anneal_to: int) -> TrainConfig:
    """The settings of a run that goes on, annealed as it began; says so where that ends before the run."""
    kept = replace(config, anneal_to=anneal_to)
    if kept.num_annealed == config.num_annealed:
        return config
    if kept.num_annealed < kept.num_iterations and config.algo.anneals and rank() == 0:
        several = len(config.algo.anneals) > 1
        are, keep = ("are", "keep their end values") if several else ("is", "keeps its end value")
        warnings.warn(
            f"{' and '.join(config.algo.anneals)} {are} annealed to step {anneal_to:,} and then {keep}; "
            "--anneal-to N changes that",
            RuntimeWarning,
        )
    return kept


def prepare_folder(
    folder: Path, lock: FolderLock, config: TrainConfig, clobber: bool, found: dict | None
) -> None:
    """Make the folder, lock it, clear it if asked or of what is after the checkpoint that was found.

    What a crash left is removed, and the settings are written. Raises where another run has saved there since
    the checkpoint was looked for.
    """
    lock.take(make_folder(folder))
    try:
        if clobber:
            clear_folder(folder)
        elif iteration_of(find_checkpoint(folder, config)) != iteration_of(found):
            raise ShoalError(f"another run has saved in {folder} just now; give the same command again")
        saved = folder / "checkpoints"
        remove_leftovers(folder, saved)
        shutil.rmtree(folder / FILMING, ignore_errors=True)
        checkpoint.forget_half_first(saved)
        checkpoint.forget_after(saved, config.steps_after(iteration_of(found)))
        write_config(folder / "config.yaml", config)
        sign(folder, config)
    except BaseException:
        lock.release()
        raise


def iteration_of(meta: dict | None) -> int:
    """Where the checkpoint with this record is; 0 where there is none."""
    return meta["iteration"] if meta else 0


def clear_folder(folder: Path) -> None:
    """Remove the files of a run from its folder, and no others."""
    for name in ("checkpoints", "plots", "videos", "export", "tracking", "islands"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = (
        "config.yaml",
        "metrics.csv",
        "metrics.csv.damaged",
        "summary.json",
        "lineage.csv",
        "lineage.csv.damaged",
        "milestones.json",
        "note.txt",
        "islands.csv",
    )
    for name in (*files, SIGNATURE, DESCRIPTION, "events.out.*"):
        for path in folder.glob(name):
            path.unlink()
