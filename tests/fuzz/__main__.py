"""Fuzzing for some minutes: `python -m tests.fuzz --minutes 10`; what breaks goes into the corpus."""

import argparse
import json
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from time import monotonic

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.cases import CASES
from tests.fuzz.corpus import PATH, read_corpus
from tests.fuzz.doors import Broken, bring

BATCH = 50
"""Cases of a door before the next door's turn."""


def main() -> int:
    """Bring cases to the doors until the time is up; 1 where one broke something."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, default=10**9, help="stop after so many cases")
    parser.add_argument("--doors", nargs="*", default=list(CASES), choices=list(CASES))
    asked = parser.parse_args()
    end, taken, refused, broken = monotonic() + 60 * asked.minutes, Counter(), Counter(), {}
    with tempfile.TemporaryDirectory() as folder:

        def try_case(kind: str, content: str) -> None:
            try:
                (refused if bring(kind, content, Path(folder)) else taken)[kind] += 1
            except Broken as error:
                reason = str(error)[:90]
                if reason not in broken:
                    traceback.print_exception(error.__cause__ or error, limit=-4)
                    broken[reason] = {"kind": kind, "content": content}
                    print(f"BROKEN {reason}\n{content[:400]}\n", flush=True)
                broken[reason]["seen"] = broken[reason].get("seen", 0) + 1

        for kind, content in read_corpus():
            try_case(kind, content)
        while monotonic() < end and sum((taken + refused).values()) < asked.cases:
            for kind in asked.doors:
                if monotonic() < end:
                    run_batch(kind, try_case)
    for kind in asked.doors:
        good, bad = taken[kind], refused[kind]
        print(f"{kind:<12} {good + bad:>7,} cases: {good:,} taken, {bad:,} refused")
    print(f"{sum((taken + refused).values()):,} cases, {len(broken)} kinds of failure")
    if broken:
        with PATH.open("a", encoding="utf-8") as file:
            for found in broken.values():
                file.write(f"{json.dumps({name: found[name] for name in ('kind', 'content')})}\n")
        print(f"added to {PATH}: {', '.join(broken)}")
    return bool(broken)


def run_batch(kind: str, try_case) -> None:
    """A batch of new cases of one door."""

    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES[kind])
    def tried(content: str) -> None:
        try_case(kind, content)

    tried()


if __name__ == "__main__":
    sys.exit(main())
