"""JaxMARL's worlds through the adapter, against its own functions, step by step."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.registry import SUITES, make
from shoal.errors import ShoalError
from shoal.types import Box, Discrete
from tests.envs.play import play
from tests.envs.suites import ranks_as_suites_like, train_in_two_parts  # noqa: F401

jaxmarl = pytest.importorskip("jaxmarl")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

QUICK = ("MPE_simple_speaker_listener_v4", "HeuristicEnemySMAX-3m", "switch_riddle")
"""A team with unequal agents, one with masks and deaths, one that ends early and late."""


def own(name):
    """The world by JaxMARL itself."""
    from jaxmarl.environments.overcooked import overcooked_layouts
    from jaxmarl.environments.smax import map_name_to_scenario

    world, _, variant = name.partition("-")
    options = {
        "SMAX": lambda: {"scenario": map_name_to_scenario(variant)},
        "HeuristicEnemySMAX": lambda: {"scenario": map_name_to_scenario(variant)},
        "overcooked": lambda: {"layout": overcooked_layouts[variant]},
        "overcooked_v2": lambda: {"layout": variant},
    }
    return jaxmarl.make(world, **(options[world]() if variant else {}))


def masks(env, state):
    """What JaxMARL allows; None where it does not say."""
    if hasattr(env, "get_legal_moves"):
        return env.get_legal_moves(state)
    try:
        return env.get_avail_actions(state)
    except NotImplementedError:
        return None


def repeat(env, played):
    """The same steps by JaxMARL: observations, rewards, ends, masks; at a reset the adapter's new state."""
    agents = env.agents
    width = lambda agent: env.action_space(agent).shape or ()
    acts = lambda action: {
        agent: action[i, : width(agent)[0]] if width(agent) else action[i] for i, agent in enumerate(agents)
    }

    def step(carry, now):
        state, over = carry
        action, noise = now
        obs, after, rewards, dones, _ = env.step_env(noise.key, state, acts(action))
        fresh = noise.fresh
        again = {agent: fresh.seen[i] for i, agent in enumerate(agents)} if len(fresh.seen) else None
        again = again or env.get_obs(fresh.state)
        choose = lambda new, old: jnp.where(over, new, old)
        state = jax.tree.map(choose, fresh.state, after)
        seen = {agent: choose(again[agent], obs[agent]) for agent in agents}
        rewards = {agent: jnp.where(over, 0, rewards[agent]) for agent in agents}
        dones = {agent: ~over & done for agent, done in dones.items()}
        return (state, dones["__all__"]), (seen, rewards, dones, masks(env, state))

    @jax.vmap
    def one(key, action, noise):
        obs, state = env.reset(key)
        state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)
        return obs, masks(env, state), jax.lax.scan(step, (state, jnp.bool_(False)), (action, noise))[1]

    across = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), 1, 0), tree)
    return jax.device_get(jax.jit(one)(played.keys, across(played.action), across(played.noise)))


def compare(name, num_steps=200):
    env, played = own(name), play(make(f"jaxmarl:{name}"), num_steps)
    first, mask, (obs, rewards, dones, allowed) = repeat(env, played)
    for i, agent in enumerate(env.agents):
        ours, theirs = parts(played.first)["obs"][:, i], first[agent].reshape(len(first[agent]), -1)
        np.testing.assert_allclose(flat(ours, 1)[:, : theirs.shape[1]], theirs, atol=1e-5)
        later = np.moveaxis(parts(played.steps)["obs"][:, :, i], 1, 0)  # (N, T, ...)
        theirs = flat(obs[agent], 2)
        np.testing.assert_allclose(flat(later, 2)[..., : theirs.shape[2]], theirs, atol=1e-3)
        assert not flat(later, 2)[..., theirs.shape[2] :].any(), "padding is zero"
        np.testing.assert_allclose(played.steps.reward[:, :, i].T, rewards[agent], atol=1e-3)
        if allowed is not None:
            n = mask[agent].shape[-1]
            np.testing.assert_array_equal(parts(played.first)["action_mask"][:, i, :n], mask[agent])
            ours = np.moveaxis(parts(played.steps)["action_mask"][:, :, i], 1, 0)
            np.testing.assert_array_equal(ours[..., :n], allowed[agent])
            assert not ours[..., n:].any(), "no choice that the agent does not have"
        if "alive" in parts(played.steps):
            gone = parts(played.steps)["alive"][:, :, i].T == 0
            np.testing.assert_array_equal(gone, dones[agent])
    steps = played.steps
    np.testing.assert_array_equal((steps.terminated | steps.truncated).T, dones["__all__"])
    assert not (steps.terminated & steps.truncated).any()
    return played


