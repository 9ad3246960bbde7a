"""Training: members and solo runs, one device and two, one learner lost and the others."""

import sys
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners.ppo import PPOConfig
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.loop import progress_reports, train
from shoal.training.program import make_trainer

jax.devices()  # two of them, before a trainer divides the cores its own way

MODULE = sys.modules["shoal.training.loop"]  # `shoal.train` is the function
PPO = PPOConfig(
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden=(8,),
    learning_rate=0.01,
    norm_obs=True,
    norm_reward=True,
)
CONFIG = TrainConfig("CartPole-v1", algo=PPO, steps=16 * 24, learners=2, seed=3, reports=6)


def test_a_bound_on_observations_that_are_not_standardised_is_said_to_do_nothing():
    with pytest.warns(RuntimeWarning, match="^clip_obs has no effect without norm_obs; add --norm-obs$"):
        make_trainer(with_clip_obs(norm_obs=False))
    make_trainer(with_clip_obs(norm_obs=True))  # a warning is an error here


def with_clip_obs(norm_obs):
    return replace(CONFIG, algo=with_settings(PPO, norm_obs=norm_obs, clip_obs=5.0))


@cache
def trainer(kind):
    """The cohort of two on two devices, the same on one, and its second member alone."""
    changes = {"learners": 1, "first_member": 1} if kind == "solo" else {}
    return make_trainer(TrainConfig(**vars(CONFIG) | changes), mesh="1x1" if kind == "one device" else None)


@cache
def begun(kind):
    return trainer(kind).init()


@cache
def advanced(kind):
    """After 12 iterations: the state, and the pulse of the last."""
    return trainer(kind).advance(begun(kind), jnp.int32(12))


def bits(tree):
    """Every leaf as NumPy bits, so that NaN equals itself and -0 does not equal 0."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves = [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]
    return [(leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes()) for leaf in leaves]


@jax.jit
def rows(state, index):
    """Rows of everything in a training state that has a learner axis."""
    num_learners = len(state.keys)
    world = trees.merge_axes(trees.take(trees.split_axis(state.envs.state, num_learners), index))
    pick = partial(trees.take, index=index)
    worlds = state.envs._replace(state=world, step=pick(state.envs.step), episodes=pick(state.envs.episodes))
    return state._replace(cohort=pick(state.cohort), envs=worlds, keys=state.keys[index])


def assert_close(a, b):
    def close(x, y):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)

    jax.tree.map(close, a, b)


def test_compilations_are_counted(compilations):
    number = jnp.float32(1)
    with compilations() as compiled:
        jax.jit(lambda x: x * 3 + 1)(number)
    assert len(compiled) == 1


def test_the_cohort_is_spread_over_the_devices():
    assert trainer("cohort").parts.mesh.shape == {"learners": 2, "data": 1}
    weight = advanced("cohort")[0].cohort.params.actor.layers[0].weight
    assert [shard.data.shape for shard in weight.addressable_shards] == [(1, 4, 8)] * 2


def test_a_state_keeps_its_types():
    """A weak type would change in the loop or on the way to the disk, and compile another program."""
    types = [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(begun("cohort"))]
    assert not [kind for kind in types if kind.startswith("~")]
    assert types == [str(jax.typeof(leaf)) for leaf in jax.tree.leaves(advanced("cohort")[0])]


def test_a_member_is_its_solo_run():
    """At the start to the bit; later up to the rounding of sums that a batched program orders otherwise."""
    second = np.array([1])
    assert bits(rows(begun("cohort"), second)) == bits(begun("solo"))
    (cohort, progress), (solo, solo_pulse) = advanced("cohort"), advanced("solo")
    assert_close(rows(cohort, second), solo)
    assert_close(jax.tree.map(lambda x: x[second], jax.device_get(progress)), solo_pulse)
    assert bits(rows(cohort, second).envs.episodes) == bits(solo.envs.episodes)
    assert cohort.envs.episodes.finished.min() > 0


def test_every_iteration_draws_anew():
    """The same state under another iteration's number: other noise, other episodes."""
    run, state = trainer("cohort"), begun("cohort")
    later = state._replace(iteration=jax.device_put(jnp.int32(1), state.iteration.sharding))
    first, second = (run.advance(s, jnp.int32(1))[0] for s in (state, later))
    assert bits(first.envs.state.state) != bits(second.envs.state.state)


def test_members_differ():
    for leaf in jax.tree.leaves(jax.device_get(advanced("cohort")[0].cohort.params)):
        assert np.all(leaf[0] != leaf[1])


def test_two_devices_are_one():
    assert bits(begun("cohort")) == bits(begun("one device"))
    for two, one in zip(advanced("cohort"), advanced("one device"), strict=True):
        assert_close(two, one)
    episodes = [bits(advanced(kind)[0].envs.episodes) for kind in ("cohort", "one device")]
    assert episodes[0] == episodes[1]


def test_permuted_learners_give_the_permuted_result():
    swap = np.array([1, 0])
    run = trainer("one device")
    swapped, _ = run.advance(rows(begun("one device"), swap), jnp.int32(12))
    assert bits(swapped) == bits(rows(advanced("one device")[0], swap))


