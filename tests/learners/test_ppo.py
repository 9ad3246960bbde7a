"""PPO for one learner: the arithmetic of its loss, what it may see, and what it must leave alone."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.learners import ppo, ppo_optimiser
from shoal.learners.ppo import Batch, PPOConfig
from shoal.learners.ppo_config import Hypers
from shoal.nets import actor_critic
from shoal.ops import trees
from shoal.settings import with_settings
from tests.learners.lab import (
    KEY,
    ONCE,
    SMALL,
    SPECS,
    assert_equal,
    assert_finite,
    caught_batch,
    differ,
    lab,
    stack,
    twice,
)

# The loss, by hand: two samples with logits (0, 0) now, ratios 1.5 and 0.5, advantages 2 and -2,
# values 3 and 0 that were 1 and 1, and targets 4 and 4; clip_coef 0.2, weights 1/2.

LOSSES = {"clip": (-2.4 + 1.6) / 2, "none": (-3.0 + 1.0) / 2, "kl": (-3.0 + 1.0) / 2}


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(
    ("clip_vloss", "error"), [(False, (0.5 * 1 + 0.5 * 16) / 2), (True, (0.5 * 2.8**2 + 0.5 * 16) / 2)]
)
def test_the_terms_of_the_loss_by_hand(objective, clip_vloss, error):
    state, setup = lab().state, lab().setup
    setup = setup._replace(config=with_settings(PPOConfig(), objective=objective, clip_vloss=clip_vloss))
    hypers = state.hypers._replace(clip_coef=0.2, ent_coef=0.1, vf_coef=0.25)
    state = state._replace(hypers=hypers, private=state.private._replace(kl_coef=2.0))
    old = np.log(np.array([[0.75, 0.25], [0.75, 0.25]]))
    batch = Batch(
        obs=np.float32([[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]),
        action=np.array([0, 1]),
        outputs=np.float32(old),
        log_prob=np.float32(np.log([0.5 / 1.5, 0.5 / 0.5])),
        value=np.float32([1.0, 1.0]),
        advantage=np.float32([2.0, -2.0]),
        target=np.float32([4.0, 4.0]),
        weight=np.float32([0.5, 0.5]),
    )
    network = lambda obs: (obs[:, :2], obs[:, 2])
    total, metrics = jax.jit(lambda state, batch: ppo.loss(setup, state, network, batch))(state, batch)
    kl = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    expected = {"policy": LOSSES[objective], "value": 0.25 * error, "entropy": -0.1 * np.log(2)}
    expected |= {"kl": 2.0 * kl} if objective == "kl" else {}
    for name, term in expected.items():
        np.testing.assert_allclose(metrics[f"loss/{name}"], term, rtol=1e-5)
    np.testing.assert_allclose(total, sum(expected.values()), rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], np.log(2), rtol=1e-6)
    assert metrics["clip_fraction"] == 1
    ratios = np.array([1.5, 0.5])
    np.testing.assert_allclose(metrics["approx_kl"], np.mean(ratios - 1 - np.log(ratios)), rtol=1e-5)


def test_the_first_minibatch_has_the_ratio_of_the_policy_that_acted(monkeypatch):
    """With observations and rewards standardised, after some updates: ratio 1, KL 0, nothing clipped.

    An action is mean + deviation * noise, so the policy that acted gave it a known log-probability.
    """
    here = lab(ONCE, "continuous")
    state = here.state
    for seed in range(3):
        before = state
        state, metrics = jax.device_get(here.update(KEY, state, here.play(state, seed)[0]))
        assert abs(metrics["approx_kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0
        entropy = np.sum(before.params.log_std) + np.log(
            2 * np.pi * np.e
        )  # of every sample, so of their mean
        np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    assert differ(before.statistics, state.statistics)
    assert differ(before.params, state.params)
    rollout, noise = here.play(state, seed=3)
    batch = jax.device_get(caught_batch(monkeypatch, here.setup, state, rollout))
    expected = -0.5 * np.sum(np.square(noise), -1) - np.sum(state.params.log_std) - np.log(2 * np.pi)
    np.testing.assert_allclose(np.exp(batch.log_prob - expected.reshape(-1)), 1, atol=1e-5)
    one = batch._replace(advantage=np.ones_like(batch.weight), weight=np.ones_like(batch.weight))
    _, metrics = jax.jit(partial(ppo.loss, here.setup))(state, state.params, one)
    np.testing.assert_allclose(metrics["loss/policy"], -len(batch.weight), rtol=1e-5)  # the sum of -ratios


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_minibatch_of_one_stays_finite(weight):
    """Also if that one is a reset step, so that nothing is left to take the mean of."""
    state = lab().state
    batch = jax.tree.map(lambda x: x[:1], assessed())
    batch = batch._replace(weight=np.float32([weight]))
    result = compiled_step(lab().setup)(state, (state.params, state.opt_state), batch)
    assert_finite(result)
    assert differ(result[0][0], state.params) == (weight > 0)


def assessed():
    return jax.device_get(lab().make_batch(lab().state, lab().rollout))


@cache
def compiled_step(setup):
    return jax.jit(partial(ppo.take_step, setup))


def test_the_gradient_is_clipped_for_each_learner_by_itself():
    """Adam's first moment is a tenth of the clipped gradient, whose norm is at most max_grad_norm."""
    state = lab().state
    batch = assessed()
    huge = batch._replace(target=np.float32(1e6) * batch.target)
    step = jax.jit(jax.vmap(partial(ppo.take_step, lab().setup)))

    def stepped(first, max_grad_norm):
        states = twice(state)
        hypers = states.hypers._replace(max_grad_norm=np.float32(max_grad_norm))
        carry = (states.params, states.opt_state)
        return jax.device_get(step(states._replace(hypers=hypers), carry, stack([first, batch])))

    (params, opt_state), metrics = stepped(huge, [0.5, 0.01])
    norms = np.linalg.norm(opt_state[1].mu, axis=1)
    assert metrics["grad_norm"][0] > 1000
    np.testing.assert_allclose(norms, [0.05, 0.001], rtol=1e-4)
    (calm, calm_opt_state), calm_metrics = stepped(batch, [0.5, 0.01])
    mine = partial(trees.take, index=1)
    assert_equal(mine((params, opt_state, metrics)), mine((calm, calm_opt_state, calm_metrics)))
    (_, free), metrics = stepped(batch, [1e9, 1e9])
    np.testing.assert_allclose(np.linalg.norm(free[1].mu, axis=1), 0.1 * metrics["grad_norm"], rtol=1e-5)


