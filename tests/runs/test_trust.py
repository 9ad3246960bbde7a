"""Opening a run is not running it: what it names is imported where the user trained or trusts it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import shoal
from shoal.cli.main import main
from shoal.exchanges import registry
from shoal.runs import trust
from shoal.runs.catalogue import describe
from shoal.runs.plots.groups import read_config
from shoal.runs.trust import Named, named_code

TINY = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,), "steps": 64}
TRAP = """
from pathlib import Path

import shoal

Path("sprung").touch()  # that somebody imported this
network = shoal.actor_critic(hidden=(4,))
env = lambda **options: None


def exchange(config, context):
    return None
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working folder with a module, and a user's state that is as on another machine."""
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(registry, "_given", {})
    monkeypatch.setattr(trust, "_trusted", set())
    monkeypatch.setattr(trust, "_everything", False)
    yield tmp_path
    sys.modules.pop("trap", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose settings name nothing."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shoal.run("CartPole-v1", learners=2, folder=folder, **TINY)
    return folder


def received(trained, **names):
    """That run as somebody else's, with settings that name code."""
    shutil.copytree(trained, "theirs")
    path = Path("theirs/config.yaml")
    settings = yaml.safe_load(path.read_text())
    for name, value in names.items():
        settings[name] = settings[name] | value if isinstance(settings[name], dict) else value
    path.write_text(yaml.safe_dump(settings))
    return Path("theirs")


NAMES = {
    "env": {"env": "trap:env"},
    "gym": {"env": "gym:trap:Env-v0"},
    "pettingzoo": {"env": "pettingzoo:trap"},
    "network": {"own": {"network": "trap:network"}},
    "learner": {"own": {"learner": "trap:network"}},
    "own exchange": {"own": {"exchange": "trap:exchange"}},
    "exchange": {"exchange": "trap:exchange"},
    "exchanges": {"exchange": [{"exchange": "average"}, {"exchange": "trap:exchange"}]},
}


@pytest.mark.parametrize("kind", NAMES)
def test_what_somebody_elses_run_names_is_not_imported(elsewhere, trained, kind, capsys):
    run = received(trained, **NAMES[kind])
    for command in ("eval", "play", "export"):
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("shoal: theirs would import trap (")
        assert said.endswith("add --trust, or in Python shoal.load('theirs', trust=True)")
    assert main(["train", "CartPole-v1", "--follow", str(run)]) == 2
    assert describe(run).error == ""  # shoal runs, watch
    assert read_config(run).learners == 2  # curves
    assert not Path("sprung").exists()


def test_who_trusts_it_has_it_imported(elsewhere, trained):
    run = received(trained, own={"network": "trap:network"})
    with pytest.raises(shoal.ShoalError, match="would import trap"):
        shoal.load(run).parts  # noqa: B018
    assert shoal.load(run, trust=True).parts
    assert Path("sprung").exists()


def test_the_flag_allows_it(elsewhere, trained, capsys):
    assert (
        main(["eval", str(received(trained, own={"network": "trap:network"})), "--episodes", "2", "--trust"])
        == 0
    )
    assert Path("sprung").exists()


def test_what_the_caller_gives_needs_no_trust(elsewhere, trained):
    run = received(trained, own={"network": "trap:network"})
    assert shoal.load(run, network=shoal.actor_critic(hidden=(4,))).parts
    assert not Path("sprung").exists()


def test_a_run_of_ones_own_needs_no_flag(elsewhere, monkeypatch):
    """Also where it was moved; not where its names were changed, or it comes to another machine."""
    run = shoal.run("CartPole-v1", network="trap:network", folder="mine", **TINY)
    monkeypatch.setattr(trust, "_trusted", set())
    shutil.move(run.folder, "moved")
    assert shoal.load("moved").parts
    assert oct((elsewhere / "state/shoal/key").stat().st_mode)[-3:] == "600"
    monkeypatch.setattr(trust, "_trusted", set())
    path = Path("moved/config.yaml")
    path.write_text(path.read_text().replace("env: CartPole-v1", "env: trap:env"))
    with pytest.raises(shoal.ShoalError, match=r"would import trap \(env trap:env\) and trap \(network"):
        shoal.load("moved").parts  # noqa: B018
    path.write_text(path.read_text().replace("env: trap:env", "env: CartPole-v1"))
    monkeypatch.setenv("XDG_STATE_HOME", str(elsewhere / "other"))
    with pytest.raises(shoal.ShoalError, match="would import trap"):
        shoal.load("moved").parts  # noqa: B018


def test_training_in_somebody_elses_folder_imports_nothing_of_it(elsewhere, trained):
    run = received(trained, **NAMES["exchange"])
    with pytest.raises(shoal.ShoalError, match=r"other settings \(its exchange is trap:exchange\)"):
        shoal.run("CartPole-v1", learners=2, folder=run, **TINY)
    assert not Path("sprung").exists()


def test_settings_of_a_run_name_no_files(elsewhere, trained):
    Path("worlds.json").write_text(json.dumps({"0": {"gravity": 1.0}}))
    with pytest.raises(shoal.ShoalError, match=r"env_params is a file's name, 'worlds.json'"):
        shoal.load(received(trained, env_params="worlds.json")).config  # noqa: B018


def test_what_is_named():
    pettingzoo = {"env": "pettingzoo:pettingzoo.mpe.simple_spread_v3"}
    assert (
        named_code(pettingzoo) == named_code({"env": "ALE/Pong-v5"}) == named_code({"env": "pgx:2048"}) == []
    )
    assert named_code({"env": "walk.sub:Walk", "own.network": "a:b"}) == [
        Named("env", "walk.sub:Walk"),
        Named("network", "a:b"),
    ]
