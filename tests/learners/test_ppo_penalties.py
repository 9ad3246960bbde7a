"""PPO's penalties: toward neighbours, near the policy that acted, near an anchor; their sign and size."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal.learners import ppo
from shoal.learners.ppo import Batch, PPOConfig, PPOSetup
from shoal.nets import actor_critic
from shoal.ops import trees
from shoal.ops.distributions import distribution_for
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec, PeerTargets, Rollout

KEY = jax.random.key(0)
SPECS = {
    "discrete": EnvSpec("discrete", "jax", Box((3,)), Discrete(3)),
    "continuous": EnvSpec("continuous", "jax", Box((3,)), Box((2,), -1.0, 1.0)),
}
ONCE = PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, update_epochs=1, hidden=(4,), anneal_lr=False)
PULLED = with_settings(
    ONCE,
    update_epochs=8,
    ent_coef=0.0,
    vf_coef=0.0,
    norm_adv="none",
    learning_rate=0.02,
    comm_penalty_coeff=100.0,
)


@cache
def setup_for(config, kind="discrete"):
    spec = SPECS[kind]
    make = actor_critic.actor_critic(hidden=config.hidden)
    return PPOSetup(config, spec, distribution_for(spec.action), partial(plainly, make), num_updates=10)


def plainly(make, key, spec, num_outputs):
    """The network with normal weights, so that policies differ between keys."""
    shapes = jax.eval_shape(lambda: make(key, spec, num_outputs))
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(key, len(leaves))
    drawn = [0.5 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


@cache
def learner(config, kind="discrete"):
    """The compiled update and three learners: the one that learns, and two neighbours."""
    setup = setup_for(config, kind)
    states = jax.jit(jax.vmap(partial(ppo.init, setup)))(jax.random.split(KEY, 3))
    return jax.jit(partial(ppo.update, setup)), [trees.take(states, i) for i in range(3)]


@cache
def compiled(function, config, kind):
    return jax.jit(partial(function, setup_for(config, kind)))


def rollout_for(setup, state):
    return compiled(play, setup.config, setup.spec.name)(state)


def peers(setup, rollout, others, weights):
    return compiled(add_peer_targets, setup.config, setup.spec.name)(rollout, others, weights)


def play(setup, state):
    """Random observations, the learner's own actions, and rewards that equal the values: advantages of 0."""
    shape = (setup.config.num_steps, setup.config.num_envs)
    obs = jnp.float32(np.random.default_rng(0).normal(size=(*shape, 3)))
    outputs, value = state.params(ppo.standardise(setup, state, obs))
    action = setup.distribution.sample(outputs, setup.distribution.draw(KEY, shape))
    yes = jnp.ones(shape, bool)
    return Rollout(obs, action, value, yes, ~yes, yes, obs[0])


def add_peer_targets(setup, rollout, others, weights):
    """The rollout with the others' policy terms, as an exchange adds them up."""
    terms = [ppo.policy_terms(setup, other, rollout.obs) for other in others]
    total = jax.tree.map(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)), *terms)
    weight = jnp.full(rollout.reward.shape, jnp.float32(sum(weights)))
    return rollout._replace(peer_targets=(*rollout.peer_targets, PeerTargets(weight, total)))


