"""Two ways to the same numbers: learning together and learning alone, stopped and straight through."""

import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.registry import make
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.mixing import average
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.runs.session import open_session, run_session
from shoal.settings import with_settings
from shoal.training import program
from shoal.training.config import TrainConfig
from shoal.training.parts import mesh_for
from shoal.training.program import make_trainer
from shoal.types import LearnerState, Rollout
from tests.exchanges.meetings import scores

jax.devices()  # two of them, before a trainer divides the cores its own way

MODULE = sys.modules["shoal.training.loop"]  # `shoal.train` is the function
KEY = jax.random.key(8)
SMALL = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 2, "hidden": (8,)}


def bits(tree):
    """Every leaf as NumPy bits, so that NaN equals itself and -0 does not equal 0."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves = jax.device_get([jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)])
    return [(leaf.shape, str(leaf.dtype), leaf.tobytes()) for leaf in leaves]


def assert_close(a, b, rtol=1e-3, atol=1e-5):
    def close(x, y):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)

    jax.tree.map(close, a, b)


# Shared gradients


def random_rollout(num_steps, num_envs, seed):
    """Steps in CartPole's shapes, with ends, cuts and as many resets in every environment."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    flag = lambda step: np.repeat(np.arange(num_steps)[:, None] == step, num_envs, 1)
    return Rollout(
        obs=np.float32(rng.normal(size=(*shape, 4))),
        action=np.int32(rng.integers(0, 2, shape)),
        reward=np.float32(rng.normal(size=shape)),
        terminated=flag(2),
        truncated=flag(5),
        valid=~(flag(3) | flag(6)),
        last_obs=np.float32(rng.normal(size=(num_envs, 4))),
    )


def side_by_side(rollouts):
    """One learner's rollout out of several: their environments, concatenated."""
    join = lambda axis: lambda *x: np.concatenate(x, axis)
    joined = jax.tree.map(join(1), *[r._replace(last_obs=()) for r in rollouts])
    return joined._replace(last_obs=join(0)(*[r.last_obs for r in rollouts]))


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


MOMENTS = {"norm_obs": True, "norm_reward": True, "norm_value": True}


@pytest.mark.parametrize(
    ("num_learners", "change"),
    [(2, MOMENTS | {"objective": "kl", "update_epochs": 2}), pytest.param(4, {}, marks=pytest.mark.slow)],
)
def test_learners_who_average_gradients_are_one_learner_of_all_their_samples(num_learners, change):
    """Over three updates, Adam, the bound on the gradient's norm and all running moments included."""
    spec = make("CartPole-v1").spec
    settings = {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "norm_adv": "none", "hidden": (8,)}
    settings |= change
    many = ppo(with_settings(PPOConfig(), num_envs=2, **settings), spec, LearnerContext(10, axes=("group",)))
    one = ppo(with_settings(PPOConfig(), num_envs=2 * num_learners, **settings), spec, LearnerContext(10))
    first, alone = jax.device_get(jax.jit(lambda key: (many.init(key), one.init(key)))(KEY))
    begun, cohort = alone, stacked([first] * num_learners)
    update, update_alone = jax.jit(jax.vmap(many.update, axis_name="group")), jax.jit(one.update)
    for seed in range(3):
        rollouts = [random_rollout(8, 2, 10 * seed + i) for i in range(num_learners)]
        keys = jax.random.split(KEY, num_learners)
        cohort, _ = jax.device_get(update(keys, cohort, stacked(rollouts)))
        alone, _ = jax.device_get(update_alone(KEY, alone, side_by_side(rollouts)))
        for i in range(num_learners):
            assert_close(trees.take(cohort.params, i), alone.params, rtol=1e-4, atol=1e-5)
            assert_close(trees.take(cohort.statistics, i), alone.statistics, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(cohort.private.kl_coef[i], alone.private.kl_coef)
            assert bits(trees.take(cohort.params, i)) == bits(trees.take(cohort.params, 0))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), alone.params, begun.params)
    assert max(jax.tree.leaves(moved)) > 1e-4
    # Without sharing they would not be one: other samples make another learner.
    others = side_by_side([random_rollout(8, 2, 90 + i) for i in range(num_learners)])
    other, _ = jax.device_get(update_alone(KEY, begun, others))
    same, _ = jax.device_get(update_alone(KEY, begun, side_by_side(rollouts)))
    assert bits(other.params) != bits(same.params)


