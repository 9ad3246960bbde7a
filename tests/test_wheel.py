"""The wheel has all files of the package, and trains in an environment that has nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_make_wheel_builds_one_that_trains():
    """Building, installing with all dependencies, training and evaluating are the recipe's."""
    done = subprocess.run(
        ["make", "wheel", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done after 20,480 steps" in done.stdout
    (wheel,) = (ROOT / "dist").glob("shoal-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    files = (path for path in (ROOT / "shoal").rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert wanted == {name for name in names if ".dist-info/" not in name}
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    assert "License-Expression: MIT" in metadata
    assert metadata.rstrip().endswith((ROOT / "README.md").read_text().rstrip())