def test_only_the_learner_past_its_target_kl_stops():
    state, rollout = twice(lab().state), twice(lab().rollout)
    keys = jax.random.split(KEY)

    def after(target_kl):
        hypers = state.hypers._replace(target_kl=np.float32(target_kl))
        return jax.device_get(lab().update_two(keys, state._replace(hypers=hypers), rollout))

    (both, both_metrics), (one, one_metrics) = after([np.inf, np.inf]), after([1e-12, np.inf])
    assert both.opt_state[1].count.tolist() == [6, 6]
    assert one.opt_state[1].count.tolist() == [2, 6]  # one epoch of two minibatches
    other = partial(trees.take, index=1)
    assert_equal(other((one.params, one_metrics)), other((both.params, both_metrics)))
    assert differ(trees.take(one.params, 0), trees.take(both.params, 0))
    assert_finite(one_metrics)


def test_accumulated_gradients_are_the_whole_gradient():
    state, batch, results = lab().state, assessed(), []
    for pieces in (1, 4):
        setup = lab().setup._replace(config=with_settings(PPOConfig(), **SMALL, grad_accumulation=pieces))
        step = jax.jit(partial(ppo.take_step, setup))
        results.append(step(state, (state.params, state.opt_state), batch))
    ((one, one_opt), one_metrics), ((four, four_opt), four_metrics) = results
    close = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, (one, one_opt), (four, four_opt))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), one_metrics, four_metrics)


