"""Observations that are split: two parts through layers of their own, by hand in numpy."""

import jax
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners.ppo_config import PPOConfig
from shoal.nets.actor_critic import ActorCritic, Layers, Split, actor_critic
from shoal.nets.layers import SplitLayer
from shoal.nets.recurrent import recurrent_actor_critic
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec
from tests.learners.lab import plainly

VECTOR = EnvSpec("Vector", "jax", Box((5,)), Discrete(3))
BOXES = {"body": Box((2,)), "action_mask": Box((3,)), "view": Box((2, 2)), "arm": Box((1,))}
NAMED = EnvSpec("Named", "jax", BOXES, Discrete(3))
PICTURE = EnvSpec("Picture", "jax", Box((40, 40, 3), 0, 255, "uint8"), Discrete(3))
KEY = jax.random.key(0)


call = jax.jit(lambda network, obs: network(obs))


def through(layers, x, last=False):
    for layer in layers:
        x = x @ np.asarray(layer.weight) + np.asarray(layer.bias)
        x = x if last and layer is layers[-1] else np.tanh(x)
    return x


def by_hand(network, left, right):
    """What an actor or critic says: two parts, joined, the layers, the head."""
    halves, *layers = network.layers
    assert isinstance(halves, SplitLayer)
    joined = np.concatenate([through(halves.left.layers, left), through(halves.right.layers, right)], -1)
    return through(layers, joined, last=True)


def test_a_vector_split_at_a_number():
    network = plainly(actor_critic(hidden=(6,), split=Split(start=2, hidden=(4, 3))))(KEY, VECTOR, 3)
    obs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    outputs, value = call(network, obs)
    expected = by_hand(network.actor, obs[:, :2], obs[:, 2:])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    expected = by_hand(network.critic, obs[:, :2], obs[:, 2:])
    np.testing.assert_allclose(value, expected[:, 0], rtol=1e-5, atol=1e-6)


def test_parts_split_by_name():
    """The body and the arm go together, in the order of their names; the mask goes nowhere."""
    network = plainly(actor_critic(hidden=(), split=Split(keys=("body", "arm"), hidden=(4,))))(KEY, NAMED, 3)
    rng = np.random.default_rng(0)
    obs = {name: rng.normal(size=(7, *box.shape)).astype(np.float32) for name, box in BOXES.items()}
    left = np.concatenate([obs["arm"], obs["body"]], -1)
    outputs, _ = call(network, obs)
    expected = by_hand(network.actor, left, obs["view"].reshape(7, 4))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_one_part_gives_no_gradient_to_the_other_parts_layers():
    """With zeros on the left, only the biases there can learn; and the other way round."""
    network = plainly(actor_critic(hidden=(6,), split=Split(start=2, hidden=(4, 3))))(KEY, VECTOR, 3)
    slopes = jax.jit(jax.grad(lambda network, obs: sum(x.sum() for x in network(obs))))

    def gradients(obs):
        halves = slopes(network, np.float32(obs)).actor.layers[0]
        return [np.abs(np.asarray(half.layers[0].weight)).max() for half in (halves.left, halves.right)]

    left, right = gradients([[0.0, 0.0, 1.0, 2.0, 3.0]])
    assert left == 0 < right
    left, right = gradients([[1.0, 2.0, 0.0, 0.0, 0.0]])
    assert right == 0 < left


def test_with_memory_the_halves_come_first():
    make = recurrent_actor_critic("gru", 4, Layers(hidden=(6,), split=Split(start=2, hidden=(3,))))
    network = plainly(make)(KEY, VECTOR, 3)
    obs = np.random.default_rng(0).normal(size=(7, 2, 5)).astype(np.float32)
    halves, layer = network.actor.layers
    joined = np.concatenate(
        [through(halves.left.layers, obs[..., :2]), through(halves.right.layers, obs[..., 2:])], -1
    )
    core = network.actor.core
    read = through([layer], joined) @ np.asarray(core.weight) + np.asarray(core.bias)
    found = jax.jit(lambda network, obs: network.actor.project(network.encoder(obs)))(network, obs)
    np.testing.assert_allclose(found, read, rtol=1e-5, atol=1e-6)


def test_nothing_changes_where_nothing_is_split():
    network = jax.eval_shape(lambda: actor_critic(hidden=(6,))(KEY, VECTOR, 3))
    assert isinstance(network, ActorCritic)
    assert [layer.weight.shape for layer in network.actor.layers] == [(5, 6), (6, 3)]


def test_the_critic_may_have_layers_of_its_own():
    network = jax.eval_shape(lambda: actor_critic(hidden=(6,), critic_hidden=(7, 8))(KEY, VECTOR, 3))
    assert [layer.weight.shape for layer in network.actor.layers] == [(5, 6), (6, 3)]
    assert [layer.weight.shape for layer in network.critic.layers] == [(5, 7), (7, 8), (8, 1)]
    make = recurrent_actor_critic("gru", 4, Layers(hidden=(6,), critic_hidden=()))
    remembering = jax.eval_shape(lambda: make(KEY, VECTOR, 3))
    assert len(remembering.actor.layers) == 1
    assert not remembering.critic.layers


@pytest.mark.parametrize(
    ("spec", "split", "complaint"),
    [
        (VECTOR, Split(start=5), r"^split_start 5 leaves a part empty: Vector has 5 numbers"),
        (VECTOR, Split(keys=("body",)), r"^split_keys body: Vector has no named parts; name some"),
        (NAMED, Split(start=2), r"^split_start splits observations that are one vector; split_keys splits"),
        (NAMED, Split(keys=("legs",)), r"^split_keys legs: Named has the parts arm, body, view; name some"),
        (NAMED, Split(keys=("arm", "body", "view")), r"name some, not all"),
        (NAMED, Split(keys=("action_mask",)), r"^split_keys action_mask: Named has the parts"),
        (PICTURE, Split(start=2), r"an image cannot be split"),
    ],
)
def test_what_cannot_be_split_is_refused(spec, split, complaint):
    with pytest.raises(ShoalError, match=complaint):
        jax.eval_shape(lambda: actor_critic(split=split)(KEY, spec, 3))


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ShoalError, match=r"^give network\.split_start or network\.split_keys"):
        with_settings(PPOConfig(), split_start=1, split_keys=("a",))
    with pytest.raises(ShoalError, match=r"^network\.split_hidden must be a list of 1 to 64 whole numbers"):
        with_settings(PPOConfig(), split_hidden=())
