"""Settings of environments with several agents."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval, MaxLen

from shoal.errors import ShoalError
from shoal.ranges import Number, Updates
from shoal.settings import check
from shoal.types import EnvSpec


@dataclass(frozen=True)
class TeamConfig:
    """Several agents: which policy each follows, what critics see, which opponents there are."""

    policies: str = "team"
    """Which agents share parameters: one policy for each `team`, one `shared` by all, one for each `agent`,
    or the number of every agent's policy, e.g. 0,0,1."""
    critic_view: Literal["global", "team", "local"] = "global"
    """What the critic of an agent sees: global: the observations of all agents, or the environment's state
    (MAPPO); team: those of its team; local: its own (IPPO)."""
    agent_ids: bool = False
    """Add each agent's number, one-hot, to its observation."""
    team_reward: bool = False
    """Give every agent the sum of its team's rewards."""
    freeze: Annotated[tuple[Number, ...], MaxLen(1024)] = ()
    """Policies, by number, that act and never learn."""
    freeze_every: Annotated[int, Interval(ge=0, le=10**9)] = 0
    """Updates for which one policy at a time learns, in turn; 0 lets all learn."""
    past_selves: Annotated[int, Interval(ge=0, le=10_000)] = 0
    """Earlier versions of each policy that are kept as opponents, in half of the environments."""
    snapshot_every: Updates = 50
    """Updates between two versions that are kept."""

    def __post_init__(self):
        check(self, "team")


def mapping(config: TeamConfig, spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """The agents of each policy, by its name.

    >>> from shoal.types import Box, Discrete
    >>> spec = EnvSpec("tag", "jax", Box((3,)), Discrete(5), agents=3, teams=(0, 0, 1))
    >>> mapping(TeamConfig(), spec)
    {'team0': (0, 1), 'team1': (2,)}
    >>> mapping(TeamConfig(policies="0,1,0"), spec)
    {'policy0': (0, 2), 'policy1': (1,)}
    """
    assert spec.agents is not None
    match config.policies:
        case "shared":
            name, numbers = "policy", [0] * spec.agents
        case "agent":
            name, numbers = "agent", list(range(spec.agents))
        case "team":
            name, numbers = "team", list(spec.teams or [0] * spec.agents)
        case text:
            name, numbers = "policy", _numbers(text, spec)
    found = sorted(set(numbers))
    if found != list(range(len(found))):
        raise ShoalError(f"team.policies {config.policies!r}: the numbers must be 0, 1, ... without gaps")
    if bad := [number for number in config.freeze if number not in found]:
        raise ShoalError(f"team.freeze {bad[0]}: the policies are numbered 0 to {found[-1]}")
    return {f"{name}{k}": tuple(agent for agent, n in enumerate(numbers) if n == k) for k in found}


def _numbers(text: str, spec: EnvSpec) -> list[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers) or len(numbers) != spec.agents:
        raise ShoalError(
            f"team.policies must be team, shared, agent or {spec.agents} numbers, one per agent "
            f"of {spec.name}, such as {','.join('0' * (spec.agents or 1))}, not {text!r}"
        )
    return [int(number) for number in numbers]
