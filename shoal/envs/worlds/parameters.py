"""Worlds that differ: physical parameters for every learner, drawn or given."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shoal.envs.classic import BUILTIN
from shoal.envs.worlds.gymnasium import OURS
from shoal.errors import ShoalError
from shoal.ranges import NonNegative
from shoal.schema import convert
from shoal.types import EnvSpec, Tree

_MEMBER, _UNSEEN = 77, 78
"""The last number of a world's seed: worlds of learners and unseen worlds have different random streams."""


def default_worlds(spec: EnvSpec, num: int) -> Tree:
    """The default parameters repeated: (num,) per leaf.

    >>> from shoal.envs.classic import CARTPOLE
    >>> default_worlds(CARTPOLE.spec, 3).length.tolist()
    [0.5, 0.5, 0.5]
    """
    return jax.tree.map(lambda default: np.full(num, default, np.float32), spec.params)


def draw_worlds(spec: EnvSpec, spread: float, members: Sequence[int], seed: int) -> Tree:
    """The worlds of these members: clip(default + scale spread N(0, 1), low, high), (len(members),) per leaf.

    A member's world depends on the seed and its number, not on how many members there are.

    >>> from shoal.envs.classic import CARTPOLE
    >>> all_of_them = draw_worlds(CARTPOLE.spec, 0.3, range(8), seed=1)
    >>> one = draw_worlds(CARTPOLE.spec, 0.3, [5], seed=1)
    >>> bool(all_of_them.gravity[5] == one.gravity[0])
    True
    """
    return _draw_worlds(spec, spread, [[seed, member, _MEMBER] for member in members])


def draw_unseen_worlds(spec: EnvSpec, spread: float, num: int, seed: int) -> Tree:
    """Worlds of the same distribution that no learner trains in, (num,) per leaf."""
    return _draw_worlds(spec, spread, [[seed, index, _UNSEEN] for index in range(num)])


def draw_between(worlds: Tree, num: int, seed: int) -> Tree:
    """Worlds drawn uniformly from the ranges of given ones, (num,) per leaf.

    >>> from shoal.envs.classic import CARTPOLE
    >>> ends = read_worlds(CARTPOLE.spec, [{"length": 1}, {"length": 2}], [0, 1])
    >>> worlds = draw_between(ends, 100, seed=0)
    >>> bool(np.all((worlds.length >= 1) & (worlds.length <= 2))), set(worlds.mass_cart)
    (True, {np.float32(1.0)})
    """
    random = np.random.default_rng([seed, _UNSEEN])
    return jax.tree.map(lambda x: np.float32(random.uniform(np.min(x), np.max(x), num)), worlds)


def read_worlds(spec: EnvSpec, data: Any, members: Sequence[int]) -> Tree:
    """The worlds of these members, from parsed JSON, (len(members),) per leaf.

    `data` is a list of objects, one per learner, or an object of objects by number, counted from 0 or from 1;
    it may be inside an object with one name. Parameters that are not named keep their defaults.

    >>> from shoal.envs.classic import CARTPOLE
    >>> data = {"cartpole_parameters": {"1": {"masscart": 4.0}, "2": {"length": 10}}}
    >>> worlds = read_worlds(CARTPOLE.spec, data, members=[0, 1])
    >>> worlds.mass_cart.tolist(), worlds.length.tolist()
    ([4.0, 1.0], [0.5, 10.0])
    """
    if not _names(spec):
        raise _no_parameters(spec)
    first, learners = _numbered_learners(data)
    values = [_values(spec, one, first + index) for index, one in enumerate(learners)]
    missing = [member for member in members if not member < len(values)]
    if missing:
        raise ShoalError(
            f"the parameters describe {len(values)} learner{'s' * (len(values) != 1)}, but there is none for "
            f"{missing[0] + first}; describe learners {first} to {max(members) + first}"
        )
    worlds = [type(spec.params)(**named(spec.params) | values[member]) for member in members]
    return jax.tree.map(lambda _, *values: np.array(values, np.float32), spec.params, *worlds)


