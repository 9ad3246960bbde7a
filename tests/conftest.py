"""Tests see two CPU devices, strict shapes, programs compiled in a hurry and a compilation cache."""

import ctypes
import gc
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import pytest

OLDER = " --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11, 1) else ""  # unknown later
HASTE = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1" + OLDER
"""Most of the time of most tests is compiling: this more than halves it. The processes they start inherit it.

XLA_FLAGS=--xla_backend_optimization_level=3 has programs compiled as they are for users.
"""

flags = os.environ.get("XLA_FLAGS", "")
if "xla_backend_optimization_level" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {HASTE}".strip()

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")
cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "tests"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
jax.config.update("jax_traceback_in_locations_limit", 0)  # writing them takes a twentieth of compiling
jax.devices()  # both, whichever file is tested alone, before a run divides the cores its own way

MANY_MAPS = 40_000
"""A process may have 65,530 pieces of memory on Linux; XLA aborts when programs have taken the last."""
MUCH_MEMORY = 3 << 30
"""Two processes that test should have room where there are 8 GB."""


def pytest_collection_finish():
    """Garbage is collected less often: tracing makes so many objects that it takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


def resident():
    """Bytes of memory that this process holds, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def most_memory():
    """At which size programs are forgotten, in a list of one: more, where that did not help."""
    return [MUCH_MEMORY]


@pytest.fixture(autouse=True, scope="module")
def room_for_programs(programs_are_kept, most_memory):
    """Compiled programs are forgotten after a module, once there are many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and (maps.read_bytes().count(b"\n") > MANY_MAPS or resident() > most_memory[0]):
        programs_are_kept.clear()
        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)  # what is free goes back to the system
        most_memory[0] = max(MUCH_MEMORY, resident() + MUCH_MEMORY // 2)


@pytest.fixture(scope="session")
def go_on():
    """`go_on(config, folder, until)`: a run trained to its end, or to so many steps, in its folder.

    Returns the step it went on from, None for a new run, and its last report, None where none was left to do.
    """
    from shoal.runs.session import Finished, open_session, run_session

    def trained(config, folder, until=None, mesh=None):
        opened = open_session(config, folder, mesh=mesh)
        if isinstance(opened, Finished):
            return opened.step, None
        reports, report = run_session(opened), None
        for report in reports:
            if until is not None and report.step >= until:
                break
        reports.close()
        return opened.resumed_step, report

    return trained


@pytest.fixture
def compilations():
    """`with compilations() as seen`: the compilations in the block, those found in the cache included."""

    @contextmanager
    def counted():
        seen = []

        def listen(event, duration, **details):
            if event == "/jax/core/compile/backend_compile_duration":
                seen.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield seen
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)

    return counted


@pytest.fixture(autouse=True, scope="session")
def programs_are_kept():
    """A run that is opened again, here or in another test, has the programs it was first compiled to.

    So have runs of another length and in other worlds, and those that do not exchange of another seed: these
    are data of a program (tests/training/test_one_program.py). Only where the settings say the rest: an
    environment of ours, or the same recipe of one in JAX, and no parts of one's own. Tests that call
    `make_trainer` themselves make their own.
    """
    from shoal.envs.classic import BUILTIN
    from shoal.training import program

    original, kept = program.make_trainer, {}

    def make_trainer(config, *, recipe=None, mesh=None, start=0, **parts):
        ours = config.env.removeprefix("jax:") in BUILTIN
        if parts or not (ours or (recipe is not None and recipe.spec.backend == "jax")):
            return original(config, recipe=recipe, mesh=mesh, start=start, **parts)
        config.check()
        seed = config.seed if config.exchanges else 0  # graphs may be drawn by it
        data = {"reports": 1, "steps": 1, "anneal_to": None, "env_params": None, "env_spread": 0.0}
        same = replace(config, env=config.env.removeprefix("jax:"), seed=seed, **data)
        key = (repr(same), repr(mesh), os.environ["XLA_FLAGS"])
        key += () if ours else (id(recipe),)
        if key not in kept:
            kept[key] = recipe, original(config, recipe=recipe, mesh=mesh)
            others = [key for key in kept if len(key) == 4]  # most recipes are never seen again
            if len(others) > 8:
                del kept[others[0]]
        return program.for_learners(kept[key][1], config)

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("shoal.") and getattr(module, "make_trainer", None) is original:
                patch.setattr(module, "make_trainer", make_trainer)
        yield kept
