"""Policies that remember: cells by hand, sequences replayed exactly, episodes kept apart, runs that go on."""

from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.learners import ppo, sequences
from shoal.learners.context import LearnerContext
from shoal.learners.minibatches import gather_minibatches, shuffle_blocks, stratify
from shoal.learners.ppo import PPOConfig
from shoal.nets.actor_critic import Layers
from shoal.nets.recurrent import GRU, LSTM, recurrent_actor_critic
from shoal.ops import trees
from shoal.ops.distributions import distribution_for
from shoal.runs.session import open_session, run_session
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.episode import episode, trajectory
from shoal.training.evaluate import play_episodes
from shoal.training.loop import train
from shoal.training.players import greedy
from shoal.training.program import make_trainer
from shoal.training.rollout import collect, reset_envs
from shoal.types import Box, Discrete, EnvSpec, Rollout
from tests import probes
from tests.learners.lab import plainly

jax.devices()  # two of them, before a trainer divides the cores its own way

KEY = jax.random.key(0)
KINDS = ("lstm", "gru")
SMALL = {
    "num_envs": 4,
    "num_steps": 7,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden": (),
    "memory_size": 8,
}
ENDING = {"terminated": probes.recall(longest=3, shortest=3), "truncated": probes.counter(limit=3)}
"""Episodes of three steps and a reset: rollouts of seven have ends within them and on their last step."""


def core(kind, *arrays):
    """A core with these arrays for its fields."""
    made = jax.eval_shape(lambda: kind(KEY, 1, 1))
    fields = lambda core: [getattr(core, name) for name in vars(made)]
    return eqx.tree_at(fields, made, [np.float32(x) for x in arrays])


