"""Environments by name: which implementation answers, and what is said when none does."""

import importlib.util
import re
import subprocess
import sys

import gymnasium
import pytest

from shoal.cli import envs
from shoal.envs.adapters import builtin
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.envs.registry import SUITES, absent_suites, list_environments, make, register
from shoal.errors import ShoalError
from tests.probes import counter

without = {
    package: lambda name, find=importlib.util.find_spec, package=package: (
        None if name == package else find(name)
    )
    for package in ("envpool", "gymnasium", "ale_py")
}
"""Ways of looking for packages that find all but one."""


gymnasium.register("test/CartPole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")  # only there


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(builtin, "_registered", {})


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("CartPole-v1", "jax"),
        ("jax:CartPole-v1", "jax"),
        ("envpool:CartPole-v1", "envpool"),
        ("gym:CartPole-v1", "gym"),
        ("HalfCheetah-v4", "envpool"),
        ("test/CartPole-v0", "gym"),
        ("Blackjack-v1", "gym"),
        ("envpool:Blackjack-v1", "envpool"),
    ],
)
def test_a_bare_name_picks_the_fastest_and_a_prefix_forces_one(name, backend):
    spec = make(name).spec
    assert spec.backend == backend
    assert spec.name == name.rpartition(":")[2]


def test_built_in_environments_import_neither_gymnasium_nor_envpool():
    script = (
        "import shoal, sys; shoal.make('CartPole-v1'); print({'gymnasium', 'envpool'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v0 or CartPole-v1"),
        ("CartPole", "CartPole-v0 or CartPole-v1"),
        ("LunarLander-v9", "LunarLander-v3"),
        ("envpool:Brekout-v5", "envpool:Breakout-v5"),
        ("Bigfish-v0", "BigfishEasy-v0 or BigfishHard-v0"),
        ("jax:HalfCheetah-v4", "envpool:HalfCheetah-v4 or gym:HalfCheetah-v4"),
    ],
)
def test_a_misspelt_name_gets_a_guess(name, guess):
    with pytest.raises(ShoalError) as caught:
        make(name)
    assert guess in str(caught.value)
    assert str(caught.value).startswith(f"unknown environment {name!r}; did you mean ")
    assert str(caught.value).endswith("? (shoal envs lists them)")


def test_a_name_like_no_other_gets_none():
    with pytest.raises(ShoalError, match=r"^unknown environment 'zzzzqqqq' \(shoal envs lists them\)$"):
        make("zzzzqqqq")


def test_options_reach_the_implementation_that_has_them():
    assert make("CartPole-v1", max_episode_steps=7).spec.max_episode_steps == 7
    assert make("HalfCheetah-v4", max_episode_steps=7).spec.max_episode_steps == 7
    assert make("Breakout-v5", stack_num=2).spec.observation.shape == (84, 84, 2)
    assert make("FrozenLake-v1").spec.backend == "envpool"
    assert make("FrozenLake-v1", is_slippery=False).spec.backend == "gym"
    with pytest.raises(
        UnknownOptions,
        match=r"^jax:CartPole-v1 takes max_episode_steps, change_every and change_spread, not wind$",
    ):
        make("jax:CartPole-v1", wind=1)
    with pytest.raises(UnknownOptions, match=r"^gym:CartPole-v1 does not take these options: .*wind"):
        make("CartPole-v1", wind=1)


def test_an_environment_of_ones_own(registry):
    register("Mine-v0", counter(limit=3))
    spec = make("Mine-v0").spec
    assert (spec.name, spec.backend, spec.max_episode_steps) == ("Mine-v0", "jax", 3)
    assert ("Mine-v0", "jax") in list_environments("mine")
    with pytest.raises(ShoalError, match=r"^CartPole-v1 is built in; register"):
        register("CartPole-v1", counter(limit=3))
    with pytest.raises(ShoalError, match=r"^cannot register 'a:b': a colon"):
        register("a:b", counter(limit=3))


