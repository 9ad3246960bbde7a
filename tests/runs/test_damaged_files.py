"""Files of a run damaged at random: every command says one line and exits with 2, or goes on.

    python -m tests.runs.test_damaged_files [--cases 3000] [--seed 1]

A case damages one or two files of a copy of a small population's run, and gives one command.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import tempfile
import traceback
import warnings
import zlib
from collections import Counter
from pathlib import Path

import pytest

import shoal
from shoal.cli.main import main as command
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs.records import checksum_of
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.watch.answers import Answers
from shoal.watch.shelf import Shelf

SMALL = PPOConfig(
    num_envs=4, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(4,), learning_rate=0.05
)
SELECT = with_settings(ExchangeConfig(exchange="truncation", local_updates=2), min_episodes=1, fraction=0.5)
CONFIG = TrainConfig("jax:CartPole-v1", algo=SMALL, steps=512, learners=4, reports=4, exchanges=(SELECT,))
FILES = ("metrics.csv", "lineage.csv", "summary.json", "milestones.json", "policy_graph.json", "note.txt")
TRIALS = (
    "trial,gamma,seeds,state,steps,mean,iqm,low,high,scores,programs\n0,0.9,2,done,64,1,1,1,1,1 1,000:0\n"
)
NUMBERS = (b"1e999", b"-1", b"nan", b"9" * 400, b"1e308", b"99999999999999999999", b"0x1", b"", b"1_0")
VALUES = (None, -1, 1e308, "high", [], {}, True, [None], 10**30, {"a": 1}, float("nan"))
COMMANDS = {"runs": 6, "compare": 4, "watch": 6, "policy": 3, "train": 3, "eval": 1, "export": 1, "plot": 1}
"""How often each is given; those that compile or draw seldom."""


def make_runs(folder: Path) -> Path:
    """A run that has ended and a sweep's folder with it as a program."""
    shoal.run(CONFIG, folder=folder / "run", save_every=128, eval_every=256, eval_episodes=1)
    (folder / "run" / "note.txt").write_text("the first one")
    programs = folder / "sweep" / "programs"
    shutil.copytree(folder / "run", programs / "000")
    (folder / "sweep" / "sweep.yaml").write_text("{method: grid, trials: 1, seeds: 2, axes: {gamma: [0.9]}}")
    (folder / "sweep" / "trials.csv").write_text(TRIALS)
    return folder


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file below a folder; what was done."""
    run = folder / "run"
    saved = sorted((run / "checkpoints").iterdir())
    path = chance.choice([*(run / name for name in FILES), *chance.sample(saved, 3)])
    if chance.random() < 0.05:
        path = folder / "sweep" / "trials.csv"
    if not path.is_file():
        return "nothing"
    content, how = path.read_bytes(), chance.choice(list(DAMAGES))
    if path.suffix == ".json" and chance.random() < 0.5:
        how = "json"
    if path.suffix == ".safetensors" and chance.random() < 0.5:
        how = "header"
    if how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "gone":
        path.unlink()
    elif how == "json":
        path.write_bytes(damage_json(content, chance))
    elif how == "header":
        damage_header(path, content, chance)
    else:
        path.write_bytes(DAMAGES[how](content, chance))
    return f"{path.relative_to(folder)} {how}"


def damage_json(content: bytes, chance: random.Random) -> bytes:
    """A value of another type somewhere in it; the checksum of a record is made right."""
    try:
        whole = json.loads(content)
    except ValueError:
        return b"{"
    node = whole
    while isinstance(node, dict | list) and node:
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.3:
            node[key] = chance.choice(VALUES)
            break
        node = node[key]
    if isinstance(whole, dict) and "record_crc32" in whole:
        del whole["record_crc32"]
        whole["record_crc32"] = checksum_of(whole)
    return json.dumps(whole).encode()


def damage_header(path: Path, content: bytes, chance: random.Random) -> None:
    """A safetensors header that lies; the checksum in the record is made right."""
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size]
    match chance.randrange(5):
        case 0:
            content = (1 << 62).to_bytes(8, "little") + content[8:]
        case 1:
            content = content[:8] + header.replace(b"F32", b"F64") + content[8 + size :]
        case 2:
            content = content[:8] + header.replace(b"cohort/params", b"cohort/parAms") + content[8 + size :]
        case 3:
            content = content[:8] + b"\xed\xa0\x80" * (size // 3) + b" " * (size % 3) + content[8 + size :]
        case 4:
            content = content[: 8 + size] + b"\xff" * (len(content) - 8 - size)
    path.write_bytes(content)
    record = path.with_suffix(".json")
    if record.is_file():
        with contextlib.suppress(ValueError, TypeError):
            known = json.loads(record.read_bytes())
            known |= {"bytes": len(content), "crc32": zlib.crc32(content)}
            known.pop("record_crc32", None)
            record.write_text(json.dumps(known | {"record_crc32": checksum_of(known)}))


def swap_cell(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    row = chance.randrange(len(lines))
    cells = lines[row].split(b",")
    cells[chance.randrange(len(cells))] = chance.choice(NUMBERS)
    return b"\n".join([*lines[:row], b",".join(cells), *lines[row + 1 :]])


def drop_cell(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    row = chance.randrange(len(lines))
    return b"\n".join([*lines[:row], lines[row].rpartition(b",")[0], *lines[row + 1 :]])


def put(content: bytes, chance: random.Random, what: bytes) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + what + content[at + chance.choice((0, len(what))) :]


DAMAGES = {
    "cut": lambda content, chance: content[: chance.randrange(len(content) + 1)],
    "empty": lambda content, chance: b"",
    "binary": lambda content, chance: chance.randbytes(chance.choice((1, 100, 10_000))),
    "bytes": lambda content, chance: put(content, chance, chance.randbytes(chance.choice((1, 9)))),
    "zeros": lambda content, chance: put(content, chance, b"\0" * 99),
    "surrogate": lambda content, chance: put(content, chance, b"\xed\xa0\x80"),
    "number": lambda content, chance: put(content, chance, chance.choice(NUMBERS)),
    "line": lambda content, chance: put(content, chance, b"\n"),
    "quote": lambda content, chance: put(content, chance, b'"'),
    "nested": lambda content, chance: b"[" * 100_000,
    "digits": lambda content, chance: b"1" * 10_000,
    "cell": swap_cell,
    "columns": drop_cell,
    "twice": lambda content, chance: content + content,
    "folder": lambda content, chance: content,
    "gone": lambda content, chance: content,
}


def give(name: str, folder: Path) -> int:
    """Give a command; its code."""
    run = str(folder / "run")
    match name:
        case "runs":
            return command(["runs", str(folder)])
        case "watch":
            answers = Answers(Shelf([folder]))
            answers.find("/api/runs")
            for id in answers.shelf.runs():
                for what in ("", "/curves?metric=return_mean&heat", "/lineage", "/graph", "/worlds"):
                    answers.find(f"/api/runs/{id}{what}")
            for id in answers.shelf.sweeps():
                answers.find(f"/api/sweeps/{id}")
            return 0
        case "policy":
            try:
                shoal.load(run).policy()([0.0, 0.0, 0.0, 0.0])
                return 0
            except shoal.ShoalError as error:
                assert "\n" not in str(error)  # noqa: PT017
                return 2
        case "train":
            return command(["train", "--config", f"{run}/config.yaml", "--out", run, "--steps", "576"])
        case "eval":
            return command(["eval", run, "--episodes", "1"])
        case "export":
            return command(["export", run, "--out", str(folder / "export")])
        case "plot":
            return command(["plot", run, "--no-episode", "--out", str(folder / "plots")])
        case _:
            return command([name, run])


def try_one(source: Path, place: Path, number: int) -> tuple[str, str]:
    """One case: what it is, and what went wrong; "" where nothing did."""
    chance = random.Random(number)
    folder = Path(shutil.copytree(source, place / str(number)))
    done = [damage(folder, chance) for _ in range(chance.choice((1, 1, 2)))]
    name = chance.choices(list(COMMANDS), list(COMMANDS.values()))[0]
    before = {
        path.name: path.read_bytes() for path in (folder / "run" / "checkpoints").iterdir() if path.is_file()
    }
    said, wrong = io.StringIO(), ""
    showing = warnings.showwarning
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        try:
            code = give(name, folder)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code, wrong = None, traceback.format_exc()
        finally:
            warnings.showwarning = showing
    last = (said.getvalue().strip().splitlines() or [""])[-1]
    if not wrong and (code not in (0, 2) or "Traceback" in said.getvalue()):
        wrong = f"code {code}: {said.getvalue()[-1500:]}"
    if not wrong and code == 2 and name != "policy" and not last.startswith("shoal: "):
        wrong = f"no line: {said.getvalue()[-500:]}"
    lost = (
        []
        if name == "train"
        else before.keys() - {x.name for x in (folder / "run" / "checkpoints").iterdir()}
    )
    wrong += f" checkpoints lost: {lost}" if lost else ""
    shutil.rmtree(folder)
    return f"{number}: {name} after {' and '.join(done)}", wrong


@pytest.mark.slow
def test_no_damage_gives_a_traceback(tmp_path):
    source = make_runs(tmp_path / "source")
    found = [try_one(source, tmp_path, number) for number in range(60)]
    assert not [case for case in found if case[1]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1, help="the first case is a million times this")
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        source = make_runs(Path(name) / "source")
        for case in range(options.cases):
            what, wrong = try_one(source, Path(name), options.seed * 1_000_000 + case)
            if wrong:
                kinds[wrong.strip().splitlines()[-1][:120]] += 1
                print(f"{what}\n{wrong}\n", flush=True)
            if case % 100 == 99:
                print(f"{case + 1} cases, {kinds.total()} failed", flush=True)
    print("\n".join(f"{number}  {kind}" for kind, number in kinds.most_common()))


if __name__ == "__main__":
    main()
