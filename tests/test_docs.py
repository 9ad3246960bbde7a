"""The Python in the documentation runs as it is written, only shorter."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = ["docs/how-to/jax-env.md", "docs/how-to/federations.md"]


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
