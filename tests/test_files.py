"""The file layer's own promises."""

import errno
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


@pytest.fixture(params=[True, False], ids=["without a name", "with a name"])
def nameless(tmp_path: Path, request: pytest.FixtureRequest) -> bool:
    if request.param and not files.drafts_need_no_name(str(tmp_path)):
        pytest.skip("needs Linux with /proc, and a disk that takes files without a name")
    return bool(request.param)


def test_a_draft_is_nowhere_until_it_is_linked_and_then_only_there(tmp_path: Path, nameless: bool) -> None:
    (tmp_path / "tmp").mkdir()
    draft = files.Draft(str(tmp_path / "tmp" / "draft"), b"page", 0o640, nameless)
    assert len(list((tmp_path / "tmp").iterdir())) == (0 if nameless else 1)
    draft.link(str(tmp_path / "page"))
    draft.discard()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert (tmp_path / "page").read_bytes() == b"page"
    assert (tmp_path / "page").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "page").stat().st_nlink == 1


def test_a_draft_replaces_nothing_and_can_then_be_linked_elsewhere(tmp_path: Path, nameless: bool) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "symlink").symlink_to(tmp_path / "nowhere")
    draft = files.Draft(str(tmp_path / "draft"), b"page", 0o600, nameless)
    for name in ("old", "symlink"):
        with pytest.raises(FileExistsError):
            draft.link(str(tmp_path / name))
    draft.link(str(tmp_path / "page"))
    draft.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "page", "symlink"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_draft_that_could_not_be_synced_leaves_no_file_and_no_descriptor(
    tmp_path: Path, nameless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    opened = len(os.listdir("/proc/self/fd")) if nameless else 0
    draft = files.Draft(str(tmp_path / "draft"), b"page", 0o600, nameless)
    with pytest.raises(OSError, match="Input/output"):
        draft.sync()
    draft.discard()
    assert list(tmp_path.iterdir()) == []
    assert not nameless or len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EISDIR, errno.EXDEV, errno.ENOENT])
def test_where_a_file_needs_a_name_that_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link" if error in (errno.EXDEV, errno.ENOENT) else "open", fail)
    assert not files.drafts_need_no_name(str(tmp_path))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
