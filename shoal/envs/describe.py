"""An environment's spaces and limits in words."""

from shoal.types import ActionSpace, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete


def describe(spec: EnvSpec) -> dict[str, str]:
    """What a learner sees and does, by name.

    >>> from shoal.envs.registry import make
    >>> describe(make("CartPole-v1").spec)["actions"]
    '2 choices'
    """
    found = {"observations": _observations(spec), "actions": _actions(spec.action)}
    if spec.agents:
        found["agents"] = f"{spec.agents}" + f" in {len(set(spec.teams))} teams" * (len(set(spec.teams)) > 1)
    found["episodes"] = f"at most {spec.max_episode_steps:,} steps" if spec.max_episode_steps else "no limit"
    if spec.params:
        names = spec.params if isinstance(spec.params, dict) else spec.params._asdict()
        found["worlds"] = f"differ in {', '.join(names)}"
    return found


def _observations(spec: EnvSpec) -> str:
    if isinstance(spec.observation, Box):
        return _box(spec.observation)
    return ", ".join(f"{name} {_box(box)}" for name, box in spec.observation.items())


def _box(box: Box) -> str:
    """A box's type and shape.

    >>> _box(Box((84, 84, 4), 0, 255, "uint8")), _box(Box(()))
    ('uint8 84x84x4', 'float32')
    """
    return f"{box.dtype} {'x'.join(map(str, box.shape))}".strip()


def _actions(space: ActionSpace) -> str:
    match space:
        case Discrete(num):
            return f"{num} choices"
        case MultiDiscrete(nums):
            return f"{len(nums)} choices, among {', '.join(map(str, nums))}"
        case MultiBinary(num):
            return f"{num} switches"
        case Box(shape):
            return f"{'x'.join(map(str, shape))} real number{'s' * (shape != (1,))}"