def parts(step):
    return step.obs if isinstance(step.obs, dict) else {"obs": step.obs}


def flat(x, axes):
    return x.reshape(*x.shape[:axes], -1)


@pytest.mark.parametrize("name", QUICK)
def test_steps_are_those_of_jaxmarl(name):
    compare(name)


def others():
    return [name for name in SUITES["jaxmarl"].names() if name not in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("name", others())
def test_steps_are_those_of_jaxmarl_in_every_world(name):
    compare(name)


def test_the_clock_truncates_and_all_else_terminates():
    particles = compare("MPE_simple_speaker_listener_v4").steps
    assert not particles.terminated.any()
    # JaxMARL's MPE reads its clock before it moves: 26 steps, then the reset step
    assert [np.flatnonzero(row).tolist() for row in particles.truncated.T[:1]] == [list(range(25, 200, 27))]
    assert make("jaxmarl:SMAX-3m").spec.max_episode_steps == 101, "SMAX's too"
    riddle = compare("switch_riddle").steps
    assert riddle.terminated.any()
    assert riddle.truncated.any()
    assert (riddle.reward[riddle.terminated] != 0).all(), "somebody spoke"
    assert (riddle.reward[riddle.truncated] == 0).all(), "nobody did in time"


def test_units_that_have_fallen_are_not_alive_until_the_next_episode():
    steps = compare("HeuristicEnemySMAX-3m").steps
    alive = steps.obs["alive"] > 0
    assert (~alive).any(), "somebody falls"
    assert alive[~steps.valid].all(), "all are back after a reset"
    rises = alive[1:] & ~alive[:-1]
    assert not rises[steps.valid[1:]].any(), "nobody rises within an episode"
    stop = steps.obs["action_mask"][~alive]
    assert (stop == np.eye(8)[4]).all(), "the fallen stand still"


def test_teams_are_told_by_the_names_of_the_agents():
    assert make("jaxmarl:MPE_simple_tag_v3").spec.teams == (0, 0, 0, 1)
    assert make("jaxmarl:MPE_simple_crypto_v3").spec.teams == (0, 1, 1)
    assert make("jaxmarl:MPE_simple_spread_v3").spec.teams == ()
    assert make("jaxmarl:SMAX-3m").spec.teams == (0, 0, 0, 1, 1, 1)


def test_importing_jaxmarl_prints_nothing_and_leaves_the_streams():
    script = """
import contextlib, io, sys
import shoal
with contextlib.redirect_stdout(io.StringIO()) as out:
    shoal.make("jaxmarl:switch_riddle")
    print("mine")
print(repr(out.getvalue()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr("mine\n")
    assert "ubmoduled" not in done.stderr


def test_a_run_stops_in_mid_episode_and_goes_on(tmp_path, compilations):
    train_in_two_parts("jaxmarl:MPE_simple_speaker_listener_v4", tmp_path, compilations)


@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "HeuristicEnemySMAX-3m", "overcooked-cramped_room"])
def test_pictures_are_those_of_jaxmarl(name):
    env = make(f"jaxmarl:{name}").build(np.zeros((1, 2), np.uint32), True)
    picture = env.render(jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2), ())[0], 0)
    assert (picture.ndim, picture.shape[2], picture.dtype) == (3, 3, np.uint8)
    assert picture.std() > 10


def test_options_are_those_of_the_world():
    spec = make("jaxmarl:SMAX", num_allies=1, num_enemies=2).spec
    assert (spec.teams, spec.action) == ((0, 1, 1), Discrete(7))
    assert make("jaxmarl:MPE_simple_v3", action_type="Continuous").spec.action == Box((5,), 0.0, 1.0)
    assert make("jaxmarl:MPE_simple_v3", max_episode_steps=7).spec.max_episode_steps == 7
    with pytest.raises(ShoalError, match=r"does not take these options: .*walls"):
        make("jaxmarl:overcooked-coord_ring", walls=3)
    with pytest.raises(ShoalError, match="does not take these options: nonsense"):
        make("jaxmarl:MPE_simple_v3", nonsense=1)
    with pytest.raises(ShoalError, match="unknown environment"):
        make("jaxmarl:SMAX-4m")


def test_steps_towards_a_soup_are_paid_on_request():
    plain, shaped = (
        play(make("jaxmarl:overcooked-cramped_room", **options)).steps.reward
        for options in ({}, {"shaped_reward": 0.5})
    )
    assert not plain.any(), "chance cooks no soup"
    assert set(np.unique(shaped)) - {0.0} <= {1.5, 2.5}  # half of 3 and 5
    assert shaped.any()
