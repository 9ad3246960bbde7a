"""Films have the frames, the size and the speed asked for, or are not there at all."""

import errno
import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import jax
import numpy as np
import pytest
from PIL import Image

from shoal.errors import ShoalError
from shoal.runs.video import write_video


def film(num: int, height: int = 40, width: int = 60) -> list[np.ndarray]:
    """A white square that moves over blue."""
    frames = np.zeros((num, height, width, 3), np.uint8)
    frames[..., 2] = 200
    for index, frame in enumerate(frames):
        frame[10:20, index : index + 10] = 255
    return list(frames)


def read_mp4(path: Path) -> tuple[str, np.ndarray]:
    """What ffmpeg says of a film, and its frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    about = done.stderr.decode()
    width, height = map(int, re.search(r"Video: h264.* (\d+)x(\d+)", about).groups())
    return about, np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def test_a_gif_loops_and_keeps_its_colours(tmp_path):
    path = write_video((frame for frame in film(12)), tmp_path / "videos" / "new" / "a.gif", fps=20)
    with Image.open(path) as picture:
        assert picture.n_frames == 12
        assert picture.info["loop"] == 0
        assert picture.info["duration"] == 50
        for index, frame in enumerate(film(12)):
            picture.seek(index)
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), frame)


@pytest.mark.parametrize(
    ("fps", "frames", "duration"), [(50, 24, 20), (60, 12, 30), (30, 24, 30), (120, 8, 20)]
)
def test_a_gif_never_asks_for_more_frames_than_browsers_show(tmp_path, fps, frames, duration):
    with Image.open(write_video(film(24), tmp_path / "a.gif", fps)) as picture:
        assert (picture.n_frames, picture.info["duration"]) == (frames, duration)


def test_what_stands_still_costs_little(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8) // 64 * 64
    moving = [noise.copy() for _ in range(30)]
    for index, frame in enumerate(moving):
        frame[0, index] = 255
    one = write_video(moving[:1], tmp_path / "one.gif", 20).stat().st_size
    assert write_video(moving, tmp_path / "all.gif", 20).stat().st_size < 4 * one


@pytest.mark.parametrize("size", [(40, 60), (41, 61), (41, 60)])
def test_an_mp4_of_any_size(tmp_path, size):
    jax.devices()  # from here on JAX warns of forks, and a warning is an error
    frames = film(10, *size)
    about, found = read_mp4(write_video(frames, tmp_path / "a.mp4", fps=25))
    assert " 25 fps" in about
    assert "yuv420p" in about
    assert found.shape == (10, size[0] + size[0] % 2, size[1] + size[1] % 2, 3)
    close = found[:, : size[0], : size[1]].astype(int) - np.stack(frames)
    assert np.abs(close).mean() < 8


def test_an_upper_case_suffix(tmp_path):
    assert write_video(film(2), tmp_path / "A.GIF", 10).exists()


@pytest.mark.parametrize("name", ["a.avi", "a", "gif"])
def test_an_unknown_suffix_is_refused_before_any_frame_is_drawn(tmp_path, name):
    def frames():
        raise AssertionError("drawn")
        yield

    with pytest.raises(ShoalError, match=r"ends in \.gif or \.mp4"):
        write_video(frames(), tmp_path / name, 10)


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
class TestFailures:
    def test_no_frames(self, tmp_path, suffix):
        with pytest.raises(ShoalError, match="no frame"):
            write_video([], tmp_path / f"a{suffix}", 10)
        assert list(tmp_path.iterdir()) == []

    def test_frames_of_two_sizes(self, tmp_path, suffix):
        with pytest.raises(ShoalError, match="a frame of"):
            write_video([*film(2), *film(1, 20, 20)], tmp_path / f"a{suffix}", 10)
        assert list(tmp_path.iterdir()) == []

    def test_a_frame_of_floats_is_a_mistake_in_the_caller(self, tmp_path, suffix):
        with pytest.raises(ValueError, match="uint8"):
            write_video([np.zeros((4, 4, 3))], tmp_path / f"a{suffix}", 10)

    def test_a_failure_half_way_keeps_the_old_film(self, tmp_path, suffix):
        path = write_video(film(3), tmp_path / f"a{suffix}", 10)
        before = path.read_bytes()

        def frames():
            yield from film(5)
            raise RuntimeError("the environment broke")

        with pytest.raises(RuntimeError, match="the environment broke"):
            write_video(frames(), path, 10)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_a_folder_that_is_a_file(self, tmp_path, suffix):
        (tmp_path / "file").write_text("")
        with pytest.raises(ShoalError, match="move the file that is in the way"):
            write_video(film(2), tmp_path / "file" / f"a{suffix}", 10)

    def test_a_full_disk(self, tmp_path, suffix, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("shoal.runs.files.os.fsync", full)
        with pytest.raises(ShoalError, match="No space left on device; free some space"):
            write_video(film(2), tmp_path / f"a{suffix}", 10)
        assert list(tmp_path.iterdir()) == []


def test_ffmpeg_that_fails_is_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.runs.video._ffmpeg", lambda: "false")
    with pytest.raises(ShoalError, match="ffmpeg failed") as caught:
        write_video(film(200), tmp_path / "a.mp4", 10)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_ffmpeg_is_reported(tmp_path, monkeypatch):
    def missing():
        raise RuntimeError("No ffmpeg exe could be found")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(ShoalError, match=r"write a \.gif"):
        write_video(film(2), tmp_path / "a.mp4", 10)
