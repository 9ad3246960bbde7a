"""PPO's penalties: toward neighbours, near the policy that acted, near an anchor; their sign and size."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.learners import ppo
from shoal.learners.ppo import Batch, PPOConfig, PPOSetup
from shoal.nets import actor_critic
from shoal.ops.distributions import distribution_for
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec, PeerTargets, Rollout
from tests.learners.lab import plainly

KEY = jax.random.key(0)
SPECS = {
    "discrete": EnvSpec("discrete", "jax", Box((3,)), Discrete(3)),
    "continuous": EnvSpec("continuous", "jax", Box((3,)), Box((2,), -1.0, 1.0)),
}
BASE = with_settings(
    PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, update_epochs=6, hidden=(4,), anneal_lr=False),
    norm_adv="none",
    norm_obs=True,
    kl_coef=0.1,
)
"""Tests change hyperparameters, which are data, so that most of them share one program."""
PULLED = {"ent_coef": 0.0, "vf_coef": 0.0, "learning_rate": 0.02, "comm_penalty_coeff": 100.0}
NUM_UPDATES = 1000


@cache
def setup_for(config, kind="discrete"):
    spec = SPECS[kind]
    network = plainly(actor_critic.actor_critic(hidden=config.hidden))  # policies differ between keys
    return PPOSetup(config, spec, distribution_for(spec.action), network, NUM_UPDATES)


@cache
def learner(config, kind="discrete"):
    """The compiled update and three learners: the one that learns, and two neighbours."""
    setup = setup_for(config, kind)
    return jax.jit(partial(ppo.update, setup)), [ppo.init(setup, jax.random.key(i)) for i in range(3)]


def changed(state, **hypers):
    return state._replace(hypers=state.hypers._replace(**{k: np.float32(x) for k, x in hypers.items()}))


@cache
def compiled(function, config=BASE, kind="discrete"):
    return jax.jit(partial(function, setup_for(config, kind)))


def rollout_for(state, kind="discrete"):
    return jax.device_get(compiled(play, kind=kind)(state.params))


def peers(setup, rollout, others, weights):
    return compiled(add_peer_targets, setup.config, setup.spec.name)(rollout, others, np.float32(weights))


def play(setup, network):
    """Random observations, the learner's own actions, and rewards that surprise nobody: advantages of 0."""
    shape = (setup.config.num_steps, setup.config.num_envs)
    obs = np.float32(np.random.default_rng(0).normal(size=(*shape, 3)))
    outputs, value = network(obs)
    action = setup.distribution.sample(outputs, setup.distribution.draw(KEY, shape))
    yes = np.ones(shape, bool)
    return Rollout(obs, action, value, yes, ~yes, yes, obs[0])


def add_peer_targets(setup, rollout, others, weights):
    """The rollout with the others' opinions, as an exchange adds them up."""
    opinions = [ppo.policy_terms(setup, other, rollout.obs) for other in others]
    total = jax.tree.map(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)), *opinions)
    weight = jnp.full(rollout.reward.shape, jnp.sum(weights))
    return rollout._replace(peer_targets=(*rollout.peer_targets, PeerTargets(weight, total)))


def differ(a, b):
    pairs = zip(*(jax.tree.leaves(jax.device_get(tree)) for tree in (a, b)), strict=True)
    return max(float(np.max(np.abs(x - y))) for x, y in pairs)


def paired(*cases):
    return pytest.mark.parametrize(("direction", "form"), cases)


@paired(
    ("forward", "sum"),
    ("reverse", "mixture"),
    pytest.param("reverse", "sum", marks=pytest.mark.slow),
    pytest.param("forward", "mixture", marks=pytest.mark.slow),
)
def test_an_update_moves_the_policy_toward_its_neighbours(direction, form):
    pulled_together("discrete", direction, form, exchanges=2)


