"""What suits a CPU alone is not done where there may be an accelerator."""

import jax
import pytest

from shoal.distributed import mesh


@pytest.fixture
def asked(monkeypatch):
    """The values that JAX's settings are given, instead of given to JAX."""
    given = {}
    monkeypatch.setattr(jax.config, "update", lambda name, value: given.update({name: value}))
    monkeypatch.setattr(mesh, "find_spec", lambda name: None)
    return given


@pytest.mark.parametrize(
    ("plugins", "platforms", "limited"),
    [([], "", True), (["xla_cuda12"], "", False), (["xla_cuda12"], "cpu", True)],
)
def test_threads_are_limited_on_a_cpu_only(asked, monkeypatch, plugins, platforms, limited):
    """NPROC=1 would leave XLA one thread to compile GPU programs with."""
    monkeypatch.setattr(mesh, "entry_points", lambda group: plugins)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    mesh.set_cpu_devices(num_learners=4, work=1)
    assert ("jax_num_cpu_devices" in asked) is limited
