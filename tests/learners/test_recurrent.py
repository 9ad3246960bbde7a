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
from shoal.learners.minibatches import arrange, shuffles, stratify
from shoal.learners.ppo import PPOConfig
from shoal.nets.recurrent import GRU, LSTM, recurrent_actor_critic
from shoal.ops import trees
from shoal.ops.distributions import distribution_for
from shoal.runs.session import open_session, run_session
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.episode import episode, trajectory
from shoal.training.evaluate import greedy, play_episodes
from shoal.training.loop import train
from shoal.training.program import make_trainer
from shoal.training.rollout import collect, reset_envs
from shoal.types import Box, Discrete, EnvSpec, Rollout
from tests import probes

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
    made = kind(KEY, 1, 1)
    fields = lambda core: [getattr(core, name) for name in vars(made)]
    return eqx.tree_at(fields, made, [jnp.float32(x) for x in arrays])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_an_lstm_by_hand():
    """x = 2, h = 1: i = 0, f = log 3, g = log 2, o = 0, whose gates are 1/2, 3/4, 0.6 and 1/2."""
    cell = core(
        LSTM, [[1.0, 0.0, np.log(2) / 2, 1.0]], [[-2.0, np.log(3), 0.0, 0.0]], np.array([0.0, 0.0, 0.0, -2.0])
    )
    c = (np.log(2) - 0.3) / 0.75  # so that c' = 0.75 c + 0.5 * 0.6 = log 2, whose tanh is 0.6
    (h, c), seen = cell.advance((jnp.ones((1, 1)), jnp.full((1, 1), c)), cell.project(jnp.full((1, 1), 2.0)))
    np.testing.assert_allclose([h[0, 0], c[0, 0], seen[0, 0]], [0.3, np.log(2), 0.3], rtol=1e-6)


def test_a_gru_by_hand():
    """x = 2, h = 1: r = 1/2, z = 3/4, n = tanh(log 2 - 1 + r 2) = 0.6, h' = 0.6 / 4 + 3 / 4."""
    cell = core(
        GRU, [[1.0, 0.0, 0.5]], [[-2.0, np.log(3), 0.5]], np.array([0.0, 0.0, np.log(2) - 2]), np.array([1.5])
    )
    carry, seen = cell.advance(jnp.ones((1, 1)), cell.project(jnp.full((1, 1), 2.0)))
    np.testing.assert_allclose([carry[0, 0], seen[0, 0]], [0.9, 0.9], rtol=1e-6)


def test_an_lstm_begins_by_remembering():
    assert LSTM(KEY, 3, 2).bias.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


@cache
def network(kind, hidden=(5,)):
    spec = from_jax(probes.recall()).spec
    made = jax.jit(lambda key: recurrent_actor_critic(kind, 6, hidden=hidden)(key, spec, 2))(KEY)
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(KEY, x.shape), made)  # no weight is special


