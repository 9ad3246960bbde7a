"""Teams: known payoffs, permutations, the dead, what critics see, and who learns when."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.team_config import TeamConfig
from shoal.learners.wrappers.match import join, make_match, random_player
from shoal.learners.wrappers.team import make_team
from shoal.learners.wrappers.team_views import agent_space, observe_agents
from shoal.nets.actor_critic import actor_critic
from shoal.ops.masks import ACTION_MASK
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.loop import progress_reports
from shoal.training.program import make_trainer
from shoal.training.rollout import collect, reset_envs
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, Rollout
from tests.learners.lab import plainly

T, E, A = 8, 4, 3
SMALL = PPOConfig(num_envs=E, num_steps=T, num_minibatches=2, update_epochs=2, hidden=(8,))


def game(payoff, teams=(), length=4):
    """Two agents choose at once; payoff[i, j] are their rewards, (2, 2, 2). Nothing is seen."""
    table = jnp.asarray(payoff, jnp.float32)

    def step(key, state, action, params):
        return state, table[action[0], action[1]], jnp.bool_(False)

    spec = EnvSpec("game", "jax", Box((1,)), Discrete(2), length, agents=2, teams=teams, shortest=length)
    return JaxEnv(spec, lambda key, params: jnp.float32(0), step, lambda state, params: jnp.ones((2, 1)))


DILEMMA = [[[3, 3], [0, 5]], [[5, 0], [1, 1]]]
"""Whatever the other does, the second choice pays more: the only equilibrium pays both 1."""
PENNIES = [[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]]


def trained(env, algo, updates=60, learners=2):
    config = TrainConfig("game", algo, steps=updates * algo.rollout_size, learners=learners)
    trainer = make_trainer(config, recipe=from_jax(env))
    *_, last = progress_reports(trainer, trainer.init())
    return last


@pytest.mark.slow
def test_a_dilemma_ends_in_its_equilibrium():
    algo = with_settings(
        PPOConfig(), num_envs=8, num_steps=16, learning_rate=0.01, ent_coef=0.0, hidden=(8,), policies="agent"
    )
    found = trained(game(DILEMMA), algo).metrics
    for agent in (0, 1):  # four rounds at 1, give or take what is still tried out
        np.testing.assert_allclose(found[f"return_agent{agent}"], 4.0, atol=0.8)


def spec_of(**given):
    return EnvSpec("made up", "jax", Box((2,)), Discrete(4), agents=A, **given)


def player(config, spec, num_envs):
    network = plainly(actor_critic(hidden=config.hidden))
    return ppo(replace(config, num_envs=num_envs), spec, LearnerContext(10, network=network))


def made(config, spec, wrap=lambda learner: learner):
    """A team's learner; `wrap` changes the learner of each policy."""
    return make_team(lambda seen, num: wrap(player(config, seen, num)), config.team, spec, E)


def adding_up(learner):
    """With an update that adds a weighted sum of what was earned to every parameter: it compiles quickly."""

    def update(key, state, rollout):
        earned = jnp.where(rollout.valid, rollout.reward, 0.0)
        earned = 1.0 + jnp.sum(earned * jnp.arange(earned.size, dtype=jnp.float32).reshape(earned.shape))
        return state._replace(params=jax.tree.map(lambda x: x + earned, state.params)), {}

    return learner._replace(update=update)


def begun(learner, seed=0):
    return jax.device_get(learner.init(jax.random.key(seed)))


def noise_for(learner, num_envs=E):
    noise = jax.jit(lambda key: learner.draw(key, (1, num_envs)))(jax.random.key(3))
    return jax.tree.map(lambda x: np.asarray(x)[0], noise)


def made_up(seed, **parts):
    """A rollout of random numbers, (T, E, A)."""
    rng = np.random.default_rng(seed)
    obs, last = (np.float32(rng.normal(size=(*shape, A, 2))) for shape in ((T, E), (E,)))
    if parts:
        obs, last = {"obs": obs} | parts, {"obs": last} | {name: x[-1] for name, x in parts.items()}
    over = rng.random((T, E)) < 0.2
    return Rollout(
        obs=obs,
        action=rng.integers(0, 4, (T, E, A)).astype(np.int32),
        reward=np.float32(rng.normal(size=(T, E, A))),
        terminated=over,
        truncated=np.zeros((T, E), bool),
        valid=~np.concatenate([np.zeros((1, E), bool), over[:-1]]),
        last_obs=last,
        episode_starts=np.zeros((T, E), bool),
    )


