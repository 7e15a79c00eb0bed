"""The file layer's own promises."""

import os
import threading
from pathlib import Path

import pytest

from pagermcp import files


def test_moving_into_folders_that_others_make_at_the_same_time_never_says_that_the_file_was_gone(
    tmp_path: Path,
) -> None:
    for n in range(100):
        (tmp_path / f"{n}").mkdir()
        barrier = threading.Barrier(4)
        moved: list[bool] = []

        def move(name: str, n: int = n, barrier: threading.Barrier = barrier, moved: list[bool] = moved) -> None:
            source = tmp_path / f"{n}" / name
            source.touch()
            barrier.wait()
            moved.append(files.move(str(source), str(tmp_path / f"to-{n}" / "folder" / name), 0o700))

        threads = [threading.Thread(target=move, args=[name]) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert moved == [True] * 4


def test_moving_what_is_gone_says_so(tmp_path: Path) -> None:
    assert not files.move(str(tmp_path / "gone"), str(tmp_path / "a" / "b"), 0o700)


def test_moving_behind_a_dangling_symlink_fails_and_does_not_try_for_ever(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        files.move(str(tmp_path / "file"), str(tmp_path / "folder" / "file"), 0o700)


def test_putting_back_never_goes_over_what_has_come_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "taken").write_text("first")
    (tmp_path / "box" / "page.json").write_text("second")
    files.put_back(str(tmp_path / "taken"), str(tmp_path / "box" / "page.json"), 0o700)
    assert sorted(path.read_text() for path in (tmp_path / "box").iterdir()) == ["first", "second"]
    assert not (tmp_path / "taken").exists()


def test_putting_back_a_second_time_after_a_kill_makes_no_second_page(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "taken").write_text("page")
    (tmp_path / "box" / "page.json").hardlink_to(tmp_path / "taken")
    files.put_back(str(tmp_path / "taken"), str(tmp_path / "box" / "page.json"), 0o700)
    assert [path.name for path in (tmp_path / "box").iterdir()] == ["page.json"]
    assert not (tmp_path / "taken").exists()


def test_reading_stops_at_the_limit_and_refuses_what_is_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert files.read(str(tmp_path / "file"), 4)[0] == b"0123"
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ""):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file"):
            files.read(str(tmp_path / name), 4)


def test_writing_never_follows_or_replaces_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            files.write(str(tmp_path / name), b"x", 0o600)
    assert (tmp_path / "file").read_text() == "old"
    assert not (tmp_path / "new").exists()
