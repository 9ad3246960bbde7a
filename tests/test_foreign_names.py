"""Names of other libraries are explained in a line, as flags and in Python."""

import re

import pytest

from shoal import ShoalError, preset
from shoal.cli.flags import all_flags, spell
from shoal.cli.parse import parse_train
from shoal.foreign_names import CALLED, INSTEAD, explain
from shoal.learners.registry import ALGORITHMS
from shoal.setting_names import SHORT_NAMES
from shoal.settings import is_known

TRIED = """
total-timesteps lr n-envs n-steps batch-size n-epochs num-epochs epochs env-id wandb cuda device
capture-video save-model exp-name total-steps max-steps num-workers gae lam entropy-coef vf clip-range
clip-eps target-network-frequency learning-starts buffer hidden-size layers render verbose log-dir
tensorboard-log resume checkpoint load env-kwargs callback
"""
FLAGS = {algo: all_flags(algo) for algo in ALGORITHMS}
FOLDERS = {"out", "name"}
"""Flags that Python has as `folder`."""


def refusal(run) -> str:
    with pytest.raises(ShoalError) as caught:
        run()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_name_stands_for_exists():
    """Every name in the table is unknown to some algorithm, and what it stands for is known to some."""
    targets = {
        *CALLED.values(),
        *(name for text in INSTEAD.values() for name in re.findall(r"{(.*?)}", text)),
    }
    for name in targets:
        assert any(is_known(name, flags) for flags in FLAGS.values()), name
    for name in (CALLED | INSTEAD).keys() - FOLDERS:
        assert not all(is_known(name, flags) for flags in FLAGS.values()), name
    assert not CALLED.keys() & (INSTEAD.keys() | SHORT_NAMES.keys())
    flags = {flag for text in INSTEAD.values() for flag in re.findall(r"(?<!RUN )--([a-z-]+)", text)}
    assert flags <= {flag.replace("_", "-") for known in FLAGS.values() for flag in known}
    assert len(flags) > 5


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_name_is_explained_for_every_algorithm(algo):
    env = "Pendulum-v1" if algo in ("td3", "sac") else "CartPole-v1"
    for name in (CALLED | INSTEAD).keys() - FLAGS[algo].keys():
        typed = refusal(lambda name=name: parse_train([env, "--algo", algo, spell(name), "1"]))
        said = refusal(lambda name=name: preset(env, algo=algo, **{name: 1}))
        here = CALLED.get(name)
        if here in FLAGS[algo] or name in INSTEAD:
            assert (typed, said) == (explain(name, spell), explain(name))
        else:
            assert re.search(rf"is called {spell(here)} here, a setting of .*, not of {algo}$", typed)
            assert re.search(rf"is called {here} here, a setting of .*, not of {algo}$", said)


@pytest.mark.parametrize("name", TRIED.split())
def test_what_people_try_is_not_just_unknown(name):
    line = refusal(lambda: parse_train(["CartPole-v1", f"--{name}", "3"]))
    assert line.startswith(f"--{name} is ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--lr=0.1", "--lr is called --learning-rate here"),
        ("--n_envs 3", "--n-envs is called --num-envs here"),
        (
            "--resume",
            "--resume is no setting: runs resume by themselves: the same command goes on where it stopped",
        ),
        ("--stepz 100", "unknown setting --stepz; did you mean --steps?"),
        ("--no-xyzzy", "unknown setting --no-xyzzy; shoal train ENV --help all lists them"),
        ("--buffer-size 10", "--buffer-size is a setting of td3, sac, dqn, not of ppo"),
        ("--algo=sac --num-minibatches 2", "--num-minibatches is a setting of ppo, not of sac"),
        (
            "--seeds 3 --learners 2",
            "seeds 3 means learners that differ in their seeds alone; leave out learners, ",
        ),
    ],
)
def test_an_unknown_flag_is_named_before_its_value_is_taken_for_something_else(arguments, line):
    assert refusal(lambda: parse_train(["Pendulum-v1", *arguments.split()])).startswith(line)


def test_seeds_on_the_command_line():
    assert parse_train(["CartPole-v1", "--seeds", "5"])[0] == preset("CartPole-v1", learners=5)