def test_agents_of_one_policy_are_environments_of_one_learner():
    """A agents in E worlds learn what one agent learns in A E worlds."""
    config = with_settings(SMALL, critic_view="local", norm_obs=True, norm_reward=True)
    learner, rollout = made(config, spec_of()), made_up(1)
    after, metrics = jax.jit(learner.update)(jax.random.key(2), begun(learner), rollout)

    alone = player(config, EnvSpec("one", "jax", Box((2,)), Discrete(4)), E * A)
    flat = lambda x: x.reshape(T, E * A, *x.shape[3:])
    repeated = lambda x: np.repeat(x, A, 1)
    rows = Rollout(
        *map(flat, (rollout.obs, rollout.action, rollout.reward)),
        *map(repeated, (rollout.terminated, rollout.truncated, rollout.valid)),
        last_obs=rollout.last_obs.reshape(E * A, 2),
        episode_starts=repeated(rollout.episode_starts),
    )
    fold = lambda key: jax.random.fold_in(jax.random.key(key), 0)
    expected, expected_metrics = jax.jit(alone.update)(fold(2), alone.init(fold(0)), rows)
    alike = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    jax.tree.map(alike, (after.params, after.statistics), (expected.params, expected.statistics))
    alike(metrics["loss/total"], expected_metrics["loss/total"])


def test_permuting_agents_changes_nothing_else():
    """With agents one place further, actions are, and the team learns the same."""
    config = replace(SMALL, num_minibatches=1, update_epochs=1, norm_adv="batch")
    learner, rollout = made(config, spec_of()), made_up(1)
    state, turn = begun(learner), lambda x, axis: np.roll(x, 1, axis)
    noise, episode_starts = noise_for(learner), np.ones(E, bool)
    act, value = jax.jit(learner.act), jax.jit(learner.value)
    action, _ = act(state, rollout.obs[0], noise, episode_starts)
    transposed, _ = act(state, turn(rollout.obs[0], 1), turn(noise, 1), episode_starts)
    np.testing.assert_array_equal(transposed, turn(action, 1))
    values = value(state, rollout.obs)
    np.testing.assert_allclose(value(state, turn(rollout.obs, 2)), turn(values, 2), atol=1e-6)

    other = rollout._replace(
        obs=turn(rollout.obs, 2),
        action=turn(rollout.action, 2),
        reward=turn(rollout.reward, 2),
        last_obs=turn(rollout.last_obs, 1),
    )
    update = jax.jit(learner.update)
    one, two = (update(jax.random.key(2), state, given)[0].params for given in (rollout, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), one, two)


def test_dead_agents_change_nothing():
    """What a dead agent saw, did and was paid does not reach the update, to the last bit."""
    config = with_settings(SMALL, critic_view="local", norm_obs=True, norm_reward=True)
    spec = replace(spec_of(), observation={"obs": Box((2,)), "alive": Box(())})
    alive = np.ones((T, E, A), np.float32)
    alive[3:, 0, 1] = alive[5:, 2] = 0.0
    rollout = made_up(1, alive=alive)
    dead, wild = alive == 0, np.float32(1e3)
    rubbish = rollout._replace(
        obs={"obs": np.where(dead[..., None], wild, rollout.obs["obs"]), "alive": alive},
        action=np.where(dead, 3 - rollout.action, rollout.action),
        reward=np.where(dead, np.float32(-7), rollout.reward),
    )
    rubbish = rubbish._replace(
        last_obs={"obs": np.where(dead[-1][..., None], wild, rollout.last_obs["obs"]), "alive": alive[-1]}
    )
    learner = made(config, spec)
    state, update = begun(learner), jax.jit(learner.update)
    one, two = (jax.device_get(update(jax.random.key(2), state, given)) for given in (rollout, rubbish))
    models = [(after.params, after.statistics, metrics) for after, metrics in (one, two)]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, *models)))
    living = rollout._replace(obs=rollout.obs | {"alive": np.ones_like(alive)})
    third = update(jax.random.key(2), state, living)[0]
    assert not np.array_equal(third.params.actor.layers[0].weight, one[0].params.actor.layers[0].weight)


