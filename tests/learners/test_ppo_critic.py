"""A critic with a learning rate and epochs of its own: nothing changes where they are the policy's."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import ShoalError, preset
from shoal.learners import ppo, ppo_batch
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig
from shoal.learners.ppo_optimiser import split
from shoal.settings import with_settings
from shoal.training.loop import train
from tests.learners.lab import KEY, PLAIN, SPECS, lab

RATE = PLAIN.learning_rate
SIX = with_settings(PLAIN, num_minibatches=1, **{"value.epochs": 6})
"""Twice as many epochs for the critic."""
jax.devices()  # two of them, before a trainer divides the cores its own way


def updated(**critic):
    """A learner after one update, with these settings of its critic."""
    here = lab(with_settings(PLAIN, **{f"value.{name}": x for name, x in critic.items()}), "discrete")
    return jax.device_get(here.update(KEY, here.state, lab(PLAIN, "discrete").rollout)[0].params)


def moved(params, part):
    """How far a part of the parameters is from where it began."""
    start = lab(PLAIN, "discrete").state.params
    own = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(getattr(tree, part))])
    return own(params) - own(start)


def with_rate(state, rate):
    """The same learner with another learning rate of its critic."""
    return state._replace(hypers=state.hypers._replace(critic_learning_rate=np.float32(rate)))


@pytest.mark.parametrize("critic", [{"learning_rate": RATE}, {"epochs": PLAIN.update_epochs}])
def test_the_policys_own_numbers_for_the_critic_change_nothing(critic):
    """Two Adams over different parameters are one, and the bound is on the norm of both gradients."""
    pairs = zip(jax.tree.leaves(updated()), jax.tree.leaves(updated(**critic)), strict=True)
    for plain, apart in pairs:
        np.testing.assert_allclose(apart, plain, rtol=1e-5, atol=1e-7)


def test_a_step_is_as_long_as_the_rate_of_its_part():
    """Adam's first step: the critic's is three times as long, the policy's is what it was."""
    once = replace(PLAIN, num_minibatches=1, update_epochs=1)
    here, steps = lab(with_settings(once, **{"value.learning_rate": RATE}), "discrete"), {}
    for rate in (RATE, 3 * RATE):
        after = here.update(KEY, with_rate(here.state, rate), lab(PLAIN, "discrete").rollout)[0]
        steps[rate] = {part: moved(jax.device_get(after.params), part) for part in ("actor", "critic")}
    np.testing.assert_array_equal(steps[3 * RATE]["actor"], steps[RATE]["actor"])
    np.testing.assert_allclose(steps[3 * RATE]["critic"], 3 * steps[RATE]["critic"], rtol=1e-2, atol=1e-6)


def test_more_epochs_change_the_critic_alone():
    same, more = updated(epochs=3), updated(epochs=40)
    np.testing.assert_array_equal(moved(more, "actor"), moved(same, "actor"))
    assert np.linalg.norm(moved(more, "critic")) > 3 * np.linalg.norm(moved(same, "critic"))


@pytest.mark.parametrize("recalculate", [False, True])
def test_the_epochs_beyond_by_hand(recalculate):
    """Gradient after gradient of the value's loss, the targets asked again where they are recalculated."""
    config = with_settings(SIX, **{"value.recalculate": recalculate})
    here = lab(config, "discrete")
    found = here.update(KEY, here.state, lab(PLAIN, "discrete").rollout)[0]
    three = lab(with_settings(config, **{"value.epochs": 3}), "discrete")
    state = three.update(KEY, here.state, lab(PLAIN, "discrete").rollout)[0]
    rollout, before = lab(PLAIN, "discrete").rollout, here.state
    setup = here.setup
    now = ppo.apply_schedules(setup.config.plan, before.hypers, jnp.int32(0), setup.num_updates)

    @jax.jit
    def step(params, opt_state):
        asked = params if recalculate else before.params
        batch = ppo_batch.make_batch(setup, before._replace(params=asked, hypers=now), rollout)
        weight = batch.weight / batch.weight.sum()
        value = lambda critic: (
            0.5 * now.vf_coef * jnp.sum(weight * (net(critic)(batch.obs)[1] - batch.target) ** 2)
        )
        others, critic = split(params)
        net = lambda critic: jax.tree.map(
            lambda a, b: b if a is None else a, others, critic, is_leaf=lambda x: x is None
        )
        grads = jax.grad(value)(critic)
        critic, opt_state = ppo.step_critic(now, critic, opt_state, grads)
        return net(critic), opt_state

    params, opt_state = state.params, state.opt_state
    for _ in range(3):
        params, opt_state = step(params, opt_state)
    for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(found.params), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_policys_adam_does_not_count_the_critics_steps():
    here = lab(SIX, "discrete")
    after = here.update(KEY, here.state, lab(PLAIN, "discrete").rollout)[0]
    counts = (after.opt_state.policy.count, after.opt_state.critic.count)
    assert counts == (SIX.update_epochs, 6) == (3, 6)


def test_annealing_lets_both_rates_fall_and_both_are_told():
    config = with_settings(PLAIN, **{"value.learning_rate": RATE})
    assert config.anneal_lr
    here = lab(config, "discrete")
    state = with_rate(here.state, 0.01)._replace(private=here.state.private._replace(num_updates=np.int32(5)))
    _, metrics = here.update(KEY, state, lab(PLAIN, "discrete").rollout)  # the sixth of ten
    found = [metrics["learning_rate"], metrics["critic_learning_rate"]]
    np.testing.assert_allclose(found, [RATE / 2, 0.005], rtol=1e-6)
    plain = lab(PLAIN, "discrete")
    assert "critic_learning_rate" not in plain.update(KEY, plain.state, plain.rollout)[1]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShoalError, match=r"^value.epochs 3 must be at least update_epochs 4: "):
        with_settings(PPOConfig(), **{"value.epochs": 3})
    with pytest.raises(ShoalError, match=r"^value.learning_rate must be a number above 0 or none, not 0"):
        with_settings(PPOConfig(), **{"value.learning_rate": 0.0})
    shared = lambda key, spec, num_outputs: {"body": jnp.zeros((3, num_outputs + 1))}
    config = with_settings(PPOConfig(), **{"value.epochs": 5})
    with pytest.raises(ShoalError, match="need a network with a part called critic"):
        ppo.ppo(config, SPECS["discrete"], LearnerContext(network=shared)).init(KEY)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "gru", "memory_size": 4, "exchange": "gradients"},
        {"exchange": "average", "share_moments": True, "prox_coef": 0.1, "objective": "kl"},
        {
            "exchange": "truncation",
            "local_updates": 2,
            "evolve": ("critic_learning_rate",),
            "curiosity": True,
        },
    ],
)
def test_it_works_with_the_rest(settings):
    """Whole runs of two learners: numbers are finite, and both parts of the network have moved."""
    settings = {"env": "CartPole-v1", "learners": 2, "reports": 1, "hidden": (8,), "steps": 4 * 32} | settings
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 2}
    critic = {"value.epochs": 3, "value.learning_rate": 0.01}
    config = preset(settings.pop("env"), **sizes, **critic, **settings)
    (report,) = train(config, mesh="1x1")
    assert np.isfinite(report.metrics["loss/total"]).all()
    assert np.isfinite(jax.tree.leaves(report.state.cohort.params)[0]).all()
    expected = 0.01 / 4 if config.algo.anneal_lr else 0.01
    if not config.evolve:
        np.testing.assert_allclose(report.metrics["critic_learning_rate"], expected, rtol=1e-5)
