"""The spool directory: made, checked, mended."""

import os
import re
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NOBODY, REPOSITORY, as_root, as_user, new_key, number

from pagermcp.spool import Mailbox, Spool, SpoolRefused
from pagermcp.spool.spool import DIRECTORIES, FORMAT, GUIDE


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_new_spool_is_for_its_owner_and_explains_itself(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "a" / "spool"))
    assert Path(spool.path("FORMAT")).read_text() == GUIDE
    assert GUIDE.startswith(f"{FORMAT}\n")
    assert set(os.listdir(spool.root)) == {"FORMAT", *DIRECTORIES}
    assert {mode(spool.path(name)) for name in ("", *DIRECTORIES)} == {0o700}
    assert mode(spool.path("FORMAT")) == 0o600


def test_what_is_known_of_mailboxes_that_are_not_there_is_forgotten_when_it_gets_much(spool: Spool) -> None:
    known = spool.mailbox(number(new_key()))
    known.make()
    waited_for = number(new_key())
    spool.waiting = lambda number: number == waited_for
    strangers = weakref.WeakSet[Mailbox]()
    mailbox, most = spool.mailbox(waited_for), 0
    for n in range(30_000):
        strangers.add(spool.mailbox(f"{n:08d}-0000-8000-8000-000000000000"))
        most = max(most, len(strangers))
    assert most < 15_000
    assert spool.mailbox(known.number) is known
    assert spool.mailbox(waited_for) is mailbox


def test_a_folder_made_before_is_closed_to_others_when_it_becomes_a_spool(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    (tmp_path / ".gitignore").touch()
    (tmp_path / "README.md").touch()
    Spool(str(tmp_path))
    assert mode(tmp_path) == 0o700


def test_a_spool_that_its_group_may_read_has_pages_that_its_group_may_read(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o750)
    old = os.umask(0o077)
    try:
        spool = Spool(str(tmp_path))
        mailbox = spool.mailbox(number(new_key()))
        id = mailbox.deliver("{}")
        page = mailbox.claim(60)
        assert page is not None
        mailbox.acknowledge(page.name)
    finally:
        os.umask(old)
    (archived,) = tmp_path.glob(f"archive/*/*/{id}.json")
    assert mode(archived) == 0o640
    assert {mode(path) for path in archived.parents[:3]} == {0o750}
    assert mode(spool.path("new", mailbox.number)) == 0o750


@pytest.mark.parametrize("content", ["pagermcp spool 2\n", "", "something else"])
def test_a_spool_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "FORMAT").write_text(content)
    with pytest.raises(SpoolRefused, match="is not 'pagermcp spool 1'"):
        Spool(str(tmp_path))
    assert os.listdir(tmp_path) == ["FORMAT"]


def test_an_old_guide_is_brought_up_to_date(spool: Spool) -> None:
    Path(spool.path("FORMAT")).write_text(f"{FORMAT}\n\nas it was in an older version\n")
    assert Path(Spool(spool.root).path("FORMAT")).read_text() == GUIDE


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SpoolRefused, match=r"no FORMAT.*thesis\.tex.*DATA_DIR"):
        Spool(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "spool").touch()
    with pytest.raises(SpoolRefused) as caught:
        Spool(str(tmp_path / "spool"))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "spool") in str(caught.value)


@as_root
def test_a_spool_of_somebody_else_is_refused_with_owner_own_uid_and_remedy(shared_folder: Path) -> None:
    spool = Spool(str(shared_folder / "spool"))
    command = as_user(NOBODY, "from pagermcp.spool import Spool", f"Spool({spool.root!r})")
    run = subprocess.run(command, capture_output=True, text=True)
    line = run.stderr.splitlines()[-1]
    assert f"it belongs to uid 0, the relay runs as 65534): chown -R 65534 {spool.root}" in line


@as_root
def test_a_folder_for_any_user_is_a_spool_for_the_first_and_for_nobody_else(shared_folder: Path) -> None:
    os.chmod(shared_folder, 0o1707)  # as the image's is
    os.chown(shared_folder, 0, 0)
    script = f"for again in (False, True): print(Spool({str(shared_folder)!r}).file_mode)"
    run = subprocess.run(as_user(NOBODY, "from pagermcp.spool import Spool", script), capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (f"{0o600}\n" * 2, "")
    assert {path.stat().st_mode & 0o077 for path in shared_folder.rglob("*")} == {0}


def test_left_over_temporary_files_go_after_ten_minutes(spool: Spool) -> None:
    old, young = Path(spool.path("tmp", "old")), Path(spool.path("tmp", "young"))
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 601,) * 2)
    spool.recover()
    assert os.listdir(spool.path("tmp")) == ["young"]


def test_who_clears_up_after_a_worker_leaves_what_others_are_writing(spool: Spool) -> None:
    spool.worker, spool.nameless_drafts = 4, False
    drafts = [spool.draft(b"") for _ in range(64)]
    spool.recover(worker=3)
    assert len(os.listdir(spool.path("tmp"))) == len(drafts)
    spool.recover(worker=4)
    assert os.listdir(spool.path("tmp")) == []


def test_a_file_that_was_being_taken_in_is_put_back(spool: Spool) -> None:
    box = number(new_key())
    taken = Path(spool.temporary(adopted=(box, "page.json")))
    taken.write_text('{"from": "a shell"}')
    os.utime(taken, (time.time() - 60,) * 2)
    spool.recover()
    page = spool.mailbox(box).claim(60)
    assert page is not None
    assert page.payload == {"from": "a shell"}


def test_a_spool_may_be_a_symlink_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "disk")
    spool = Spool(str(tmp_path / "spool"))
    assert spool.root == str(tmp_path / "disk")


def test_a_spool_spread_over_disks_is_refused(spool: Spool, shared_memory: Path) -> None:
    os.rmdir(spool.path("archive"))
    os.symlink(shared_memory, spool.path("archive"))
    with pytest.raises(SpoolRefused, match="archive is on another disk"):
        Spool(spool.root)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no second file system at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    folder.rmdir()


def test_a_spool_that_was_only_half_made_is_made_whole(tmp_path: Path) -> None:
    for name in ("new", "leased", "tmp"):
        (tmp_path / name).mkdir()
    Spool(str(tmp_path))
    assert (tmp_path / "FORMAT").exists()


def test_strange_things_in_tmp_do_not_keep_it_from_opening(spool: Spool) -> None:
    os.mkdir(spool.path("tmp", "folder"))
    os.utime(spool.path("tmp", "folder"), (0, 0))
    Path(spool.path("tmp", "adopt-x")).touch()
    spool.recover()


def test_the_folders_readme_explains_what_the_format_file_explains() -> None:
    readme = (REPOSITORY / "spool" / "README.md").read_text()
    for path in re.findall(r"^[a-z].*?(?=  )", GUIDE, re.MULTILINE):
        for part in path.split(", "):
            assert f"`{part.replace('<YYYY-MM-DD>', '<day>')}`" in readme


def test_a_probe_leaves_nothing_behind(spool: Spool) -> None:
    spool.probe()
    assert os.listdir(spool.path("tmp")) == []
