"""PPO for one learner: the arithmetic of its loss, what it may see, and what it must leave alone."""

from dataclasses import replace
from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal import collect, layers, networks, trees
from shoal.envs.functional import from_jax
from shoal.learners import ppo
from shoal.learners.ppo import Batch, Hypers, PPOConfig, Setup
from shoal.ops.distributions import distribution_for
from shoal.ops.statistics import Running
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, MultiBinary, MultiDiscrete, Rollout

SMALL = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 3, "hidden": (8,)}
BASE = PPOConfig(**SMALL, target_kl=1e9, anneal_ent=True, norm_obs=True)
PLAIN = PPOConfig(**SMALL)
ONCE = PPOConfig(**SMALL | {"num_minibatches": 1, "update_epochs": 1}, norm_obs=True, norm_reward=True)
KEY = jax.random.key(0)
PICTURE = Box((36, 36, 1), 0, 255, "uint8")
SPECS = {
    "discrete": EnvSpec("discrete", "jax", Box((3,)), Discrete(2)),
    "multi-discrete": EnvSpec("multi-discrete", "jax", Box((3,)), MultiDiscrete((2, 3))),
    "multi-binary": EnvSpec("multi-binary", "jax", Box((2, 2)), MultiBinary(3)),
    "continuous": EnvSpec("continuous", "jax", Box((3,)), Box((2, 1), -1.0, 1.0)),
    "nature": EnvSpec("nature", "jax", {"eye": PICTURE, "ear": Box((2,))}, Discrete(3)),
    "impala": EnvSpec("impala", "jax", PICTURE, Discrete(2)),
}


class Lab:
    """A learner's functions, compiled on first use; `lab` keeps one for each configuration."""

    def __init__(self, config, kind):
        spec = SPECS[kind]
        network = plainly(networks.actor_critic(hidden=config.hidden, images=config.network))
        self.setup = Setup(config, spec, distribution_for(spec.action), network, num_updates=10)
        self.assess = jax.jit(partial(ppo.assess, self.setup))
        self.act = jax.jit(partial(ppo.act, self.setup))
        self.update = jax.jit(partial(ppo.update, self.setup))
        self.update_two = jax.jit(jax.vmap(partial(ppo.update, self.setup)))
        self.state = jax.jit(partial(ppo.init, self.setup))(KEY)

    @cached_property
    def rollout(self):
        return self.play(self.state)[0]

    def play(self, state, seed=0):
        """Actions of the learner's own on random observations, with ends of both kinds; and their noise."""
        shape = (self.setup.config.num_steps, self.setup.config.num_envs)
        rng = np.random.default_rng(seed)
        terminated, truncated, valid = np.zeros((3, *shape), bool)
        over = np.zeros(shape[1], bool)
        for t in range(shape[0]):
            valid[t] = ~over
            terminated[t], truncated[t] = valid[t] & (rng.random((2, shape[1])) < 0.2)
            over = terminated[t] | truncated[t]
        obs, last_obs = (random_obs(rng, self.setup.spec.observation, s) for s in (shape, shape[1:]))
        noise = self.setup.distribution.draw(jax.random.key(seed), shape)
        action, _ = self.act(state, obs, noise)
        reward = jnp.float32(np.where(valid, rng.normal(size=shape), 0.0))
        ends = map(jnp.asarray, (terminated, truncated, valid))
        return Rollout(obs, action, reward, *ends, last_obs), noise


@cache
def lab(config=BASE, kind="discrete"):
    return Lab(config, kind)


def plainly(make):
    """The same network with normal weights: orthogonal ones take long to compile."""

    def fill(key, spec, num_outputs):
        rng = np.random.default_rng(0)
        scale = lambda shape: np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.1
        shapes = jax.eval_shape(lambda: make(key, spec, num_outputs))
        return jax.tree.map(lambda s: jnp.float32(rng.normal(0, scale(s.shape), s.shape)), shapes)

    return fill


def random_obs(rng, space, shape):
    if isinstance(space, dict):
        return {name: random_obs(rng, box, shape) for name, box in space.items()}
    if space.dtype == "uint8":
        return jnp.asarray(rng.integers(0, 256, (*shape, *space.shape)), jnp.uint8)
    return jnp.float32(rng.normal(3.0, 2.0, (*shape, *space.shape)))


