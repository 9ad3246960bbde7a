"""Every command and every Python block of README and documentation, and the examples, run for real but short.

python bench/commands.py              everything: a line for each, with seconds
python bench/commands.py --only commands      or python, or examples
python bench/commands.py --page docs/how-to/teams.md
python bench/commands.py --only commands --covering      commands that use what no other does, as the tests do

Each page has an empty folder. Runs that a command takes for granted are trained as the page that trains them
says. The same command on several pages trains once: the others get a copy of its run. Training is a rollout
or two of few steps; programs are compiled without optimisation and kept. What needs a package, a program or a
machine that is not here is shown as such.
"""

import argparse
import contextlib
import gc
import hashlib
import io
import os
import re
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py"))
KINDS = ("commands", "python", "examples")

SHORT = {"--num-steps": "16", "--update-epochs": "1"}
"""Settings of PPO that make an iteration short, unless a command gives them."""
IMAGES = {"--num-envs": "2", "--num-steps": "8", "--network.images": "mlp", "--hidden": "8"}
"""The same of every algorithm where observations are images: convolutions are slow to compile on a CPU."""
ITERATIONS = 2
"""Training ends after so many."""

STAND_INS = """
import gymnasium
import numpy as np

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

class Robot(MyEnv):
    box = gymnasium.spaces.Box(-1, 1, (2,))
    observation_space = gymnasium.spaces.Dict({"joints": box, "contacts": box, "camera": box})

    def reset(self, *, seed=None, options=None):
        return {key: np.zeros(2, np.float32) for key in self.observation_space}, {}

gymnasium.register("MyEnv-v0", entry_point=MyEnv, max_episode_steps=9)
gymnasium.register("Robot-v0", entry_point=Robot, max_episode_steps=9)
"""
"""The module mypackage, which stands for the reader's own."""

ELSEWHERE = {
    "mpirun": "mpirun",
    "srun": "srun",
    "--coordinator": "a second host",
    "--ray-address": "a Ray cluster",
    "ray": "ray",
}
"""What a line needs that has this word, where it is not here."""
NOT_INSTALLED = re.compile(r" needs ([^:]*): (?:pip|apt-get) install")


SHARED = "SHOAL_BENCH_SHARED"
"""The environment's variable for the folder of trained runs."""
COVERING = "SHOAL_BENCH_COVERING"
"""The environment's variable that is there where not every command is run."""
FIRST_RUN = "runs/CartPole-v1__ppo__s1"
"""What the newest run is, and what a pattern finds, where a page trains none."""
NAMING = ("--out", "--name", "--note", "--metric")
"""Flags whose words are names."""
NEED_A_RUN = ("eval", "play", "plot", "export", "compare")


class Outcome(NamedTuple):
    """How one command, block or example went."""

    page: str
    what: str
    seconds: float
    state: str  # ok, failed, or what is not here
    output: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s  {self.state:<20} {self.page}: {self.what}"


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def lines(page: str) -> list[list[str]]:
    """The words of every line on a page that has a `shoal` in it, those behind mpirun and srun too."""
    text = "\n".join(blocks(page, "sh", "bash")).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line for line in words if "shoal" in line]


def commands(page: str) -> list[list[str]]:
    """The arguments of every `shoal` on a page."""
    return [line[line.index("shoal") + 1 :] for line in lines(page)]


def is_number(word: str) -> bool:
    """Whether a word is a number such as 1e-3 or 100_000."""
    with contextlib.suppress(ValueError):
        float(word)
        return True
    return False


def uses(line: list[str]) -> set[tuple[str, str]]:
    """What a line tries: programs before `shoal`, flags, environments, choices; not numbers, names, files."""
    command, *arguments = line[line.index("shoal") + 1 :]
    found, flag = {(word, "") for word in line[: line.index("shoal")]} | {(command, "")}, ""
    for word in arguments:
        if word.startswith("--"):
            flag, _, word = word.partition("=")
            found.add((command, flag))
        if word and flag not in NAMING and not is_number(word) and "/" not in word.removeprefix("shoal/"):
            found.add((command, flag if command != "train" else word))
    return found


def lacks(line: list[str]) -> str | None:
    """What a line needs that is not here."""
    needed = (needed for word, needed in ELSEWHERE.items() if word in line)
    return next((one for one in needed if not (shutil.which(one) or find_spec(one))), None)