def _draw_worlds(spec: EnvSpec, spread: float, entropies: list[list[int]]) -> Tree:
    if not spec.spread:
        raise _no_spread(spec) if _names(spec) else _no_parameters(spec)
    spread = convert("env_spread", spread, NonNegative)
    unknown = sorted(spec.spread.keys() - _names(spec))
    if unknown:
        raise ShoalError(f"{spec.name}: `spread` names {unknown[0]!r}; it has {', '.join(_names(spec))}")
    defaults = named(spec.params)
    shape = (len(entropies), len(spec.spread))
    normal = [np.random.default_rng(entropy).standard_normal(shape[1]) for entropy in entropies]
    columns = {}
    for name, noise in zip(sorted(spec.spread), np.reshape(normal, shape).T, strict=True):
        scale, low, high = spec.spread[name]
        columns[name] = np.float32(np.clip(defaults[name] + scale * spread * noise, low, high))
    return type(spec.params)(**named(default_worlds(spec, len(entropies))) | columns)


def named(params: Tree) -> dict[str, Any]:
    """A NamedTuple's or a dictionary's values by their names; () has none."""
    if isinstance(params, dict):
        return params
    return params._asdict() if params else {}


def _names(spec: EnvSpec) -> list[str]:
    return list(named(spec.params))


def _no_parameters(spec: EnvSpec) -> ShoalError:
    backend = {"envpool": "EnvPool", "gym": "Gymnasium"}.get(spec.backend, spec.backend)
    return ShoalError(
        f"{spec.name} by {backend} has no physical parameters, so its worlds cannot differ; "
        f"choose one of {', '.join([*BUILTIN, *OURS])}, "
        "or declare some (docs/how-to/worlds-that-differ.md)"
    )


def _no_spread(spec: EnvSpec) -> ShoalError:
    return ShoalError(
        f"{spec.name} by {spec.backend} does not say how its parameters may differ; "
        f"fill {'its `world_spread`' if spec.backend == 'gym' else '`EnvSpec.spread`'}, "
        f"or give the worlds in a file"
    )


def _numbered_learners(data: Any) -> tuple[int, list[Any]]:
    """The number of the first learner, and the parameters of each."""
    if isinstance(data, dict) and len(data) == 1 and not str(next(iter(data))).isdecimal():
        (data,) = data.values()  # an object with one name around the learners
    if isinstance(data, list):
        return 0, data
    if not isinstance(data, dict):
        raise ShoalError(
            f"parameters of worlds must be an object of learners or a list, not {_json_type(data)}; "
            'write {"0": {"gravity": 9.8}, "1": ...}'
        )
    data = {str(key): one for key, one in data.items()}
    odd = [key for key in data if not key.isdecimal()]
    if odd:
        raise ShoalError(f'learners must be numbers, not {odd[0]!r}; write {{"0": {{...}}, "1": ...}}')
    first = 0 if "0" in data else 1
    expected = [str(first + index) for index in range(len(data))]
    missing = [key for key in expected if key not in data]
    if missing:
        raise ShoalError(
            f"learners must be numbered {first}, {first + 1}, ... without gaps, but {missing[0]} is missing; "
            f"the keys are {', '.join(sorted(data, key=int))}"
        )
    return first, [data[key] for key in expected]


def _values(spec: EnvSpec, one: Any, number: int) -> dict[str, float]:
    """The parameters of one learner, by our names."""
    if not isinstance(one, dict):
        raise ShoalError(
            f"learner {number}: parameters must be an object, not {_json_type(one)}; "
            f'write {{"{_names(spec)[0]}": {next(iter(named(spec.params).values()))}}}'
        )
    known = {_normalised(name): name for name in _names(spec)}
    found: dict[str, float] = {}
    for written, value in one.items():
        name = known.get(_normalised(written))
        if name is None:
            raise ShoalError(
                f"learner {number}: no parameter {written!r}; {spec.name} has {', '.join(_names(spec))}"
            )
        if name in found:
            raise ShoalError(f"learner {number}: {name} is given twice, in two spellings; keep one of them")
        found[name] = convert(f"learner {number}: {written}", value, float)
    return found


def _normalised(name: str) -> str:
    """masscart, mass_cart and MassCart are one name."""
    return name.lower().replace("_", "")


def _json_type(value: Any) -> str:
    """What JSON calls it."""
    kinds = {dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value)) or json.dumps(value)
