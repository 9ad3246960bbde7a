"""Videos of episodes, as GIF or MP4."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import replacing

MAX_GIF_FPS = 50
"""Browsers slow a GIF down to 10 frames a second when it asks for more than this."""


def write_video(frames: Iterable[np.ndarray], path: Path, fps: int) -> Path:
    """Writes RGB frames (H, W, 3) uint8, all of one size, as `.gif` (which loops) or `.mp4`.

    The frames are read one at a time, so they may come from a generator. The file is written atomically.
    A GIF above 50 frames a second drops frames and keeps its speed; an MP4 of odd size gets a black edge.
    """
    path = Path(path)
    writers: dict[str, Callable[[Iterator[np.ndarray], Path, int], None]] = {".gif": _gif, ".mp4": _mp4}
    if path.suffix.lower() not in writers:
        raise ShoalError(f"cannot write {path}: the name of a video ends in .gif or .mp4")
    checked = _checked(frames, path)
    with replacing(path) as (temporary,):
        writers[path.suffix.lower()](checked, temporary, fps)
    return path


def _checked(frames: Iterable[np.ndarray], path: Path) -> Iterator[np.ndarray]:
    """The frames; raises where there is none or their sizes differ."""
    remaining = iter(frames)
    first = next(remaining, None)
    if first is None:
        raise ShoalError(f"cannot write {path}: there is no frame to show")
    if first.ndim != 3 or first.shape[2] != 3 or first.dtype != np.uint8:
        raise ValueError(f"a frame is (H, W, 3) uint8, not {first.shape} {first.dtype}")
    for frame in chain([first], remaining):
        if frame.shape != first.shape:
            raise ShoalError(f"cannot write {path}: a frame of {frame.shape} follows one of {first.shape}")
        yield np.ascontiguousarray(frame)


def _gif(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    """At most 256 colours a frame and no dithering, so unchanged areas need no bytes."""
    from PIL import Image

    every = -(-fps // MAX_GIF_FPS)
    pictures = (
        Image.fromarray(frame).quantize(colors=256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        for frame in islice(frames, 0, None, every)
    )
    milliseconds = 10 * max(2, round(100 * every / fps))
    next(pictures).save(path, save_all=True, append_images=pictures, duration=milliseconds, loop=0)


def _mp4(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    """H.264 in 4:2:0, which every browser plays and which needs even sides.

    Runs ffmpeg itself: imageio starts it by a fork, about which JAX warns.
    """
    first = next(frames)
    height, width = first.shape[:2]
    source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -"
    target = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart"
    command = [_ffmpeg(), "-y", "-loglevel", "error", *source.split(), *target.split(), f"file:{path}"]
    # A process group of its own, so that Ctrl-C does not stop ffmpeg.
    with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=PIPE, process_group=0) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            with suppress(BrokenPipeError):  # ffmpeg ended: its message is read below
                for frame in chain([first], frames):
                    process.stdin.write(frame)
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
        complaint = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        reason = complaint.splitlines()[-1] if complaint else f"exit code {process.returncode}"
        raise ShoalError(
            f"cannot write a video in {path.parent}: ffmpeg failed ({reason}); check the disk and the path"
        )


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ShoalError(
            f"no ffmpeg for .mp4 ({error}); pip install imageio-ffmpeg, or write a .gif"
        ) from error