GRADIENTS = TrainConfig(
    "CartPole-v1",
    algo=with_settings(PPOConfig(), **SMALL, learning_rate=0.01),
    steps=16 * 12,
    learners=4,
    exchanges=(ExchangeConfig("gradients"),),
)


@pytest.mark.slow
@pytest.mark.parametrize("change", [MOMENTS, {"target_kl": 0.003, "update_epochs": 4}])
def test_learners_who_share_every_gradient_stay_equal_bit_for_bit(change):
    """Four on two devices, each in its own episodes, with its own shuffles."""
    config = replace(GRADIENTS, algo=with_settings(GRADIENTS.algo, **change))
    trainer = make_trainer(config)
    assert trainer.parts.mesh.shape["learners"] == 2
    begun = trainer.init()
    state, _ = trainer.advance(begun, np.int32(6))
    cohort = jax.device_get(state.cohort)
    assert bits(begun.cohort.params) != bits(cohort.params)
    assert len(np.unique(np.asarray(state.envs.step.obs)[:, 0], axis=0)) == 4
    for i in range(1, 4):
        for part in (cohort.params, cohort.opt_state, cohort.statistics):
            assert bits(trees.take(part, i)) == bits(trees.take(part, 0))


# Averages of parameters and of gradients


def regression(num_learners):
    """Each learner's own data: rows (L, n, 3) and what they should give (L, n)."""
    rng = np.random.default_rng(8)
    return np.float32(rng.normal(size=(num_learners, 10, 3))), np.float32(rng.normal(size=(num_learners, 10)))


def squared_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def test_averaging_after_every_sgd_step_is_averaging_gradients():
    """w - lr mean_i g_i(w) = mean_i (w - lr g_i(w)), all the way to the minimum over all data."""
    x, y = regression(4)
    exchange, gradient = average(), jax.grad(squared_error)
    state, cohort = jax.jit(exchange.init)(LearnerState({"w": np.zeros((4, 3), np.float32)}, (), (), (), ()))
    w = np.zeros(3, np.float32)

    @jax.jit
    def step(state, cohort, w):
        own = cohort.params["w"] - 0.1 * jax.vmap(gradient)(cohort.params["w"], x, y)
        state, cohort, _ = exchange.apply(KEY, state, cohort._replace(params={"w": own}), scores(4))
        return state, cohort, w - 0.1 * jnp.mean(jax.vmap(gradient, (None, 0, 0))(w, x, y), 0)

    for _ in range(200):
        state, cohort, w = step(state, cohort, w)
        np.testing.assert_allclose(cohort.params["w"], np.tile(w, (4, 1)), rtol=1e-4, atol=1e-6)
    best, *_ = np.linalg.lstsq(np.concatenate(x), np.concatenate(y), rcond=None)
    np.testing.assert_allclose(w, best, atol=1e-4)


def test_averaging_after_several_steps_is_not():
    """Local steps drift toward each learner's own minimum: the average of two is another point."""
    x, y = regression(4)
    gradient = lambda w: 0.2 * np.einsum("lnd,ln->ld", x, np.einsum("lnd,ld->ln", x, w) - y)
    own = shared = np.zeros((4, 3))
    for _ in range(5):
        own = own - 0.1 * gradient(own)
        shared = shared - 0.1 * np.mean(gradient(shared), 0, keepdims=True)
    assert np.abs(np.mean(own, 0) - shared[0]).max() > 1e-3


# Whole federations

FEDERATIONS = {
    "average and neighbours": (
        with_settings(
            ExchangeConfig("average", local_updates=3, participation=0.5, weights="samples"),
            compress="top-k",
            keep=0.1,
            server="momentum",
        ),
        ExchangeConfig("neighbours", local_updates=2),
    ),
    "pairs": (with_settings(ExchangeConfig("gossip", topology="pairs", local_updates=2), compress="int8"),),
}


