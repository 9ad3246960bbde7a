"""JaxMARL's agents, which have names, as an axis: observations and actions padded to the largest agent's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.types import ActionSpace, Box, Discrete

ADVERSARIES = ("adversary", "leadadversary", "eve", "enemy")
"""How the names of those begin who play against the others."""


class Agents(NamedTuple):
    """The agents of a world."""

    names: tuple[str, ...]
    teams: tuple[int, ...]
    """The team of each agent, numbered in the order of the agents; () where all are one."""
    action: ActionSpace
    sizes: tuple[int, ...]
    """How many choices each agent has, or of how many numbers its action consists."""

    @property
    def unequal(self) -> bool:
        """Whether some agents have fewer choices than others."""
        return isinstance(self.action, Discrete) and len(set(self.sizes)) > 1

    def act(self, action: Array) -> dict[str, Array]:
        """Our actions (A, ...) as the agents' own."""
        sizes = dict(zip(self.names, self.sizes, strict=True))
        if isinstance(self.action, Discrete):
            return {name: jnp.minimum(action[i], size - 1) for i, (name, size) in enumerate(sizes.items())}
        return {name: action[i, :size] for i, (name, size) in enumerate(sizes.items())}

    def stack(self, each: Mapping[str, Array]) -> Array:
        """What each agent sees or may do, (A, ...), padded with zeros to the largest."""
        arrays = [jnp.asarray(each[name], jnp.float32) for name in self.names]
        if len({x.shape for x in arrays}) == 1:
            return jnp.stack(arrays)
        longest = max(x.size for x in arrays)
        return jnp.stack([jnp.pad(x.reshape(-1), (0, longest - x.size)) for x in arrays])

    def choices(self) -> Array:
        """Which choices each agent has at all, (A, n)."""
        return jnp.float32(np.arange(max(self.sizes)) < np.array(self.sizes)[:, None])


def agents_of(env: Any) -> Agents:
    """The agents of one of JaxMARL's worlds."""
    names = tuple(env.agents)
    spaces = [env.action_space(name) for name in names]
    sides = [name.startswith(ADVERSARIES) for name in names]
    teams = tuple(int(side != sides[0]) for side in sides) if len(set(sides)) > 1 else ()
    if hasattr(spaces[0], "n"):
        sizes = tuple(int(space.n) for space in spaces)
        return Agents(names, teams, Discrete(max(sizes)), sizes)
    sizes = tuple(int(np.prod(space.shape)) for space in spaces)
    low, high = (float(np.min(getattr(spaces[0], bound))) for bound in ("low", "high"))
    return Agents(names, teams, Box((max(sizes),), low, high), sizes)