def plain_unroll(network, obs, episode_starts, carry):
    """The same by a loop in Python, step by step and from the equations."""

    def advance(core, carry, x):
        if isinstance(core, LSTM):
            h, c = carry
            i, f, g, o = jnp.split(x @ core.weight + h @ core.recurrent + core.bias[None], 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h
        x_r, x_z, x_n = jnp.split(x @ core.weight + core.bias[None], 3, 1)
        h_r, h_z, h_n = jnp.split(carry @ core.recurrent, 3, 1)
        r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
        h = (1 - z) * jnp.tanh(x_n + r * (h_n + core.inner[None])) + z * carry
        return h, h

    seen = []
    for x, new in zip(obs, episode_starts, strict=True):
        carry = jax.tree.map(lambda c: jnp.where(new[:, None], 0.0, c), carry)  # noqa: B023
        results = []
        for part, part_carry in zip((network.actor, network.critic), carry, strict=True):
            y = x
            for layer in part.layers:
                y = jnp.tanh(y @ layer.weight + layer.bias[None])
            part_carry, y = advance(part.core, part_carry, y)
            results.append((part_carry, y @ part.head.weight + part.head.bias[None]))
        carry = tuple(part_carry for part_carry, _ in results)
        seen.append((results[0][1], results[1][1][:, 0]))
    outputs, value = trees.stack(seen)
    return outputs, value, carry


@cache
def sequence():
    """Observations (T, E, ...), where episodes begin, and what was remembered before: T = 6, E = 3."""
    keys = jax.random.split(KEY, 3)
    obs = jax.random.normal(keys[0], (6, 3, 2))
    episode_starts = np.zeros((6, 3), bool)
    episode_starts[0, 0] = episode_starts[2, 1] = episode_starts[4, 1] = episode_starts[5, 2] = True
    carry = lambda net: jax.tree.map(lambda x: jax.random.normal(keys[1], x.shape), net.initial_carry(3))
    return obs, jnp.asarray(episode_starts), carry


@pytest.mark.parametrize("kind", KINDS)
def test_unrolling_and_its_gradient_are_those_of_a_plain_loop(kind):
    net, (obs, episode_starts, carry) = network(kind), sequence()

    def total(unroll, net, carry):
        outputs, value, after = unroll(net, obs, episode_starts, carry)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves((outputs, value, after)))

    scanned = lambda net, obs, episode_starts, carry: net.unroll(net.encoder(obs), episode_starts, carry)
    results = [
        jax.jit(jax.value_and_grad(partial(total, unroll), argnums=(0, 1)))(net, carry(net))
        for unroll in (scanned, plain_unroll)
    ]
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(results[0]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *results)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_sees_nothing_of_the_one_before(kind):
    """Row 1 begins at 2 and at 4: its parts are what they are alone, whatever was seen before."""
    net, (obs, episode_starts, carry) = network(kind), sequence()
    outputs, value, after = net.unroll(net.encoder(obs), episode_starts, carry(net))
    row = lambda tree: jax.tree.map(lambda x: x[1:2], tree)
    for first, end, start in [
        (0, 2, row(carry(net))),
        (2, 4, net.initial_carry(1)),
        (4, 6, net.initial_carry(1)),
    ]:
        part, new = obs[first:end, 1:2], jnp.zeros((end - first, 1), bool)
        alone = net.unroll(net.encoder(part), new, start)
        np.testing.assert_allclose(alone[0], outputs[first:end, 1:2], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(alone[1], value[first:end, 1:2], rtol=1e-6, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), row(after), alone[2])
    poison = jax.tree.map(lambda x: x.at[0].set(jnp.nan), carry(net))  # row 0 begins at once
    np.testing.assert_array_equal(net.unroll(net.encoder(obs), episode_starts, poison)[0], outputs)


# Rollouts of a learner that acts, learns and acts again


@cache
def played(kind, ending):
    """A learner after an update, its second rollout, and the state with which it began that."""
    recipe = from_jax(ENDING[ending])
    config = with_settings(PPOConfig(), **SMALL, memory=kind, norm_obs=True, learning_rate=0.01)
    learner = ppo.ppo(config, recipe.spec, LearnerContext(num_updates=10))
    env = recipe.build(np.zeros((1, 4), np.uint32), False)

    @jax.jit
    def play():
        state = jax.tree.map(lambda x: x[None], learner.init(KEY))
        worlds = reset_envs(env, jax.random.split(KEY, (1, 4)), ())
        worlds, state, first = collect(env, learner, 7, jax.random.split(KEY, 1), state, worlds)
        alone = jax.tree.map(lambda x: x[:, 0], first)._replace(last_obs=first.last_obs[0])
        updated, _ = learner.update(KEY, trees.take(state, 0), alone)
        state = jax.tree.map(lambda x: x[None], updated)
        worlds, after, second = collect(env, learner, 7, jax.random.split(KEY, 1), state, worlds)
        second = jax.tree.map(lambda x: x[:, 0], second)._replace(last_obs=second.last_obs[0])
        return alone, trees.take(state, 0), second, trees.take(after, 0)

    setup = ppo.PPOSetup(config, recipe.spec, distribution_for(recipe.spec.action), None, 10)
    return learner, setup, *play()


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
def test_what_acted_is_replayed(kind, ending):
    """Step by step as the learner acted, and from the start that was kept: the same to 1e-5, ends and all."""
    _, setup, _, state, rollout, after = played(kind, ending)
    jax.tree.map(np.testing.assert_array_equal, state.private.carry, state.private.start)
    look = jax.jit(sequences.look)
    carry, log_prob = state.private.carry, []
    for obs, episode_starts, action in zip(rollout.obs, rollout.episode_starts, rollout.action, strict=True):
        outputs, carry = look(state.params, carry, ppo.standardise(setup, state, obs), episode_starts)
        log_prob.append(setup.distribution.log_prob(outputs, action))
    batch = jax.jit(partial(ppo.assess, setup))(after, rollout)
    np.testing.assert_allclose(batch.log_prob, jnp.stack(log_prob, 1), atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), after.private.carry, carry)
    jax.tree.map(np.testing.assert_array_equal, after.private.start, state.private.start)