@paired(
    ("forward", "sum"),
    *[pytest.param(*case, marks=pytest.mark.slow) for case in (("reverse", "mixture"), ("reverse", "sum"))],
    pytest.param("forward", "mixture", marks=pytest.mark.slow),
)
def test_an_update_moves_continuous_actions_toward_its_neighbours(direction, form):
    pulled_together("continuous", direction, form, exchanges=1)


def pulled_together(kind, direction, form, exchanges):
    """Nothing else to learn: the KL to the neighbour falls, and the penalty it reports is positive."""
    config = with_settings(BASE, comm_direction=direction, comm_form=form)
    setup, (update, (own, other, third)) = setup_for(config, kind), learner(config, kind)
    own, rollout = changed(own, **PULLED), rollout_for(own, kind)
    heard = peers(setup, rollout, [other, third], [1.0, 0.0])
    if exchanges == 2:
        heard = peers(setup, heard, [third], [0.0])
    after, metrics = update(KEY, own, heard)
    distance = compiled(ppo.distance, kind=kind)
    apart = lambda state, other: float(np.mean(distance(state, other, rollout.obs)))
    after = after._replace(statistics=own.statistics)  # observations as before: only the policy counts
    assert apart(after, other) < 0.9 * apart(own, other)
    assert apart(other, after) < 0.9 * apart(other, own)
    assert metrics["loss/neighbours"] > 0
    assert metrics["loss_share/neighbours"] > 0.99


def test_without_peer_targets_nothing_moves_where_there_is_nothing_to_learn():
    """The control of the test above."""
    update, (own, *_) = learner(BASE)
    after, metrics = update(KEY, changed(own, **PULLED), rollout_for(own))
    assert differ(after.params, own.params) < 1e-6
    assert "loss/neighbours" not in metrics


