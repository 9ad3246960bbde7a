"""Frame stacks against stacks made by hand from single observations, whatever the environment is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.frame_stack import append, fill, stack_frames, stacked_space
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.types import Augmentation, Box, Discrete, EnvRecipe, EnvSpec

ROWS, ROLLOUT = 2, 12


def play(recipe, num_rollouts=3):
    """Observations (1 + T, N, ...) and where they begin an episode, in rollouts of one compiled program."""
    env = recipe.build(np.arange(ROWS, dtype=np.uint32)[None], False)
    keys = jax.random.split(jax.random.key(3), ROWS)
    params = jax.tree.map(lambda x: np.full(ROWS, x, np.float32), recipe.spec.params)

    @jax.jit
    def rollout(state, actions):
        noise = env.draw(keys, state, ROLLOUT)
        return jax.lax.scan(lambda state, now: env.step(state, *now), state, (actions, noise))

    state, step = jax.jit(env.reset)(keys, params)
    step = jax.device_get(step)
    seen, episode_starts = [jax.tree.map(lambda x: x[None], step.obs)], [~step.valid[None]]
    actions = np.random.default_rng(0).integers(0, 2, (num_rollouts, ROLLOUT, ROWS), np.int32)
    for some in actions:
        state, steps = rollout(state, some)
        steps = jax.device_get(steps)
        seen.append(steps.obs)
        episode_starts.append(~steps.valid)
    return np.concatenate(seen), np.concatenate(episode_starts)


def by_hand(single, episode_starts, num_frames):
    """The last frames of each episode, its first in place of those before it."""
    stacks = np.zeros((*single.shape[:-1], num_frames * single.shape[-1]), single.dtype)
    for row in range(single.shape[1]):
        frames = []
        for t, now in enumerate(single[:, row]):
            frames = [now] * num_frames if episode_starts[t, row] else [*frames[1:], now]
            stacks[t, row] = np.concatenate(frames, -1)
    return stacks


@pytest.mark.parametrize("name", ["CartPoleNoVel-v1", "envpool:CartPole-v1", "gym:CartPole-v1"])
def test_stacks_are_of_the_last_frames_of_the_episode(name):
    single, episode_starts = play(make(name))
    assert episode_starts[1:].any(0).all()  # every row ends an episode on the way
    stacked, stacked_begins = play(make(name, frame_stack=3))
    np.testing.assert_array_equal(stacked_begins, episode_starts)
    np.testing.assert_array_equal(stacked, by_hand(single, episode_starts, 3))
    assert make(name, frame_stack=3).spec.observation.shape == stacked.shape[2:]


def test_pictures_are_stacked_by_channel_parts_by_name_and_masks_not_at_all():
    space = {
        "colour": Box((4, 5, 3), 0, 255, "uint8"),
        "grey": Box((4, 5), 0, 255, "uint8"),
        "vector": Box((2,), np.array([-1.0, -2.0]), np.array([1.0, 2.0])),
        "action_mask": Box((2,), 0, 1, "bool"),
    }
    stacked = stacked_space(space, 2)
    assert {name: box.shape for name, box in stacked.items()} == {
        "colour": (4, 5, 6),
        "grey": (4, 5, 2),
        "vector": (4,),
        "action_mask": (2,),
    }
    assert stacked["vector"].low.tolist() == [-1, -2, -1, -2]
    draw = lambda k: {name: np.full((3, *box.shape), k, box.dtype) for name, box in space.items()}
    stack = jax.jit(lambda old, new, over: append(fill(old, 2), new, over, 2))
    frames = jax.device_get(stack(draw(0), draw(1), np.array([False, True, False])))
    assert {name: x.shape[1:] for name, x in frames.items()} == {n: box.shape for n, box in stacked.items()}
    assert frames["colour"][0, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert frames["grey"][:, 0, 0].tolist() == [[0, 1], [1, 1], [0, 1]]
    assert frames["action_mask"].tolist() == [[True, True]] * 3


def test_variants_of_a_stack_are_stacks_of_variants():
    """Each frame (x, y) of two has the variants (x, y) and (-x, y), whose mask is the other way round."""

    def mirror(obs):
        mask = obs["action_mask"]
        both = obs["obs"][None] * np.float32([[1, 1], [-1, 1]])
        alive = jnp.stack([obs["alive"]] * 2)
        return {"obs": both, "alive": alive, "action_mask": jnp.stack([mask, mask[::-1]])}

    space = {"obs": Box((2,)), "alive": Box((), 0, 1), "action_mask": Box((2,), 0, 1, "bool")}
    spec = EnvSpec("Test", "jax", space, Discrete(2), augment=Augmentation(2, jax.vmap(mirror)))
    augment = stack_frames(EnvRecipe(spec, None), 2).spec.augment
    alive = {"alive": np.float32([1])}
    seen = {"obs": np.float32([[1, 2, 3, 4]]), "action_mask": np.array([[True, False]])} | alive
    variants = jax.jit(augment.apply)(seen)
    assert augment.copies == 2
    assert variants["obs"].tolist() == [[[1, 2, 3, 4], [-1, 2, -3, 4]]]
    assert variants["action_mask"].tolist() == [[[True, False], [False, True]]]
    assert variants["alive"].tolist() == [[1, 1]]


@pytest.mark.parametrize("num", [0, -1, 2.0, True, "4"])
def test_a_stack_is_a_whole_number_of_frames(num):
    with pytest.raises(ShoalError, match=r"^frame_stack must be a whole number of at least 1, not "):
        make("CartPole-v1", frame_stack=num)