@jax.jit
def advanced_by(cell, carry, x):
    return cell.advance(carry, cell.project(x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_an_lstm_by_hand():
    """x = 2, h = 1: i = 0, f = log 3, g = log 2, o = 0, whose gates are 1/2, 3/4, 0.6 and 1/2."""
    cell = core(
        LSTM, [[1.0, 0.0, np.log(2) / 2, 1.0]], [[-2.0, np.log(3), 0.0, 0.0]], np.array([0.0, 0.0, 0.0, -2.0])
    )
    c = (np.log(2) - 0.3) / 0.75  # so that c' = 0.75 c + 0.5 * 0.6 = log 2, whose tanh is 0.6
    (h, c), seen = advanced_by(cell, (np.ones((1, 1)), np.full((1, 1), c)), np.full((1, 1), 2.0))
    found = np.ravel(jax.device_get([h, c, seen]))
    np.testing.assert_allclose(found, [0.3, np.log(2), 0.3], rtol=1e-6)


def test_a_gru_by_hand():
    """x = 2, h = 1: r = 1/2, z = 3/4, n = tanh(log 2 - 1 + r 2) = 0.6, h' = 0.6 / 4 + 3 / 4."""
    cell = core(
        GRU, [[1.0, 0.0, 0.5]], [[-2.0, np.log(3), 0.5]], np.array([0.0, 0.0, np.log(2) - 2]), np.array([1.5])
    )
    carry, seen = advanced_by(cell, np.ones((1, 1)), np.full((1, 1), 2.0))
    np.testing.assert_allclose(np.ravel(jax.device_get([carry, seen])), [0.9, 0.9], rtol=1e-6)


def test_an_lstm_keeps_its_cell_at_the_start():
    assert LSTM(KEY, 3, 2).bias.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


@cache
def network(kind, hidden=(5,)):
    """One with random weights, none of them special."""
    spec = from_jax(probes.recall()).spec
    shapes = jax.eval_shape(lambda: recurrent_actor_critic(kind, 6, Layers(hidden=hidden))(KEY, spec, 2))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.float32(rng.normal(0, 0.4, leaf.shape)), shapes)


@jax.jit
def unrolled(network, obs, episode_starts, carry):
    return network.unroll(network.encoder(obs), episode_starts, carry)


def plain_unroll(network, obs, episode_starts, carry):
    """The same by a loop in Python, step by step and from the equations, in double precision."""
    network, obs, carry = jax.tree.map(np.float64, (network, obs, carry))

    def advance(core, carry, x):
        if isinstance(core, LSTM):
            h, c = carry
            i, f, g, o = np.split(x @ core.weight + h @ core.recurrent + core.bias, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            return (h, c), h
        x_r, x_z, x_n = np.split(x @ core.weight + core.bias, 3, 1)
        h_r, h_z, h_n = np.split(carry @ core.recurrent, 3, 1)
        r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
        h = (1 - z) * np.tanh(x_n + r * (h_n + core.inner)) + z * carry
        return h, h

    seen = []
    for x, new in zip(obs, episode_starts, strict=True):
        carry = jax.tree.map(lambda c: np.where(new[:, None], 0.0, c), carry)  # noqa: B023
        results = []
        for part, part_carry in zip((network.actor, network.critic), carry, strict=True):
            y = x
            for layer in part.layers:
                y = np.tanh(y @ layer.weight + layer.bias)
            part_carry, y = advance(part.core, part_carry, y)
            results.append((part_carry, y @ part.head.weight + part.head.bias))
        carry = tuple(part_carry for part_carry, _ in results)
        seen.append((results[0][1], results[1][1][:, 0]))
    outputs, value = map(np.stack, zip(*seen, strict=True))
    return outputs, value, carry


@cache
def sequence():
    """Observations (T, E, ...), where episodes begin, and what was remembered before: T = 6, E = 3."""
    rng = np.random.default_rng(1)
    obs = np.float32(rng.normal(size=(6, 3, 2)))
    episode_starts = np.zeros((6, 3), bool)
    episode_starts[0, 0] = episode_starts[2, 1] = episode_starts[4, 1] = episode_starts[5, 2] = True
    return obs, episode_starts, lambda net: jax.tree.map(like(rng), empty_carry(net, 3))


def like(rng):
    return lambda x: np.float32(rng.normal(size=x.shape))


def empty_carry(net, num_envs):
    return jax.tree.map(
        lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(lambda: net.initial_carry(num_envs))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_unrolling_and_its_gradient_are_those_of_a_plain_loop(kind):
    """The slope along random directions of each array by itself, by differences."""
    net, (obs, episode_starts, carry) = network(kind), sequence()
    given, rng = (net, carry(net)), np.random.default_rng(2)

    def total(unroll, net, carry):
        found = unroll(net, obs, episode_starts, carry)
        return sum(
            (np if unroll is plain_unroll else jnp).sum(x * x) / 2 for x in jax.tree.leaves(found)
        ), found

    slopes, found = jax.device_get(
        jax.jit(jax.grad(partial(total, unrolled), argnums=(0, 1), has_aux=True))(*given)
    )
    expected = plain_unroll(net, obs, episode_starts, given[1])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    leaves, structure = jax.tree.flatten(given)
    for place, slope in enumerate(jax.tree.leaves(slopes)):
        assert np.any(slope != 0)
        for _ in range(3):
            step, ends = 1e-6 * rng.normal(size=slope.shape), []
            for end in (leaves[place] + step, leaves[place] - step):
                moved = jax.tree.unflatten(structure, [*leaves[:place], end, *leaves[place + 1 :]])
                ends.append(total(plain_unroll, *moved)[0])
            np.testing.assert_allclose(np.sum(slope * step), (ends[0] - ends[1]) / 2, rtol=1e-3, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_sees_nothing_of_the_one_before(kind):
    """Row 1 begins at 2 and at 4: its parts are what they are alone, whatever was seen before."""
    net, (obs, episode_starts, carry) = network(kind), sequence()
    given = carry(net)
    outputs, value, after = jax.device_get(unrolled(net, obs, episode_starts, given))
    row = lambda tree: jax.tree.map(lambda x: x[1:2], tree)
    for first, end, start in [(0, 2, row(given)), (2, 4, empty_carry(net, 1)), (4, 6, empty_carry(net, 1))]:
        alone = unrolled(net, obs[first:end, 1:2], np.zeros((end - first, 1), bool), start)
        np.testing.assert_allclose(alone[0], outputs[first:end, 1:2], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(alone[1], value[first:end, 1:2], rtol=1e-6, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), row(after), alone[2])
    for x in jax.tree.leaves(given):
        x[0] = np.nan  # row 0 begins at once
    np.testing.assert_array_equal(unrolled(net, obs, episode_starts, given)[0], outputs)


# Rollouts of a learner that acts, learns and acts again


@cache
def made(kind, ending):
    """A learner, its setup, and compiled: the start of its worlds, a rollout, an update."""
    recipe = from_jax(ENDING[ending])
    config = with_settings(PPOConfig(), **SMALL, memory=kind, norm_obs=True, learning_rate=0.01)
    network = plainly(recurrent_actor_critic(kind, 8, Layers(hidden=())))
    learner = ppo.ppo(config, recipe.spec, LearnerContext(num_updates=10, network=network))
    setup = ppo.PPOSetup(config, recipe.spec, distribution_for(recipe.spec.action), network, 10)
    env = recipe.build(np.zeros((1, 4), np.uint32), False)
    begin = jax.jit(lambda keys: reset_envs(env, keys, ()))
    return learner, setup, begin, jax.jit(partial(collect, env, learner, 7)), jax.jit(learner.update)


@cache
def played(kind, ending):
    """A learner after an update, its second rollout, and the state with which it began that."""
    learner, setup, begin, play, update = made(kind, ending)
    several = lambda tree: jax.tree.map(lambda x: np.asarray(x)[None], tree)

    def act(state, worlds):
        worlds, after, rollout = jax.device_get(play(KEY[None], several(state), worlds))
        alone = jax.tree.map(lambda x: x[:, 0], rollout._replace(last_obs=()))
        return worlds, trees.take(after, 0), alone._replace(last_obs=rollout.last_obs[0])

    worlds, acted, first = act(learner.init(KEY), begin(jax.random.split(KEY, (1, 4))))
    before, _ = jax.device_get(update(KEY, acted, first))
    _, after, second = act(before, worlds)
    return learner, setup, first, before, second, after


both = pytest.mark.parametrize(("kind", "ending"), [("lstm", "terminated"), ("gru", "truncated")])


@both
def test_it_is_known_where_episodes_begin(kind, ending):
    """Three steps and a reset: the first rollout begins with an episode, the second with the reset's step."""
    _, _, first, _, second, _ = played(kind, ending)
    places = lambda flags: [np.flatnonzero(row).tolist() for row in flags.T]
    assert places(first.terminated | first.truncated) == [[2, 6]] * 4
    assert places(first.episode_starts) == [[0, 4]] * 4
    assert places(second.episode_starts) == [[1, 5]] * 4


@both
def test_unrolling_a_rollout_repeats_what_acted(kind, ending):
    """Step by step as the learner acted, and from the start that was kept: the same to 1e-5, ends and all."""
    _, setup, _, state, rollout, after = played(kind, ending)
    jax.tree.map(np.testing.assert_array_equal, state.private.carry, state.private.start)

    @jax.jit
    def look(carry, obs, episode_starts, action):
        obs = ppo.standardise(setup, state, obs)
        outputs, carry = sequences.advance(state.params, carry, obs, episode_starts)
        return carry, setup.distribution.log_prob(outputs, action)

    carry, log_prob = state.private.carry, []
    for moment in zip(rollout.obs, rollout.episode_starts, rollout.action, strict=True):
        carry, chance = look(carry, *moment)
        log_prob.append(chance)
    batch = jax.jit(partial(ppo.make_batch, setup))(after, rollout)
    np.testing.assert_allclose(batch.log_prob, np.stack(log_prob, 1), atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), after.private.carry, carry)
    jax.tree.map(np.testing.assert_array_equal, after.private.start, state.private.start)


@both
def test_the_first_ratio_is_one(kind, ending):
    """In every minibatch, where nothing is learned in between."""
    _, _, _, _, rollout, state = played(kind, ending)
    still = state._replace(hypers=state.hypers._replace(learning_rate=np.float32(0)))
    updated, metrics = made(kind, ending)[-1](KEY, still, rollout)
    assert abs(metrics["approx_kl"]) < 1e-9  # (ratio - 1)^2 / 2
    assert metrics["clip_fraction"] == 0
    jax.tree.map(np.testing.assert_array_equal, updated.private.start, state.private.carry)


def test_a_member_acts_as_it_would_alone():
    """Two learners in four environments each, the first of which has just begun new episodes."""
    learner, _, begin, play, _ = made("lstm", "terminated")
    second = played("lstm", "terminated")[3]
    first = learner.on_restart(second)._replace(params=jax.tree.map(np.negative, second.params))
    cohort = jax.tree.map(lambda *rows: np.stack(rows), first, second)
    keys, world_keys = jax.random.split(KEY), jax.random.split(KEY, (2, 4))
    _, both, rollout = jax.device_get(play(keys, cohort, begin(world_keys)))
    alone = jax.tree.map(lambda x: x[1:], cohort)
    _, expected, solo = play(keys[1:], alone, begin(world_keys[1:]))
    np.testing.assert_array_equal(rollout.action[:, 1:], solo.action)
    np.testing.assert_array_equal(rollout.obs[:, 1:], solo.obs)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, trees.take(both.private.carry, np.array([1])), expected.private.carry)
    assert np.any(rollout.action[:, 0] != rollout.action[:, 1])


def test_the_value_after_the_last_step_is_of_the_same_episode():
    """A truncated episode's final observation is judged with what was remembered of it."""
    _, setup, _, state, rollout, _ = played("gru", "truncated")
    eyes = jax.jit(partial(ppo.standardise, setup))
    obs, last_obs = (np.asarray(eyes(state, x)) for x in (rollout.obs, rollout.last_obs))
    seen, net = rollout._replace(obs=obs, last_obs=last_obs), state.params
    unroll = jax.jit(sequences.unroll_rollout, static_argnames="by_step")
    _, value, last_value = unroll(net, state.private.start, seen, by_step=False)
    judge = lambda obs: plain_unroll(net, obs, np.zeros(obs.shape[:2], bool), empty_carry(net, 4))[1]
    np.testing.assert_allclose(value[1:5], judge(obs[1:5]), atol=1e-5)  # from its first to its final one
    under_way = np.concatenate([obs[5:], last_obs[None]])
    np.testing.assert_allclose(last_value, judge(under_way)[-1], atol=1e-5)
    np.testing.assert_allclose(unroll(net, state.private.start, seen, by_step=True)[2], last_value, atol=1e-6)


def test_evaluation_starts_with_an_empty_carry():
    learner, _, _, _, _, state = played("lstm", "terminated")
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(state.private.carry))
    ready = learner.for_evaluation(state, 9)
    assert {leaf.shape for leaf in jax.tree.leaves((ready.private.carry, ready.private.start))} == {(9, 8)}
    left = learner.on_restart(state)
    assert not any(
        np.any(x) for x in jax.tree.leaves((ready.private.carry, left.private.carry, left.private.start))
    )
    assert left.private.num_updates == state.private.num_updates


def test_minibatches_are_of_whole_sequences_in_their_order():
    order = jax.jit(lambda key: shuffle_blocks(key, 20, 1, stratify(1, 8, 4), 4))(KEY)
    steps = np.arange(8)[:, None] * 100 + np.arange(5)[None]  # (E, T): environment and time
    for parts in np.asarray(
        jax.jit(jax.vmap(lambda blocks: gather_minibatches(jnp.asarray(steps), blocks)))(order)
    ):
        assert parts.shape == (4, 2, 5)
        assert np.all(parts % 100 == np.arange(5))
        assert np.all(parts // 100 == parts[..., :1] // 100)
        assert sorted(parts[..., 0].ravel() // 100) == list(range(8))
    assert len({tuple(blocks.ravel().tolist()) for blocks in np.asarray(order)}) > 10


def test_sequences_must_divide_evenly():
    settings = SMALL | {"num_minibatches": 7}
    assert with_settings(PPOConfig(), **settings).num_minibatches == 7  # which divides 4 x 7 samples
    with pytest.raises(ShoalError, match=r"= 7 does not divide the 4 environments; leave"):
        with_settings(PPOConfig(), **settings, memory="gru")
    with pytest.raises(ShoalError, match="= 2 does not divide the 1 environments of each of 4 devices"):
        ppo.ppo(
            with_settings(PPOConfig(), **SMALL, memory="gru"),
            ENDING["terminated"].spec,
            LearnerContext(num_updates=1, shards=4),
        )


@pytest.mark.parametrize("action", [Discrete(3), Box((2,), -1.0, 1.0)])
def test_recurrent_policies_take_images_and_named_parts(action):
    """Nothing is run: the shapes say that the parts fit."""
    boxes = {"eye": Box((36, 36, 1), 0, 255, "uint8"), "ear": Box((2,))}
    spec = EnvSpec("senses", "jax", boxes, action)
    learner = ppo.ppo(
        with_settings(PPOConfig(), **SMALL, memory="gru", norm_obs=True), spec, LearnerContext(num_updates=10)
    )

    def learn(key):
        state, flags = learner.init(key), jnp.zeros((7, 4), bool)
        obs = {name: jnp.zeros((7, 4, *box.shape), box.dtype) for name, box in boxes.items()}
        noise, first = learner.draw(key, (7, 4)), trees.take(obs, 0)
        chosen, memory = learner.act(state, first, noise[0], flags[0])
        actions = jnp.broadcast_to(chosen, (7, *chosen.shape))
        rollout = Rollout(obs, actions, jnp.zeros((7, 4)), flags, flags, ~flags, first, episode_starts=flags)
        return state, learner.update(key, state._replace(private=memory), rollout)[0]

    before, after = jax.eval_shape(learn, KEY)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, after)]
    assert shapes[0] == shapes[1]


def test_accumulated_gradients_add_up():
    _, setup, _, _, rollout, state = played("lstm", "terminated")
    pieces = setup._replace(config=with_settings(setup.config, grad_accumulation=2))
    updates = made("lstm", "terminated")[-1], jax.jit(partial(ppo.update, pieces))
    results = [update(KEY, state, rollout)[0].params for update in updates]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *results)