def twice(tree):
    return trees.stack([tree, tree])


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_finite(tree):
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def differ(a, b):
    return any(np.any(x != y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def caught_batch(monkeypatch, setup, state, rollout):
    """What `update` is about to learn from."""
    monkeypatch.setattr(ppo, "learn", lambda setup, key, state, rollout, batch: (state, batch))
    return jax.jit(partial(ppo.update, setup))(KEY, state, rollout)[1]


# The loss, by hand: two samples with logits (0, 0) now, ratios 1.5 and 0.5, advantages 2 and -2,
# values 3 and 0 that were 1 and 1, and targets 4 and 4; clip_coef 0.2, weights 1/2.

LOSSES = {"clip": (-2.4 + 1.6) / 2, "none": (-3.0 + 1.0) / 2, "kl": (-3.0 + 1.0) / 2}


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(
    ("clip_vloss", "error"), [(False, (0.5 * 1 + 0.5 * 16) / 2), (True, (0.5 * 2.8**2 + 0.5 * 16) / 2)]
)
def test_the_terms_of_the_loss_by_hand(objective, clip_vloss, error):
    state, setup = lab().state, lab().setup
    setup = setup._replace(config=PPOConfig(objective=objective, clip_vloss=clip_vloss))
    hypers = state.hypers._replace(clip_coef=0.2, ent_coef=0.1, vf_coef=0.25)
    state = state._replace(hypers=hypers, memory=state.memory._replace(kl_coef=2.0))
    old = np.log(np.array([[0.75, 0.25], [0.75, 0.25]]))
    batch = Batch(
        obs=jnp.array([[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]),
        action=jnp.array([0, 1]),
        outputs=jnp.float32(old),
        log_prob=jnp.float32(np.log([0.5 / 1.5, 0.5 / 0.5])),
        value=jnp.array([1.0, 1.0]),
        advantage=jnp.array([2.0, -2.0]),
        target=jnp.array([4.0, 4.0]),
        weight=jnp.array([0.5, 0.5]),
    )
    network = lambda obs: (obs[:, :2], obs[:, 2])
    total, metrics = ppo.loss(setup, state, network, batch)
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
        state, metrics = here.update(KEY, state, here.play(state, seed)[0])
        assert abs(metrics["approx_kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0
        entropy = np.sum(before.params.log_std) + np.log(
            2 * np.pi * np.e
        )  # of every sample, so of their mean
        np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    assert differ(before.statistics, state.statistics)
    assert differ(before.params, state.params)
    rollout, noise = here.play(state, seed=3)
    batch = caught_batch(monkeypatch, here.setup, state, rollout)
    expected = -0.5 * np.sum(np.square(noise), -1) - np.sum(state.params.log_std) - np.log(2 * np.pi)
    np.testing.assert_allclose(np.exp(batch.log_prob - expected.reshape(-1)), 1, atol=1e-5)
    one = batch._replace(advantage=jnp.ones_like(batch.weight), weight=jnp.ones_like(batch.weight))
    _, metrics = jax.jit(partial(ppo.loss, here.setup))(state, state.params, one)
    np.testing.assert_allclose(metrics["loss/policy"], -len(batch.weight), rtol=1e-5)  # the sum of -ratios


def test_observations_are_standardised_by_what_was_seen_before():
    state, rollout = lab().state, lab().rollout
    seen = np.asarray(rollout.obs)[np.asarray(rollout.valid)]
    after, _ = lab().update(KEY, state, rollout)
    moments = after.statistics.obs["obs"]
    assert moments.count == len(seen) < rollout.valid.size
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.m2 / moments.count, seen.var(0), rtol=1e-4)
    scaled = ppo.standardise(lab().setup, after, jnp.float32(seen))
    np.testing.assert_allclose(scaled, (seen - seen.mean(0)) / seen.std(0), atol=1e-4)


def test_advantages_are_standardised_over_valid_samples():
    advantage = jnp.array([1.0, 3.0, 1e6])
    found = ppo.standardise_advantages(advantage, jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(found[:2], [-1, 1], rtol=1e-6)


@pytest.mark.parametrize("norm_adv", ["batch", "none"])
def test_where_advantages_are_standardised(norm_adv):
    setup = lab(PLAIN).setup._replace(config=PPOConfig(**SMALL, norm_adv=norm_adv))
    batch = jax.jit(partial(ppo.assess, setup))(lab(PLAIN).state, lab(PLAIN).rollout)
    valid = np.asarray(batch.weight) > 0
    raw = np.asarray(batch.target - batch.value)[valid]
    expected = (raw - raw.mean()) / raw.std() if norm_adv == "batch" else raw
    np.testing.assert_allclose(np.asarray(batch.advantage)[valid], expected, atol=1e-5)


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_minibatch_of_one_stays_finite(weight):
    """Also if that one is a reset step, so that nothing is left to take the mean of."""
    state = lab().state
    batch = jax.tree.map(lambda x: x[:1], lab().assess(state, lab().rollout))
    batch = batch._replace(weight=jnp.float32([weight]))
    result = improve_one(lab().setup)(state, (state.params, state.opt_state), batch)
    assert_finite(result)
    assert differ(result[0][0], state.params) == (weight > 0)


@cache
def improve_one(setup):
    return jax.jit(partial(ppo.improve, setup))


def test_the_gradient_is_clipped_for_each_learner_by_itself():
    """Adam's first moment is a tenth of the clipped gradient, whose norm is at most max_grad_norm."""
    state = lab().state
    batch = lab().assess(state, lab().rollout)
    huge = batch._replace(target=1e6 * batch.target)
    improve = jax.jit(jax.vmap(partial(ppo.improve, lab().setup)))

    def improved(first, max_grad_norm):
        states = twice(state)
        hypers = states.hypers._replace(max_grad_norm=jnp.float32(max_grad_norm))
        carry = (states.params, states.opt_state)
        return improve(states._replace(hypers=hypers), carry, trees.stack([first, batch]))

    (params, opt_state), metrics = improved(huge, [0.5, 0.01])
    norms = jax.vmap(optax.tree.norm)(opt_state[1].mu)
    assert metrics["grad_norm"][0] > 1000
    np.testing.assert_allclose(norms, [0.05, 0.001], rtol=1e-4)
    (calm, calm_opt_state), calm_metrics = improved(batch, [0.5, 0.01])
    mine = partial(trees.take, index=1)
    assert_equal(mine((params, opt_state, metrics)), mine((calm, calm_opt_state, calm_metrics)))
    (_, free), metrics = improved(batch, [1e9, 1e9])
    np.testing.assert_allclose(jax.vmap(optax.tree.norm)(free[1].mu), 0.1 * metrics["grad_norm"], rtol=1e-5)


def test_only_the_learner_past_its_target_kl_stops():
    state, rollout = twice(lab().state), twice(lab().rollout)
    keys = jax.random.split(KEY)

    def after(target_kl):
        hypers = state.hypers._replace(target_kl=jnp.float32(target_kl))
        return lab().update_two(keys, state._replace(hypers=hypers), rollout)

    (both, both_metrics), (one, one_metrics) = after([np.inf, np.inf]), after([1e-12, np.inf])
    assert both.opt_state[1].count.tolist() == [6, 6]
    assert one.opt_state[1].count.tolist() == [2, 6]  # one epoch of two minibatches
    other = partial(trees.take, index=1)
    assert_equal(other((one.params, one_metrics)), other((both.params, both_metrics)))
    assert differ(trees.take(one.params, 0), trees.take(both.params, 0))
    assert_finite(one_metrics)


def test_accumulated_gradients_are_the_whole_gradient():
    state, results = lab().state, []
    batch = lab().assess(state, lab().rollout)
    for pieces in (1, 4):
        setup = lab().setup._replace(config=PPOConfig(**SMALL, grad_accumulation=pieces))
        improve = jax.jit(partial(ppo.improve, setup))
        results.append(improve(state, (state.params, state.opt_state), batch))
    ((one, one_opt), one_metrics), ((four, four_opt), four_metrics) = results
    close = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, (one, one_opt), (four, four_opt))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), one_metrics, four_metrics)


@pytest.mark.parametrize(("num_envs", "num_steps", "num_minibatches"), [(4, 8, 2), (3, 5, 5), (4, 64, 2)])
def test_every_sample_is_visited_once_an_epoch_in_a_new_order(
    monkeypatch, num_envs, num_steps, num_minibatches
):
    """A spy in place of the optimiser writes down whom it meets."""
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "num_minibatches": num_minibatches}
    config = PPOConfig(**sizes, update_epochs=3)

    def spy(setup, state, carry, batch):
        met, place = carry
        metrics = dict.fromkeys(["approx_kl", "loss/total"], 0.0)
        return (met.at[place].set(batch.target), place + 1), jax.tree.map(jnp.float32, metrics)

    monkeypatch.setattr(ppo, "improve", spy)
    numbers = jnp.arange(float(config.rollout_size))
    batch = Batch(*[numbers] * 8)
    met = jnp.full((3 * num_minibatches, config.rollout_size // num_minibatches), -1.0)
    state, setup = lab().state._replace(params=met, opt_state=0), lab().setup._replace(config=config)
    learn = jax.jit(lambda key: ppo.learn(setup, key, state, lab().rollout, batch)[0].params)
    first, second = (np.asarray(learn(jax.random.key(seed))).reshape(3, -1) for seed in (0, 1))
    for epoch in (*first, *second):
        assert sorted(epoch) == numbers.tolist()
    orders = {tuple(epoch) for epoch in (*first, *second, numbers.tolist())}
    assert len(orders) == 7


def test_adam_divides_by_its_spread_plus_a_hundred_thousandth():
    """The first step is -rate g / (|g| + eps): half of the rate where g = eps."""
    optimiser = ppo.optimiser(lab().state.hypers._replace(learning_rate=0.1))
    gradient = jnp.array([1e-5, 0.0, -3e-5])
    step, _ = optimiser.update(gradient, optimiser.init(gradient))
    np.testing.assert_allclose(step, [-0.05, 0.0, 0.075], rtol=1e-4)


def test_orthogonal_weights_and_their_gains():
    make = networks.actor_critic(hidden=(16, 16), init_log_std=-0.5)
    network = jax.jit(lambda: make(KEY, SPECS["continuous"], num_outputs=4))()
    for mlp, last in ((network.actor, 0.01), (network.critic, 1.0)):
        for layer, gain in zip(mlp.layers, (2**0.5, 2**0.5, last), strict=True):
            rows, columns = layer.weight.shape
            gram = layer.weight @ layer.weight.T if rows < columns else layer.weight.T @ layer.weight
            np.testing.assert_allclose(gram / gain**2, np.eye(min(rows, columns)), atol=1e-5)
            assert not layer.bias.any()
    assert network.log_std.tolist() == [-0.5, -0.5]


def test_annealed_settings_fall_to_zero():
    """In ten updates: the first has all of them, the tenth a tenth; an eleventh would change nothing."""
    state = lab().state
    at = lambda number: state._replace(memory=state.memory._replace(num_updates=jnp.int32(number)))
    for number, share in ((0, 1.0), (5, 0.5), (9, 0.1), (10, 0.0), (12, 0.0)):
        after, metrics = lab().update(KEY, at(number), lab().rollout)
        np.testing.assert_allclose(metrics["learning_rate"], share * 2.5e-4, rtol=1e-5)
        entropy_loss = share * 0.01 * metrics["entropy"]
        np.testing.assert_allclose(metrics["loss/entropy"], -entropy_loss, rtol=1e-5)
        assert differ(after.params, state.params) == (share > 0)
        assert after.memory.num_updates == number + 1


def test_steps_that_are_not_valid_teach_nothing():
    """Their action and reward may be anything; so may their observation, after a termination.

    After a truncation the observation of the reset step is the final one, whose value is the bootstrap.
    """
    state, rollout = lab().state, lab().rollout
    reset = ~rollout.valid
    finals = jnp.roll(rollout.terminated, 1, axis=0) & reset
    assert finals.any()
    assert (reset & ~finals).any()
    garbage = rollout._replace(
        action=jnp.where(reset, 1 - rollout.action, rollout.action),
        reward=jnp.where(reset, 1e6, rollout.reward),
        obs=jnp.where(finals[..., None], -77.0, rollout.obs),
    )
    assert_equal(*(lab().update(KEY, state, r) for r in (rollout, garbage)))
    shifted = rollout._replace(obs=jnp.where((reset & ~finals)[..., None], -77.0, rollout.obs))
    assert differ(*(lab().update(KEY, state, r)[0].params for r in (rollout, shifted)))


def test_a_learner_that_is_lost_says_so_and_leaves_the_other_alone():
    """Steps of 1e30 end in NaN within one update; its loss must show it, and nobody else's."""
    state, rollout = twice(lab().state), twice(lab().rollout)
    keys = jax.random.split(KEY)
    wild = state._replace(hypers=state.hypers._replace(learning_rate=jnp.array([1e30, 2.5e-4])))
    (calm, calm_metrics), (lost, lost_metrics) = (lab().update_two(keys, s, rollout) for s in (state, wild))
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
    assert new.keys() | elsewhere | bounds == {*Hypers._fields}
    before = update(state)
    for name, value in new.items():
        changed = state._replace(hypers=state.hypers._replace(**{name: jnp.float32(value)}))
        assert differ(update(changed).params, before.params), name
    assert lab().update._cache_size() == 1


def test_the_kl_penalty_is_steered_to_its_goal():
    """Two learners, one in large steps and one in tiny ones, then the tiny one with a tinier goal."""
    here, keys = lab(PPOConfig(**SMALL, objective="kl")), jax.random.split(KEY)
    rollout, cohort = twice(here.rollout), twice(here.state)
    hypers = cohort.hypers._replace(learning_rate=jnp.array([0.1, 1e-6]))
    after, metrics = here.update_two(keys, cohort._replace(hypers=hypers), rollout)
    assert metrics["kl_coef"].tolist() == [1.0, 1.0]
    assert after.memory.kl_coef.tolist() == [2.0, 0.5]
    hypers = hypers._replace(kl_goal=jnp.array([0.01, 1e-30]))
    after, _ = here.update_two(keys, cohort._replace(hypers=hypers), rollout)
    assert after.memory.kl_coef.tolist() == [2.0, 2.0]


def test_a_stronger_kl_penalty_holds_the_policy():
    here = lab(PPOConfig(**SMALL, objective="kl"))
    cohort = twice(here.state)
    cohort = cohort._replace(
        hypers=cohort.hypers._replace(learning_rate=jnp.array([0.01, 0.01])),
        memory=cohort.memory._replace(kl_coef=jnp.array([0.0, 1e3])),
    )
    _, metrics = here.update_two(jnp.stack([KEY, KEY]), cohort, twice(here.rollout))
    assert metrics["approx_kl"][1] < 0.5 * metrics["approx_kl"][0]


def test_rewards_are_scaled_by_the_spread_of_returns_discounted_as_the_learner_discounts():
    state = lab(PLAIN).state
    setup = lab(PLAIN).setup._replace(config=PPOConfig(**SMALL, norm_reward=True))
    scale = jax.jit(partial(ppo.scale_rewards, setup))
    for gamma in (0.99, 0.5):
        now = state._replace(hypers=state.hypers._replace(gamma=jnp.float32(gamma)))
        running, returns = np.zeros(4), []
        for seed in (2, 3):  # two rollouts: the second goes on where the first stopped
            rollout = lab(PLAIN).play(state, seed)[0]
            over = np.asarray(rollout.terminated | rollout.truncated)
            for t, reward in enumerate(np.asarray(rollout.reward)):
                running = gamma * running + reward
                returns.extend(running[np.asarray(rollout.valid[t])])
                running = np.where(over[t], 0, running)
            now, scaled = scale(now, rollout)
            assert running.any()
            np.testing.assert_allclose(scaled.reward, rollout.reward / np.std(returns), rtol=1e-4)
            np.testing.assert_allclose(now.memory.discounted_return, running, atol=1e-5)
        assert now.statistics.returns.count == len(returns)


@pytest.mark.parametrize(("clip_reward", "expected"), [(None, 5.0), (1.0, 1.0)])
def test_a_reward_of_five_reaches_the_learner_as_five(monkeypatch, clip_reward, expected):
    rollout = lab(PLAIN).rollout
    setup = lab(PLAIN).setup._replace(config=PPOConfig(**SMALL, clip_reward=clip_reward))
    yes = jnp.ones_like(rollout.valid)
    rollout = rollout._replace(reward=5.0 * yes, terminated=yes, truncated=~yes, valid=yes)
    state = lab(PLAIN).state
    state = state._replace(hypers=state.hypers._replace(clip_reward=jnp.float32(clip_reward or jnp.inf)))
    batch = caught_batch(monkeypatch, setup, state, rollout)
    np.testing.assert_allclose(batch.target, expected, rtol=1e-6)


def test_large_returns_do_not_freeze_the_critic():
    """Returns of +-1000 that the observation tells, and nothing but the defaults: the critic learns on."""
    setup = lab(PPOConfig()).setup._replace(num_updates=60)
    shape = (setup.config.num_steps, setup.config.num_envs)
    yes = jnp.ones(shape, bool)

    def body(state, key):
        key_obs, key_action, key_update = jax.random.split(key, 3)
        obs = jax.random.rademacher(key_obs, (*shape, 3), jnp.float32)
        action = jax.random.randint(key_action, shape, 0, 2)
        rollout = Rollout(obs, action, 1000 * obs[..., 0], yes, ~yes, yes, obs[0])
        state, metrics = ppo.update(setup, key_update, state, rollout)
        return state, metrics["explained_variance"]

    keys = jax.random.split(KEY, 60)
    _, explained = jax.jit(lambda state: jax.lax.scan(body, state, keys))(lab(PPOConfig()).state)
    assert abs(explained[0]) < 0.005
    assert explained[-1] > 0.015
    assert (np.diff(explained[::10]) > 0).all()


def test_the_environment_gets_the_clipped_action_and_the_learner_keeps_its_own():
    echo = JaxEnv(
        EnvSpec("echo", "jax", Box((2,)), Box((2,), -1.0, 1.0)),
        reset=lambda key, params: jnp.zeros(2),
        step=lambda key, state, action, params: (action, 0.0, False),
        observe=lambda state, params: state,
    )
    learner = ppo.ppo(PPOConfig(num_envs=4, hidden=(4,), init_log_std=1.5), echo.spec, num_updates=1)
    env = from_jax(echo).build(np.zeros((1, 4), np.uint32), False)

    @jax.jit
    def play(key):
        keys = jax.random.split(key, (1, 4))
        cohort = jax.vmap(learner.init)(keys[:, 0])
        return collect.collect(env, learner, 16, keys[:, 1], cohort, collect.begin(env, keys, ()))[2]

    rollout = play(KEY)
    assert np.mean(np.abs(rollout.action) > 1) > 0.5
    np.testing.assert_array_equal(rollout.obs[1:], np.clip(rollout.action[:-1], -1, 1))


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind != "discrete"])
def test_every_kind_of_action_and_observation_trains_a_step(kind):
    config = replace(ONCE, network="impala") if kind == "impala" else ONCE
    here = lab(config, kind)
    state, rollout = here.state, here.rollout
    shapes = {"multi-discrete": (2,), "multi-binary": (3,), "continuous": (2, 1), "nature": (), "impala": ()}
    assert rollout.action.shape == (8, 4, *shapes[kind])
    after, metrics = here.update(KEY, state, rollout)
    assert_finite((after.params, after.opt_state, after.statistics, metrics))
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(changed)), changed
    assert metrics["approx_kl"] < 1e-5
    assert {*after.statistics.obs} == {"nature": {"ear"}, "impala": set()}.get(kind, {"obs"})


