"""Tries a federation on one machine: local.py FOLDER [ORGANISATION ...] starts all, trains, ends all."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower tells nobody that it runs."""


class Deployment:
    """A SuperLink and a SuperNode for each organisation, on loopback, with TLS and keys; a context manager.

    `worlds` are the files of physical parameters by the organisations' names, None for the default world.
    """

    def __init__(self, folder: Path, worlds: dict[str, Path | None]):
        self.folder, self.worlds, self.keys = folder.resolve(), worlds, folder.resolve() / "keys"
        self.processes: dict[str, subprocess.Popen] = {}
        self.ports = dict(zip(["superlink", *worlds], free_ports(len(worlds) + 1), strict=True))
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self.folder / "flwr"), "PATH": programs}

    def __enter__(self) -> "Deployment":
        (self.folder / "flwr").mkdir(parents=True)
        self.call(sys.executable, HERE / "keys.py", self.keys, "127.0.0.1", *self.worlds)
        address = f"127.0.0.1:{self.ports['superlink']}"
        connection = {"address": address, "root-certificates": str(self.keys / "ca.pem")}
        lines = [f"{name} = {json.dumps(value)}" for name, value in connection.items()]
        text = "\n".join(['[superlink]\ndefault = "local"\n\n[superlink.local]', *lines, ""])
        (self.folder / "flwr" / "config.toml").write_text(text)
        self.start(
            "superlink",
            "flower-superlink",
            *("--host", "127.0.0.1", "--port", self.ports["superlink"]),
            *("--ssl-certfile", self.keys / "server" / "server.pem"),
            *("--ssl-keyfile", self.keys / "server" / "server.key"),
            *("--ssl-ca-certfile", self.keys / "ca.pem"),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        wait_for_port(self.ports["superlink"])
        for name in self.worlds:
            self.call("flwr", "supernode", "register", self.keys / name / "node.pub", "--name", name)
            self.start_node(name)
        return self

    def __exit__(self, *exception) -> None:
        for name in list(self.processes):
            self.kill(name, signal.SIGTERM)

    def start_node(self, name: str) -> None:
        """Start an organisation's SuperNode."""
        given = {"folder": str(self.folder / name)}
        if self.worlds[name] is not None:
            given["env-params"] = str(self.worlds[name])
        self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.ports['superlink']}"),
            *("--root-certificates", self.keys / "ca.pem"),
            *("--auth-supernode-private-key", self.keys / name / "node.key"),
            *("--host", "127.0.0.1", "--port", self.ports[name]),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())),
        )

    def restart_node(self, name: str, seconds: float = 180.0) -> None:
        """Start a SuperNode that was killed; the SuperLink takes it back after about a minute."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.start_node(name)
            try:
                self.processes[name].wait(8)
            except subprocess.TimeoutExpired:
                return
            self.kill(name)
        raise TimeoutError(f"{name} cannot start; see {self.folder / name}.log")

    def run(self, config: str) -> str:
        """Start the app with these changes of its run configuration; the run's number."""
        names = " ".join(self.worlds)
        fixed = f'organisations="{names}" folder="{self.folder / "server"}"'
        said = self.call("flwr", "run", HERE, "--run-config", f"{fixed} {config}")
        found = re.search(r"started run (\d+)", said)
        if found is None:
            raise RuntimeError(said)
        return found[1]

    def log(self, run: str) -> str:
        """What the server has printed."""
        return self.call("flwr", "log", run, "--show")

    def start(self, name: str, *command) -> None:
        """Start a program in a process group of its own, which writes into NAME.log."""
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """End a program and all that it has started."""
        process = self.processes.pop(name)
        if process.poll() is not None:
            return
        descendants = children_of(process.pid)
        os.killpg(process.pid, how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for child in descendants:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def call(self, *command) -> str:
        """Run a command to its end; what it prints."""
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


def children_of(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [process]
    for parent in found:
        found += [child for child, its in pairs if its == parent]
    return found[1:]


def free_ports(number: int) -> list[int]:
    """Ports of loopback that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for_port(port: int, seconds: float = 60.0) -> None:
    """Wait until a program listens there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens at port {port}")


def wait_for_file(path: Path, seconds: float) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + seconds
    while not path.is_file():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is not there after {seconds:.0f} s")
        time.sleep(0.5)


def main(folder: str, *names: str) -> None:
    """A short federation; its run is in FOLDER/server."""
    worlds: dict[str, Path | None] = dict.fromkeys(names or ("north", "south"))
    with Deployment(Path(folder), worlds) as deployment:
        run = deployment.run("shoal.steps=20000 shoal.local_updates=2")
        wait_for_file(deployment.folder / "server" / "evaluation.json", 600)
        print(deployment.log(run))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER [ORGANISATION ...]")
    main(*sys.argv[1:])
