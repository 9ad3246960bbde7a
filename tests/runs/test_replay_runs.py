"""Runs of learners that remember: alone and in a cohort, resumed, averaged, selected, evaluated."""

import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.exploration import PRIORS
from shoal.exchanges.mixing import average
from shoal.learners.dqn import DQNConfig
from shoal.learners.sac import SACConfig
from shoal.learners.td3 import TD3Config
from shoal.ops import trees
from shoal.runs.learners import choose_learners, load_learners
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.evaluate import play_episodes
from shoal.training.loop import train
from shoal.training.program import make_trainer
from tests.probes import continuous_target

jax.devices()  # two of them, before a trainer divides the cores its own way

MODULE = sys.modules["shoal.training.loop"]  # `shoal.train` is the function
SMALL = {
    "num_envs": 2,
    "num_steps": 4,
    "batch_size": 8,
    "buffer_size": 48,
    "learning_starts": 24,
    "learning_rate": 0.01,
    "n_step": 3,
    "hidden": (8,),
}
TD3 = TrainConfig(
    "jax:Pendulum-v1",
    algo=with_settings(TD3Config(), **SMALL, exploration="ou", gradient_steps=3),
    steps=8 * 16,
    learners=2,
    reports=4,
)
DQN = TrainConfig(
    "jax:CartPole-v1",
    algo=with_settings(DQNConfig(), **SMALL, gradient_steps=2, target_every=16, exploration_fraction=0.5),
    steps=8 * 16,
    learners=2,
    reports=4,
)
SAC = replace(TD3, algo=with_settings(SACConfig(), **SMALL, exploration="ou", gradient_steps=3))
RUNS = {"td3": TD3, "dqn": DQN}
SLOW_TD3 = [pytest.param("td3", marks=pytest.mark.slow), "dqn"]
"""Its programs take long to compile; quick ones of the others try the same."""
NORMED = {
    name: replace(run, algo=replace(run.algo, norm_obs=True)) for name, run in (RUNS | {"sac": SAC}).items()
}


def bits(tree):
    """Every leaf as NumPy bits."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves = [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]
    return [(leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes()) for leaf in leaves]


def buffer(cohort):
    memory = cohort.private
    return memory.buffer if hasattr(memory, "buffer") else memory


@cache
def advanced(name):
    """A run's state before and after sixteen iterations, and its last pulse."""
    trainer = make_trainer(RUNS[name])
    begun = trainer.init()
    return (begun, *trainer.advance(begun, jnp.int32(16)))


@pytest.mark.parametrize("name", SLOW_TD3)
def test_a_member_is_its_solo_run_bit_for_bit(name):
    """One of two on two devices, and the same alone; it has learned by then, and its ring has gone round."""
    begun, cohort, progress = advanced(name)
    trainer = make_trainer(replace(RUNS[name], learners=1, first_member=1))
    alone, solo_pulse = trainer.advance(trainer.init(), jnp.int32(16))
    second = lambda tree: jax.tree.map(lambda x: x[1:], jax.device_get(tree))
    assert bits(second(cohort.cohort)) == bits(alone.cohort)
    assert bits(second(progress.metrics)) == bits(solo_pulse.metrics)
    assert bits(cohort.cohort.params) != bits(begun.cohort.params)
    assert bits(trees.take(cohort.cohort.params, 0)) != bits(trees.take(cohort.cohort.params, 1))
    assert (buffer(cohort.cohort).ring.count > 48).all()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_four_members_are_the_runs_of_two(name):
    """Two to a device, computed together: the same but for rounding."""
    trainer = make_trainer(replace(RUNS[name], learners=4))
    four, _ = trainer.advance(trainer.init(), jnp.int32(16))
    _, two, _ = advanced(name)
    pair = jax.tree.map(lambda x: x[:2], four.cohort)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    jax.tree.map(close, pair, two.cohort)


