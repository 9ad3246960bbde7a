"""Videos of episodes, as GIF or MP4."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import replacing

MAX_GIF_FPS = 50
"""Browsers slow a GIF down to 10 frames a second when it asks for more than this."""
PALETTE_SIZE = 256
"""The colours of one frame of a GIF, at most."""


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
    """No dithering, so unchanged areas need no bytes."""
    every = -(-fps // MAX_GIF_FPS)
    pictures = _indexed(islice(frames, 0, None, every))
    milliseconds = 10 * max(2, round(100 * every / fps))
    next(pictures).save(path, save_all=True, append_images=pictures, duration=milliseconds, loop=0)


def _indexed(frames: Iterator[np.ndarray]) -> Iterator[Any]:
    """Frames as numbers of colours. Those of few colours share one exact palette, as long as it has room.

    The others get a palette each of the colours that come nearest, which takes 20 times as long.
    """
    from PIL import Image

    number = np.full(1 << 24, -1, np.int16)  # of every colour in the palette
    colours, waiting = np.empty(0, np.int32), []
    for frame in frames:
        picture = Image.fromarray(frame)
        if not picture.getcolors(PALETTE_SIZE):
            yield from _with_palette(waiting, colours)
            waiting = []
            yield picture.quantize(PALETTE_SIZE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            continue
        red, green, blue = np.moveaxis(frame.astype(np.int32), -1, 0)
        packed = red << 16 | green << 8 | blue
        new = np.unique(packed[number[packed] < 0])
        if len(colours) + len(new) > PALETTE_SIZE:
            yield from _with_palette(waiting, colours)
            number[colours] = -1
            colours, waiting, new = colours[:0], [], np.unique(packed)
        number[new] = len(colours) + np.arange(len(new))
        colours = np.append(colours, new)
        waiting.append(number[packed].astype(np.uint8))
    yield from _with_palette(waiting, colours)


def _with_palette(indices: list[np.ndarray], colours: np.ndarray) -> Iterator[Any]:
    """Pictures from the numbers of their colours."""
    from PIL import Image

    palette = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.uint8)
    for index in indices:
        picture = Image.fromarray(index)
        picture.putpalette(palette.tobytes())
        yield picture


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
