"""The corpus: cases that once broke something, a JSON object in each line of a file."""

import json
from pathlib import Path

PATH = Path(__file__).parents[1] / "data" / "fuzz_corpus.jsonl"


def read_corpus() -> list[tuple[str, str]]:
    """The door and the content of every case."""
    lines = PATH.read_text(encoding="utf-8").splitlines() if PATH.is_file() else []
    return [(case["kind"], case["content"]) for case in map(json.loads, lines)]