def test_pictures_are_not_standardised():
    setup = lab().setup._replace(spec=SPECS["nature"])
    moments = {"ear": Running(jnp.float32(9), jnp.ones(2), 9 * 4 * jnp.ones(2))}
    state = lab().state
    state = state._replace(statistics=state.statistics._replace(obs=moments))
    obs = random_obs(np.random.default_rng(0), SPECS["nature"].observation, (2,))
    scaled = ppo.standardise(setup, state, obs)
    assert scaled["eye"].dtype == jnp.uint8
    np.testing.assert_array_equal(scaled["eye"], obs["eye"])
    np.testing.assert_allclose(scaled["ear"], (obs["ear"] - 1) / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "flat", "num_out"),
    [
        (layers.NatureCNN, (84, 84, 4), 7 * 7 * 64, 512),
        (layers.NatureCNN, (36, 36, 3), 1 * 1 * 64, 512),
        (layers.Impala, (64, 64, 3), 8 * 8 * 32, 256),
        (layers.Impala, (84, 84, 4), 11 * 11 * 32, 256),
    ],
)
def test_the_shapes_of_the_picture_networks(kind, shape, flat, num_out):
    init = layers.orthogonal(2**0.5)
    network = jax.eval_shape(lambda: kind(KEY, shape, init))
    assert network.dense.weight.shape == (flat, num_out)
    obs = jax.ShapeDtypeStruct((5, 2, *shape), jnp.uint8)
    assert jax.eval_shape(lambda network, obs: network(obs), network, obs).shape == (5, 2, num_out)
    if kind is layers.NatureCNN:
        kernels = [layer.weight.shape for layer in network.layers]
        assert kernels == [(8, 8, shape[-1], 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    else:
        kernels = [block[0].weight.shape for block in network.blocks]
        assert kernels == [(3, 3, shape[-1], 16), (3, 3, 16, 32), (3, 3, 32, 32)]


def test_small_or_real_valued_pictures_are_vectors():
    boxes = [Box((35, 84, 3), dtype="uint8"), Box((84, 84, 3)), Box((84, 84), dtype="uint8")]
    assert [layers.is_image(box) for box in (*boxes, PICTURE)] == [False, False, False, True]
