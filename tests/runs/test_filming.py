"""Films of the best learner while a run trains, which changes nothing of it."""

import time
import warnings

import pytest

import shoal
from shoal.runs import filming
from shoal.runs.filming import Films

TINY = {"steps": 320, "learners": 2, "reports": 2, "num_envs": 2, "num_steps": 16, "num_minibatches": 1}


@pytest.mark.slow
def test_a_run_is_filmed_and_stays_the_same(tmp_path, monkeypatch):
    """The film at the end is always made; those between as far as there is time."""
    monkeypatch.setattr(filming, "LAST_SECONDS", 600.0)  # also on a busy machine
    filmed = shoal.run("CartPole-v1", folder=tmp_path / "filmed", film_every=150, **TINY)
    plain = shoal.run("CartPole-v1", folder=tmp_path / "plain", **TINY)
    names = sorted(path.name for path in (tmp_path / "filmed" / "videos").iterdir())
    assert names[-1] == f"step_000000320_learner_{filmed.best}.mp4"
    last = "checkpoints/step_000000320.safetensors"
    assert (filmed.folder / last).read_bytes() == (plain.folder / last).read_bytes()


def ended(process_films, limit=20.0):
    """Wait for the process."""
    deadline = time.monotonic() + limit
    while process_films.process is not None and time.monotonic() < deadline:
        time.sleep(0.02)
        process_films.check()
    assert process_films.process is None


@pytest.fixture
def run(tmp_path):
    """The files of a run that are kept for a film."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").touch()
    for step in (100, 200, 300):
        for end in ("safetensors", "json"):
            (tmp_path / "checkpoints" / f"step_{step:09d}.{end}").write_text(str(step))
    return tmp_path


def started(monkeypatch, program):
    """Films whose process is a program of Python; the steps it was started for."""
    import subprocess
    import sys

    seen = []

    def start(run, videos):
        seen.append(int(run.name))
        return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)

    monkeypatch.setattr(filming, "start", start)
    return seen


def test_one_film_at_a_time_and_the_newest_next(run, monkeypatch):
    seen = started(monkeypatch, "import time; time.sleep(0.5)")
    with Films(run) as found:
        for step in (100, 200, 300):
            found.check(step)
        assert seen == [100]
        for path in (run / "checkpoints").iterdir():  # as a run does with old ones
            path.unlink()
        kept = sorted(path.name for path in (run / ".film").rglob("*.json"))
        assert kept == ["step_000000100.json", "step_000000300.json"]
        ended(found)
    assert seen == [100, 300]
    assert not (run / ".film").exists()


def test_a_film_that_is_made_needs_its_checkpoint_no_longer(run, monkeypatch):
    started(monkeypatch, "pass")
    with Films(run) as found:
        for step in (100, 200):
            found.check(step)
            ended(found)
            assert not list((run / ".film").rglob("*.json"))


def test_a_failure_is_told_once(run, monkeypatch):
    seen = started(monkeypatch, "raise SystemExit('it has no pictures')")
    with Films(run) as found:
        found.check(100)
        with pytest.warns(RuntimeWarning, match="not filmed: it has no pictures"):
            ended(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.check(300)
    assert seen == [100]


def test_the_end_of_a_run_ends_its_film(run, monkeypatch):
    started(monkeypatch, "import time; time.sleep(60)")
    with Films(run) as found:
        found.check(100)
        process = found.process
        found.finish(lambda: True)
    assert process.returncode != 0
