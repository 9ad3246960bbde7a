"""Gymnasium's own checker of environments, and their speed before Shoal steps them."""

import io
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

from shoal.envs.adapters.gymnasium import make_single
from shoal.envs.adapters.host import EnvironmentCrashed
from shoal.envs.checks.findings import Finding, ok, problem, warning

OURS = ("is -infinity", "is infinity", "recommend using a symmetric and normalized")
"""Parts of warnings about bounds, which ours say better."""


def check_gymnasium(name: str, options: dict[str, Any]) -> Iterator[Finding]:
    """What `gymnasium.utils.env_checker.check_env` says of one environment without wrappers."""
    from gymnasium.utils.env_checker import check_env

    env = make_single(name, options)
    if env is None:
        return
    failure, more = None, ""
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped, skip_render_check=True)
        except AssertionError as error:
            failure, more = error, _dtypes(env.unwrapped)
        except Exception as error:
            failure = error
    env.close()
    said = dict.fromkeys(_plain(str(each.message)) for each in caught)
    said = [text for text in said if not any(part in text for part in OURS)]
    yield from (warning("gymnasium", text) for text in said)
    if isinstance(failure, AssertionError):
        yield problem("gymnasium", (_plain(str(failure)) or "an assertion of its checker fails") + more)
    elif failure is not None:
        crash = EnvironmentCrashed(name, failure)
        yield Finding("problem", "gymnasium", str(crash), crash.traceback_text)
    elif not said:
        yield ok("gymnasium", "its own checker finds nothing")


def _dtypes(env: Any) -> str:
    """Where an observation has another kind of number than its space, which Gymnasium does not say."""
    obs, _ = env.reset(seed=123)
    found, space = getattr(obs, "dtype", None), env.observation_space
    return f" (it is {found}, its space {space.dtype})" if found and found != space.dtype else ""


def speed_alone(name: str, options: dict[str, Any], seconds: float = 0.5) -> float | None:
    """Steps per second of one environment in a plain loop, acting at random."""
    env = make_single(name, options)
    if env is None:
        return None
    env.action_space.seed(0)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(256)]
    steps, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        _, _, terminated, truncated, _ = env.step(actions[steps % len(actions)])
        steps += 1
        if terminated or truncated:
            env.reset()
    env.close()
    return steps / spent


def _plain(text: str) -> str:
    """A message on one line, without colours and the word before it."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|WARN: ", "", text).split())