def differ(a, b):
    return max(float(jnp.max(jnp.abs(x - y))) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


@pytest.mark.parametrize("form", ["sum", "mixture"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("kind", SPECS)
def test_an_update_moves_the_policy_toward_its_neighbours(kind, direction, form):
    """Nothing else to learn: the KL to the neighbour falls, and the penalty it reports is positive."""
    config = with_settings(PULLED, comm_direction=direction, comm_form=form)
    setup, (update, (own, other, _)) = setup_for(config, kind), learner(config, kind)
    rollout = peers(setup, rollout_for(setup, own), [other], [1.0])
    after, metrics = update(KEY, own, rollout)
    apart = lambda state, other: float(jnp.mean(ppo.distance(setup, state, other, rollout.obs)))
    assert apart(after, other) < 0.9 * apart(own, other)
    assert apart(other, after) < 0.9 * apart(other, own)
    assert metrics["loss/neighbours"] > 0
    assert metrics["loss_share/neighbours"] > 0.99


def test_without_peer_targets_nothing_moves_where_there_is_nothing_to_learn():
    """The control of the test above."""
    setup, (update, (own, *_)) = setup_for(PULLED), learner(PULLED)
    after, metrics = update(KEY, own, rollout_for(setup, own))
    assert differ(after.params, own.params) < 1e-6
    assert "loss/neighbours" not in metrics


@pytest.mark.parametrize("objective", ["clip", "kl", "mdpo"])
def test_every_objective_weighs_peer_targets_by_their_coefficient(objective):
    """A coefficient of 0 is no exchange at all; one of 100 is not."""
    config = replace(ONCE, objective=objective)
    setup, (update, (own, other, third)) = setup_for(config), learner(config)
    rollout = rollout_for(setup, own)
    rollout = rollout._replace(reward=rollout.reward + rollout.obs[..., 0])
    heard = peers(setup, rollout, [other, third], [0.5, 1.0])
    set_to = lambda x: own._replace(hypers=own.hypers._replace(comm_penalty_coeff=jnp.float32(x)))
    (none, _), (zero, silent), (large, loud) = (
        update(KEY, own, rollout),
        update(KEY, set_to(0.0), heard),
        update(KEY, set_to(100.0), heard),
    )
    assert differ(none.params, zero.params) < 1e-6
    assert differ(none.params, large.params) > 1e-4
    assert silent["loss/neighbours"] == 0
    assert loud["loss/neighbours"] > 1


def by_hand(direction, form, own, others, weights):
    """The penalty of every observation, from probabilities (..., 3)."""
    kl = lambda p, q: np.sum(p * np.log(p / q), -1)
    apart = (lambda p: kl(p, own)) if direction == "forward" else (lambda p: kl(own, p))
    if form == "mixture":
        return apart(sum(w * p for w, p in zip(weights, others, strict=True)) / sum(weights))
    return sum(w * apart(p) for w, p in zip(weights, others, strict=True))


@pytest.mark.parametrize("form", ["sum", "mixture"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_penalty_in_the_metrics_by_hand(direction, form):
    """The mean over valid samples alone, times the coefficient; two exchanges' penalties add up."""
    config = with_settings(
        ONCE, comm_direction=direction, comm_form=form, comm_penalty_coeff=0.3, norm_obs=True
    )
    setup, (update, (own, *others)) = setup_for(config), learner(config)
    moments = {"obs": Running(jnp.float32(9), jnp.ones(3), 36 * jnp.ones(3))}
    seen = others[0].statistics._replace(obs=moments)  # it sees the world with its own eyes
    states = [own, others[0]._replace(statistics=seen), others[1]]
    rollout = rollout_for(setup, states[0])
    valid = np.random.default_rng(5).random(rollout.valid.shape) < 0.7
    rollout = rollout._replace(valid=jnp.asarray(valid))
    probabilities = [
        np.asarray(jax.nn.softmax(s.params(ppo.standardise(setup, s, rollout.obs))[0]), np.float64)
        for s in states
    ]
    first = by_hand(direction, form, probabilities[0], probabilities[1:], [2.0, 0.5])
    heard = peers(setup, rollout, states[1:], [2.0, 0.5])
    _, metrics = update(KEY, states[0], heard)
    np.testing.assert_allclose(metrics["loss/neighbours"], 0.3 * np.mean(first[valid]), rtol=1e-4)
    second = by_hand(direction, form, probabilities[0], probabilities[2:], [4.0])
    _, metrics = jax.jit(partial(ppo.update, setup))(KEY, states[0], peers(setup, heard, states[2:], [4.0]))
    np.testing.assert_allclose(metrics["loss/neighbours"], 0.3 * np.mean((first + second)[valid]), rtol=1e-4)
    terms = sum(x for name, x in metrics.items() if name.startswith("loss/") and name != "loss/total")
    np.testing.assert_allclose(metrics["loss/total"], terms, rtol=1e-5)


def test_without_neighbours_the_penalty_is_zero():
    setup, (update, (own, other, _)) = setup_for(PULLED), learner(PULLED)
    rollout = peers(setup, rollout_for(setup, own), [other], [0.0])
    after, metrics = update(KEY, own, rollout)
    assert metrics["loss/neighbours"] == 0
    assert differ(after.params, own.params) < 1e-6


def test_the_distance_is_the_kl_of_the_own_policy_from_the_other():
    setup, (_, (own, other, _)) = setup_for(ONCE), learner(ONCE)
    obs = rollout_for(setup, own).obs
    p, q = (np.asarray(jax.nn.softmax(s.params(obs)[0]), np.float64) for s in (own, other))
    found = ppo.distance(setup, own, other, obs)
    assert found.shape == (8, 4)
    np.testing.assert_allclose(found, np.sum(p * np.log(p / q), -1), rtol=1e-4)
    backwards = ppo.distance(setup, other, own, obs)
    np.testing.assert_allclose(backwards, np.sum(q * np.log(q / p), -1), rtol=1e-4)


def test_distances_and_policy_terms_read_parameters_and_statistics_alone():
    setup, (_, states) = setup_for(ONCE), learner(ONCE)
    own, other = (s._replace(opt_state=(), hypers=(), private=()) for s in states[:2])
    obs = rollout_for(setup, states[0]).obs
    jax.tree.map(
        np.testing.assert_array_equal,
        (ppo.policy_terms(setup, own, obs), ppo.distance(setup, own, other, obs)),
        (ppo.policy_terms(setup, states[0], obs), ppo.distance(setup, *states[:2], obs)),
    )


# Mirror descent, by hand: the policy was (3/4, 1/4) and is (1/2, 1/2) now.


def test_mirror_descent_penalises_the_kl_of_the_new_policy_from_the_old():
    setup = setup_for(replace(ONCE, objective="mdpo", vf_coef=0.0, ent_coef=0.0))
    setup = setup._replace(distribution=distribution_for(Discrete(2)))
    state = learner(ONCE)[1][0]
    state = state._replace(private=state.private._replace(kl_coef=jnp.float32(2.0)))
    old = jnp.log(jnp.float32([[0.75, 0.25]]))
    one = jnp.ones(1)
    batch = Batch(jnp.zeros((1, 3)), jnp.int32([0]), old, old[:, 0], one, one, one, one)
    network = lambda obs: (obs[:, :2], obs[:, 2])
    _, metrics = ppo.loss(setup, state, network, batch)
    expected = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    np.testing.assert_allclose(metrics["loss/kl"], 2.0 * expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/policy"], -0.5 / 0.75, rtol=1e-5)  # the plain ratio, unclipped


def test_mirror_descents_weight_grows_as_the_run_ends():
    """kl_coef / (what remains), and after ten of ten updates as in the last one: kl_coef * 10."""
    config = with_settings(ONCE, objective="mdpo", kl_coef=0.4)
    setup, (update, (own, *_)) = setup_for(config), learner(config)
    for number, weight in ((0, 0.4), (3, 0.4 / 0.7), (9, 4.0), (10, 4.0), (12, 4.0)):
        at = own._replace(private=own.private._replace(num_updates=jnp.int32(number)))
        _, metrics = update(KEY, at, rollout_for(setup, own))
        np.testing.assert_allclose(metrics["kl_coef"], weight, rtol=1e-4)
        np.testing.assert_allclose(metrics["loss/kl"], 0, atol=1e-5)  # the first step is taken where it acted


@pytest.mark.parametrize("objective", ["kl", "mdpo"])
def test_a_heavier_kl_holds_the_policy_near_the_one_that_acted(objective):
    moved = []
    for weight in (0.0, 1000.0):
        config = with_settings(ONCE, objective=objective, kl_coef=weight, update_epochs=6, learning_rate=0.02)
        setup, (update, (own, *_)) = setup_for(config), learner(config)
        rollout = rollout_for(setup, own)
        after, _ = update(KEY, own, rollout._replace(reward=rollout.reward + rollout.obs[..., 0]))
        moved.append(float(jnp.mean(ppo.distance(setup, after, own, rollout.obs))))
    assert moved[1] < 0.2 * moved[0]


PROX = replace(ONCE, prox_coef=0.25, ent_coef=0.0, vf_coef=0.0, norm_adv="none", max_grad_norm=1e9)


def away(state, by=0.1):
    """A learner that has moved since it received its parameters."""
    moved = jax.tree.map(
        lambda x: x + by * (1 + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape)), state.params
    )
    return state._replace(params=moved)


def test_the_gradient_of_the_proximal_term():
    """2 prox_coef (theta - anchor), of every parameter, the critic's too."""
    setup, (_, (own, *_)) = setup_for(PROX), learner(PROX)
    state = away(own)
    jax.tree.map(np.testing.assert_array_equal, own.anchor, own.params)
    batch = ppo.make_batch(setup, state, rollout_for(setup, state))
    batch = batch._replace(weight=batch.weight / jnp.sum(batch.weight))
    gradient, metrics = jax.jit(jax.grad(partial(ppo.loss, setup, state), has_aux=True))(state.params, batch)
    expected = jax.tree.map(lambda x, anchor: 2 * 0.25 * (x - anchor), state.params, own.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, expected)
    squared = sum(
        np.sum(np.square(a - b))
        for a, b in zip(*map(jax.tree.leaves, (state.params, own.params)), strict=True)
    )
    np.testing.assert_allclose(metrics["loss/prox"], 0.25 * squared, rtol=1e-5)


def test_accumulated_gradients_have_the_proximal_term_once():
    results = []
    for pieces in (1, 4):
        config = with_settings(PROX, grad_accumulation=pieces)
        setup, (update, (own, *_)) = setup_for(config), learner(config)
        state = away(own)
        after, metrics = update(KEY, state, rollout_for(setup, state))
        results.append((after.params, metrics["loss/prox"], metrics["grad_norm"]))
        far = optax.tree.norm(optax.tree.sub(state.params, own.params))
        np.testing.assert_allclose(metrics["loss/prox"], 0.25 * far**2, rtol=1e-5)
        np.testing.assert_allclose(metrics["grad_norm"], 2 * 0.25 * far, rtol=1e-4)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *results)


def test_an_update_moves_toward_the_anchor_and_leaves_it():
    setup, (update, (own, *_)) = setup_for(PROX), learner(PROX)
    state = away(own)
    after, _ = update(KEY, state, rollout_for(setup, state))
    far = lambda s: float(optax.tree.norm(optax.tree.sub(s.params, own.params)))
    assert far(after) < far(state)
    jax.tree.map(np.testing.assert_array_equal, after.anchor, own.params)


def test_without_a_coefficient_there_is_no_anchor():
    assert learner(ONCE)[1][0].anchor == ()
