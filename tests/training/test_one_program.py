"""One program serves runs of every length and seed: the text that is compiled is the same."""

import random

import jax
import numpy as np
import pytest

import shoal
from shoal.training.iteration import start_of
from shoal.training.program import make_trainer

SMALL = {"num_envs": 2, "hidden": (4,), "learners": 4, "env_spread": 0.1}
PPO = SMALL | {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1}
REPLAY = SMALL | {"batch_size": 4, "buffer_size": 64}
KINDS = {
    "annealed": ("CartPole-v1", PPO | {"anneal_clip": True, "schedules": ["gamma=linear(0.9)"]}),
    "average": ("CartPole-v1", PPO | {"exchange": "average", "prox_coef": 0.1}),
    "dqn": ("CartPole-v1", REPLAY | {"algo": "dqn"}),
}
SLOW_KINDS = {
    "td3": ("Pendulum-v1", REPLAY | {"algo": "td3"}),
    "mirror descent": ("CartPole-v1", PPO | {"objective": "mdpo"}),
    "sac": ("Pendulum-v1", REPLAY | {"algo": "sac"}),
    "neighbours": ("CartPole-v1", PPO | {"exchange": "neighbours"}),
    "population": ("CartPole-v1", PPO | {"exchange": "truncation"}),
    "team": ("simple_tag_v3", PPO | {"num_envs": 4, "past_selves": 2, "env_spread": 0}),
}


def texts(env, settings, **changes):
    """The text of every program of a run."""
    config = shoal.preset(env, **settings | changes)
    trainer = make_trainer(config)
    spec, init = trainer.begin.args
    state = jax.eval_shape(trainer.init)
    programs = (init.lower(start_of(config, spec)), trainer.advance.lower(state, np.int32(1)))
    return [program.as_text() for program in programs]


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(k, marks=pytest.mark.slow) for k in SLOW_KINDS)])
def test_steps_seeds_and_annealing_are_data(kind):
    run = (KINDS | SLOW_KINDS)[kind]
    first = texts(*run, steps=1_000, seed=1)
    assert texts(*run, steps=70_000, seed=9, first_member=3, anneal_to=5_000) == first


def test_a_run_of_another_length_and_seed_finds_its_programs_in_the_cache():
    """A seed that no earlier test has had: whatever depends on it cannot be there yet."""
    missed = []
    listen = lambda event, **_: missed.append(event) if event.endswith("/cache_misses") else None
    settings = KINDS["annealed"][1] | {"learners": 1}
    for _ in shoal.train(shoal.preset("CartPole-v1", **settings, steps=32, seed=1)):
        pass
    jax.monitoring.register_event_listener(listen)
    try:
        seed = random.SystemRandom().randrange(2**31)
        *_, last = shoal.train(shoal.preset("CartPole-v1", **settings, steps=48, seed=seed))
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert last.step == 48
    assert not missed
