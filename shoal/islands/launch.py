"""Trains a run on islands, in its folder: begun, or gone on with."""

import uuid
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.islands.driver import Crowd, Driver
from shoal.islands.engine import Engine
from shoal.islands.meeting import Meeting
from shoal.islands.options import Islands
from shoal.islands.plan import make_plan
from shoal.islands.record import Progress, Record
from shoal.runs.cache import cache_compilations
from shoal.runs.config import to_yaml
from shoal.runs.describing import describe_run
from shoal.runs.naming import find_folder
from shoal.runs.session import find_checkpoint, keep_annealing
from shoal.runs.signals import stop_signals
from shoal.training.config import TrainConfig

EngineMaker = Callable[[str, Path, int], Engine]
"""(text of config.yaml, the run's islands/, islands at most) -> engine"""


def train_islands(
    config: TrainConfig,
    islands: Islands,
    folder: Path | None = None,
    clobber: bool = False,
    save_every: int | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
    mesh: str | None = None,
    make_engine: EngineMaker | None = None,
) -> tuple[Path, dict]:
    """Train to the end, or until Ctrl-C; the run's folder, and its summary, {} where none was written."""
    cache_compilations()
    crowd = Crowd.read(islands.islands or "1")
    folder = Path(folder or find_folder(config))
    found = None if clobber else find_checkpoint(folder, config)
    if found and config.anneal_to is None:
        config = keep_annealing(config, found["anneal_to"])
    plan = make_plan(config)
    if crowd.least > config.learners:
        raise ShoalError(f"{crowd.least} islands need a learner each, and the run has {config.learners}")
    meeting = Meeting(plan, f"{folder.name} {uuid.uuid4().hex[:8]}")
    record = Record(meeting, folder, clobber, save_every)
    if meeting.state.iteration >= config.num_iterations:
        record.__exit__()
        return folder, {}
    describe_run(folder, plan, meeting.state.models)
    make_engine = make_engine or engine_maker(islands, mesh)
    with record, _closed_early(make_engine(to_yaml(config), folder / "islands", crowd.most)) as engine:
        driver = Driver(meeting, record, engine, crowd, islands.wait)
        with stop_signals(driver.waiting):
            return folder, driver.run(show)


def engine_maker(islands: Islands, mesh: str | None) -> EngineMaker:
    """The engine that the options name."""
    if islands.engine == "ray":
        from shoal.islands.ray import RayEngine

        return lambda settings, folder, most: RayEngine(settings, folder, most, islands, mesh)
    from shoal.islands.local import LocalEngine

    return lambda settings, folder, most: LocalEngine(settings, folder, most, mesh)


@contextmanager
def _closed_early(engine: Engine) -> Any:
    """The engine, closed also where the driver could not begin."""
    try:
        yield engine
    finally:
        engine.close()
