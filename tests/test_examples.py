"""The examples run as they are written, only shorter, and use the public names alone."""

import re
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, changes = re.subn(r"\b(50|100)_000\b", "1_024", path.read_text())
    assert changes, "an example that trains should say for how many steps"
    assert len(code.splitlines()) <= 40
    exec(compile(code, path.name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_alone(path):
    assert not re.findall(r"^(?:from shoal|import shoal\.).*$", path.read_text(), re.M)


def test_every_example_has_its_line_in_the_readme():
    listed = re.findall(r"^\| \[(\w+\.py)\]", (EXAMPLES[0].parent / "README.md").read_text(), re.M)
    assert sorted(listed) == [path.name for path in EXAMPLES]
