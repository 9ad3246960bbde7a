"""Networks of one's own, for tests of what becomes of them elsewhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.nets.layers import MLP, orthogonal


class Normed(eqx.Module):
    """A residual block with gelu between normalised layers; the value has layers that a policy needs not."""

    enter: Array
    inner: Array
    scale: Array
    leave: Array
    critic: MLP

    def __call__(self, obs):
        x = jnp.log1p(jnp.abs(obs @ self.enter))
        centred = x - x.mean(-1, keepdims=True)
        normed = (
            jnp.broadcast_to(self.scale, x.shape)
            * centred
            * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        )
        x = x + jax.nn.gelu(normed @ self.inner, approximate=False)
        return jax.nn.log_softmax(x @ self.leave), self.critic(jnp.sort(obs))[..., 0]


def normed(key, spec, num_outputs):
    keys = jax.random.split(key, 4)
    size = spec.observation.shape[0]
    draw = lambda key, *shape: jax.random.normal(key, shape)
    critic = MLP(keys[3], (size, 4, 1), "tanh", orthogonal(1.0), orthogonal(1.0))
    enter, inner, leave = draw(keys[0], size, 6), draw(keys[1], 6, 6), draw(keys[2], 6, num_outputs)
    return Normed(enter, inner, jnp.ones(6), leave, critic)


class Attending(eqx.Module):
    """Attention between the parts of an observation; means clipped, deviations learned."""

    query: Array
    key: Array
    value: Array
    head: MLP
    log_std: Array

    def __call__(self, obs):
        parts = jnp.stack([obs["ear"], obs["foot"][..., ::1], jnp.ones_like(obs["ear"])], -2)
        query, key, value = (parts @ matrix for matrix in (self.query, self.key, self.value))
        weights = jax.nn.softmax(jnp.einsum("...qd,...kd->...qk", query, key))
        seen = jnp.einsum("...qk,...kd->...qd", weights, value).reshape(*obs["ear"].shape[:-1], -1)
        mean = jnp.clip(
            jnp.where(seen.sum(-1, keepdims=True) > 0, self.head(seen), 0.1 * seen[..., :2]), -3, 3
        )
        log_std = jnp.broadcast_to(self.log_std, mean.shape)
        return jnp.concatenate([mean, log_std], -1), seen[..., 0]


def attending(key, spec, num_outputs):
    keys = jax.random.split(key, 4)
    query, own, value = (jax.random.normal(one, (3, 2)) for one in keys[:3])
    head = MLP(keys[3], (6, 5, num_outputs // 2), "elu", orthogonal(1.0), orthogonal(1.0))
    return Attending(query, own, value, head, jnp.full(num_outputs // 2, -0.5))


class Looking(eqx.Module):
    """The mean light of the quarters of a picture, and the brightest."""

    head: MLP

    def __call__(self, obs):
        x = obs.astype(jnp.float32) / 255
        quarters = x.reshape(*x.shape[:-3], 2, x.shape[-3] // 2, 2, x.shape[-2] // 2, x.shape[-1])
        light = quarters.mean((-4, -2)).reshape(*x.shape[:-3], -1)
        features = jnp.concatenate([light, x.max((-3, -2)), x[..., 0, :3, 0]], -1)
        return self.head(jnp.swapaxes(features[..., None], -1, -2)[..., 0, :]), light[..., 0]


def looking(key, spec, num_outputs):
    channels = spec.observation.shape[-1]
    size = 5 * channels + 3
    return Looking(MLP(key, (size, 8, num_outputs), "silu", orthogonal(2.0), orthogonal(9.0)))


class Sorting(eqx.Module):
    """What has no form in ONNX here."""

    weight: Array

    def __call__(self, obs):
        outputs = jnp.sort(obs, -1) @ self.weight
        return outputs, outputs[..., 0]


def sorting(key, spec, num_outputs):
    return Sorting(jax.random.normal(key, (spec.observation.shape[0], num_outputs)))


class Halved(eqx.Module):
    """Computes in a type that graphs here do not have."""

    weight: Array

    def __call__(self, obs):
        outputs = (obs.astype(jnp.bfloat16) @ self.weight.astype(jnp.bfloat16)).astype(jnp.float32)
        return outputs, outputs[..., 0]


def halved(key, spec, num_outputs):
    return Halved(jax.random.normal(key, (spec.observation.shape[0], num_outputs)))