def test_a_module_in_the_current_folder_is_imported_first(registry, tmp_path, monkeypatch):
    (tmp_path / "my_worlds.py").write_text(
        "import gymnasium, shoal\n"
        "from tests.probes import counter\n"
        "shoal.register('Ours-v0', counter(limit=3))\n"
        "gymnasium.register('Theirs-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    (tmp_path / "my_broken_worlds.py").write_text("import no_such_package\n")
    (tmp_path / "my_raising_worlds.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert make("my_worlds:Ours-v0").spec.backend == "jax"
    assert make("my_worlds:Theirs-v0").spec.backend == "gym"
    assert make("gym:my_worlds:Theirs-v0").spec.name == "Theirs-v0"
    with pytest.raises(
        ShoalError, match=r"^unknown environment 'my_worlds:Our-v0'; did you mean my_worlds:Ours-v0\?"
    ):
        make("my_worlds:Our-v0")
    with pytest.raises(
        ShoalError, match=r"^my_world:Ours-v0: no module 'my_world' here or among the installed"
    ):
        make("my_world:Ours-v0")
    with pytest.raises(
        ShoalError, match=r"my_broken_worlds needs no_such_package, which is not installed; install it$"
    ):
        make("my_broken_worlds:Ours-v0")
    with pytest.raises(
        ShoalError, match=r"importing my_raising_worlds raised ZeroDivisionError: division by zero$"
    ):
        make("my_raising_worlds:Ours-v0")
    del gymnasium.registry["Theirs-v0"]


def test_without_envpool_a_bare_name_falls_through(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without["envpool"])
    assert make("FrozenLake-v1").spec.backend == "gym"
    with pytest.raises(ShoalError, match=r"^envpool:Breakout-v5 needs envpool: pip install envpool$"):
        make("envpool:Breakout-v5")


def test_without_gymnasium_the_built_in_ones_remain(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without["gymnasium"])
    assert make("CartPole-v1").spec.backend == "jax"
    with pytest.raises(ShoalError, match=r"^gym:CartPole-v1 needs gymnasium: pip install gymnasium$"):
        make("gym:CartPole-v1")


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without["ale_py"])
    for name in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, name)
    with pytest.raises(ShoalError, match=r"^ALE/Breakout-v5 needs ale_py: pip install 'shoal\[atari\]'$"):
        make("ALE/Breakout-v5")


def test_what_gymnasium_misses_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)  # an import of it fails
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ShoalError, match=r"^LunarLander-v3 needs Box2D: pip install 'shoal\[box2d\]'$"):
        make("gym:LunarLander-v3")


def test_a_pettingzoo_module_that_is_absent_is_named_with_its_extra():
    pytest.importorskip("gymnasium")
    if importlib.util.find_spec("mpe2"):
        pytest.skip("mpe2 is installed")
    with pytest.raises(ShoalError, match=r"needs mpe2: pip install 'shoal\[pettingzoo\]'$"):
        make("pettingzoo:mpe2.simple_tag_v3")


def test_atari_by_gymnasium():
    pytest.importorskip("ale_py")
    spec = make("gym:ALE/Breakout-ram-v5").spec
    assert (spec.name, spec.observation.shape) == ("ALE/Breakout-ram-v5", (128,))
    assert make("gym:ALE/Breakout-v5").spec.observation.shape == (210, 160, 3)


def test_the_list_names_every_implementation_fastest_first():
    assert list_environments("acrobot-v")[:3] == [
        ("Acrobot-v1", "jax"),
        ("Acrobot-v1", "envpool"),
        ("Acrobot-v1", "gym"),
    ]
    assert ("BigfishEasy-v0", "envpool") in list_environments("big*")
    assert len(list_environments()) > 1500


def test_a_suite_is_one_entry_and_needs_its_prefix(monkeypatch):
    recipe = lambda name, options: from_jax(counter(limit=len(name), **options))
    monkeypatch.setitem(SUITES, "toys", Suite(recipe, names=lambda: ["Ball-v0", "Xylophone-v0"]))
    assert make("toys:Ball-v0", frame_stack=2).spec.observation.shape == (2,)
    assert list_environments("xyloph") == [("Xylophone-v0", "toys")]
    with pytest.raises(ShoalError, match=r"^unknown environment 'toys:Bal-v0'; did you mean toys:Ball-v0\?"):
        make("toys:Bal-v0")
    with pytest.raises(ShoalError, match=r"^unknown .*; did you mean toys:Xylophone-v0\?"):
        make("Xylophone-v0")


def test_an_absent_suite_is_not_listed_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(SUITES, "toys", Suite(None, names=lambda: 1 / 0, library="no_such_toys"))
    assert list_environments("cartpole-v1")
    with pytest.raises(ShoalError, match=r"^toys:Ball-v0 needs no_such_toys: pip install no_such_toys$"):
        make("toys:Ball-v0")


def test_a_suite_that_is_absent_says_how_to_install_it(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gymnax" else find(name))
    with pytest.raises(
        ShoalError, match=re.escape("gymnax:CartPole-v1 needs gymnax: pip install 'shoal[gymnax]'")
    ):
        make("gymnax:CartPole-v1")
    assert str(absent_suites()["gymnax"]) == "gymnax needs gymnax: pip install 'shoal[gymnax]'"
    assert envs.main([]) == 0
    assert "\ngymnax needs gymnax: pip install 'shoal[gymnax]'\n" in capsys.readouterr().out
    with pytest.raises(ShoalError, match="gymnax needs gymnax"):
        envs.find("gymnax")
    assert "gymnax" not in {suite for suites in envs.find("cartpole").values() for suite in suites}


def test_names_that_need_their_suite_are_listed_with_it(monkeypatch):
    recipe = lambda name, options: from_jax(counter(limit=len(name), **options))
    monkeypatch.setitem(SUITES, "toys", Suite(recipe, names=lambda: ["Ball-v0", "CartPole-v1"]))
    assert envs.find("toys") == envs.find("toys:") == {"toys:Ball-v0": ["toys"], "toys:CartPole-v1": ["toys"]}
    assert envs.find("ball-v0") == {"toys:Ball-v0": ["toys"]}
    assert envs.find("CartPole-v1")["CartPole-v1"][-1] == "toys"
