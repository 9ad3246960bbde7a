"""Metrics and axes in words, for titles and labels."""

import re

METRICS = {
    "return_mean": "episode return",
    "return_std": "standard deviation of episode returns",
    "length_mean": "episode length (steps)",
    "episodes": "finished episodes",
    "steps_per_second": "environment steps per second, all learners",
    "steps_per_second_compiled": "environment steps per second, all learners, without compiling",
    "entropy": "entropy of the policy (nats)",
    "approx_kl": "KL divergence to the old policy (nats)",
    "clip_fraction": "share of clipped samples",
    "explained_variance": "explained variance of the critic",
    "grad_norm": "norm of the gradient",
    "q_mean": "mean of the critic's values",
    "exploration": "probability of a random action",
    "alpha": "temperature",
    "updates_per_step": "critic updates per environment step",
    "replay_size": "transitions in the replay",
    "loss/total": "total loss",
    "disagreement/params": "distance to the mean parameters",
    "disagreement/policy": "KL divergence to other policies (nats)",
    "disagreement/linked": "KL divergence to linked policies (nats)",
    "disagreement/unlinked": "KL divergence to policies without a link (nats)",
    "exchange/bytes": "bytes sent per learner",
    "exchange/rounds": "exchanges taken part in",
    "islands/present": "share of meetings it came to",
    "islands/bytes": "bytes carried for the learner",
    "privacy/cost": "cost of privacy",
    "privacy/epsilon": "spent privacy budget ε",
    "population/parent": "parent at the last selection",
    "population/score": "score at the last selection",
    "curiosity/bonus": "curiosity's bonus per step",
    "curiosity/return": "curiosity's bonuses per episode",
    "curiosity/forward": "error of the forward model",
    "curiosity/inverse": "error of the inverse model",
    "eval/return_mean": "episode return in evaluation",
    "eval/return_std": "standard deviation of returns in evaluation",
    "eval/length_mean": "episode length in evaluation (steps)",
}

FAMILIES = (
    (r"(team\d+)/(.*)", lambda found: f"{words(found[1])}: {metric_in_words(found[2])}"),
    (r"loss/(.*)", lambda found: f"{words(found[1])} loss"),
    (r"loss_share/(.*)", lambda found: f"share of the {words(found[1])} loss"),
    (r"seconds/(.*)", lambda found: f"seconds per iteration: {words(found[1])}"),
    (r"hypers/(.*)", lambda found: words(found[1])),
    (r"return_(.*)", lambda found: f"episode return of {words(found[1])}"),
    (r"win_rate_(.*)", lambda found: f"share of wins of {words(found[1])}"),
)
"""What metrics are called whose names have a part of their own."""

SECONDS = ((7200, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))
"""Units of time: from how many seconds on, how many seconds it has, its name."""


WHOLE = {"coef": "coefficient", "ent": "entropy", "vf": "value"}
"""Shortened words, in full."""


def words(name: str) -> str:
    """A name of the program in words.

    >>> words("ent_coef"), words("agent0"), words("exchange/other_thing")
    ('entropy coefficient', 'agent 0', 'exchange: other thing')
    """
    plain = re.sub(r"([a-z])(\d+)$", r"\1 \2", name.replace("_", " ").replace("/", ": "))
    return " ".join(WHOLE.get(word, word) for word in plain.split(" "))


def metric_in_words(name: str) -> str:
    """A column of metrics.csv in words, with its unit.

    >>> metric_in_words("approx_kl"), metric_in_words("loss/value"), metric_in_words("team1/entropy")
    ('KL divergence to the old policy (nats)', 'value loss', 'team 1: entropy of the policy (nats)')
    """
    if name in METRICS:
        return METRICS[name]
    for pattern, describe in FAMILIES:
        if found := re.fullmatch(pattern, name):
            return describe(found)
    return words(name)


def axis_in_words(x: str, several: bool) -> str:
    """The label of the axis of steps or episodes, of one learner or of each of several."""
    counted = {"steps": "environment steps", "episodes": "finished episodes"}[x]
    return f"{counted} per learner" if several else counted


def unit_of_time(longest: float) -> tuple[int, str]:
    """The unit in which so many seconds are best read: its seconds, and its name.

    >>> unit_of_time(90), unit_of_time(3000)
    ((1, 'seconds'), (60, 'minutes'))
    """
    return next((size, name) for start, size, name in SECONDS if longest >= start)