@pytest.mark.parametrize("name", [*SLOW_TD3, "sac"])
@pytest.mark.parametrize("until", [16, 72])
def test_stopped_and_resumed_a_run_ends_as_if_it_had_not_been(go_on, name, until, tmp_path, monkeypatch):
    """During the random steps, and after learning began: buffer, tail, noise and counts are saved."""
    monkeypatch.setattr(MODULE, "PROGRESS_SECONDS", 0.0)
    config = NORMED[name]
    straight, expected = go_on(config, tmp_path / "straight")
    assert straight is None
    assert go_on(config, tmp_path / "stopped", until=until)[0] is None
    resumed, found = go_on(config, tmp_path / "stopped")
    assert resumed == until
    assert bits(found.state) == bits(expected.state)
    for key in expected.metrics:
        np.testing.assert_array_equal(found.metrics[key], expected.metrics[key], err_msg=key)
    last = f"step_{expected.step:09d}*.safetensors"
    saved = [sorted((tmp_path / run / "checkpoints").glob(last)) for run in ("straight", "stopped")]
    assert len(saved[0]) == 2  # the state and the replay
    for one, other in zip(*saved, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.slow
def test_a_finished_run_is_evaluated_greedily_in_other_environments(go_on, name, tmp_path):
    """As many as asked for, whatever it trained in, with the same answer each time; its mean too."""
    config = replace(NORMED[name], exchanges=(ExchangeConfig("average", local_updates=5),))
    go_on(config, tmp_path)
    opened = load_learners(tmp_path)
    names, cohort = choose_learners(opened, "all")
    assert names == [0, 1, "mean"]
    once, twice = (play_episodes(opened.recipe, opened.learner, cohort, episodes=3)[0] for _ in range(2))
    assert once.shape == (3, 3)
    np.testing.assert_array_equal(once, twice)
    assert np.isfinite(once).all()


@pytest.mark.parametrize("name", SLOW_TD3)
def test_what_the_update_did_is_in_the_rows(name):
    """No updates before learning starts at 24, then as many per step as the settings say."""
    reports = [*train(replace(NORMED[name], reports=16))]
    ratio = RUNS[name].algo.num_gradients / 8
    told = [report.metrics["updates_per_step"].tolist() for report in reports]
    assert told == [[0.0, 0.0]] * 2 + [[ratio, ratio]] * 14
    sizes = [report.metrics["replay_size"][0] for report in reports]
    assert sizes[0] == 8 - 2 * 2  # the last two steps of both environments wait
    assert sizes[-1] == 48
    assert (np.diff(sizes) >= 0).all()


# Exchanges


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_averaged_learners_have_one_mind_and_memories_of_their_own(name):
    """Nobody's replay is what it would not have been, and nobody's is another's."""
    config = replace(RUNS[name], exchanges=(ExchangeConfig("average", local_updates=1),))
    trainer = make_trainer(config)
    state = trainer.init()
    before, _ = trainer.advance(state, jnp.int32(2))  # still random: the exchange can change no action
    after, _ = trainer.advance(before, jnp.int32(6))
    one, two = (trees.take(after.cohort.params, i) for i in range(2))
    assert bits(one) == bits(two)
    memories = [trees.take(buffer(after.cohort).ring.data, i) for i in range(2)]
    assert bits(memories[0].obs) != bits(memories[1].obs)
    alone = make_trainer(replace(config, exchanges=()))
    never_met, _ = alone.advance(alone.init(), jnp.int32(2))
    assert bits(before.cohort.private) == bits(never_met.cohort.private)
    moments = [trees.take(after.cohort.opt_state, i) for i in range(2)]
    assert bits(moments[0]) != bits(moments[1])


@pytest.mark.slow
def test_an_exchange_is_not_shown_what_learners_remember():
    shown, real = [], average()

    def init(cohort):
        shown.append(cohort.private)
        return real.init(cohort)

    def apply(key, memory, cohort, standing):
        shown.append(cohort.private)
        return real.apply(key, memory, cohort, standing)

    trainer = make_trainer(TD3, exchange=real._replace(init=init, apply=apply))
    trainer.advance(trainer.init(), jnp.int32(1))
    assert len(shown) >= 2
    assert all(memory == () for memory in shown)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_learners_who_share_every_gradient_stay_equal_bit_for_bit(name):
    """Four on two devices, each with its own episodes and its own samples of them."""
    config = replace(RUNS[name], learners=4, exchanges=(ExchangeConfig("gradients"),))
    trainer = make_trainer(config)
    assert trainer.parts.mesh.shape["learners"] == 2
    begun = trainer.init()
    state, _ = trainer.advance(begun, jnp.int32(8))
    assert bits(begun.cohort.params) != bits(state.cohort.params)
    for i in range(1, 4):
        assert bits(trees.take(state.cohort.params, i)) == bits(trees.take(state.cohort.params, 0))
        assert bits(trees.take(state.cohort.opt_state, i)) == bits(trees.take(state.cohort.opt_state, 0))
    assert bits(trees.take(buffer(state.cohort), 1)) != bits(trees.take(buffer(state.cohort), 0))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_neighbours_and_anchors_reach_the_loss(name):
    """Nothing to pay before the first meeting, then something; in rows and all."""
    algo = replace(RUNS[name].algo, prox_coef=0.1)
    exchanges = (ExchangeConfig("neighbours", local_updates=4), ExchangeConfig("gossip", local_updates=4))
    reports = [*train(replace(RUNS[name], algo=algo, exchanges=exchanges, reports=16))]
    paid = np.array([report.metrics["loss/neighbours"] for report in reports])
    assert not paid[:4].any()
    assert (paid[4:] > 0).all()
    prox = "loss/critic_prox" if name == "td3" else "loss/prox"
    held = np.array([report.metrics[prox] for report in reports])
    assert not held[:2].any()
    assert (held[3:] > 0).all()


# Populations

PBT = TrainConfig(
    "target",
    algo=TD3Config(**SMALL | {"n_step": 1, "buffer_size": 100}),
    steps=8 * 24,
    learners=4,
    reports=1,
    exchanges=(
        with_settings(
            ExchangeConfig("truncation", local_updates=8), fraction=0.5, min_episodes=5, resample=0.0
        ),
    ),
)


@pytest.mark.slow
def test_a_population_of_td3_copies_minds_and_never_memories(compilations):
    """Twice: the worst two get the best two's networks, moments and changed hypers, and keep their past."""
    trainer = make_trainer(PBT, recipe=from_jax(continuous_target()))
    state = trainer.init()
    assert len({*np.asarray(state.cohort.hypers.learning_rate).tolist()}) == 4
    replaced, seven, one = 0, jnp.int32(7), jnp.int32(1)
    trainer.advance(state, one)
    for _ in range(2):
        with compilations() as compiled:
            before, _ = trainer.advance(state, seven)
            state, progress = trainer.advance(before, one)
        assert not compiled
        parent = np.asarray(progress.metrics["population/parent"]).astype(int)
        cohort = state.cohort
        for child in np.flatnonzero(parent != np.arange(4)):
            replaced += 1
            mine, theirs = (trees.take(cohort, i) for i in (child, parent[child]))
            assert bits(mine.params) == bits(theirs.params)
            assert bits(mine.opt_state) == bits(theirs.opt_state)
            assert bits(mine.private) != bits(theirs.private)
            assert bits(mine.private.buffer.ring.data.obs) != bits(theirs.private.buffer.ring.data.obs)
            for name in ("learning_rate", "exploration_noise"):
                own, given = (float(getattr(one.hypers, name)) for one in (mine, theirs))
                bounded = np.clip(np.array([0.8, 1.2]) * given, PRIORS[name].low, PRIORS[name].high)
                assert np.isclose(own, bounded, rtol=1e-5).any()
            for name in ("gamma", "tau", "target_noise", "actor_learning_rate"):
                assert getattr(mine.hypers, name) == getattr(theirs.hypers, name)
        counts = buffer(before.cohort).ring.count.tolist()
        assert max(counts) < 92  # nothing is overwritten yet
        for i, count in enumerate(counts):
            rows = [buffer(c).ring.data.obs[i, :count] for c in (before.cohort, cohort)]
            np.testing.assert_array_equal(*rows)
    assert replaced == 4


@pytest.mark.slow
def test_the_next_update_is_made_with_the_changed_rate(compilations):
    """A learner whose rate became 0 no longer moves, neither critics nor actor; the others do."""
    trainer = make_trainer(replace(TD3, algo=replace(TD3.algo, policy_delay=1)))
    state, _ = trainer.advance(trainer.init(), jnp.int32(6))
    hypers = state.cohort.hypers._replace(learning_rate=jnp.array([0.0, 0.01]))
    hypers = jax.device_put(hypers, jax.tree.map(lambda x: x.sharding, state.cohort.hypers))
    changed, one = state._replace(cohort=state.cohort._replace(hypers=hypers)), jnp.int32(1)
    with compilations() as compiled:
        after, _ = trainer.advance(changed, one)
    assert not compiled
    still = jax.tree.map(
        lambda a, b: np.any(a != b, tuple(range(1, a.ndim))),
        (state.cohort.params.critic, state.cohort.params.actor),
        (after.cohort.params.critic, after.cohort.params.actor),
    )
    assert not any(leaf[0] for leaf in jax.tree.leaves(still))
    assert all(leaf[1] for leaf in jax.tree.leaves(still))