# A policy made by hand, which remembers the coin for as long as it takes


def rememberer(learner):
    """c' = c + tanh(10 coin) / 2: its sign is the coin's, and the action's."""

    def init(key):
        state = learner.init(key)
        zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state.params.actor)
        weight = np.float32([[0, 0, 10, 0], [0, 0, 0, 0]])
        bias, head = np.float32([0, 50, 0, 0]), np.float32([[-100, 100]])
        actor = eqx.tree_at(lambda a: (a.core.weight, a.core.bias, a.head.weight), zero, (weight, bias, head))
        return state._replace(params=eqx.tree_at(lambda p: p.actor, state.params, actor))

    return learner._replace(init=init)


@cache
def by_hand(longest):
    recipe = from_jax(probes.recall(longest, shortest=longest - 1))
    config = with_settings(PPOConfig(), **SMALL | {"memory_size": 1}, memory="lstm")
    network = plainly(recurrent_actor_critic("lstm", 1, Layers(hidden=())))
    return recipe, rememberer(ppo.ppo(config, recipe.spec, LearnerContext(num_updates=1, network=network)))


def test_a_carry_outlasts_rollouts_and_ends_with_episodes():
    """Rollouts of 5 steps, episodes of 11 and 12; a coin that is not forgotten spoils the next."""
    recipe, learner = by_hand(12)
    learner, env = greedy(learner), recipe.build(np.zeros((1, 4), np.uint32), False)

    @jax.jit
    def begin(key):
        return reset_envs(env, jax.random.split(key, (1, 4)), ())

    @jax.jit
    def go_on(number, worlds, state):
        return collect(env, learner, 5, jax.random.fold_in(KEY, number)[None], state, worlds)[:2]

    worlds, state = begin(KEY), jax.tree.map(lambda x: np.asarray(x)[None], learner.init(KEY))
    for number in range(40):
        worlds, state = go_on(number, worlds, state)
    returns = np.asarray(worlds.episodes.returns)
    assert worlds.episodes.finished[0] > 50
    assert np.all(returns[np.isfinite(returns)] == 1.0)


