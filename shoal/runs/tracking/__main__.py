"""The process of a tracker: `python -m shoal.runs.tracking FOLDER TRACKER` follows a run's folder.

It ends after its standard input is closed. So training never waits for a tracker, what a tracker raises or
prints stays here, and a tracker learns of the end of training however that comes.
"""

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from shoal.runs.files import wait_for_lock
from shoal.runs.tracking.follow import follow, known_path

GIVE_UP_SECONDS = 600.0
"""Seconds after the end of training in which a tracker has to send what is left."""


def main(folder: str, tracker: str) -> None:
    """Follow a folder until standard input is closed; the last line printed is the reason of a failure."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to all processes of a job: the end is told by stdin
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()
        late = threading.Timer(GIVE_UP_SECONDS, os._exit, (1,))
        late.daemon = True
        late.start()

    threading.Thread(target=watch, daemon=True).start()
    with wait_for_lock(known_path(Path(folder), tracker).with_suffix(".lock")):
        try:
            follow(Path(folder), tracker, ended)
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"\n{reason}", file=sys.stderr, flush=True)
            os._exit(1)  # a tracker's own threads may wait for ever


if __name__ == "__main__":
    main(*sys.argv[1:])
