"""The Python in the documentation and the examples runs as it is written, only shorter."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["docs/how-to/jax-env.md", "docs/how-to/federations.md"]
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - {"pbt_toy.py"})


def shortened(code: str) -> str:
    short, changes = re.subn(r"\b(50|100)_000\b", "1_024", code)
    assert changes, "an example that trains should say for how many steps"
    return short


@pytest.mark.parametrize("page", PAGES)
def test_python_on_the_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(shortened(block), page, "exec"), names)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_and_is_short(name, capsys):
    code = (ROOT / "examples" / name).read_text()
    assert len(code.splitlines()) <= 40
    exec(compile(shortened(code), name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