def test_evaluation_and_play_keep_the_carry():
    """Episodes of 150 steps, of which evaluation plays 64 at a time."""
    recipe, learner = by_hand(150)
    states = jax.device_get([learner.init(jax.random.key(number)) for number in range(2)])
    cohort = jax.tree.map(lambda *rows: np.stack(rows), *states)
    returns, lengths = play_episodes(recipe, learner, cohort, episodes=8)
    assert np.all(returns == 1.0)
    assert set(lengths.ravel()) == {149, 150}
    played = trajectory(episode(recipe, learner, jax.tree.map(lambda x: x[:1], cohort), 0))
    assert played.reward.sum() == 1.0
    assert played.action[-1] == 1  # who has forgotten takes 0


# Whole runs

PPO = with_settings(
    PPOConfig(),
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden=(),
    memory="lstm",
    memory_size=8,
    learning_rate=0.01,
    norm_obs=True,
    norm_reward=True,
)
CONFIG = TrainConfig("CartPoleNoVel-v1", algo=PPO, steps=32 * 12, learners=2, seed=3, reports=6)


@cache
def advanced(learners, mesh):
    """After 12 iterations: both members, or the second alone."""
    trainer = make_trainer(replace(CONFIG, learners=learners, first_member=2 - learners), mesh=mesh)
    return trainer.advance(trainer.init(), jnp.int32(12))[0]


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), a, b)


