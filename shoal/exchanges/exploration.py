"""Exploration: hyperparameters are drawn from priors, perturbed and kept within bounds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.types import Tree

KINDS = ("uniform", "log", "one-minus-log", "choice")
FACTORS = (0.8, 1.2)


class Prior(NamedTuple):
    """The distribution of a hyperparameter: between two bounds, or one of several numbers.

    uniform          x is uniform
    log              log x is uniform, for step sizes and coefficients
    one-minus-log    log(1 - x) is uniform, for discounts: 0.9, 0.99 and 0.999 are equally far apart
    choice           one of `choices`; perturbing moves to the choice before or after
    """

    kind: str
    low: float
    high: float
    choices: tuple[float, ...] = ()

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number that it draws."""
        return self.low, self.high


def read_prior(text: str) -> Prior:
    """A prior from a line of text: its kind, then its two bounds or its choices.

    >>> read_prior("log 1e-5 1e-2")
    Prior(kind='log', low=1e-05, high=0.01, choices=())
    >>> read_prior("choice 0.1 0.2 0.3").choices
    (0.1, 0.2, 0.3)
    >>> read_prior("log 0 1")
    Traceback (most recent call last):
    shoal.errors.ShoalError: prior 'log 0 1': bounds must be above 0
    """
    kind, *words = text.split() or [""]
    if kind not in KINDS:
        raise ShoalError(f"prior {text!r}: begin with one of {', '.join(KINDS)}")
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        raise ShoalError(f"prior {text!r}: after {kind} come numbers only") from None
    if mistake := _mistake(kind, numbers):
        raise ShoalError(f"prior {text!r}: {mistake}")
    return Prior(kind, min(numbers), max(numbers), numbers if kind == "choice" else ())


PRIORS: dict[str, Prior] = {
    "learning_rate": Prior("log", 1e-5, 1e-2),
    "gamma": Prior("one-minus-log", 0.9, 0.9999),
    "gae_lambda": Prior("one-minus-log", 0.8, 0.995),
    "clip_coef": Prior("uniform", 0.05, 0.5),
    "ent_coef": Prior("log", 1e-5, 0.1),
    "vf_coef": Prior("uniform", 0.1, 1.0),
    "max_grad_norm": Prior("log", 0.1, 10.0),
    "comm_penalty_coeff": Prior("log", 1e-3, 10.0),
    "prox_coef": Prior("log", 1e-4, 1.0),
    "intrinsic_coef": Prior("log", 1e-2, 1e2),
    "extrinsic_coef": Prior("log", 1e-2, 1e2),
    "actor_learning_rate": Prior("log", 1e-5, 1e-2),
    "critic_learning_rate": Prior("log", 1e-5, 1e-2),
    "tau": Prior("log", 1e-3, 0.1),
    "exploration_noise": Prior("log", 0.01, 1.0),
    "target_noise": Prior("log", 0.01, 1.0),
    "alpha": Prior("log", 1e-3, 1.0),
    "alpha_learning_rate": Prior("log", 1e-5, 1e-2),
}
"""The default priors."""


def names_of(texts: Iterable[str]) -> list[str]:
    """The names that `read_priors` takes priors of.

    >>> names_of(["gamma", "learning_rate=log 1e-4 1e-3"])
    ['gamma', 'learning_rate']
    """
    return [str(text).partition("=")[0].strip() for text in texts]


def read_priors(names: Iterable[str]) -> dict[str, Prior]:
    """Priors by name, each from `name`, which takes the default prior, or `name=KIND LOW HIGH`.

    >>> list(read_priors(["gamma", "learning_rate=log 1e-4 1e-3"]))
    ['gamma', 'learning_rate']
    """
    priors = {}
    for text in names:
        name, equals, prior = str(text).partition("=")
        if not equals and name not in PRIORS:
            raise ShoalError(f"{name} has no default prior: give one, e.g. {name}=log 1e-5 1e-2")
        priors[name.strip()] = read_prior(prior) if equals else PRIORS[name]
    return priors