every_federation = pytest.mark.parametrize(
    "name", ["average and neighbours", pytest.param("pairs", marks=pytest.mark.slow)]
)


def federation(name):
    normed = with_settings(PPOConfig(), **SMALL, learning_rate=0.01, norm_obs=True, norm_reward=True)
    return TrainConfig(
        "CartPole-v1",
        algo=normed,
        steps=16 * 14,
        learners=4,
        seed=5,
        reports=14,
        exchanges=FEDERATIONS[name],
    )


@cache
def trainer(name, devices):
    """On two devices, the one that the sessions below take, too."""
    config = federation(name)
    return program.make_trainer(config, mesh=mesh_for(config, make(config.env).spec, f"{devices}x1"))


@cache
def begun(name, devices):
    return trainer(name, devices).init()


@cache
def advanced(name, devices):
    return trainer(name, devices).advance(begun(name, devices), np.int32(8))


@every_federation
def test_meeting_compiles_nothing_and_many_iterations_are_as_many_one_by_one(name, compilations):
    """Between meetings, at them, and over several of them at once: one program, the same bits."""
    run, state = trainer(name, 2), begun(name, 2)
    whole, whole_pulse = advanced(name, 2)
    with compilations() as compiled:
        for count in (1, 1, 1, 3, 2):
            state, progress = run.advance(state, np.int32(count))
    assert not compiled
    assert bits(state) == bits(whole)
    assert bits(progress.metrics) == bits(whole_pulse.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_federation_on_two_devices_is_the_one_on_one(name):
    """Its state but for the neighbours' policies, which are laid out by device."""
    (two, progress), (one, one_pulse) = advanced(name, 2), advanced(name, 1)
    assert trainer(name, 2).parts.mesh.shape["learners"] == 2
    assert trainer(name, 1).parts.mesh.shape["learners"] == 1
    assert bits(begun(name, 2).cohort) == bits(begun(name, 1).cohort)
    assert_close(two.cohort, one.cohort)
    assert_close(progress, one_pulse)
    assert bits(two.envs.episodes) == bits(one.envs.episodes)
    assert_close(two.exchange.shared, one.exchange.shared)
    if name == "pairs":
        assert_close(two.exchange.per_learner, one.exchange.per_learner)


def test_the_federation_meets_as_often_as_it_says():
    """8 updates: every third of 2 in 4 learners, so 4 meetings of one; all 4 neighbours' 4 times."""
    _, progress = advanced("average and neighbours", 2)
    assert np.sum(progress.metrics["exchange/rounds"]) == 4 + 4 * 4


@pytest.mark.slow
def test_pairs_meet_as_often_as_they_say():
    _, progress = advanced("pairs", 2)
    assert progress.metrics["exchange/rounds"].tolist() == [4] * 4


def carry_on(config, folder, until=None):
    """Go on with the run in `folder` to its end, or to so many steps; where it began, and its last state."""
    opened = open_session(config, folder)
    reports, report = run_session(opened), None
    for report in reports:
        if until is not None and report.step >= until:
            break
    reports.close()
    return opened.resumed_step, report.state


def test_stopped_and_resumed_a_federation_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Stopped after the 7th of 14 updates, between two meetings: copies, counts and policies are saved."""
    monkeypatch.setattr(MODULE, "PROGRESS_SECONDS", 0.0)
    config = federation("average and neighbours")
    straight, expected = carry_on(config, tmp_path / "straight")
    assert straight is None
    assert carry_on(config, tmp_path / "stopped", until=16 * 7)[0] is None
    resumed, found = carry_on(config, tmp_path / "stopped")
    assert resumed == 16 * 7
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert bits(found) == bits(expected)
    saved = [max((tmp_path / run / "checkpoints").glob("*.safetensors")) for run in ("straight", "stopped")]
    assert saved[0].name == saved[1].name
    assert saved[0].read_bytes() == saved[1].read_bytes()
