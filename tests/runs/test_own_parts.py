"""Parts of the user's own: saved by their import paths, found again, asked for where they cannot be."""

import importlib
import sys
from pathlib import Path

import jax
import pytest

import shoal
from shoal.exchanges import registry
from shoal.runs.config import read_settings
from shoal.runs.learners import load_learners
from shoal.runs.own import OwnParts, read_call
from shoal.training.program import make_trainer

TINY = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,), "steps": 64}
MODULE = """
import gymnasium
import jax
import numpy as np

import shoal
from shoal.exchanges.combinators import none
from shoal.types import Exchange

network = shoal.actor_critic(hidden=(5,))
settled = none()


def learner(spec, context):
    return shoal.ppo(shoal.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden=(6,)), spec, context)


def follow(config, context):
    halved = lambda x: x / 2
    apply = lambda key, state, cohort, scores: (
        state, cohort._replace(params=jax.tree.map(halved, cohort.params)), {}
    )
    return Exchange(lambda cohort: (shoal.types.ExchangeState(), cohort), apply)


class Count(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.float32([0]), {}

    def step(self, action):
        self.steps += 1
        return np.float32([self.steps]), 1.0, self.steps == 5, False, {}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, in the working folder."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_given", {})
    yield importlib.import_module("mine")
    sys.modules.pop("mine", None)


def forget():
    """As in another program, from which the module is not found."""
    sys.modules.pop("mine")
    Path("mine.py").unlink()
    importlib.invalidate_caches()
    registry._given.clear()


def sizes(run):
    """The last axes of what was saved."""
    params = load_learners(run.folder, parts=run.parts).cohort.params
    return {x.shape[-1] for x in jax.tree.leaves(params)}


def test_a_network_is_found_by_its_import_path(own):
    run = shoal.run("CartPole-v1", network=own.network, folder="run", **TINY)
    assert read_settings(run.folder / "config.yaml")["own"]["network"] == "mine:network"
    rows = run.evaluate(2)
    assert shoal.load("run").evaluate(2) == rows
    assert shoal.run("CartPole-v1", network="mine:network", folder="run", **TINY).step == 64
    with pytest.raises(shoal.ShoalError, match=r"own\.network: mine:network -> None"):
        shoal.run("CartPole-v1", folder="run", **TINY)
    network = own.network
    forget()
    message = (
        r"run needs its network mine:network: no module 'mine' .*; give it: shoal.load\('run', network=...\)"
    )
    with pytest.raises(shoal.ShoalError, match=message):
        shoal.load("run").evaluate(2)
    assert shoal.load("run").metrics["step"][-1] == 64  # which needs no network
    assert shoal.load("run", network=network).evaluate(2) == rows


def test_what_cannot_be_imported_trains_and_is_asked_for(own):
    network = lambda *arguments: own.network(*arguments)
    run = shoal.run("CartPole-v1", network=network, folder="run", **TINY)
    assert run.config.own.network.endswith("<lambda>")
    rows = run.evaluate(2)
    with pytest.raises(
        shoal.ShoalError, match=r"has no '.*<lambda>'; give it: shoal.load\('run', network=...\)"
    ):
        shoal.load("run").evaluate(2)
    assert shoal.load("run", network=network).evaluate(2) == rows
    longer = shoal.run(run.config, network=network, folder="run", steps=96, anneal_to=64)
    assert longer.step == 96


@pytest.mark.parametrize("kind", [pytest.param("a class", marks=pytest.mark.slow), "an instance"])
def test_an_environment_is_found_by_its_name_or_asked_for(own, kind):
    env = own.Count if kind == "a class" else own.Count()
    run = shoal.run(env, folder="run", **TINY)
    assert run.evaluate(2)[0].return_mean == 5
    if kind == "a class":
        assert run.config.env == "mine:Count"
        assert shoal.load("run").evaluate(2)[0].return_mean == 5
    else:
        message = r"run needs its env mine:Count\(\): .*; give it: shoal.load\('run', env=...\)"
        with pytest.raises(shoal.ShoalError, match=message):
            shoal.load("run").evaluate(2)
        assert shoal.load("run", env=env).evaluate(2)[0].return_mean == 5


def test_a_learner_and_an_exchange(own):
    config = shoal.preset("CartPole-v1", learners=2, **TINY)
    run = shoal.run(config, learner=own.learner, exchange=own.follow, local_updates=1, folder="run")
    assert run.config.own.learner == "mine:learner"
    assert [one.exchange for one in run.config.exchanges] == ["mine:follow"]
    assert 6 in sizes(run)
    assert shoal.load("run").evaluate(2) == run.evaluate(2)
    learner, follow = own.learner, own.follow
    forget()
    with pytest.raises(shoal.ShoalError, match=r"needs its exchange mine:follow: .* exchange=...\)"):
        shoal.load("run")
    loaded = shoal.load("run", exchange=follow, learner=learner)
    assert loaded.evaluate(2) == run.evaluate(2)


def test_an_exchange_that_is_made_already(own):
    config = shoal.preset("CartPole-v1", learners=2, exchange="average", **TINY)
    report = next(shoal.train(config, exchange=own.settled))
    assert report.trainer.parts.config.own.exchange == "mine:settled"
    assert "exchange/bytes" not in report.metrics
    given = make_trainer(shoal.preset("CartPole-v1", learners=2, **{"own.exchange": "mine:settled"}, **TINY))
    assert given.parts.exchange is own.settled


def test_a_name_is_a_setting_and_a_path_a_part(own):
    read = lambda **parts: read_call("CartPole-v1", dict.fromkeys(OwnParts._fields) | parts, {"learners": 2})
    config, found = read(network="impala", exchange="average")
    assert (config.algo.network.images, config.own.network, found) == ("impala", None, OwnParts())
    assert config.exchanges[0].exchange == "average"
    config, found = read(network="mine:network", learner="mine:learner", exchange="mine:follow")
    assert (config.own.network, config.own.learner, found) == ("mine:network", "mine:learner", OwnParts())
    assert config.exchanges[0].exchange == "mine:follow"
    config, found = read(env=own.Count, network=own.network)
    assert (config.env, found.env, found.trained) == ("mine:Count", own.Count, {"network": own.network})


def test_no_environment():
    with pytest.raises(shoal.ShoalError, match="no environment is given"):
        shoal.run(steps=64)
