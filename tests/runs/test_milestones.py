"""A run that is evaluated, keeps checkpoints and stops at a return trains as one that does not."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.cli.show import evaluated as evaluated_in
from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.runs import cadence, session
from shoal.runs.learners import load_learners
from shoal.runs.milestones import Milestones, keep_milestones
from shoal.runs.session import Finished, finish_session, open_session, run_session
from shoal.runs.watch import Watch
from shoal.training.config import TrainConfig
from shoal.training.players import make_player, ready_to_play
from shoal.training.program import make_trainer
from shoal.training.validation import SEED, make_validation
from shoal.types import EnvRecipe
from tests import probes

TINY = shoal.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, update_epochs=1, hidden=(4,))
CONFIG = TrainConfig("CartPole-v1", algo=TINY, steps=320, learners=2, reports=2, env_spread=0.2)
NOTHING = Milestones()
MILESTONES = Milestones(eval_every=50, eval_episodes=3, save_every=100)
EVALUATED = [64, 128, 160, 224, 256, 320]  # rollouts of 32 steps: the first to reach 50, 100, 150 ...
KEPT = [128, 224, 320]
CLOCKS = {"seconds", "steps_per_second", "steps_per_second_compiled"}


def trained(folder, milestones=NOTHING, config=CONFIG, until=None):
    """A run trained to its end, its goal or a step; its `Finished`."""
    opened = open_session(config, folder, milestones=milestones)
    assert not isinstance(opened, Finished)
    reports, report = run_session(opened), None
    for report in reports:
        if until is not None and report.step >= until:
            break
    reports.close()
    return finish_session(opened, report)


def rows(folder, steps=None):
    """metrics.csv without the columns that tell the time, at some steps."""
    with open(folder / "metrics.csv", newline="") as file:
        found = [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]
    return [row for row in found if steps is None or int(row["step"]) in steps]


def last_bits(folder):
    return (folder / "checkpoints" / "step_000000320.safetensors").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    trained(folder)
    return folder


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cadence, "SAVE_SECONDS", -1.0)  # a checkpoint at every report, as on a slow machine
        trained(folder, MILESTONES)
    return folder


def test_training_is_the_same_bits_with_and_without(plain, watched):
    assert last_bits(plain) == last_bits(watched)
    without = [{k: v for k, v in row.items() if "eval/" not in k} for row in rows(watched, {160, 320})]
    assert without == rows(plain)


def test_learners_are_evaluated_in_the_rollouts_that_reach_the_steps(watched):
    assert [int(row["step"]) for row in rows(watched) if row["eval/return_mean"]][::2] == EVALUATED


def test_an_evaluation_is_of_each_learner_in_its_own_world(watched):
    """The same as `shoal eval` with these starts, in the learners' own worlds."""
    seed = int(np.random.SeedSequence([CONFIG.seed, SEED]).generate_state(1)[0] >> 1)
    for step in (128, 320):
        found = shoal.load(watched).evaluate(3, "all", seed=seed, checkpoint=step)
        own = [one for one in found if one.world == "own"]
        for row, one in zip(rows(watched, {step}), own, strict=True):
            assert float(row["eval/return_mean"]) == np.float32(one.return_mean)
            assert float(row["eval/return_std"]) == np.float32(one.return_std)
            assert float(row["eval/length_mean"]) == np.float32(one.length_mean)


def test_checkpoints_at_the_steps_stay_and_are_loaded_by_them(watched):
    run = shoal.load(watched)
    assert set(KEPT) <= set(run.checkpoints)
    assert len(run.checkpoints) <= len(KEPT) + 3  # 256, 288 and 320 are the newest; one may be the best
    assert load_learners(watched, 128).step == load_learners(watched, "100").step == 128
    assert run.policy(checkpoint=100)(np.zeros(4)) in (0, 1)
    with pytest.raises(ShoalError, match=r"no checkpoint 20 in .*; choose one of latest, best, .*320$"):
        run.evaluate(checkpoint=20)
    with pytest.raises(ShoalError, match="no checkpoint newest"):
        run.policy(checkpoint="newest")


def test_the_best_checkpoint_is_the_best_by_evaluation(watched):
    scores = {int(row["step"]): 0.0 for row in rows(watched)}
    for row in rows(watched, EVALUATED):
        scores[int(row["step"])] = max(scores[int(row["step"])], float(row["eval/return_mean"]))
    best = max(EVALUATED, key=lambda step: (scores[step], step))
    assert load_learners(watched, "best").step == best
    summary = shoal.load(watched).summary
    assert (summary["evaluation"]["step"], summary["best_evaluation"]["step"]) == (320, best)
    assert max(summary["best_evaluation"]["return_mean"]) == scores[best]


