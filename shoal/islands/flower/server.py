"""The ServerApp: the meetings of organisations, each an island behind a SuperNode."""

import json
from pathlib import Path

import jax
import numpy as np
from flwr.app import Context  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid, ServerApp  # pyright: ignore[reportMissingImports]

from shoal.envs.worlds.parameters import draw_unseen_worlds
from shoal.errors import ShoalError
from shoal.islands.changes import ChangesMeeting
from shoal.islands.driver import Crowd, Driver
from shoal.islands.flower.engine import FlowerEngine
from shoal.islands.flower.settings import Federation, read_federation
from shoal.islands.plan import make_plan
from shoal.islands.record import Progress, Record
from shoal.runs.cache import cache_compilations
from shoal.runs.describing import describe_run
from shoal.runs.files import make_folder, write_text
from shoal.runs.learners import choose_learners, load_learners
from shoal.runs.loaded import Run
from shoal.runs.signals import stop_signals
from shoal.training.evaluate import play_episodes
from shoal.training.scores import team_return

EVALUATION = "evaluation.json"


def make_server_app() -> ServerApp:
    """The app of `shoal.islands.flower.server_app`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        cache_compilations()
        federation = read_federation(context.run_config)
        hold(grid, federation, f"federation-{context.run_id}")

    return app


def hold(grid: Grid, federation: Federation, name: str) -> dict:
    """Hold the meetings of a federation to the run's end; its summary."""
    folder = make_folder(federation.folder)
    meeting = ChangesMeeting(make_plan(federation.config), name, federation.outgoing)
    record = Record(meeting, folder)
    describe_run(folder, meeting.plan, meeting.state.models)
    islands = len(federation.organisations)
    engine = FlowerEngine(grid, federation, meeting)
    with record:
        if meeting.state.iteration < federation.config.num_iterations:
            driver = Driver(meeting, record, engine, Crowd(islands, islands), federation.wait)
            with stop_signals(driver.waiting):
                summary = driver.run(lambda progress: say(federation, meeting, progress))
        else:
            summary = {}
        found = {"round": meeting.round, "step": record.step, **evaluations(federation, engine, folder)}
        write_text(folder / EVALUATION, json.dumps(found, indent=2) + "\n")
    return summary


def say(federation: Federation, meeting: ChangesMeeting, progress: Progress) -> None:
    """A line on a meeting."""
    names = federation.organisations
    absent = ", ".join(f"{names[island]} ({why})" for island, why in sorted(progress.absent.items()))
    mean = float(np.nanmean(progress.returns)) if np.isfinite(progress.returns).any() else float("nan")
    print(
        f"round {meeting.round} of {meeting.plan.last_round}: step {progress.step:,}, return {mean:.1f}"
        + (f"; without {absent}" if absent else ""),
        flush=True,
    )


def evaluations(federation: Federation, engine: FlowerEngine, folder: Path) -> dict:
    """What the models score in every organisation's world, as it tells, and their mean in unseen worlds."""
    if not federation.eval_every:
        return {}
    found: dict = {"organisations": engine.evaluate(federation.eval_episodes)}
    if federation.unseen_spread:
        found["unseen"] = unseen(federation, folder)
    return found


def unseen(federation: Federation, folder: Path) -> dict[str, float]:
    """The mean of all parameters in worlds that no organisation has, one per episode."""
    run = Run(folder)
    _, cohort = choose_learners(load_learners(folder, "latest", run.parts), "mean")
    spec, episodes = run.parts.recipe.spec, federation.eval_episodes
    try:
        worlds = draw_unseen_worlds(spec, federation.unseen_spread, episodes, federation.config.seed)
    except ShoalError as error:
        return {"error": str(error)}  # type: ignore[dict-item]
    params = jax.tree.map(lambda x: x[None], worlds)
    returns, _ = play_episodes(run.parts.recipe, run.parts.learner, cohort, episodes, params=params)
    total = team_return(spec, returns)
    return {"episodes": episodes, "return_mean": float(total.mean()), "return_std": float(total.std())}
