"""Devices: how learners and environments are divided, and that the numbers do not depend on it."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.distributed.mesh import (
    choose_shape,
    compiler_options,
    from_device_order,
    make_mesh,
    own_shard,
    psum,
    read_shape,
    to_device_order,
)
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.learners import minibatches
from shoal.learners.minibatches import Strata, stratify
from shoal.learners.ppo import PPOConfig
from shoal.learners.td3 import TD3Config
from shoal.settings import with_settings
from shoal.training import program
from shoal.training.config import TrainConfig
from shoal.training.loop import progress_reports, train
from shoal.training.parts import mesh_for
from shoal.training.profile import Profile
from shoal.training.program import make_trainer

jax.devices()  # two of them, before a trainer divides the cores its own way

PPO = with_settings(
    PPOConfig(),
    num_envs=4,
    num_steps=16,
    num_minibatches=2,
    update_epochs=3,
    hidden=(8,),
    learning_rate=0.01,
    norm_obs=True,
    norm_reward=True,
    target_kl=0.05,
)
CONFIG = TrainConfig("CartPole-v1", algo=PPO, steps=64 * 6, learners=2, seed=3, reports=6)
STAR = ExchangeConfig("neighbours", topology="star", local_updates=2)  # more edges on one device than another
RUNS = {"alone": CONFIG, "star": replace(CONFIG, exchanges=(STAR,), learners=4)}


def assert_close(a, b, rtol=1e-4, atol=1e-5):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), a, b)


@cache
def trainer_on(mesh, run):
    """The one that runs in folders take, too."""
    config = RUNS[run]
    trainer = program.make_trainer(config, mesh=mesh_for(config, make(config.env).spec, mesh))
    assert trainer.parts.mesh.devices.shape == read_shape(mesh)
    return trainer


@cache
def advanced(mesh, updates, run="alone"):
    trainer = trainer_on(mesh, run)
    return trainer.advance(trainer.init(), np.int32(updates))


@pytest.mark.slow
def test_programs_compiled_as_users_have_them_say_the_same(monkeypatch):
    """These tests name a level in XLA_FLAGS, which is heeded; users name none."""
    assert compiler_options(make_mesh(1)) == {}
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert compiler_options(make_mesh(1)) == {"xla_backend_optimization_level": 2}
    trainer = make_trainer(CONFIG, mesh="1x1")
    state, _ = trainer.advance(trainer.init(), np.int32(1))
    assert_close(state.cohort.params, advanced("1x1", 1)[0].cohort.params)


@pytest.mark.parametrize("updates", [1, 5])
def test_a_learner_shared_by_two_devices_is_the_one_on_one(updates):
    """Parameters, moments, running returns, scores and metrics, with minibatches and a KL to stop at."""
    (one, progress), (two, shared) = advanced("1x1", updates), advanced("1x2", updates)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-5), one.cohort.params, two.cohort.params)
    assert_close(one.cohort.statistics, two.cohort.statistics)
    assert_close(one.cohort.private, two.cohort.private)
    assert_close(one.envs.step.obs, two.envs.step.obs)
    assert_close(one.envs.episodes, two.envs.episodes)
    assert_close(progress.metrics, shared.metrics, rtol=1e-3)
    assert progress.valid_steps.tolist() == shared.valid_steps.tolist()


def test_both_devices_hold_the_same_learner_and_other_environments():
    state, _ = advanced("1x2", 5)
    for leaf in jax.tree.leaves(state.cohort.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        assert first.tobytes() == second.tobytes()
    first, second = (np.asarray(shard.data) for shard in state.envs.step.obs.addressable_shards)
    assert first.shape == (2, 2, 4)
    assert not np.any(np.all(first[:, :, None] == second[:, None], -1))
    assert state.cohort.private.discounted_return.shape == (2, 4)


@pytest.mark.parametrize(("objective", "norm_adv"), [("clip", "batch"), ("kl", "none")])
@pytest.mark.slow
def test_every_reduction_is_over_all_devices(objective, norm_adv):
    algo = PPOConfig(num_envs=4, num_steps=8, hidden=(8,), objective=objective, norm_adv=norm_adv)
    config = TrainConfig("Pendulum-v1", algo=algo, steps=32, seed=1)
    (one,), (two,) = (list(train(config, mesh=mesh)) for mesh in ("1x1", "1x2"))
    assert_close(one.state.cohort.params, two.state.cohort.params)
    assert_close(one.metrics, two.metrics, rtol=1e-3)


@pytest.mark.parametrize(("num_steps", "num_envs", "parts"), [(8, 8, 2), (16, 4, 4), (5, 16, 4), (64, 8, 1)])
def test_minibatches_are_the_same_however_environments_are_divided(num_steps, num_envs, parts):
    samples = np.arange(num_steps * num_envs).reshape(num_steps, num_envs)

    def made(shards):
        strata = stratify(num_steps, num_envs, parts, shards)
        shuffle = partial(
            minibatches.shuffle_blocks,
            num_epochs=2,
            num_steps=num_steps,
            strata=strata,
            num_minibatches=parts,
            shards=shards,
        )

        def device(key, share):
            arrange = lambda blocks: minibatches.gather_minibatches(share.reshape(-1), blocks)
            return jax.vmap(arrange)(shuffle(key))

        shares = np.stack(np.split(samples, shards, axis=1))
        keys = jax.random.split(jax.random.key(1), 1)
        if shards == 1:
            return jax.jit(device)(keys[0], samples)
        arranged = jax.jit(jax.vmap(device, (None, 0), axis_name="data"))(keys[0], shares)
        return np.moveaxis(arranged, 0, 2).reshape(2, parts, -1)

    whole = np.sort(made(1), -1)
    assert np.all(np.sort(whole.reshape(2, -1)) == samples.reshape(-1))
    assert parts == 1 or np.any(whole[0] != whole[1])
    for shards in (2, 4):
        assert np.array_equal(np.sort(made(shards), -1), whole)


def test_minibatches_that_the_devices_cannot_share():
    assert stratify(3, 4, 6) == Strata(1, 2, 2)
    with pytest.raises(ShoalError, match="6 minibatches do not divide the 3 steps x 1 environments"):
        stratify(3, 4, 6, shards=4)


def test_a_sum_over_devices_keeps_types_and_shapes():
    tree = {"a": jnp.arange(6.0).reshape(3, 2, 1), "b": jnp.arange(3), "c": jnp.ones((3,))}
    found = jax.vmap(lambda x: psum(x, ("data",)), axis_name="data")(tree)
    assert found["b"].dtype == jnp.int32
    equal = lambda x, y: np.testing.assert_array_equal(x, np.broadcast_to(y.sum(0), x.shape))
    jax.tree.map(equal, found, tree)
    assert psum(tree, ()) is tree
    assert own_shard(jnp.arange(4), 0, 1).tolist() == [0, 1, 2, 3]


def test_rows_are_laid_out_device_by_device_and_back():
    mesh = make_mesh(2, 4, shape=(1, 2))
    x = np.arange(2 * 4 * 3).reshape(2, 4, 3)
    laid_out = to_device_order(x, mesh)
    assert laid_out[:4].tolist() == x[:, :2].reshape(4, 3).tolist()  # the first device's
    assert np.array_equal(from_device_order(laid_out, mesh, 2), x)
    assert to_device_order(x[..., :0], mesh).shape == (8, 0)  # parts of a simulator's state may be empty


@pytest.mark.parametrize("text", ["4", "2x", "0x2", "axb", "2x2x2", "-1x2"])
def test_a_mesh_that_is_none(text):
    with pytest.raises(ShoalError, match="a mesh is LEARNERSxDATA"):
        read_shape(text)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((3, 1), "mesh 3x1 needs 3 devices, but there are 2"),
        ((2, 1), "mesh 2x1: 2 does not divide 3 learners"),
        ((1, 2), "mesh 1x2: 2 does not divide 5 environments per learner"),
    ],
)
def test_a_mesh_that_does_not_fit(shape, told):
    with pytest.raises(ShoalError, match=told):
        make_mesh(3, 5, shape=shape)


def test_a_replay_is_not_divided():
    config = TrainConfig("Pendulum-v1", algo=TD3Config(num_envs=2), steps=100)
    with pytest.raises(ShoalError, match=r"mesh 1x2: only ppo's environments can be divided; use 2x1"):
        make_trainer(config, mesh="1x2")


class Device:
    """As much of a device as choosing a mesh looks at."""

    def __init__(self, platform):
        self.platform = platform


@pytest.mark.parametrize(
    ("learners", "envs", "platform", "count", "shape"),
    [
        (64, 4, "cpu", 8, (8, 1)),
        (5, 4, "cpu", 2, (1, 1)),  # cores divide learners only
        (1, 8, "cpu", 8, (1, 1)),
        (1, 8, "gpu", 8, (1, 8)),
        (4, 8, "gpu", 8, (4, 2)),
        (3, 5, "gpu", 8, (1, 5)),
    ],
)
def test_a_mesh_is_chosen_from_the_devices_there_are(learners, envs, platform, count, shape):
    assert choose_shape(learners, envs, [Device(platform)] * count) == shape


@pytest.mark.parametrize(
    ("run", "before", "after"),
    [
        ("alone", "1x2", "2x1"),
        pytest.param("alone", "1x1", "1x2", marks=pytest.mark.slow),
        pytest.param("star", "2x1", "1x1", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_on_other_devices(go_on, tmp_path, run, before, after):
    assert go_on(RUNS[run], tmp_path, until=64 * 3, mesh=before)[0] is None
    resumed, found = go_on(RUNS[run], tmp_path, mesh=after)
    assert resumed == 64 * 3
    expected, _ = advanced("1x1", 6, run)
    assert_close(found.state.cohort.params, expected.cohort.params, atol=1e-4)
    assert_close(found.state.envs.episodes.returns, expected.envs.episodes.returns)


def test_a_profile_times_the_parts_and_changes_nothing():
    trainer, profile = trainer_on("2x1", "alone"), Profile()
    reports = list(progress_reports(trainer, trainer.init(), profile))
    expected, _ = advanced("2x1", 6)
    assert_close(reports[-1].state.cohort.params, expected.cohort.params)
    assert profile.iterations == 6
    for part in ("rollout", "optimisation", "exchange"):
        seconds = [report.metrics[f"seconds/{part}"] for report in reports if report.due]
        assert np.all(np.array(seconds) > 0)
        assert np.isclose(np.mean(seconds), profile.table()[part], rtol=1e-5)
    assert reports[0].metrics["seconds/logging"][0] == 0 < reports[-1].metrics["seconds/logging"][0]


@pytest.mark.slow
def test_a_profile_of_a_replay_learner():
    algo = TD3Config(num_envs=2, batch_size=8, buffer_size=64, hidden=(8,), learning_starts=4)
    config = TrainConfig("Pendulum-v1", algo=algo, steps=40, seed=1, reports=2)
    trainer = make_trainer(config)
    timed = list(progress_reports(trainer, trainer.init(), Profile()))[-1]
    plain = list(train(config))[-1]
    assert_close(timed.state.cohort.params, plain.state.cohort.params)