def test_a_run_that_was_stopped_is_evaluated_at_the_same_steps(watched, tmp_path):
    """The second command does not say again what the first one did."""
    assert trained(tmp_path, MILESTONES, until=192).interrupted
    assert not trained(tmp_path).interrupted
    assert rows(tmp_path, EVALUATED) == rows(watched, EVALUATED)
    assert load_learners(tmp_path, "best").step == load_learners(watched, "best").step
    assert last_bits(tmp_path) == last_bits(watched)


def test_a_goal_that_is_reached_ends_the_run_and_stays_reached(tmp_path):
    goal = Milestones(eval_every=50, eval_episodes=3, stop_at=1)
    ended = trained(tmp_path, goal)
    assert (ended.step, ended.interrupted, ended.reached["step"]) == (64, False, 64)
    again = open_session(CONFIG, tmp_path, milestones=Milestones(stop_at=0.5))
    assert isinstance(again, Finished)
    assert (again.step, again.reached) == (64, ended.reached)
    assert trained(tmp_path, Milestones(stop_at=501), until=128).interrupted  # a larger one goes on
    longer = shoal.run(
        CONFIG, steps=352, anneal_to=320, stop_at=1, folder=tmp_path
    )  # so do more steps, to their end
    assert (longer.step, longer.summary["reached"]["step"]) == (352, 64)


def reported(returns, episodes=100, due=True, evaluated=None):
    """A report of learners with these returns."""
    metrics = {"return_mean": np.array(returns), "episodes": np.full(len(returns), episodes)}
    if evaluated is not None:
        metrics |= {
            f"eval/{name}": np.array(evaluated) for name in ("return_mean", "return_std", "length_mean")
        }
    return SimpleNamespace(step=7, metrics=metrics, due=due, evaluated=evaluated is not None)


@pytest.mark.parametrize(
    ("every", "report", "reached"),
    [
        (None, reported([10.0, 20.0]), True),
        (None, reported([10.0, 19.0]), False),  # the mean over the learners
        (None, reported([90.0, 90.0], episodes=99), False),  # not yet 100 episodes
        (None, reported([90.0, 90.0], due=False), False),  # when it comes depends on the machine
        (None, reported([90.0, np.nan]), False),
        (100, reported([90.0, 90.0]), False),  # the evaluation counts
        (100, reported([1.0, 1.0], evaluated=[20.0, 10.0]), True),
        (100, reported([90.0, 90.0], evaluated=[14.0, 15.0]), False),
    ],
)
def test_what_reaches_the_goal(every, report, reached):
    watch = Watch(Milestones(eval_every=every, stop_at=15), CONFIG)
    watch.see(report)
    assert watch.reached == reached
    assert (watch.goal == {"return": 15.0, "step": 7, "steps": 320}) == reached


def test_the_best_evaluation_is_that_of_the_best_learner_and_says_so(tmp_path, capsys):
    """The last one has the higher mean; shown beside it, the best must not look worse."""
    watch = Watch(Milestones(eval_every=100), replace(CONFIG, learners=2))
    for evaluated in ([10.0, 90.0], [80.0, 80.0]):
        watch.see(reported([0.0, 0.0], evaluated=evaluated))
    summary = watch.summary()
    assert (summary["best_evaluation"]["best_return"], summary["best_evaluation"]["best_learner"]) == (90, 1)
    assert (summary["evaluation"]["best_return"], summary["evaluation"]["best_learner"]) == (80, 0)
    evaluated_in(summary)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "return 80.0 (80.0 to 80.0) in the last evaluation"
    assert printed[1] == "best 90.0 in the evaluation at step 7, by learner 1"


def test_what_a_command_does_not_say_is_as_in_the_last_one(tmp_path):
    assert keep_milestones(tmp_path, Milestones())["eval_every"] is None
    assert not list(tmp_path.iterdir())
    keep_milestones(tmp_path, Milestones(eval_every=50, save_every=10, stop_at=3))
    found = Milestones(**keep_milestones(tmp_path, Milestones(eval_episodes=4, save_every=0)))
    assert found == Milestones(eval_every=50, eval_episodes=4, save_every=0, stop_at=None)
    assert found.describe() == "evaluates every 50 steps"
    with pytest.raises(ShoalError, match="eval_episodes has no effect without an evaluation"):
        keep_milestones(tmp_path, Milestones(eval_every=0, eval_episodes=4))