def draw(prior: Prior, key: Array, shape: tuple[int, ...] = ()) -> Array:
    """x ~ prior, float32."""
    if prior.kind == "choice":
        return _one_of(prior.choices, key, shape)
    if prior.kind == "uniform":
        x = jax.random.uniform(key, shape, minval=prior.low, maxval=prior.high)
    elif prior.kind == "log":
        bounds = math.log(prior.low), math.log(prior.high)
        x = jnp.exp(jax.random.uniform(key, shape, minval=bounds[0], maxval=bounds[1]))
    else:
        bounds = math.log(1 - prior.high), math.log(1 - prior.low)
        x = 1 - jnp.exp(jax.random.uniform(key, shape, minval=bounds[0], maxval=bounds[1]))
    return jnp.clip(x, prior.low, prior.high)


def perturb(prior: Prior, key: Array, value: Array, factors: Sequence[float] = FACTORS) -> Array:
    """Each value x is changed by a random one of the factors f, then clipped to the bounds.

    log, uniform above 0    x <- f x
    one-minus-log           1 - x <- f (1 - x)
    other uniform           x <- x + (f - 1) (high - low)
    choice                  x <- the choice before or after; the first and the last may stay
    """
    if prior.kind == "choice":
        choices = jnp.array(prior.choices, jnp.float32)
        now = jnp.argmin(jnp.abs(value[..., None] - choices.reshape(*[1] * value.ndim, -1)), -1)
        step = jnp.where(jax.random.bernoulli(key, shape=value.shape), 1, -1)
        return choices[jnp.clip(now + step, 0, len(choices) - 1)]
    f = _one_of(factors, key, value.shape)
    if prior.kind == "one-minus-log":
        x = 1 - f * (1 - value)
    elif prior.low > 0:
        x = f * value
    else:
        x = value + (f - 1) * (prior.high - prior.low)
    return jnp.clip(x, prior.low, prior.high)


def explore(
    priors: Mapping[str, Prior],
    key: Array,
    hypers: Tree,
    mutate: Array,
    resample: float = 0.25,
    factors: Sequence[float] = FACTORS,
) -> Tree:
    """x_i ~ prior with probability `resample`, else x_i perturbed, for each i with `mutate` and each name.

    `hypers` is a named tuple of (L,) arrays. A draw depends only on the key, the index of the learner and the
    index of the field.
    """
    check_names(priors, hypers)
    if not 0 <= resample <= 1:
        raise ShoalError(f"resample must be between 0 and 1, not {resample}")
    if not factors or not all(0 < f < math.inf for f in factors):
        raise ShoalError(f"factors must be positive numbers, not {tuple(factors)}")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(mutate)))

    def explored(name: str, prior: Prior) -> Array:
        def changed(key: Array, x: Array) -> Array:
            key = jax.random.fold_in(key, hypers._fields.index(name))
            key_which, key_draw, key_perturb = jax.random.split(key, 3)
            drawn, perturbed = draw(prior, key_draw), perturb(prior, key_perturb, x, factors)
            return jnp.where(jax.random.bernoulli(key_which, float(resample)), drawn, perturbed)

        before = getattr(hypers, name)
        return jnp.where(mutate, jax.vmap(changed)(keys, before), before)

    return hypers._replace(**{name: explored(name, prior) for name, prior in priors.items()})


def check_names(names: Iterable[str], hypers: Tree) -> None:
    """Raise where a learner has no hyperparameter of a name."""
    if unknown := [name for name in names if name not in hypers._fields]:
        known = ", ".join(hypers._fields)
        raise ShoalError(f"{', '.join(unknown)} cannot change while training; these can: {known}")


def _one_of(numbers: Sequence[float], key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.array(numbers, jnp.float32)[jax.random.randint(key, shape, 0, len(numbers))]


def _mistake(kind: str, numbers: tuple[float, ...]) -> str:
    """What is wrong with a prior once it is float32; empty if nothing."""
    if not all(abs(x) <= float(np.finfo(np.float32).max) for x in numbers):
        return "numbers must be finite"
    x = np.array(numbers, np.float32)
    if kind == "choice":
        if len(numbers) < 2:
            return "needs at least two numbers"
        return "" if len(np.unique(x)) == len(x) else "choices must differ"
    if len(numbers) != 2:
        return f"needs two numbers, a lower and an upper bound, not {len(numbers)}"
    if x[0] >= x[1]:
        return "the lower bound comes first and must be below the upper one"
    if kind == "log" and x[0] < np.finfo(np.float32).tiny:
        return "bounds must be above 0"
    if kind == "one-minus-log" and (x[0] <= 0 or x[1] >= 1):
        return "bounds must be above 0 and below 1"
    return ""
