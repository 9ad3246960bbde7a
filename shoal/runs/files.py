"""Atomic files, the lock of a folder, and disk errors as one line."""

import errno
import json
import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no such lock
    fcntl = None

from shoal.errors import ShoalError

RENAMING_SECONDS = 2.0
"""How long the end of the process waits for files that are being renamed."""
TEMPORARY = ".tmp-"
"""The beginning of the name of an unfinished file; such files are never read."""

_unfinished: set[Path] = set()
"""Temporary files that are written now."""
_renaming = threading.Lock()
"""Held while several files become the new ones together."""

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
    """The content of a JSON file; raises where an object has a key twice, which Python would ignore."""
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


class FolderGone(ShoalError):
    """The folder of a run was removed, renamed or replaced while it trained."""


class FolderLock:
    """Keeps other runs out of a folder until it is released or its process ends."""

    def __init__(self) -> None:
        self.release = lambda: None
        self._place: tuple[int, int] | None = None

    def is_in_place(self, folder: Path) -> bool:
        """Whether the folder is still the one that was locked; a process that locked none may have none."""
        try:
            return self._place is None or self._place == _place_of(folder)
        except OSError:
            return False

    def check_place(self, folder: Path) -> None:
        """Raise where it is not."""
        if not self.is_in_place(folder):
            raise FolderGone(f"{folder} was removed, renamed or replaced while its run trained")

    def take(self, folder: Path) -> None:
        """Lock the folder; raises where another run has it. Does not lock on disks without locks."""
        with disk_errors("open the folder", folder):
            self._place = _place_of(folder)
        if fcntl is None:
            return
        with disk_errors("open the folder", folder):
            descriptor = os.open(folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            _lock_soon(descriptor)
        except BlockingIOError as error:
            self.release()
            raise ShoalError(
                f"a run in {folder} is under way; wait for its end, or choose another folder with --out"
            ) from error
        except OSError:
            self.release()


def _place_of(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def _lock_soon(descriptor: int) -> None:
    """Take a lock, trying again for a moment: `is_locked` in another process holds it as briefly."""
    assert fcntl is not None, "called where there are locks"
    for _ in range(3):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.05)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Whether a run has the lock of a folder; False on disks without locks."""
    if fcntl is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Holds a lock in the block, once no other process has it; does nothing on disks without locks."""
    make_folder(path.parent)
    with disk_errors("open", path), path.open("w") as file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(*paths: Path, flush: bool = True) -> Iterator[tuple[Path, ...]]:
    """Temporary paths to write to; at the end of the block they are renamed to `paths`, in that order.

    The old files stay until all new ones are on the disk, unless `flush` is off. If the block fails, the
    temporary files are removed. They keep their suffix and are in the folder of the file they replace, which
    is made if needed.
    """
    for path in paths:
        make_folder(path.parent)
    temporaries = tuple(path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}") for path in paths)
    _unfinished.update(temporaries)
    try:
        with disk_errors("write", paths[0]):
            yield temporaries
            for temporary in temporaries if flush else ():
                sync(temporary)
            with _renaming:
                for temporary, path in zip(temporaries, paths, strict=True):
                    os.replace(temporary, path)
                if flush:
                    sync(paths[0].parent)
    finally:
        _remove(temporaries)
        _unfinished.difference_update(temporaries)


def remove_unfinished() -> None:
    """Remove the temporary files of other threads, before the process ends in the middle of writing."""
    _renaming.acquire(timeout=RENAMING_SECONDS)  # never released: nothing is renamed from now on
    _remove(tuple(_unfinished))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def append(file: IO[bytes], path: Path, text: str, flush: bool = False) -> None:
    """Adds text to an unbuffered file, and waits until it is on the disk if asked.

    If the disk fails, the file stays as it was.
    """
    with disk_errors("write", path):
        size = os.fstat(file.fileno()).st_size
    remaining = memoryview(text.encode())
    try:
        with disk_errors("write", path):
            while remaining:
                remaining = remaining[file.write(remaining) :]
            if flush:
                os.fsync(file.fileno())
    except ShoalError:
        with disk_errors("write", path):
            os.ftruncate(file.fileno(), size)
        raise


def keep_damaged(path: Path, why: str) -> None:
    """Keeps a copy of a damaged file beside it, and warns."""
    copy = path.with_name(f"{path.name}.damaged")
    with disk_errors("write", copy):
        shutil.copyfile(path, copy)
    warnings.warn(f"{why}: what is damaged is left out; {copy.name} is the file as it was", RuntimeWarning)


def remove_leftovers(*folders: Path) -> None:
    """Removes the unfinished files of processes that have ended, from folders that no other run writes to."""
    for folder in folders:
        with disk_errors("remove what a crash left in", folder):
            for path in folder.glob(f"{TEMPORARY}*"):
                if path not in _unfinished:
                    path.unlink(missing_ok=True)


def write_text(path: Path, text: str, flush: bool = True) -> Path:
    """Writes a text file atomically."""
    with replacing(path, flush=flush) as (temporary,):
        temporary.write_text(text, encoding="utf-8")
    return path