def test_what_critics_see():
    """Own observation first, then those of the agents after it, going round; of a team alone on request."""
    obs = np.arange(A * 2, dtype=np.float32).reshape(A, 2) + 10
    spec = spec_of(teams=(0, 1, 0))
    see = jax.jit(observe_agents, static_argnums=(0, 1))
    seen = see(TeamConfig(agent_ids=True), spec, obs)
    np.testing.assert_array_equal(seen["joint"][1], [12, 13, 14, 15, 10, 11])
    np.testing.assert_array_equal(seen["agent_id"], np.eye(3))
    np.testing.assert_array_equal(seen["obs"], obs)
    own_team = see(TeamConfig(critic_view="team"), spec, obs)["joint"]
    np.testing.assert_array_equal(own_team, [[10, 11, 14, 15], [12, 13, 0, 0], [14, 15, 10, 11]])
    assert see(TeamConfig(critic_view="local"), spec, obs).shape == (3, 2)
    told = replace(spec, observation={"obs": Box((2,)), "state": Box((1,))})
    parts = {"obs": obs, "state": np.full((A, 1), 7.0, np.float32)}
    joint = jax.jit(lambda parts: observe_agents(TeamConfig(), told, parts))(parts)["joint"]
    np.testing.assert_array_equal(joint[2], [7, 14, 15])
    assert agent_space(TeamConfig(), told)["joint"].shape == (3,)


def test_actors_see_nothing_of_the_others():
    learner, obs = made(SMALL, spec_of()), np.float32(np.random.default_rng(0).normal(size=(E, A, 2)))
    state, noise, act, value = begun(learner), noise_for(learner), *map(jax.jit, (learner.act, learner.value))
    changed = obs + np.float32([[0], [3], [0]])
    one, two = (np.asarray(act(state, x, noise, np.ones(E, bool))[0]) for x in (obs, changed))
    np.testing.assert_array_equal(one[:, [0, 2]], two[:, [0, 2]])
    assert np.all(np.asarray(value(state, obs)) != np.asarray(value(state, changed)))


def test_teams_are_paid_together_on_request():
    """The reward a learner sees is its team's sum: the update is that of a rollout with those rewards."""
    spec, rollout = spec_of(teams=(0, 1, 0)), made_up(1)
    shared = made(with_settings(SMALL, team_reward=True, policies="shared"), spec, adding_up)
    plain = made(with_settings(SMALL, policies="shared"), spec, adding_up)
    r = rollout.reward
    summed = np.stack([r[..., 0] + r[..., 2], r[..., 1], r[..., 0] + r[..., 2]], -1)
    state = begun(plain)
    one = jax.jit(shared.update)(jax.random.key(2), state, rollout)[0]
    two = jax.jit(plain.update)(jax.random.key(2), state, rollout._replace(reward=summed))[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one.params, two.params)
    three = jax.jit(plain.update)(jax.random.key(2), state, rollout)[0]
    assert not np.allclose(one.params.critic.layers[0].bias, three.params.critic.layers[0].bias)


def test_policies_learn_in_turn_or_never():
    same = lambda *trees: all(jax.tree.leaves(jax.tree.map(np.array_equal, *jax.device_get(trees))))
    rollout, spec = made_up(1), spec_of(teams=(0, 0, 1))
    frozen = made(with_settings(SMALL, freeze=(1,)), spec, adding_up)
    state = begun(frozen)
    after = jax.jit(frozen.update)(jax.random.key(2), state, rollout)[0]
    assert same(after.params["team1"], state.params["team1"])
    assert not same(after.params["team0"], state.params["team0"])

    turns = made(with_settings(SMALL, freeze_every=2), spec, adding_up)
    update, learned = jax.jit(turns.update), []
    state = begun(turns)
    for number in range(5):
        after = update(jax.random.key(number), state, rollout)[0]
        learned.append([not same(after.params[name], state.params[name]) for name in ("team0", "team1")])
        state = after
    assert learned == [[True, False]] * 2 + [[False, True]] * 2 + [[True, False]]