@pytest.mark.parametrize("kind", ["cohort", "one device"])
def test_nan_in_one_learner_leaves_the_other_untouched(kind):
    run, state = trainer(kind), begun(kind)
    poison = jax.jit(lambda tree: jax.tree.map(lambda x: x.at[0].set(jnp.nan), tree))(state.cohort.params)
    poisoned = state._replace(cohort=state.cohort._replace(params=poison))
    lost, progress = run.advance(poisoned, jnp.int32(12))
    well, well_pulse = advanced(kind)
    other = np.array([1])
    assert bits(rows(lost, other)) == bits(rows(well, other))
    progress, well_pulse = jax.device_get((progress, well_pulse))
    second = lambda tree: jax.tree.map(lambda x: x[other], tree)
    assert bits(second(progress)) == bits(second(well_pulse))
    assert np.isnan(progress.metrics["loss/total"][0])
    assert np.isfinite(progress.metrics["loss/total"][1])


def test_many_iterations_at_once_are_as_many_one_by_one(compilations):
    run, state = trainer("cohort"), begun("cohort")
    whole, whole_pulse = advanced("cohort")
    counts = [jnp.int32(count) for count in (1, 4, 7)]
    with compilations() as compiled:
        for count in counts:
            state, progress = run.advance(state, count)
    assert not compiled
    assert bits(state) == bits(whole)
    assert bits(progress.metrics) == bits(whole_pulse.metrics)


def test_a_changed_hyperparameter_compiles_nothing_and_takes_effect(compilations):
    run, state, (usual, usual_pulse) = trainer("cohort"), begun("cohort"), advanced("cohort")
    count, hypers = jnp.int32(12), state.cohort.hypers
    rates = jax.device_put(2 * hypers.learning_rate, hypers.learning_rate.sharding)
    cohort = state.cohort._replace(hypers=hypers._replace(learning_rate=rates))
    with compilations() as compiled:
        faster, progress = run.advance(state._replace(cohort=cohort), count)
    assert not compiled
    assert bits(faster.cohort.params) != bits(usual.cohort.params)
    rates, usual_rates = progress.metrics["learning_rate"], usual_pulse.metrics["learning_rate"]
    np.testing.assert_allclose(rates, 2 * usual_rates, rtol=1e-6)


@pytest.mark.parametrize("pulse_seconds", [0.0, 1e9])
def test_where_rows_fall_depends_on_the_configuration_alone(monkeypatch, pulse_seconds):
    """However often Python looks up, the rows are those of every fourth iteration, and the same numbers."""
    monkeypatch.setattr(MODULE, "PROGRESS_SECONDS", pulse_seconds)
    every = list(progress_reports(trainer("cohort"), begun("cohort")))
    due = [report for report in every if report.due]
    assert [report.iteration for report in due] == [4, 8, 12, 16, 20, 24]
    assert [report.step for report in due] == [64, 128, 192, 256, 320, 384]
    assert (len(every) == 24) == (pulse_seconds == 0)
    state, progress = advanced("cohort")
    assert bits(due[2].state) == bits(state)
    for name, values in jax.device_get(progress.metrics).items():
        np.testing.assert_array_equal(due[2].metrics[name], values)
    np.testing.assert_allclose(due[-1].metrics["learning_rate"], 0.01 / 24, rtol=1e-5)
    assert due[-1].clock.valid_steps == sum_valid(due[-1].state)


def sum_valid(state):
    """CartPole's valid steps: the lengths of all episodes, which the ring holds as long as there are few."""
    episodes = state.envs.episodes
    assert episodes.finished.max() <= 100
    return np.nansum(episodes.lengths) + np.sum(episodes.running_length)


def test_scores_are_raw_though_rewards_are_normalised():
    """CartPole pays 1 a step, so a return is a length."""
    episodes = advanced("cohort")[0].envs.episodes
    assert bits(episodes.returns) == bits(episodes.lengths)
    assert np.all(advanced("cohort")[0].cohort.statistics.returns.count > 0)


def test_training_is_an_iterator_of_rows_that_counts_valid_steps():
    reports = list(train(CONFIG))
    assert [report.iteration for report in reports] == [4, 8, 12, 16, 20, 24]
    assert bits(reports[2].state) == bits(advanced("cohort")[0])
    for report in reports:
        clock, steps = report.clock, sum_valid(report.state)
        assert clock.valid_steps == steps < 2 * report.step  # the resets do not count
        assert 0 < clock.compile_seconds < clock.seconds
        np.testing.assert_allclose(report.steps_per_second, steps / clock.seconds)
        compiled = clock.seconds - clock.compile_seconds
        np.testing.assert_allclose(report.steps_per_second_compiled, steps / compiled)
        assert not report.bad_rewards.any()


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"learners": 0}, {"reports": 0}, {"seed": -1}, {"first_member": -1}]
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ShoalError, match=next(iter(change))):
        TrainConfig("CartPole-v1", **change)
