"""How full a mailbox is, counted without listing it for every page, and right whoever changes the folders."""

import itertools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import new_key, number

from pagermcp import files
from pagermcp.commit import Steps
from pagermcp.spool import Janitor, Mailbox, MailboxFull, Options, Spool, send
from pagermcp.spool.page import now, page_line
from pagermcp.spool.tally import Tally


@pytest.fixture(params=[True, False], ids=["folders tell changes apart", "they do not"])
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Spool:
    """A spool for three pages a mailbox."""
    spool = Spool(str(tmp_path / "spool"), max_messages=3)
    if request.param and not spool.tells_changes_apart:
        pytest.skip("needs Linux 6.13 and a local disk")
    spool.tells_changes_apart = request.param
    return spool


@pytest.fixture
def box(small: Spool) -> Mailbox:
    return small.mailbox(number(new_key()))


def fill(box: Mailbox) -> list[str]:
    """Deliver until it is full; the ids."""
    ids = []
    for _ in range(4):
        try:
            ids.append(box.deliver("{}"))
        except MailboxFull:
            return ids
    raise AssertionError("more than it may hold")


def test_it_is_full_at_its_limit_and_has_a_place_for_each_page_that_is_removed_by_hand(
    small: Spool, box: Mailbox
) -> None:
    first, *others = fill(box)
    assert len(others) == 2
    os.unlink(small.path("new", box.number, f"{first}.json"))
    assert len(fill(box)) == 1


def test_pages_that_a_shell_brings_count_at_once(small: Spool, box: Mailbox, tmp_path: Path) -> None:
    box.deliver("{}")
    for n in range(2):
        (tmp_path / "page").write_bytes(page_line("{}", now()))
        (tmp_path / "page").rename(small.path("new", box.number, f"{n:016d}.json"))
    assert fill(box) == []


def test_pages_that_another_process_delivers_leases_and_acknowledges_count_at_once(small: Spool, box: Mailbox) -> None:
    box.deliver("{}")
    other = Spool(small.root, worker=1).mailbox(box.number)
    other.deliver("{}")
    assert len(fill(box)) == 1
    pages = [page for _ in range(2) if (page := other.claim(60))]
    assert fill(box) == []  # leased ones count
    assert [other.acknowledge(page.name) for page in pages] == [True, True]
    assert len(fill(box)) == 2


def test_a_mailbox_that_was_removed_and_made_again_by_others_is_empty(small: Spool, box: Mailbox) -> None:
    fill(box)
    shutil.rmtree(small.path("new", box.number))
    assert len(fill(box)) == 3
    shutil.rmtree(small.path("new", box.number))
    os.mkdir(small.path("new", box.number))
    assert len(fill(box)) == 3


def test_the_sender_is_told_how_many_wait_with_his_page(small: Spool, box: Mailbox) -> None:
    assert [send(small, box, "{}", Options()).queued for _ in range(2)] == [1, 2]
    box.claim(60)
    assert send(small, box, "{}", Options()).queued == 2
    box.claim(60)
    with pytest.raises(MailboxFull):
        send(small, box, "{}", Options())


def test_pages_that_come_and_go_one_by_one_are_counted_without_listing_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(tmp_path / "spool"))
    if not spool.tells_changes_apart:
        pytest.skip("needs Linux 6.13 and a local disk")
    box = spool.mailbox(number(new_key()))
    counted: list[str] = []
    count = Tally.count
    monkeypatch.setattr(Tally, "count", lambda tally: (counted.append("again"), count(tally)))
    for _ in range(5):
        box.deliver("{}")
        page = box.claim(60)
        assert page is not None
        assert box.acknowledge(page.name)
    assert len(counted) == 2  # of no folder, and of the one that was made then
    assert send(spool, box, "{}", Options()).queued == 1


def test_what_it_did_not_see_is_seen_when_it_counts_again(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    box = spool.mailbox(number(new_key()))
    box.deliver("{}")
    box.deliver("{}")
    box._tally.waiting += 1  # as if somebody had taken one away in the moment between two looks
    queued = [send(spool, box, "{}", Options()).queued for _ in range(20)]
    assert queued[-1] == 22


def test_a_folder_for_leases_is_there_whenever_a_page_waits(small: Spool, box: Mailbox) -> None:
    leased = Path(small.path("leased", box.number))
    for _ in range(2):
        box.deliver("{}")
        assert leased.is_dir()
        page = box.claim(60)
        assert page is not None
        box.acknowledge(page.name)
        Path(small.path("new", box.number)).rmdir()  # as the janitor does with both when they are empty
        leased.rmdir()


def test_a_folder_for_leases_that_the_janitor_has_removed_alone_is_made_before_the_next_page_waits(
    small: Spool, box: Mailbox
) -> None:
    leased = small.path("leased", box.number)
    for _ in range(2):
        box.deliver("{}")
        page = box.claim(60)
        assert page is not None
        box.acknowledge(page.name)
    an_hour_ago = time.time() - 3600
    os.utime(leased, (an_hour_ago, an_hour_ago))
    Janitor(small, lambda number: None, lambda number: 0).tidy()
    assert not os.path.exists(leased)
    assert box.exists
    box.deliver("{}")
    assert os.path.isdir(leased)  # on a full disk nobody could make it, and the page could not be taken


def test_the_sender_is_told_of_his_page_also_when_a_reader_has_it_before_it_is_durable(
    small: Spool, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.deliver("{}")
    box.claim(60)
    sync = files.directory_synced

    def while_it_syncs(path: str) -> Steps[None]:
        if path == small.path("new", box.number):
            box.claim(60)
        return sync(path)

    monkeypatch.setattr(files, "directory_synced", while_it_syncs)
    assert send(small, box, "{}", Options()).queued == 1


def test_a_page_that_came_unseen_makes_it_count_again_when_it_is_taken(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    box = spool.mailbox(number(new_key()))
    box.deliver("{}")
    box.deliver("{}")
    box._tally.waiting -= 1  # as if another process had linked one in the moment between two looks
    for _ in range(2):
        assert box.claim(60)
    assert send(spool, box, "{}", Options()).queued == 1


@pytest.mark.parametrize(
    ("tick", "told"), [(1, True), (1_000_000, False), (4_000_000, False)], ids=["none", "1 ms", "4 ms"]
)
def test_whether_a_folder_tells_changes_apart_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick: int, told: bool
) -> None:
    clock = itertools.count(10**18, 50_000)  # a change in 50 µs
    stat: Callable[..., os.stat_result] = os.stat

    def ticking(path: Any, **more: Any) -> Any:
        mtime = next(clock) // tick * tick
        return type("Status", (), {"st_mtime_ns": mtime}) if str(path) == str(tmp_path) else stat(path, **more)

    monkeypatch.setattr(os, "stat", ticking)
    monkeypatch.setattr(files.time, "perf_counter", lambda: next(clock) / 1e9)
    assert files.tells_changes_apart(str(tmp_path)) is told
    assert os.listdir(tmp_path) == []