@both
def test_the_first_ratio_is_one(kind, ending):
    _, setup, _, _, rollout, state = played(kind, ending)
    once = setup._replace(config=replace(setup.config, num_minibatches=1, update_epochs=1))
    updated, metrics = jax.jit(partial(ppo.update, once))(KEY, state, rollout)
    assert abs(metrics["approx_kl"]) < 1e-9  # (ratio - 1)^2 / 2
    assert metrics["clip_fraction"] == 0
    jax.tree.map(np.testing.assert_array_equal, updated.private.start, state.private.carry)


def test_the_value_after_the_last_step_is_of_the_same_episode():
    """A truncated episode's final observation is judged with what was remembered of it."""
    _, setup, _, state, rollout, _ = played("gru", "truncated")
    obs, last_obs = (ppo.standardise(setup, state, x) for x in (rollout.obs, rollout.last_obs))
    seen, net = rollout._replace(obs=obs, last_obs=last_obs), state.params
    replay = jax.jit(sequences.replay, static_argnames="by_moment")
    _, value, last_value = replay(net, state.private.start, seen, by_moment=False)
    judge = lambda obs: net.unroll(obs, jnp.zeros(obs.shape[:2], bool), net.initial_carry(4))[1]
    np.testing.assert_allclose(value[1:5], judge(obs[1:5]), atol=1e-5)  # from its first to its final one
    under_way = jnp.concatenate([obs[5:], last_obs[None]])
    np.testing.assert_allclose(last_value, judge(under_way)[-1], atol=1e-5)
    np.testing.assert_allclose(
        replay(net, state.private.start, seen, by_moment=True)[2], last_value, atol=1e-6
    )


def test_new_places_are_entered_without_memories():
    learner, _, _, _, _, state = played("lstm", "terminated")
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(state.private.carry))
    visitor = learner.for_evaluation(state, 9)
    assert {leaf.shape for leaf in jax.tree.leaves((visitor.private.carry, visitor.private.start))} == {
        (9, 8)
    }
    left = learner.on_restart(state)
    assert not any(
        np.any(x) for x in jax.tree.leaves((visitor.private.carry, left.private.carry, left.private.start))
    )
    assert left.private.num_updates == state.private.num_updates