@pytest.mark.parametrize(("num_envs", "num_steps", "num_minibatches"), [(4, 8, 2), (3, 5, 5), (4, 64, 2)])
def test_every_sample_is_used_once_per_epoch_in_a_new_order(
    monkeypatch, num_envs, num_steps, num_minibatches
):
    """A spy in place of the optimiser writes down whom it meets."""
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "num_minibatches": num_minibatches}
    config = PPOConfig(**sizes, update_epochs=3)

    def spy(setup, state, carry, batch):
        met, place = carry
        metrics = dict.fromkeys(["approx_kl", "loss/total"], 0.0)
        return (met.at[place].set(batch.target), place + 1), jax.tree.map(jnp.float32, metrics)

    monkeypatch.setattr(ppo, "take_step", spy)
    numbers = np.arange(config.rollout_size, dtype=np.float32)
    batch = Batch(*[jnp.asarray(numbers)] * 8)
    met = jnp.asarray(np.full((3 * num_minibatches, config.rollout_size // num_minibatches), -1, np.float32))
    state, setup = lab().state._replace(params=met, opt_state=0), lab().setup._replace(config=config)
    learn = jax.jit(lambda key: ppo.learn(setup, key, state, lab().rollout, batch)[0].params)
    first, second = (np.asarray(learn(jax.random.key(seed))).reshape(3, -1) for seed in (0, 1))
    for epoch in (*first, *second):
        assert sorted(epoch) == numbers.tolist()
    orders = {tuple(epoch) for epoch in (*first, *second, numbers.tolist())}
    assert len(orders) == 7


def test_adam_has_an_epsilon_of_a_hundred_thousandth():
    """The first step is -rate g / (|g| + eps): half of the rate where g = eps."""
    optimiser = ppo_optimiser.adam(lab().state.hypers._replace(learning_rate=0.1))
    first_step = jax.jit(lambda gradient: optimiser.update(gradient, optimiser.init(gradient))[0])
    step = first_step(np.float32([1e-5, 0.0, -3e-5]))
    np.testing.assert_allclose(step, [-0.05, 0.0, 0.075], rtol=1e-4)


def test_orthogonal_weights_and_their_gains():
    make = actor_critic.actor_critic(hidden=(16, 16), init_log_std=-0.5)
    network = jax.device_get(jax.jit(lambda: make(KEY, SPECS["continuous"], num_outputs=4))())
    for mlp, last in ((network.actor, 0.01), (network.critic, 1.0)):
        for layer, gain in zip(mlp.layers, (2**0.5, 2**0.5, last), strict=True):
            rows, columns = layer.weight.shape
            gram = layer.weight @ layer.weight.T if rows < columns else layer.weight.T @ layer.weight
            np.testing.assert_allclose(gram / gain**2, np.eye(min(rows, columns)), atol=1e-5)
            assert not layer.bias.any()
    assert network.log_std.tolist() == [-0.5, -0.5]


def test_annealed_settings_fall_to_zero():
    """In ten updates: the first has all of them, the tenth a tenth, and so have later ones."""
    state = lab().state
    at = lambda number: state._replace(private=state.private._replace(num_updates=np.int32(number)))
    for number, share in ((0, 1.0), (5, 0.5), (9, 0.1), (10, 0.1), (12, 0.1)):
        after, metrics = lab().update(KEY, at(number), lab().rollout)
        np.testing.assert_allclose(metrics["learning_rate"], share * 2.5e-4, rtol=1e-5)
        entropy_loss = share * 0.01 * metrics["entropy"]
        np.testing.assert_allclose(metrics["loss/entropy"], -entropy_loss, rtol=1e-5)
        assert differ(after.params, state.params)
        assert after.private.num_updates == number + 1


def test_steps_that_are_not_valid_teach_nothing():
    """Their action and reward may be anything; so may their observation, after a termination.

    After a truncation the observation of the reset step is the final one, whose value is the bootstrap.
    """
    state, rollout = lab().state, lab().rollout
    reset = ~rollout.valid
    finals = np.roll(rollout.terminated, 1, axis=0) & reset
    assert finals.any()
    assert (reset & ~finals).any()
    garbage = rollout._replace(
        action=np.where(reset, 1 - rollout.action, rollout.action),
        reward=np.where(reset, np.float32(1e6), rollout.reward),
        obs=np.where(finals[..., None], np.float32(-77), rollout.obs),
    )
    assert_equal(*(lab().update(KEY, state, r) for r in (rollout, garbage)))
    shifted = rollout._replace(obs=np.where((reset & ~finals)[..., None], np.float32(-77), rollout.obs))
    assert differ(*(lab().update(KEY, state, r)[0].params for r in (rollout, shifted)))


def test_a_learner_with_nan_reports_it_and_leaves_the_other_alone():
    """Steps of 1e30 end in NaN within one update; its loss must show it, and nobody else's."""
    state, rollout = twice(lab().state), twice(lab().rollout)
    keys = jax.random.split(KEY)
    wild = state._replace(hypers=state.hypers._replace(learning_rate=np.float32([1e30, 2.5e-4])))
    update = lambda state: jax.device_get(lab().update_two(keys, state, rollout))
    (calm, calm_metrics), (lost, lost_metrics) = map(update, (state, wild))
    other = partial(trees.take, index=1)
    assert_equal(*(other((s.params, s.opt_state, s.statistics)) for s in (calm, lost)))
    assert_equal(other(calm_metrics), other(lost_metrics))
    assert not np.isfinite(lost.params.actor.layers[0].weight[0]).all()
    assert not np.isfinite(lost_metrics["loss/total"][0])


def test_hypers_are_scalars_whose_change_takes_effect_and_compiles_nothing():
    state, update = lab().state, lambda state: lab().update(KEY, state, lab().rollout)[0]
    assert all(leaf.shape == () for leaf in jax.tree.leaves(state.hypers))
    new = {
        "learning_rate": 0.1,
        "gamma": 0.5,
        "gae_lambda": 0.1,
        "clip_coef": 1e-4,
        "ent_coef": 1.0,
        "vf_coef": 9.0,
        "max_grad_norm": 1e-3,
        "target_kl": 1e-12,
    }
    elsewhere = {"kl_goal", "comm_penalty_coeff", "prox_coef", "intrinsic_coef", "extrinsic_coef"}
    bounds = {"clip_reward", "reward_floor", "bootstrap_clip", "bootstrap_floor"}
    absent = {"critic_learning_rate"}  # not in the program unless it is given
    assert new.keys() | elsewhere | bounds | absent == {*Hypers._fields}
    before = update(state)
    compiled = lab().update._cache_size()
    for name, value in new.items():
        changed = state._replace(hypers=state.hypers._replace(**{name: np.float32(value)}))
        assert differ(update(changed).params, before.params), name
    assert lab().update._cache_size() == compiled


def test_the_kl_penalty_adapts_to_its_goal():
    """Two learners, one in large steps and one in tiny ones, then the tiny one with a tinier goal."""
    here, keys = lab(PPOConfig(**SMALL, objective="kl")), jax.random.split(KEY)
    rollout, cohort = twice(here.rollout), twice(here.state)
    hypers = cohort.hypers._replace(learning_rate=np.float32([0.1, 1e-6]))
    after, metrics = here.update_two(keys, cohort._replace(hypers=hypers), rollout)
    assert metrics["kl_coef"].tolist() == [1.0, 1.0]
    assert after.private.kl_coef.tolist() == [2.0, 0.5]
    hypers = hypers._replace(kl_goal=np.float32([0.01, 1e-30]))
    after, _ = here.update_two(keys, cohort._replace(hypers=hypers), rollout)
    assert after.private.kl_coef.tolist() == [2.0, 2.0]


def test_a_stronger_kl_penalty_holds_the_policy():
    here = lab(PPOConfig(**SMALL, objective="kl"))
    cohort = twice(here.state)
    cohort = cohort._replace(
        hypers=cohort.hypers._replace(learning_rate=np.float32([0.01, 0.01])),
        private=cohort.private._replace(kl_coef=np.float32([0.0, 1e3])),
    )
    _, metrics = here.update_two(jnp.stack([KEY, KEY]), cohort, twice(here.rollout))
    assert metrics["approx_kl"][1] < 0.5 * metrics["approx_kl"][0]
