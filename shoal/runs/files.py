"""Files that are either whole or absent, and disk errors as one line."""

import errno
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such lock
    fcntl = None

from shoal.errors import ShoalError

TEMPORARY = ".tmp-"
"""How the name of an unfinished file begins; nothing reads such a file."""

_FULL = "free some space; the same command then resumes"
_FORBIDDEN = "choose a folder you may write to with --out"
_IN_THE_WAY = "move the file that is in the way, or choose another folder with --out"
REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "move the folder that is in the way, or choose another with --out",
}


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turns an OSError inside the block into a ShoalError: what failed, where, why, what to do."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "check the disk and the path")
        raise ShoalError(f"cannot {action} {path}: {error.strerror or error}; {remedy}") from error


def read_json(path: str | Path) -> Any:
    """What a JSON file says; a key that is named twice, which Python would drop silently, is refused."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ShoalError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ShoalError(f"{path}: cannot be read as text: {error}") from error
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(path, pairs))
    except json.JSONDecodeError as error:
        message = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise ShoalError(f"{path}: not JSON: {message}") from error
    except (ValueError, RecursionError) as error:
        raise ShoalError(f"{path}: not JSON that can be read: {error}") from error


def _without_repeats(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {}
    for key, value in pairs:
        if key in found:
            raise ShoalError(f'{path}: "{key}" is named twice in one object; keep one of them')
        found[key] = value
    return found


def make_folder(folder: Path) -> Path:
    """The folder, made if it was not there."""
    with disk_errors("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


class FolderLock:
    """Keeps a second run out of a folder until it is released, or its process ends in whatever way."""

    def __init__(self) -> None:
        self.release = lambda: None

    def take(self, folder: Path) -> None:
        """Refused where another run has it. Leaves no file, and on a disk without locks does nothing."""
        if fcntl is None:
            return
        with disk_errors("open the folder", folder):
            descriptor = os.open(folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise ShoalError(
                f"a run in {folder} is under way; wait for its end, or choose another folder with --out"
            ) from error
        except OSError:
            self.release()


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary names to write to; at the end of the block they become `paths`, in that order.

    Until every one is written and on the disk, none of the old files is touched. If the block
    fails, the temporaries are removed and the old files stay. The names keep their suffix, and all
    lie in the folder of the file they replace, which is made if need be.
    """
    for path in paths:
        make_folder(path.parent)
    temporaries = tuple(path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}") for path in paths)
    try:
        with disk_errors("write", paths[0]):
            yield temporaries
            for temporary in temporaries:
                sync(temporary)
            for temporary, path in zip(temporaries, paths, strict=True):
                os.replace(temporary, path)
            sync(paths[0].parent)
    finally:
        for temporary in temporaries:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Writes a text file whole, or not at all."""
    with replacing(path) as (temporary,):
        temporary.write_text(text, encoding="utf-8")
    return path