def test_minibatches_are_of_whole_sequences_in_their_order():
    order = jax.jit(lambda key: shuffles(key, 20, 1, stratify(1, 8, 4), 4))(KEY)
    steps = jnp.arange(8)[:, None] * 100 + jnp.arange(5)[None]  # (E, T): environment and time
    for blocks in order:
        parts = np.asarray(arrange(steps, blocks))  # (4, 2, 5)
        assert np.all(parts % 100 == np.arange(5))
        assert np.all(parts // 100 == parts[..., :1] // 100)
        assert sorted(parts[..., 0].ravel() // 100) == list(range(8))
    assert len({tuple(np.asarray(blocks).ravel().tolist()) for blocks in order}) > 10


def test_sequences_must_divide_evenly():
    settings = SMALL | {"num_minibatches": 7}
    assert with_settings(PPOConfig(), **settings).num_minibatches == 7  # which divides 4 x 7 samples
    with pytest.raises(ShoalError, match=r"= 7 does not divide the 4 environments$"):
        with_settings(PPOConfig(), **settings, memory="gru")
    with pytest.raises(ShoalError, match="= 2 does not divide the 1 environments of each of 4 devices"):
        ppo.ppo(
            with_settings(PPOConfig(), **SMALL, memory="gru"),
            ENDING["terminated"].spec,
            LearnerContext(num_updates=1, shards=4),
        )


@pytest.mark.parametrize("action", [Discrete(3), Box((2,), -1.0, 1.0)])
def test_pictures_and_named_parts_are_remembered_too(action):
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


def test_gradients_in_pieces_add_up():
    _, setup, _, _, rollout, state = played("lstm", "terminated")
    whole = setup._replace(config=replace(setup.config, num_minibatches=1))
    pieces = whole._replace(config=with_settings(whole.config, grad_accumulation=2))
    results = [jax.jit(partial(ppo.update, s))(KEY, state, rollout)[0].params for s in (whole, pieces)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *results)


# A policy made by hand, which remembers the coin for as long as it takes


def rememberer(learner):
    """c' = c + tanh(10 coin) / 2: its sign is the coin's, and the action's."""

    def init(key):
        state = learner.init(key)
        zero = jax.tree.map(jnp.zeros_like, state.params.actor)
        weight = zero.core.weight.at[0, 2].set(10.0)
        bias = zero.core.bias.at[1].set(50.0)
        head = zero.head.weight.at[0].set(jnp.array([-100.0, 100.0]))
        actor = eqx.tree_at(lambda a: (a.core.weight, a.core.bias, a.head.weight), zero, (weight, bias, head))
        return state._replace(params=eqx.tree_at(lambda p: p.actor, state.params, actor))

    return learner._replace(init=init)


@cache
def by_hand(longest):
    recipe = from_jax(probes.recall(longest, shortest=longest - 1))
    config = with_settings(PPOConfig(), **SMALL | {"memory_size": 1}, memory="lstm")
    return recipe, rememberer(ppo.ppo(config, recipe.spec, LearnerContext(num_updates=1)))


def test_memories_outlast_rollouts_and_end_with_episodes():
    """Rollouts of 5 steps, episodes of 11 and 12; a coin that is not forgotten spoils the next."""
    recipe, learner = by_hand(12)
    learner, env = greedy(learner), recipe.build(np.zeros((1, 4), np.uint32), False)
    state = jax.tree.map(lambda x: x[None], learner.init(KEY))
    worlds = reset_envs(env, jax.random.split(KEY, (1, 4)), ())
    go_on = jax.jit(lambda key, state, worlds: collect(env, learner, 5, key, state, worlds)[:2])
    for key in jax.random.split(KEY, 40):
        worlds, state = go_on(key[None], state, worlds)
    returns = worlds.episodes.returns
    assert worlds.episodes.finished[0] > 50
    assert np.all(returns[np.isfinite(returns)] == 1.0)


def test_evaluation_and_play_remember():
    """Episodes of 150 steps, of which evaluation plays 64 at a time."""
    recipe, learner = by_hand(150)
    cohort = jax.vmap(learner.init)(jax.random.split(KEY, 2))
    returns, lengths = play_episodes(recipe, learner, cohort, episodes=8)
    assert np.all(returns == 1.0)
    assert set(lengths.ravel()) == {149, 150}
    for seed in range(3):
        played = trajectory(episode(recipe, learner, trees.take(cohort, np.array([0])), seed))
        assert played.reward.sum() == 1.0


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
def test_memories_never_leave_a_learner_and_parts_have_their_names():
    exchange = ExchangeConfig("average", parts=("actor",), local_updates=1)
    trainer = make_trainer(replace(CONFIG, exchanges=(exchange,)), mesh="2x1")
    cohort = trainer.advance(trainer.init(), jnp.int32(3))[0].cohort
    same = lambda tree: [bool(np.all(x[0] == x[1])) for x in jax.tree.leaves(tree)]
    assert all(same(cohort.params.actor))
    assert not any(same((cohort.params.critic.core.weight, cohort.private.carry)))


def test_neighbours_policies_are_refused():
    with pytest.raises(ShoalError, match="with memory it needs those before them"):
        make_trainer(replace(CONFIG, exchanges=(ExchangeConfig("neighbours"),)), mesh="1x1")


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
