"""How the adapters of JAX suites are tested: beside the suite's own functions, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.jax_suites import NEW_STARTS
from shoal.runs.session import open_session, run_session
from shoal.types import Box, Discrete, MultiDiscrete

STEPS = 200
ROWS = 2


def compare_with_own(
    name, own_step, observe=lambda obs: obs, params=None, steps=STEPS, limit=None, **options
):
    """Random steps through the adapter equal the suite's own functions from the same states; returns ours.

    own_step(key, state, action, params) -> (obs, reward, terminated, truncated), for one row
    observe(obs) -> what the adapter should show of the suite's observation
    limit: the steps of an episode, where that is not the suite's matter

    Real numbers may differ in their last bits, because the compiler joins operations as it likes.
    """
    recipe = shoal.make(name, **options)
    env = recipe.build(np.zeros((1, ROWS), np.uint32), False)
    params = recipe.spec.params if params is None else params
    worlds = jax.tree.map(lambda x: jnp.full(ROWS, x, jnp.float32), params)

    @jax.jit
    def play(key):
        key_reset, key_draw, key_act = jax.random.split(key, 3)
        state, first = env.reset(jax.random.split(key_reset, ROWS), worlds)
        noise = env.draw(jax.random.split(key_draw, ROWS), state, steps)

        def step(carry, now):
            state, before = carry
            key, noise = now
            action = jax.vmap(random_action, in_axes=(0, None, 0))(
                jax.random.split(key, ROWS), recipe.spec.action, before.obs
            )
            keys = jax.random.key_data(noise.key)
            own = jax.vmap(own_step)(keys, state.batch.state.state, action, worlds)
            begun, starting = state.batch.over, state.starts.obs
            if limit is not None:
                own = (*own[:3], own[3] | (state.batch.steps + 1 >= limit))
            state, after = env.step(state, action, noise)
            return (state, after), (after, own, begun, starting, state.age)

        _, found = jax.lax.scan(step, (state, first), (jax.random.split(key_act, steps), noise))
        return found

    ours, own, begun, starts, age = jax.device_get(play(jax.random.key(1)))
    assert age[:, 0].tolist() == [(t + 1) % NEW_STARTS for t in range(steps)]
    obs, reward, terminated, truncated = own
    stepped = ~begun
    as_shown = jax.vmap(jax.vmap(observe))(obs)
    jax.tree.map(lambda a, b: assert_close(a[stepped], b[stepped]), ours.obs, as_shown)
    assert_close(ours.reward[stepped], reward[stepped])
    np.testing.assert_array_equal(ours.terminated[stepped], np.asarray(terminated, bool)[stepped])
    over = np.asarray(terminated, bool) | np.asarray(truncated, bool)
    np.testing.assert_array_equal((ours.terminated | ours.truncated)[stepped], over[stepped])
    check_ends(ours, begun, starts)
    check_spaces(recipe.spec, ours.obs)
    return ours


def assert_close(ours, own):
    """Whole numbers are equal, real ones nearly."""
    exact = np.issubdtype(own.dtype, np.integer)
    np.testing.assert_allclose(ours, own, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


def check_ends(ours, begun, starts):
    """The step after an end is the reset: no reward, not valid, a new episode's first observation."""
    over = ours.terminated | ours.truncated
    np.testing.assert_array_equal(begun[1:], over[:-1])
    np.testing.assert_array_equal(ours.valid, ~begun)
    assert not ours.reward[begun].any()
    assert not over[begun].any()
    assert not (ours.terminated & ours.truncated).any()
    drawn_before = begun & (np.arange(len(begun)) % NEW_STARTS != 0)[:, None]
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[drawn_before], b[drawn_before]), ours.obs, starts
    )


def check_spaces(spec, obs):
    """Observations have the shapes and types that the spec says, and are numbers."""
    boxes = spec.observation if isinstance(spec.observation, dict) else {"": spec.observation}
    parts = obs if isinstance(obs, dict) else {"": obs}
    assert boxes.keys() == parts.keys()
    for name, box in boxes.items():
        agents = spec.agent_axis
        assert parts[name].shape[2:] == (*agents, *box.shape)
        assert parts[name].dtype == box.dtype
        assert np.isfinite(parts[name]).all()


def random_action(key, space, obs):
    """An action of the space, among the allowed ones; real actions also a little beyond their bounds."""
    match space:
        case Box():
            return jax.random.uniform(key, space.shape, minval=1.1 * space.low, maxval=1.1 * space.high)
        case Discrete(num):
            return jax.random.categorical(key, logits(obs, num))
        case MultiDiscrete(nums):
            cuts = np.cumsum(nums)[:-1]
            parts = jnp.split(logits(obs, sum(nums)), cuts)
            keys = jax.random.split(key, len(nums))
            return jnp.stack([jax.random.categorical(k, part) for k, part in zip(keys, parts, strict=True)])
        case _:
            return jax.random.bernoulli(key, shape=(space.num,)).astype(jnp.int32)


def logits(obs, num):
    """0 for allowed choices; a mask of nothing allows everything."""
    if not isinstance(obs, dict) or "action_mask" not in obs:
        return jnp.zeros(num)
    mask = obs["action_mask"].reshape(num) != 0
    return jnp.where(mask, 0.0, -1e9)


def train_in_two_parts(name, folder, compilations, **options):
    """A run that is stopped in mid-episode ends as one that is not, and reports compile nothing new."""
    algo = shoal.PPOConfig(num_envs=ROWS, num_steps=12, num_minibatches=2, update_epochs=1, hidden=(8,))
    config = shoal.TrainConfig(name, algo, steps=ROWS * 12 * 6, learners=2, reports=6, env_options=options)
    reports = run_session(open_session(config, folder / "whole"))
    next(reports), next(reports)
    with compilations() as compiled:
        steps = [report.step for report in reports]
    assert steps == [ROWS * 12 * (n + 1) for n in range(2, 6)]
    assert not compiled
    reports = run_session(open_session(config, folder / "halves"))
    assert [next(reports).step for _ in range(4)][-1] == ROWS * 12 * 4
    reports.close()
    opened = open_session(config, folder / "halves")
    assert opened.resumed_step == ROWS * 12 * 4
    list(run_session(opened))
    last = f"checkpoints/step_{config.steps:09}.safetensors"
    assert (folder / "whole" / last).read_bytes() == (folder / "halves" / last).read_bytes()


@pytest.fixture(autouse=True, scope="module")
def ranks_as_suites_like():
    """Suites add axes to arrays where they broadcast, which the tests of our own code forbid."""
    with jax.numpy_rank_promotion("allow"):
        yield