@pytest.mark.parametrize(("name", "value"), [("eval_every", -1), ("save_every", -1), ("eval_episodes", 0)])
def test_impossible_milestones_are_refused(name, value):
    with pytest.raises(ShoalError, match=name):
        Milestones(**{name: value})


def test_evaluating_again_compiles_nothing(compilations):
    trainer = make_trainer(CONFIG)
    validate, cohort = make_validation(trainer.parts, 3), trainer.init().cohort
    first = validate(cohort)
    with compilations() as seen:
        again = validate(cohort)
    assert not seen
    assert all(np.array_equal(first[name], again[name]) for name in first)


class Corridor(gymnasium.Env):
    """Begins at a random place, which is all its reward."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.place, {}

    def step(self, action):
        return self.place, float(self.place[0]), True, False, {}


gymnasium.register("tests/Corridor-v0", entry_point=Corridor)


@pytest.mark.slow  # its programs cannot be cached
def test_an_environment_in_python_is_evaluated_from_the_same_starts(tmp_path):
    """Its return is its start, so equal returns are equal starts; training goes on in others."""
    config = TrainConfig("tests/Corridor-v0", algo=TINY, steps=96, reports=3)
    trained(tmp_path / "plain", config=config)
    trained(tmp_path / "watched", Milestones(eval_every=32, eval_episodes=4), config)
    found = rows(tmp_path / "watched")
    assert len({row["eval/return_mean"] for row in found}) == 1
    assert [{k: v for k, v in row.items() if "eval/" not in k} for row in found] == rows(tmp_path / "plain")


def test_what_an_earlier_call_left_of_a_game_does_not_count():
    """Games of 5 steps that every reset finds at their third, as a game with lives is found by one."""
    inner = from_jax(probes.counter(5))

    def build(seeds, rendering):
        env = inner.build(seeds, rendering)

        def reset(keys, params):
            state, step = env.reset(keys, params)
            return state._replace(steps=state.steps + 2), step

        return env._replace(reset=reset, restart=None)

    recipe = EnvRecipe(inner.spec, build)
    trainer = make_trainer(TrainConfig("counter", algo=TINY), recipe=inner, mesh="1x1")
    learner, cohort = trainer.parts.learner, trainer.init().cohort
    play = make_player(recipe, learner, False, trainer.parts.mesh, 1, 3, seed=0)
    ready = ready_to_play(learner.for_evaluation, 3)(cohort)
    assert [play(ready, ())[1].tolist() for _ in range(2)] == [[[3, 3, 3]], [[5, 5, 5]]]


def test_the_command_says_what_it_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", __import__("warnings").showwarning)
    file = tmp_path / "config.yaml"
    session.write_config(file, CONFIG)
    command = ["train", "--config", str(file), "--out", str(tmp_path / "run")]
    goal = ["--stop-at", "1", "--eval-every", "50", "--eval-episodes", "3"]
    assert main([*command, *goal]) == 0
    printed = capsys.readouterr()
    assert "evaluates every 50 steps, stops at a mean return of 1" in printed.err
    assert "in the last evaluation" in printed.out
    assert "stopped by --stop-at: the mean return reached" in printed.out
    assert main([*command, *goal]) == 0
    assert "already reached a mean return of" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run"), "--episodes", "3", "--checkpoint", "50", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 6
    assert main(["train", "CartPole-v1", "--help", "milestones"]) == 0
    assert "--stop-at" in capsys.readouterr().out


SEVERAL = [
    "--learners",
    "2",
    "--steps",
    "320",
    "--reports",
    "2",
    "--eval-every",
    "100",
    "--eval-episodes",
    "3",
]
KINDS = {
    "recurrent": ["CartPole-v1", "--memory", "gru"],
    "envpool": ["envpool:CartPole-v1"],
    "replay": ["Pendulum-v1", "--algo", "td3"],
    "team": ["simple_spread_v3"],
    "neighbours": ["CartPole-v1", "--exchange", "neighbours"],
    "population": ["CartPole-v1", "--exchange", "truncation", "--local-updates", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_learner_is_evaluated(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", __import__("warnings").showwarning)
    assert main(["train", *KINDS[kind], *SEVERAL, "--out", str(tmp_path)]) == 0
    metrics = shoal.load(tmp_path).metrics
    known = np.isfinite(metrics["eval/return_mean"])
    assert len(set(metrics["step"][known])) >= 1
    assert np.all(metrics["eval/length_mean"][known] >= 1)
