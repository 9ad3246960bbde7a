"""Reading JSON that people write; whether a run's folder is still there."""

import pytest

from shoal.errors import ShoalError
from shoal.runs.files import FolderLock, read_json


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b'{"comm_matrix": {\n"0": {"1": 1,}}}', "not JSON: .* at line 2, column"),
        (b'{"comm_matrix": {"0": {"1": 1}, "0": {"2": 1}}}', '"0" is named twice in one object; keep one'),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 10_000, "not JSON"),
    ],
)
def test_files_that_are_not_json(tmp_path, contents, message):
    (tmp_path / "file.json").write_bytes(contents)
    with pytest.raises(ShoalError, match=f"file.json: {message}"):
        read_json(tmp_path / "file.json")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ShoalError, match=r"nowhere\.json: there is no such file"):
        read_json(str(tmp_path / "nowhere.json"))
    with pytest.raises(ShoalError, match=r"cannot be read as text: .*directory"):
        read_json(tmp_path)


def test_a_file_with_a_byte_order_mark(tmp_path):
    (tmp_path / "file.json").write_bytes(b"\xef\xbb\xbf[[0, 1], [1, 0]]")
    assert read_json(tmp_path / "file.json") == [[0, 1], [1, 0]]


def test_only_a_folder_that_was_locked_can_be_gone(tmp_path):
    """Of several processes the first locks it; the others may be on machines that do not have it."""
    assert FolderLock().is_in_place(tmp_path / "elsewhere")
    folder = tmp_path / "run"
    folder.mkdir()
    lock = FolderLock()
    lock.take(folder)
    assert lock.is_in_place(folder)
    folder.rename(tmp_path / "renamed")
    assert not lock.is_in_place(folder)
    folder.mkdir()
    assert not lock.is_in_place(folder)
    lock.release()
