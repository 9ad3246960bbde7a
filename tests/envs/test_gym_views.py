"""What Gymnasium environments tell beside their observations: masks, and lives."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.gymnasium import gym_recipe
from shoal.envs.adapters.suite import UnknownOptions
from shoal.envs.registry import make
from shoal.learners.ppo import PPOConfig
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer


class Gates(gymnasium.Env):
    """Three gates, of which the one it came through last is shut; through it, it crashes."""

    observation_space = gymnasium.spaces.Dict({"last": gymnasium.spaces.Discrete(3)})
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.last = 0
        return {"last": 0}, {}

    def step(self, action):
        assert action != self.last, "it is shut"
        self.last = int(action)
        return {"last": self.last}, 1.0, False, False, {}

    def action_masks(self):
        return [gate != self.last for gate in range(3)]


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("test/Gates-v0", entry_point=Gates)
    yield
    del gymnasium.registry["test/Gates-v0"]


def play(recipe, actions):
    env = recipe.build(np.arange(actions.shape[1], dtype=np.uint32)[None], False)

    def program(actions):
        state, first = env.reset(None, recipe.spec.params)
        return first, jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)[1]

    return jax.device_get(jax.jit(program)(jnp.asarray(actions)))


def test_masks_as_sb3_contrib_asks_for_them():
    recipe = gym_recipe("test/Gates-v0", {})
    assert {name: box.shape for name, box in recipe.spec.observation.items()} == {
        "last": (3,),
        "action_mask": (3,),
    }
    first, steps = play(recipe, np.array([[1], [2], [0]], np.int32))
    assert first.obs["action_mask"].tolist() == [[0, 1, 1]]
    assert steps.obs["action_mask"][:, 0].tolist() == [[1, 0, 1], [1, 1, 0], [0, 1, 1]]
    assert steps.obs["last"][:, 0].argmax(-1).tolist() == [1, 2, 0]


@pytest.mark.slow
def test_taxi_tells_its_mask_and_is_trained_without_a_forbidden_move():
    algo = PPOConfig(
        num_envs=2, num_steps=64, num_minibatches=2, update_epochs=2, hidden=(16,), norm_obs=True
    )
    trainer = make_trainer(TrainConfig("gym:Taxi-v4", algo, steps=500))
    assert {name: box.shape for name, box in trainer.parts.recipe.spec.observation.items()} == {
        "obs": (500,),
        "action_mask": (6,),
    }
    state = trainer.init()
    for _ in range(3):
        state, rollout = trainer.stages.collect(state)
        mask, action = np.asarray(rollout.obs["action_mask"]), np.asarray(rollout.action)
        assert 0 < mask.mean() < 1
        assert np.take_along_axis(mask, action[..., None], -1).all()
        state, progress = trainer.stages.update(state, rollout)
        assert np.isfinite(progress.metrics["loss/total"]).all()


def test_a_lost_life_ends_an_episode_but_not_the_game_and_fires_the_next():
    pytest.importorskip("ale_py")
    options = {"episodic_life": True, "frameskip": 4, "repeat_action_probability": 0.0}
    recipe = make("ALE/Breakout-ram-v5", frame_stack=2, **options)
    assert recipe.spec.observation.shape == (256,)
    first, steps = play(recipe, np.zeros((400, 1), np.int32))
    ends, games = (np.flatnonzero(x[:, 0]) for x in (steps.terminated, steps.info["episode_over"]))
    assert len(games) >= 1
    assert games.tolist() == ends[4::5].tolist()  # five lives
    assert (~steps.valid[ends + 1]).all()
    lives = steps.obs[:, 0, 128 + 57]  # Breakout keeps them in byte 57
    assert lives[ends[0] - 1] == 5
    assert first.obs[0, 128 + 57] == 5
    assert lives[ends[0] + 2] == 4  # the same game goes on


def test_episodic_life_is_for_the_arcade_alone():
    with pytest.raises(UnknownOptions, match="episodic_life"):
        make("gym:CartPole-v1", episodic_life=True)