@pytest.mark.slow
def test_a_member_is_its_solo_run():
    cohort, solo = advanced(2, "2x1"), advanced(1, "1x1")
    assert_close(trees.take(cohort.cohort, jnp.array([1])), solo.cohort)
    assert cohort.envs.episodes.finished.min() > 0


@pytest.mark.slow
def test_two_devices_are_one():
    """They share the environments, and with them what is remembered of each."""
    one, two = advanced(1, "1x1"), advanced(1, "1x2")
    assert_close(one.cohort, two.cohort)
    assert_close(one.envs.episodes, two.envs.episodes)
    assert [x.data.shape for x in two.cohort.private.start[0][0].addressable_shards] == [(1, 2, 8)] * 2


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(tmp_path):
    """To the bit, with what is remembered of the episodes under way."""
    config = replace(CONFIG, learners=1, first_member=1)

    def go_on(folder, until):
        opened = open_session(config, tmp_path / folder, mesh="1x1")
        reports = run_session(opened)
        report = next(report for report in reports if report.step >= until)
        reports.close()
        return opened.resumed_step, report.state

    _, whole = go_on("whole", config.steps)
    _, half = go_on("halves", 32 * 5)
    assert np.any(half.envs.episodes.running_length > 0)  # episodes are cut, and go on
    resumed, again = go_on("halves", config.steps)
    assert resumed > 0
    for a, b in zip(jax.tree.leaves(whole.cohort), jax.tree.leaves(again.cohort), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_carry_never_leaves_a_learner_and_parts_have_their_names():
    exchange = ExchangeConfig("average", parts=("actor",), local_updates=1)
    trainer = make_trainer(replace(CONFIG, exchanges=(exchange,)), mesh="2x1")
    cohort = trainer.advance(trainer.init(), jnp.int32(3))[0].cohort
    same = lambda tree: [bool(np.all(x[0] == x[1])) for x in jax.tree.leaves(tree)]
    assert all(same(cohort.params.actor))
    assert not any(same((cohort.params.critic.core.weight, cohort.private.carry)))


@pytest.mark.slow
def test_a_learner_stays_near_its_own_policy_of_the_last_exchange():
    """The first and only minibatch is learned from by the policy that was exchanged: the penalty is 0.

    It would not be if its memory at the rollout's start were another one: so episodes begin there.
    """
    exchange = ExchangeConfig("gossip", use_comm_penalty=True, local_updates=1)
    once = with_settings(PPO, num_minibatches=1, update_epochs=1)
    found = {}
    for hard_resets in (True, False):
        config = replace(CONFIG, algo=once, exchanges=(exchange,), hard_resets=hard_resets)
        reports = list(train(config, mesh="1x1"))
        found[hard_resets] = np.array([report.metrics["loss/neighbours"] for report in reports])
    assert np.abs(found[True]).max() < 1e-7
    assert found[False].max() > 1e-6


@pytest.mark.slow
def test_neighbours_policies_come_nearer_by_the_penalty():
    exchange = ExchangeConfig("neighbours", local_updates=1)
    far, near = (
        list(train(replace(CONFIG, algo=with_settings(PPO, comm_penalty_coeff=c), exchanges=(exchange,))))
        for c in (1e-6, 10.0)
    )
    apart = [reports[-1].metrics["loss/neighbours"].mean() / c for reports, c in ((far, 1e-6), (near, 10.0))]
    assert 0 < apart[1] < 0.5 * apart[0]


@pytest.mark.slow
def test_a_coin_is_recalled_with_memory_and_not_without():
    """Rollouts of 8 steps, episodes of 2 to 12.

    Of 96 learners with memory the worst scored 0.98; of 96 without, four at a time had means of up to 0.6.
    """

    def learn(memory):
        algo = with_settings(
            PPOConfig(),
            num_envs=32,
            num_steps=8,
            num_minibatches=2,
            hidden=(),
            learning_rate=0.005,
            anneal_lr=False,
            ent_coef=0.0,
            memory=memory,
            memory_size=16,
        )
        config = TrainConfig("recall", algo=algo, steps=60 * algo.rollout_size, learners=4, reports=1)
        (report,) = train(config, recipe=from_jax(probes.recall(12)))
        return report.metrics["return_mean"]

    assert learn("lstm").min() > 0.9
    assert learn("none").mean() < 0.7