def test_past_selves_play_in_half_of_the_environments_and_no_policy_learns_from_them():
    """In worlds 2 and 3 of 4 a past self plays the first, then the second team."""
    algo = with_settings(
        PPOConfig(), num_envs=4, num_steps=8, num_minibatches=1, hidden=(4,), past_selves=2, snapshot_every=3
    )
    env = game(PENNIES, teams=(0, 1))
    learner = made(algo, env.spec, adding_up)
    state = begun(learner)

    def always(choice, params):
        sure = np.float32([[50, -50], [-50, 50]])[choice]
        return eqx.tree_at(lambda params: params.actor.layers[-1].bias, params, sure)

    now = {name: always(0, params) for name, params in state.params.items()}
    then = {name: always(1, params) for name, params in state.params.items()}
    past = {
        name: (jax.tree.map(lambda x: np.stack([x, x]), then[name]), state.private.past[name][1])
        for name in then
    }
    state = state._replace(params=now, private=state.private._replace(past=past))
    cohort = jax.tree.map(lambda x: x[None], state)
    rows = from_jax(env).build(np.zeros((1, 4), np.uint32), False)
    worlds = jax.jit(partial(reset_envs, rows))(jax.random.split(jax.random.key(1), (1, 4)), ())
    play = jax.jit(partial(collect, rows, learner, 8))
    _, _, rollout = jax.device_get(play(jax.random.key(2)[None], cohort, worlds))
    expected = np.array([[0, 0], [0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(rollout.action[:, 0], np.broadcast_to(expected, (8, 4, 2)))
    visiting, noise = learner.for_evaluation(state, 7), noise_for(learner, 7)
    greedy, _ = jax.jit(learner.act)(visiting, np.ones((7, 2, 1), np.float32), noise, np.ones(7, bool))
    np.testing.assert_array_equal(greedy, 0)

    one = jax.tree.map(lambda x: x[:, 0], rollout._replace(last_obs=()))._replace(
        last_obs=rollout.last_obs[0]
    )
    theirs = np.zeros((4, 2), bool)
    theirs[2, 0] = theirs[3, 1] = True
    others = [one._replace(reward=np.where(who, np.float32(9), one.reward)) for who in (theirs, ~theirs)]
    update = jax.jit(learner.update)
    results = jax.device_get([update(jax.random.key(4), state, given)[0] for given in (one, *others)])
    same = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
    assert same(results[0].params, results[1].params)
    assert not same(results[0].params, results[2].params)

    kept = results[0]
    for number in range(2):
        kept = jax.device_get(update(jax.random.key(number), kept, one)[0])
    first = jax.tree.map(lambda x: x[0], kept.private.past["team0"][0])
    assert same(first, kept.params["team0"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policies": "0,1"}, "3 numbers, one per agent"),
        ({"policies": "0,2,2"}, "without gaps"),
        ({"freeze": (1,)}, "numbered 0 to 0"),
        ({"freeze": (0,)}, "nothing would be learned"),
        ({"freeze_every": 2}, "only one"),
        ({"past_selves": 2}, "has only one"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ShoalError, match=message):
        made(with_settings(SMALL, **settings), spec_of())


def test_in_a_match_each_learner_plays_its_side():
    spec = spec_of(teams=(0, 1, 0))
    learner = made(with_settings(SMALL, policies="shared"), spec)
    states = [begun(learner, seed) for seed in (0, 1)]
    game, episode_starts = make_match(learner, learner, spec), np.ones(E, bool)
    obs = np.float32(np.random.default_rng(2).normal(size=(E, A, 2)))
    noise, act = jax.tree.map(np.zeros_like, noise_for(learner)), jax.jit(learner.act)
    alone = [np.asarray(act(state, obs, noise, episode_starts)[0]) for state in states]
    both = game.for_evaluation(join(*states), E)
    played = np.asarray(jax.jit(game.act)(both, obs, (noise, noise), episode_starts)[0])
    np.testing.assert_array_equal(played[:, [0, 2]], alone[0][:, [0, 2]])
    np.testing.assert_array_equal(played[:, 1], alone[1][:, 1])
    assert not np.array_equal(alone[0], alone[1])
    with pytest.raises(ShoalError, match="no opponent"):
        make_match(learner, learner, spec_of())


def test_a_random_player_takes_every_allowed_choice_equally_often():
    masked = {"obs": Box((2,)), ACTION_MASK: Box((3,), 0.0, 1.0)}
    spec = replace(spec_of(), observation=masked, action=Discrete(3))
    player, many = random_player(spec), 3_000
    mask = np.tile(np.float32([[1, 0, 1], [1, 1, 1], [0, 1, 0]]), (many, 1, 1))
    obs = {"obs": np.zeros((many, A, 2), np.float32), ACTION_MASK: mask}
    noise = player.draw(jax.random.key(0), (1, many))[0]
    action, _ = player.act(player.init(jax.random.key(0)), obs, noise, np.ones(many, bool))
    shares = np.stack([np.bincount(one, minlength=3) / many for one in np.asarray(action).T])
    np.testing.assert_allclose(shares, [[1 / 2, 0, 1 / 2], [1 / 3] * 3, [0, 1, 0]], atol=0.03)
