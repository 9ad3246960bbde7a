"""What needs Box2D is tested where that is installed; examples in docstrings share one trained run."""

import warnings

import pytest

with warnings.catch_warnings():
    # Its deprecation warnings, turned into errors in the middle of its import, end the interpreter.
    warnings.simplefilter("ignore")
    try:
        import Box2D  # noqa: F401
    except ImportError:
        collect_ignore = ["shoal/envs/worlds/walker.py", "shoal/envs/worlds/lander.py"]

collect_ignore_glob = ["shoal/runs/tracking/*_record.py"]  # they import trackers, which may be missing
collect_ignore_glob += [
    f"shoal/islands/flower/{name}.py" for name in ("client", "engine", "parcels", "server")
]

pytest_plugins = ["tests.compile_report"]


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory):
    """A folder with the run that docstrings call runs/demo."""
    import shoal

    folder = tmp_path_factory.mktemp("docstrings")
    shoal.run("CartPole-v1", steps=1_024, learners=2, folder=folder / "runs" / "demo")
    return folder


@pytest.fixture(autouse=True)
def in_demo_folder(request, monkeypatch):
    """Docstrings that name runs/demo find it; those of sweeps leave runs/rates there."""
    example = getattr(request.node, "dtest", None)
    source = "".join(line.source for line in example.examples) if example else ""
    if "runs/demo" in source or "runs/rates" in source:
        monkeypatch.chdir(request.getfixturevalue("demo_folder"))