def covering(pages: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Pages and lines: all that use something no other does, the richest first of those that can run here.

    One that takes a run brings along what trains it before on its page; where it names none, all that train.
    """
    left = [(page, line, uses(line)) for page in pages for line in lines(page)]
    chosen, known = [], set()
    while left:
        new = lambda one: len(one[2] - known)  # noqa: B023
        page, line, used = max(left, key=lambda one: (new(one) > 0 and not lacks(one[1]), new(one)))
        if not used - known:
            break
        chosen.append((page, line))
        known |= used
        runs, newest = {word for word in line if word.startswith("runs/")}, takes_newest(line)
        before = lines(page)[: lines(page).index(line)]
        chosen += [(page, other) for other in before if "train" in other and (newest or runs & {*other})]
    return chosen


def wanted_lines(page: str) -> list[list[str]]:
    """The lines of a page that are run, in its order."""
    if COVERING not in os.environ:
        return lines(page)
    chosen = [line for other, line in covering(PAGES) if other == page]
    return [line for line in lines(page) if line in chosen]


def shortened(code: str) -> str:
    """Python with few steps and episodes."""
    code = re.sub(r"\b[\d *]*\d+_000\b", "1_024", code)
    return re.sub(r"\b(episodes=|EPISODES = .*?)\d+", r"\g<1>2", code)


def run_blocks(page: str) -> None:
    """Run the Python of a page in one namespace, but those that need what is not installed."""
    names: dict = {"__name__": "docs"}
    for block in blocks(page, "python"):
        if all(find_spec(module) for module in re.findall(r"^# needs: (\w+)", block)):
            assert "steps=" in block or not re.search(r"shoal\.(run|train)\(", block), "say how many steps"
            exec(compile(shortened(block), page, "exec"), names)


def run_page(page: str, kinds: Iterable[str]) -> list[Outcome]:
    """Run what is on a page, in a folder of its own."""
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        shutil.copytree(ROOT / "examples", "examples")
        Path("mypackage.py").write_text(STAND_INS)
        for block in blocks(page, "python") if page.endswith(".md") else ():
            if name := re.match(r"# (\w+\.py)\n", block):
                Path(name[1]).write_text(block)
        try:
            return list(_outcomes(page, kinds))
        finally:
            os.chdir(ROOT)
            forget_programs()


def _outcomes(page: str, kinds: Iterable[str]) -> Iterator[Outcome]:
    if page.endswith(".py"):
        code = shortened((ROOT / page).read_text())
        run = lambda: exec(compile(code, page, "exec"), {"__name__": "__main__"})
        yield timed(page, "as it is", run)
        return
    if "commands" in kinds:
        newest = "ok"  # the state of the command that would have trained the newest run
        for line in wanted_lines(page):
            untrained = newest not in ("ok", "failed") and takes_newest(line)
            outcome = Outcome(page, shlex.join(line), 0.0, newest) if untrained else run_line(page, line)
            newest = outcome.state if "train" in line else newest
            yield outcome
    if "python" in kinds and (count := len(blocks(page, "python"))):
        Path("python").mkdir()  # apart from the runs of the commands, whose settings are shortened otherwise
        os.chdir("python")
        yield timed(page, f"{count} blocks of Python", lambda: run_blocks(page))


def takes_newest(line: list[str]) -> bool:
    """Whether a line takes the newest run, because it names none."""
    command, *arguments = line[line.index("shoal") + 1 :]
    return command in NEED_A_RUN and not any("/" in word or word.isupper() for word in arguments)


def run_line(page: str, line: list[str]) -> Outcome:
    """Run one line of a page."""
    what = shlex.join(line)
    if needed := lacks(line):
        return Outcome(page, what, 0.0, f"needs {needed}")
    from shoal.cli.main import main

    command, *arguments = line[line.index("shoal") + 1 :]
    arguments = [named_on(page) if argument in ("RUN", "OTHER_RUN") else argument for argument in arguments]

    def run() -> None:
        if command in NEED_A_RUN and not Path("runs").exists():
            train(trainer_of(FIRST_RUN))
        for folder in missing(arguments) if command in NEED_A_RUN else ():
            train(trainer_of(folder))
        for folder in [word for word in arguments if command in ("runs", "watch") and "/" in word]:
            Path(folder).mkdir(parents=True, exist_ok=True)
        if command == "train":
            train(arguments)
            return
        short = {"eval": ["--episodes", "2"], "play": ["--steps", "20"], "check": ["--steps", "32"]}
        trials = [word for flag in ("--random", "--tpe") if flag in arguments for word in (flag, "2")]
        if "--checkpoint" in arguments:  # a short run has no checkpoint at the step on the page
            arguments[arguments.index("--checkpoint") + 1] = "latest"
        short["sweep"] = ["--steps", "512", *trials]
        if command == "watch":
            short["watch"] = [] if "--port" in arguments else ["--port", "0"]
            end_at_once()
        if main([command, *arguments, *short.get(command, [])]):
            raise SystemExit(2)

    return timed(page, what, run)


def end_at_once() -> None:
    """The page is served and closed again, instead of staying open until Ctrl-C."""
    import webbrowser

    from shoal.watch.server import PageServer

    webbrowser.open = lambda url: False
    PageServer.serve_forever = lambda self, poll_interval=0.5: None


def named_on(page: str) -> str:
    """The last run that a page names, which stands for RUN and OTHER_RUN."""
    return [word for line in lines(page) for word in line if word.startswith("runs/")][-1]


def train(arguments: list[str]) -> None:
    """Train a little, in the folder that the command itself would choose."""
    from shoal.cli.main import main
    from shoal.cli.parse import parse_train
    from shoal.envs.registry import make
    from shoal.learners.ppo import PPOConfig
    from shoal.types import Box

    if "--help" in arguments:
        main(["train", *arguments])
        return
    config, (output, _) = parse_train(arguments)
    config.check()
    spec = make(config.env, **config.options).spec
    short = SHORT if isinstance(config.algo, PPOConfig) else {}
    if isinstance(spec.observation, Box) and len(spec.observation.shape) == 3:
        short = short | IMAGES
    added = [word for flag in short.items() if flag[0] not in arguments for word in flag]
    folder = Path(output.folder or folder_of(arguments))
    added += [] if output.folder else ["--out", str(folder)]
    steps = ITERATIONS * parse_train([*arguments, *added])[0].algo.rollout_size
    kept = None if folder.exists() else place_of(arguments)
    if kept and kept.exists():
        shutil.copytree(kept, folder)
        return
    if main(["train", *arguments, *added, "--steps", str(steps)]):
        raise SystemExit(2)
    if kept and folder.exists():
        with TemporaryDirectory(dir=kept.parent) as unfinished, contextlib.suppress(OSError):
            shutil.copytree(folder, Path(unfinished) / "run").rename(kept)  # unless another was quicker


def place_of(arguments: list[str]) -> Path | None:
    """Where the run of this command is kept for other pages; None where it goes on from another run."""
    if SHARED not in os.environ or {"--follow", "--config", "--clobber"} & set(arguments):
        return None
    files = [Path(word).read_text() for word in arguments if Path(word).is_file()]
    name = hashlib.sha256("\n".join([*arguments, *files]).encode()).hexdigest()
    return Path(os.environ[SHARED]) / name


def missing(arguments: list[str]) -> list[str]:
    """The folders of runs that a command names and that are not there."""
    return [word for word in arguments if re.match(r"runs/[^*]*$", word) and not Path(word).exists()]


def trainer_of(folder: str) -> list[str]:
    """The arguments of the first `shoal train` on any page that makes a run in this folder."""
    for page in PAGES:
        for command, *arguments in commands(page):
            trains = command == "train" and not {"--help", "--config"} & set(arguments)
            if trains and folder_of(arguments) == folder:
                return arguments
    raise ValueError(f"no page trains {folder}")


def folder_of(arguments: list[str]) -> str:
    """The folder that `shoal train` would choose."""
    from shoal.cli.parse import parse_train
    from shoal.runs.naming import ROOT as RUNS
    from shoal.runs.naming import folder_name

    config, (output, _) = parse_train(arguments)
    return str(output.folder or RUNS / folder_name(config))


def timed(page: str, what: str, run) -> Outcome:
    """Run something, its output kept."""
    began, state, text = time.perf_counter(), "ok", ""
    with captured() as output:
        try:
            run()
        except BaseException as error:
            state, text = "failed", traceback.format_exc()
            if isinstance(error, SystemExit) and not error.code:
                state = "ok"
    printed = output.getvalue() + text
    if state == "failed" and (needed := NOT_INSTALLED.search(printed)):
        state = f"needs {needed[1]}"
    return Outcome(page, what, time.perf_counter() - began, state, printed)


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """All output, also of other processes and of C++."""
    sys.stdout.flush()
    sys.stderr.flush()
    result, kept = io.StringIO(), (os.dup(1), os.dup(2))
    with open("output.txt", "w+") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield result
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
            result.write(Path("output.txt").read_text(errors="replace"))


def forget_programs() -> None:
    """A process has room for a limited number of compiled programs."""
    import jax

    jax.clear_caches()


def set_up() -> None:
    """Two devices, as on a laptop with two cores; programs compiled in a hurry and kept."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    jax.devices()  # from now on no run changes their number
    gc.set_threshold(200_000, 20, 50)  # collecting it takes a tenth of the time of tracing


def main() -> int:
    """Run the pages, two at a time, and print a line for each thing that ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--page", help="one page, or one example")
    parser.add_argument("--covering", action="store_true", help="commands that use what no other one does")
    options = parser.parse_args()
    if options.covering:
        os.environ[COVERING] = "1"
    kinds = [options.only] if options.only else KINDS
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "tests"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    pages = PAGES * (options.only != "examples") + EXAMPLES * ("examples" in kinds)
    pages = [options.page] if options.page else pages
    began, outcomes = time.perf_counter(), []
    shared = TemporaryDirectory()
    os.environ[SHARED] = shared.name
    with get_context("spawn").Pool(2, set_up, maxtasksperchild=8) as pool:
        for found in pool.imap_unordered(partial(run_page, kinds=kinds), pages):
            for outcome in found:
                outcomes.append(outcome)
                print(outcome, flush=True)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    absent = sum(outcome.state.startswith("needs") for outcome in outcomes)
    for outcome in failed:
        print(f"\n{outcome}\n{outcome.output}")
    print(
        f"{len(outcomes) - len(failed) - absent} ok, {len(failed)} failed, {absent} not tried here, "
        f"{time.perf_counter() - began:.0f} s"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
