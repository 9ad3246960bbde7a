"""A server of the page in a thread."""

import subprocess
import sys
import threading
from contextlib import contextmanager

from shoal.watch.answers import Answers
from shoal.watch.guard import make_guard
from shoal.watch.server import PageServer
from shoal.watch.shelf import Shelf


@contextmanager
def served(folder, port=0, host="127.0.0.1", token=None):
    """The page of the runs below a folder, at a free port unless one is given."""
    server = PageServer(Answers(Shelf([folder])), make_guard(host, port, token))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def command(folder, port):
    """`shoal watch` in a process of its own, which is killed at the end."""
    arguments = ["watch", str(folder), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2]
    finally:
        process.kill()
        process.communicate()
