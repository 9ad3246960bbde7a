"""`shoal.train`: from a name, a configuration or a state; evaluated, saved and stopped in the loop's body."""

import jax
import numpy as np
import pytest

import shoal
from shoal.runs.cache import cache_compilations

TINY = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,)}
GROUP = TINY | {"learners": 2, "reports": 4, "env_spread": 0.2, "exchange": "average"}
DQN = {
    "algo": "dqn",
    "num_envs": 1,
    "num_steps": 16,
    "buffer_size": 64,
    "batch_size": 4,
    "learning_starts": 8,
    "hidden": (4,),
}


def arrays(state):
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [np.asarray(plain(x)) for x in jax.tree.leaves(state)]


def assert_same(left, right):
    for one, other in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def whole():
    """All reports of a run of 128 steps."""
    return list(shoal.train("CartPole-v1", steps=128, **GROUP))


def test_a_name_is_its_preset_and_settings(whole):
    assert whole[-1].trainer.parts.config == shoal.preset("CartPole-v1", steps=128, **GROUP)
    assert [report.step for report in whole] == [32, 64, 96, 128]


def test_a_state_goes_on_as_if_it_had_never_stopped(whole, tmp_path):
    config = whole[0].trainer.parts.config
    for state in (whole[1], whole[1].state, shoal.load(shoal.save(whole[1], tmp_path / "half"))):
        *_, last = shoal.train(config, state=state)
        assert last.step == 128
        assert_same(last.state, whole[-1].state)
        np.testing.assert_array_equal(last.metrics["return_mean"], whole[-1].metrics["return_mean"])


def test_what_is_saved_in_the_loop_is_a_run(whole, tmp_path):
    folder = shoal.save(whole[1], tmp_path / "half")
    assert (folder / "policy_graph.json").is_file()
    run = shoal.load(folder)
    assert (run.step, run.best) == (64, int(np.nanargmax(whole[1].metrics["return_mean"])))
    assert run.evaluate(2) == shoal.evaluate(whole[1], 2)
    assert run.policy()(np.zeros(4)) in (0, 1)
    run = shoal.run(run.config, folder=folder)
    assert run.step == 128
    assert run.metrics["step"].tolist() == [96, 96, 128, 128]
    assert run.evaluate(2) == shoal.evaluate(whole[-1], 2)


def test_a_longer_run_keeps_the_annealing_of_its_state(whole):
    config = whole[0].trainer.parts.config
    with pytest.warns(RuntimeWarning, match="are annealed to step 128 and then keep their end values"):
        *_, last = shoal.train(config, steps=160, state=whole[-1])
    np.testing.assert_allclose(last.metrics["learning_rate"], config.algo.learning_rate / 4)
    *_, last = shoal.train(config, steps=160, anneal_to=320, state=whole[-1])
    np.testing.assert_allclose(last.metrics["learning_rate"], config.algo.learning_rate * 0.6, rtol=1e-6)


def test_states_that_do_not_fit(whole, tmp_path):
    config = whole[0].trainer.parts.config
    with pytest.raises(shoal.ShoalError, match="the state is at step 128 of 128; give larger steps to go on"):
        shoal.train(config, state=whole[-1])
    with pytest.raises(shoal.ShoalError, match="the state is one of other settings"):
        shoal.train(config, hidden=(5,), state=whole[0])


@pytest.mark.slow
def test_the_replay_of_an_earlier_report_is_gone():
    first, *_, last = shoal.train("CartPole-v1", steps=64, reports=2, **DQN)
    config = last.trainer.parts.config
    with pytest.raises(shoal.ShoalError, match="lost its replay to the reports after it; give the last"):
        shoal.train(config, steps=128, state=first)
    *_, longer = shoal.train(config, steps=128, state=last)
    *_, planned = shoal.train(config, steps=128, anneal_to=64)
    assert_same(longer.state, planned.state)
    assert not any(x.is_deleted() for x in jax.tree.leaves(last.state))  # it was copied


def test_evaluating_again_compiles_nothing(whole, tmp_path, compilations):
    shoal.evaluate(whole[0], episodes=3)
    with compilations() as seen:
        for report in whole:
            shoal.evaluate(report, episodes=3, seed=report.step)
    assert not seen
    run = shoal.load(shoal.save(whole[-1], tmp_path))
    first = run.evaluate(3, seed=4)
    with compilations() as seen:
        assert run.evaluate(3, seed=5) != first
        assert run.evaluate(3, seed=4) == first
    assert not seen


@pytest.mark.slow
def test_evaluating_a_python_environment_again_compiles_nothing(compilations):
    """Its environments are new each time: the same seed gives the same episodes, another seed others."""
    report = next(shoal.train("gym:CartPole-v1", steps=32, **TINY))
    first = shoal.evaluate(report, episodes=3)
    with compilations() as seen:
        other = shoal.evaluate(report, episodes=3, seed=1)
        assert shoal.evaluate(report, episodes=3) == first
    assert not seen
    assert other != first


@pytest.mark.parametrize("given", [None, "/elsewhere"])
def test_the_cache_is_the_users_where_they_have_set_it(given, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    try:
        jax.config.update(names[0], given)
        jax.config.update(names[1], 1.0)
        cache_compilations()
        assert jax.config.values[names[0]] == (given or str(tmp_path / "shoal" / "xla"))
        assert jax.config.values[names[1]] == 0.2
        jax.config.update(names[1], 5.0)
        cache_compilations()
        assert jax.config.values[names[1]] == 5.0
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
