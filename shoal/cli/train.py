"""`shoal train`: train or resume a run, in one process or several."""

import sys

from shoal.cli import interrupts, show
from shoal.cli.flags import Output
from shoal.cli.help_pages import help_page
from shoal.cli.parse import read_env, read_run
from shoal.cli.status import STATUS
from shoal.distributed import launch
from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import ProcessInfo, exit_now, rank, read_launcher, run_distributed
from shoal.errors import ShoalError
from shoal.runs import session
from shoal.runs.catalogue import write_note
from shoal.runs.milestones import Milestones
from shoal.runs.progress import ProgressBar
from shoal.training.config import TrainConfig


def main(arguments: list[str]) -> int:
    """Train, or show the help."""
    env, start, given = read_env(arguments)
    if start.help is not None:
        STATUS.clear()
        print(help_page(env, start))
        return 0
    config, (output, milestones), islands = read_run(env, start, given)
    if islands.islands is not None:
        from shoal.cli.train_islands import run_islands

        return run_islands(config, output, milestones, islands)
    process = process_of(output) or read_launcher()
    if output.processes > 1 and not process:
        STATUS.clear()
        return launch.launch([sys.executable, "-m", "shoal.cli", "train", *arguments], output.processes)
    if not process:
        return run(config, output, milestones)
    STATUS.clear()
    if launch.was_launched():
        launch.end_with_launcher()
    return run_distributed(process, lambda: run(config, output, milestones), quiet=launch.was_launched())


def run(config: TrainConfig, output: Output, milestones: Milestones) -> int:
    """Train with a progress bar, then print the result."""
    opened = session.open_session(
        config,
        output.folder,
        output.clobber,
        mesh=output.mesh,
        profile=output.profile,
        milestones=milestones,
        track=output.track,
    )
    STATUS.clear()
    if output.note is not None and rank() == 0:
        write_note(opened.folder, output.note)
    if isinstance(opened, session.Finished):
        if rank() == 0:
            show.already_trained(opened)
        return 0
    with ProgressBar(opened) as bar:
        finished = session.train_session(opened, bar.update)
    if rank() == 0:
        show.given_up(finished) if finished.given_up else show.ending(finished, opened)
    if finished.interrupted and interrupts.watching() and num_processes() == 1:
        exit_now(130)  # all is written: an orderly end would give back the memory piece by piece
    return 130 if finished.interrupted else 0


def process_of(output: Output) -> ProcessInfo | None:
    """This process among several, as given by flags; None without these flags."""
    if output.rank is None and output.coordinator is None:
        return None
    if output.rank is None or output.coordinator is None or not 0 <= output.rank < output.processes:
        raise ShoalError(
            "a process started by hand needs --processes N, --rank R (below N) and --coordinator HOST:PORT, "
            f"not {output.processes}, {output.rank} and {output.coordinator}"
        )
    return ProcessInfo(output.rank, output.processes, output.coordinator)