@pytest.mark.parametrize("objective", ["clip", pytest.param("kl", marks=pytest.mark.slow), "mdpo"])
def test_every_objective_weighs_peer_targets_by_their_coefficient(objective):
    """A coefficient of 0 is no exchange at all; one of 100 is not."""
    config = replace(BASE, objective=objective)
    setup, (update, (own, other, third)) = setup_for(config), learner(config)
    rollout = rollout_for(own)
    rollout = rollout._replace(reward=rollout.reward + rollout.obs[..., 0])
    heard = peers(setup, rollout, [other, third], [0.5, 1.0])
    (none, _), (zero, silent), (large, loud) = (
        update(KEY, own, rollout),
        update(KEY, changed(own, comm_penalty_coeff=0.0), heard),
        update(KEY, changed(own, comm_penalty_coeff=100.0), heard),
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
    """The mean over valid samples alone, times the coefficient; two exchanges' penalties add up.

    With steps of 0 every epoch pays the same.
    """
    config = with_settings(BASE, comm_direction=direction, comm_form=form)
    setup, (update, (own, *others)) = setup_for(config), learner(config)
    moments = {"obs": Running(np.float32(9), np.ones(3, np.float32), np.full(3, 36, np.float32))}
    seen = others[0].statistics._replace(obs=moments)  # it sees the world with its own eyes
    own = changed(own, comm_penalty_coeff=0.3, learning_rate=0.0)
    states = [own, others[0]._replace(statistics=seen), others[1]]
    rollout = rollout_for(own)
    valid = np.random.default_rng(5).random(rollout.valid.shape) < 0.7
    rollout = rollout._replace(valid=valid)
    probabilities = [chances(state, rollout.obs) for state in states]
    first = by_hand(direction, form, probabilities[0], probabilities[1:], [2.0, 0.5])
    heard = peers(setup, rollout, states[1:], [2.0, 0.5])
    _, metrics = update(KEY, own, peers(setup, heard, states[2:], [0.0]))
    np.testing.assert_allclose(metrics["loss/neighbours"], 0.3 * np.mean(first[valid]), rtol=1e-4)
    second = by_hand(direction, form, probabilities[0], probabilities[2:], [4.0])
    _, metrics = update(KEY, own, peers(setup, heard, states[2:], [4.0]))
    np.testing.assert_allclose(metrics["loss/neighbours"], 0.3 * np.mean((first + second)[valid]), rtol=1e-4)
    terms = sum(x for name, x in metrics.items() if name.startswith("loss/") and name != "loss/total")
    np.testing.assert_allclose(metrics["loss/total"], terms, rtol=1e-5)


def chances(state, obs):
    """The probabilities of a discrete policy, in double precision."""
    outputs = np.exp(np.float64(compiled(outputs_of)(state, obs)))
    return outputs / outputs.sum(-1, keepdims=True)


def outputs_of(setup, state, obs):
    return state.params(ppo.standardise(setup, state, obs))[0]


def test_where_nobody_advises_nothing_is_paid():
    setup, (update, (own, other, third)) = setup_for(BASE), learner(BASE)
    rollout = peers(setup, rollout_for(own), [other, third], [0.0, 0.0])
    after, metrics = update(KEY, changed(own, **PULLED), peers(setup, rollout, [third], [0.0]))
    assert metrics["loss/neighbours"] == 0
    assert differ(after.params, own.params) < 1e-6


def test_the_distance_is_the_kl_of_ones_own_policy_from_the_others():
    _, (own, other, _) = learner(BASE)
    obs, distance = rollout_for(own).obs, compiled(ppo.distance)
    p, q = (chances(state, obs) for state in (own, other))
    found = distance(own, other, obs)
    assert found.shape == (8, 4)
    np.testing.assert_allclose(found, np.sum(p * np.log(p / q), -1), rtol=1e-4)
    np.testing.assert_allclose(distance(other, own, obs), np.sum(q * np.log(q / p), -1), rtol=1e-4)


def test_distances_and_opinions_read_parameters_and_statistics_alone():
    _, states = learner(BASE)
    bare = [s._replace(opt_state=(), hypers=(), private=()) for s in states[:2]]
    obs = rollout_for(states[0]).obs
    terms, distance = compiled(ppo.policy_terms), compiled(ppo.distance)
    jax.tree.map(
        np.testing.assert_array_equal,
        (terms(bare[0], obs), distance(*bare, obs)),
        (terms(states[0], obs), distance(*states[:2], obs)),
    )


# Mirror descent, by hand: the policy was (3/4, 1/4) and is (1/2, 1/2) now.


def test_mirror_descent_pays_the_kl_of_the_new_policy_from_the_old():
    setup = setup_for(replace(BASE, objective="mdpo", vf_coef=0.0, ent_coef=0.0))
    setup = setup._replace(distribution=distribution_for(Discrete(2)))
    state = learner(BASE)[1][0]
    state = state._replace(private=state.private._replace(kl_coef=np.float32(2.0)))
    old = np.log(np.float32([[0.75, 0.25]]))
    one = np.ones(1, np.float32)
    batch = Batch(np.zeros((1, 3), np.float32), np.int32([0]), old, old[:, 0], one, one, one, one)
    network = lambda obs: (obs[:, :2], obs[:, 2])
    _, metrics = jax.jit(lambda state, batch: ppo.loss(setup, state, network, batch))(state, batch)
    expected = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    np.testing.assert_allclose(metrics["loss/kl"], 2.0 * expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/policy"], -0.5 / 0.75, rtol=1e-5)  # the plain ratio, unclipped


def test_mirror_descents_weight_grows_as_the_run_ends():
    """kl_coef / (what remains), and after the last of all updates as in it: kl_coef times their number."""
    update, (own, *_) = learner(replace(BASE, objective="mdpo"))
    own = changed(own, learning_rate=0.0)
    for number, weight in ((0, 0.1), (300, 0.1 / 0.7), (999, 100.0), (1000, 100.0), (1200, 100.0)):
        _, metrics = update(KEY, after_updates(own, number), rollout_for(own))
        np.testing.assert_allclose(metrics["kl_coef"], weight, rtol=1e-4)
        np.testing.assert_allclose(metrics["loss/kl"], 0, atol=1e-5)  # it stays where it acted


def after_updates(state, number):
    return state._replace(private=state.private._replace(num_updates=np.int32(number)))


@pytest.mark.parametrize("objective", ["kl", "mdpo"])
def test_a_heavier_kl_holds_the_policy_near_the_one_that_acted(objective):
    """Mirror descent's weight is a thousand times the first one in the end, see above."""
    update, (own, *_) = learner(replace(BASE, objective=objective))
    own, rollout = changed(own, learning_rate=0.02), rollout_for(own)
    light, heavy = after_updates(own, 0), after_updates(own, NUM_UPDATES)
    if objective == "kl":
        light, heavy = (
            own._replace(private=own.private._replace(kl_coef=np.float32(x))) for x in (0.0, 1000.0)
        )
    moved = []
    for state in (light, heavy):
        after, _ = update(KEY, state, rollout._replace(reward=rollout.reward + rollout.obs[..., 0]))
        after = after._replace(statistics=own.statistics)
        moved.append(float(np.mean(compiled(ppo.distance)(after, own, rollout.obs))))
    assert moved[1] < 0.2 * moved[0]


PROX = replace(
    BASE, update_epochs=1, norm_obs=False, prox_coef=0.25, ent_coef=0.0, vf_coef=0.0, max_grad_norm=1e9
)


def away(state, by=0.1):
    """A learner that has moved since it received its parameters."""
    moved = jax.tree.map(
        lambda x: x + by * (1 + np.arange(x.size, dtype=x.dtype).reshape(x.shape)), state.params
    )
    return state._replace(params=moved)


def distance_of(state, other):
    pairs = zip(*map(jax.tree.leaves, (state.params, other.params)), strict=True)
    return sum(np.sum(np.square(np.asarray(x) - y)) for x, y in pairs) ** 0.5


def test_the_gradient_of_the_proximal_term():
    """2 prox_coef (theta - anchor), of every parameter, the critic's too."""
    setup, (_, (own, *_)) = setup_for(PROX), learner(PROX)
    state = away(own)
    jax.tree.map(np.testing.assert_array_equal, own.anchor, own.params)

    @jax.jit
    def gradient_of(state, rollout):
        batch = ppo.make_batch(setup, state, rollout)
        batch = batch._replace(weight=batch.weight / jnp.sum(batch.weight))
        return jax.grad(partial(ppo.loss, setup, state), has_aux=True)(state.params, batch)

    gradient, metrics = gradient_of(state, rollout_for(state))
    expected = jax.tree.map(lambda x, anchor: 2 * 0.25 * (x - anchor), state.params, own.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, expected)
    np.testing.assert_allclose(metrics["loss/prox"], 0.25 * distance_of(state, own) ** 2, rtol=1e-5)


def test_accumulated_gradients_have_the_proximal_term_once():
    results = []
    for pieces in (1, 4):
        config = with_settings(PROX, grad_accumulation=pieces)
        update, (own, *_) = learner(config)
        state = away(own)
        after, metrics = update(KEY, state, rollout_for(state))
        results.append((after.params, metrics["loss/prox"], metrics["grad_norm"]))
        far = distance_of(state, own)
        np.testing.assert_allclose(metrics["loss/prox"], 0.25 * far**2, rtol=1e-5)
        np.testing.assert_allclose(metrics["grad_norm"], 2 * 0.25 * far, rtol=1e-4)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *results)


def test_an_update_moves_toward_the_anchor_and_leaves_it():
    update, (own, *_) = learner(PROX)
    state = away(own)
    after, _ = update(KEY, state, rollout_for(state))
    assert distance_of(after, own) < distance_of(state, own)
    jax.tree.map(np.testing.assert_array_equal, after.anchor, own.params)


def test_without_a_coefficient_there_is_no_anchor():
    assert learner(BASE)[1][0].anchor == ()
