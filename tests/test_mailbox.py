"""One mailbox on disk: delivering, claiming, moving on, and mending after an unclean stop."""

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import new_key, number, until

from pagermcp.spool import DeliveredMaybe, Mailbox, MailboxFull, Spool, SpoolFull
from pagermcp.spool.page import PageName, now, page_line

steps: list[tuple[str, str]] | None = None
action: tuple[str, str, Callable[[], Any]] | None = None  # a step, a part of its path, and what happens just before it


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pagermcp.file" and steps is not None:
        step, path = arguments
        steps.append((step, path))
        if action is not None and step == action[0] and action[1] in path:
            action[2]()


sys.addaudithook(_hook)  # there is no way to remove one, so there is one for the whole file


@pytest.fixture
def recorded() -> Iterator[list[tuple[str, str]]]:
    """The steps that the file layer takes during the test."""
    global steps, action
    steps = []
    yield steps
    steps = action = None


def before(step: str, path: str, act: Callable[[], Any]) -> None:
    """Do something just before a step; to raise an OSError there makes it fail."""
    global action
    action = (step, path, act)


def make_fail(step: str, path: str, first: Callable[[], Any] = lambda: None) -> None:
    def act() -> None:
        first()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before(step, path, act)


@pytest.fixture
def mailbox(spool: Spool) -> Mailbox:
    mailbox = spool.mailbox(number(new_key()))
    mailbox.make()
    return mailbox


def where(spool: Spool, mailbox: Mailbox) -> dict[str, list[str]]:
    """The files of a mailbox by state, days left out."""
    root = Path(spool.root)
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob(f"*/{mailbox.number}/*")) + sorted(root.glob(f"*/*/{mailbox.number}/*")):
        found.setdefault(path.relative_to(root).parts[0], []).append(path.name)
    return found


def put(spool: Spool, mailbox: Mailbox, state: str, file: str, same_as: Path | None = None) -> Path:
    """A page's file; with `same_as` a second name of that one, as an unclean stop can leave it."""
    path = Path(spool.path(state, mailbox.number, file))
    path.parent.mkdir(parents=True, exist_ok=True)
    if same_as:
        path.hardlink_to(same_as)
    else:
        path.write_bytes(page_line('{"n":1}', now()))
    return path


def reopened(spool: Spool) -> Spool:
    """The spool as the next process finds it."""
    again = Spool(spool.root)
    again.recover()
    return again


def microseconds(ago: float = 0) -> str:
    return f"{int((time.time() - ago) * 1e6):016d}"


@pytest.mark.parametrize("nameless", [True, False], ids=["drafts need no name", "drafts are in tmp/"])
def test_a_page_is_synced_before_it_shows_and_its_name_is_synced_before_deliver_returns(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]], nameless: bool
) -> None:
    spool.nameless_drafts = nameless
    id = mailbox.deliver('{"a":1}')
    recorded.append(("answer", ""))
    steps = [step for step, _ in recorded]
    discarded = [] if nameless else ["remove"]
    assert steps == ["write", "fsync", "mkdir", "link", "fsync directory", "fsync directory", *discarded, "answer"]
    assert os.listdir(spool.path("tmp")) == []
    paths = [path.removeprefix(spool.root + "/") for _, path in recorded]
    assert paths[0].startswith("tmp/")
    box = mailbox.number
    assert paths[2:6] == [f"leased/{box}", f"new/{box}/{id}.json", f"new/{box}", "new"]
    recorded.clear()
    mailbox.deliver('{"a":2}')
    assert [step for step, _ in recorded].count("fsync directory") == 1  # new/ itself only the first time


def test_a_page_is_one_line_for_its_owner_alone(spool: Spool, mailbox: Mailbox) -> None:
    old = os.umask(0)
    try:
        id = mailbox.deliver('{"a":\n1}')
    finally:
        os.umask(old)
    path = Path(spool.path("new", mailbox.number, f"{id}.json"))
    assert path.read_text().count("\n") == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_ids_rise_and_are_the_time_of_arrival_in_microseconds(mailbox: Mailbox) -> None:
    before = time.time()
    ids = [mailbox.deliver("{}") for _ in range(50)]
    assert ids == sorted(set(ids))
    assert all(before <= int(id) / 1e6 <= time.time() + 1 for id in ids)


def test_ids_rise_when_the_clock_goes_back(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    first = mailbox.deliver("{}")
    back = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: back)
    assert mailbox.deliver("{}") > first


def test_pages_come_through_after_the_clock_was_days_ahead_and_is_corrected(
    spool: Spool, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time_ns() + 3 * 86400 * 10**9
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: ahead)
        first = mailbox.deliver("{}")
    later = mailbox.deliver("{}")
    assert later > first
    assert [page and page.id for page in (mailbox.claim(60), mailbox.claim(60))] == [first, later]


def test_ids_rise_across_a_restart_even_when_all_pages_are_archived(
    spool: Spool, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page is not None
    mailbox.acknowledge(page.name)
    back = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: back)
    assert reopened(spool).mailbox(mailbox.number).deliver("{}") > first


def test_two_workers_never_pick_the_same_id(spool: Spool, mailbox: Mailbox) -> None:
    for worker in (0, 1, 15):
        other = Spool(spool.root, worker=worker).mailbox(mailbox.number)
        assert {int(other.deliver("{}")) % 16 for _ in range(10)} == {worker}


def test_threads_that_deliver_at_once_get_ids_of_their_own_and_lose_nothing(spool: Spool, mailbox: Mailbox) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.extend(mailbox.deliver("{}") for _ in range(15))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 120
    assert [page.id for page in mailbox.waiting()] == sorted(ids)
    assert os.listdir(spool.path("tmp")) == []


def test_of_two_that_are_synced_together_each_knows_how_many_waited_with_it(mailbox: Mailbox) -> None:
    under_way = {n: mailbox.delivering(f'{{"n":{n}}}') for n in (1, 2)}
    waited = {}
    while under_way:
        for n, delivery in list(under_way.items()):
            try:
                os.fsync(next(delivery))
            except StopIteration as end:
                _, waited[n] = end.value
                del under_way[n]
    assert waited == {1: 1, 2: 2}
    assert mailbox.queued() == 2


def test_a_full_mailbox_refuses_and_drops_nothing(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), max_messages=3)
    mailbox = spool.mailbox(number(new_key()))
    for _ in range(3):
        mailbox.deliver("{}")
    mailbox.claim(60)  # a leased page still counts
    with pytest.raises(MailboxFull):
        mailbox.deliver("{}")
    assert {state: len(files) for state, files in where(spool, mailbox).items()} == {"new": 2, "leased": 1}


def test_threads_together_never_fill_a_mailbox_over_its_limit(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), max_messages=20)
    mailbox = spool.mailbox(number(new_key()))
    refused = []

    def deliver() -> None:
        for _ in range(10):
            try:
                mailbox.deliver("{}")
            except MailboxFull:
                refused.append(1)

    threads = [threading.Thread(target=deliver) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mailbox.size() == 20
    assert len(refused) == 60


def test_a_disk_with_too_little_room_refuses_before_writing(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), min_free_bytes=1 << 60)
    with pytest.raises(SpoolFull, match="bytes are free"):
        spool.mailbox(number(new_key())).deliver("{}")


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_a_page_that_could_not_be_written_is_nowhere(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]], step: str
) -> None:
    make_fail(step, spool.root)
    with pytest.raises(OSError, match="Input/output error"):
        mailbox.deliver("{}")
    assert [name for name, _ in recorded].count(step) == 1  # never tried a second time
    make_fail("", "")
    assert where(spool, mailbox) == {}
    assert os.listdir(spool.path("tmp")) == []
    assert len(mailbox.deliver("{}")) == 16  # and it holds no place


def test_a_page_whose_name_could_not_be_synced_is_withdrawn(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]]
) -> None:
    make_fail("fsync directory", mailbox.number)
    with pytest.raises(OSError, match="Input/output error"):
        mailbox.deliver("{}")
    assert where(spool, mailbox) == {}


def test_a_page_that_was_taken_before_it_could_be_withdrawn_is_delivered_maybe(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]]
) -> None:
    make_fail("fsync directory", mailbox.number, lambda: mailbox.claim(60))
    with pytest.raises(DeliveredMaybe):
        mailbox.deliver("{}")
    assert list(where(spool, mailbox)) == ["leased"]


def test_a_mailbox_that_somebody_else_makes_at_the_same_moment_takes_the_page(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]]
) -> None:
    os.rmdir(spool.path("new", mailbox.number))
    before("mkdir", mailbox.number, lambda: os.mkdir(spool.path("new", mailbox.number)))
    assert len(mailbox.deliver("{}")) == 16


def test_a_file_brought_by_a_shell_is_one_page_even_when_the_disk_fails_as_it_is_delivered(
    spool: Spool, mailbox: Mailbox, recorded: list[tuple[str, str]]
) -> None:
    path = Path(spool.path("new", mailbox.number, "page.json"))
    path.write_text("{}")
    os.utime(path, (time.time() - 60,) * 2)
    reader = Spool(spool.root).mailbox(mailbox.number)
    make_fail("fsync directory", mailbox.number, lambda: reader.claim(60))
    mailbox.claim(60)
    assert list(where(spool, mailbox)) == ["leased"]
    assert os.listdir(spool.path("tmp")) == []


def test_a_mailbox_removed_by_hand_is_made_again(spool: Spool, mailbox: Mailbox) -> None:
    os.rmdir(spool.path("new", mailbox.number))
    id = mailbox.deliver("{}")
    assert where(spool, mailbox) == {"new": [f"{id}.json"]}


def test_pages_are_claimed_oldest_first_until_none_waits(mailbox: Mailbox) -> None:
    ids = [mailbox.deliver(f'{{"n":{n}}}') for n in range(5)]
    pages = [mailbox.claim(60) for _ in range(6)]
    assert [page and page.id for page in pages] == [*ids, None]
    assert [page.payload["n"] for page in pages if page] == list(range(5))


def test_a_claimed_page_is_leased_until_then(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    mailbox.claim(100)
    leased = Path(spool.path("leased", mailbox.number, f"{id}.json"))
    assert abs(leased.stat().st_mtime - time.time() - 100) < 5


def test_an_acknowledged_page_is_in_todays_archive(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page is not None
    assert mailbox.acknowledge(page.name)
    assert Path(spool.path("archive", f"{now():%Y-%m-%d}", mailbox.number, f"{id}.json")).is_file()
    assert not mailbox.acknowledge(page.name)  # it is not leased any more
    assert not mailbox.release(page.name)


def test_an_expired_page_is_in_the_archive_as_such(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    (page,) = mailbox.waiting()
    assert mailbox.expire(page.name)
    assert not mailbox.expire(page.name)
    assert where(spool, mailbox) == {"archive": [f"{id}.expired.json"]}


def test_a_released_page_waits_as_the_next_attempt_behind_those_that_waited_and_before_those_to_come(
    mailbox: Mailbox,
) -> None:
    id, waited = mailbox.deliver("{}"), mailbox.deliver("{}")
    first = mailbox.claim(60)
    assert first is not None
    assert mailbox.release(first.name)
    to_come = mailbox.deliver("{}")
    names = [page.name for page in (mailbox.claim(60), mailbox.claim(60), mailbox.claim(60)) if page]
    assert names == [PageName(waited, 1), PageName(id, 2), PageName(to_come, 1)]
    assert not mailbox.acknowledge(first.name)  # that attempt is over


def test_a_page_that_was_not_handed_over_waits_as_it_was(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    for _ in range(7):
        page = mailbox.claim(60)
        assert page is not None
        assert page.name == PageName(id, 1)
        assert mailbox.withdraw(page.name)
    assert not mailbox.withdraw(page.name)


def test_a_lease_that_ran_out_makes_the_page_wait_again(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    mailbox.claim(60)
    assert spool.come_due() == set()
    mailbox.release(PageName(id, 1))
    mailbox.claim(-1)
    assert spool.come_due() == {mailbox.number}
    assert where(spool, mailbox) == {"new": [f"{id}.3.json"]}
    assert spool.come_due() == set()


def test_a_broken_page_goes_to_dead_with_the_reason_and_the_next_is_taken(spool: Spool, mailbox: Mailbox) -> None:
    broken = {"0-byte": b"", "cut": b'{"created_at":"2026-01-01T00:0', "NUL": b"\0" * 50, "huge": b" " * 1_000_000}
    ids = []
    for n, content in enumerate(broken.values()):
        ids.append(microseconds(ago=100 - n))
        path = put(spool, mailbox, "new", f"{ids[-1]}.json")
        path.write_bytes(content)
        os.utime(path, (time.time() - 60,) * 2)
    good = mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page is not None
    assert page.id == good
    found = where(spool, mailbox)
    assert found["dead"] == sorted([f"{id}.json" for id in ids] + [f"{id}.why" for id in ids])
    assert "new" not in found
    reasons = [path.read_text() for path in sorted(Path(spool.root).glob("dead/*/*/*.why"))]
    assert [reason.split(":")[0].strip() for reason in reasons][:3] == ["not JSON"] * 3
    assert "larger than" in reasons[3]


def test_a_page_file_that_is_still_being_copied_is_left_until_it_is_whole(spool: Spool, mailbox: Mailbox) -> None:
    name = f"{microseconds()}.json"
    path = put(spool, mailbox, "new", name)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert mailbox.claim(60) is None
    assert mailbox.changed()  # so the sweep rings again
    path.write_bytes(whole)
    page = mailbox.claim(60)
    assert page is not None
    assert page.name.file == name


def test_looking_takes_nothing(spool: Spool, mailbox: Mailbox) -> None:
    ids = [mailbox.deliver("{}") for _ in range(3)]
    assert [page.id for page in mailbox.waiting()] == ids
    assert [page.id for page in mailbox.waiting()] == ids


def test_a_waiter_is_told_to_look_again_only_when_something_changed(spool: Spool, mailbox: Mailbox) -> None:
    assert mailbox.changed()  # nobody looked yet
    os.utime(spool.path("new", mailbox.number), (time.time() - 60,) * 2)
    mailbox.claim(60)
    assert not mailbox.changed()
    Path(spool.path("new", mailbox.number, "1.json")).touch()
    assert mailbox.changed()
    mailbox.claim(60)
    assert mailbox.changed()  # too soon after the change to be sure


def test_a_symlink_in_place_of_a_mailbox_is_refused(spool: Spool, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    box = number(new_key())
    os.symlink(elsewhere, spool.path("new", box))
    with pytest.raises(OSError, match="symbolic link"):
        spool.mailbox(box).deliver("{}")
    assert list(elsewhere.iterdir()) == []


# Recovery


def test_after_an_unclean_stop_waiting_pages_wait_and_a_fresh_lease_holds(spool: Spool, mailbox: Mailbox) -> None:
    leased = mailbox.deliver("{}")
    mailbox.claim(3600)
    waiting = mailbox.deliver("{}")
    again = reopened(spool)
    assert where(again, again.mailbox(mailbox.number)) == {"new": [f"{waiting}.json"], "leased": [f"{leased}.json"]}
    assert len(again.agenda) == 1


def test_after_an_unclean_stop_a_page_whose_lease_ran_out_waits_again(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver("{}")
    mailbox.claim(-10)
    again = reopened(spool)
    again.mailbox(mailbox.number)
    assert where(again, mailbox) == {"leased": [f"{id}.json"]}  # claimed just now: its lease may not be written yet
    until(again.come_due)
    assert where(again, mailbox) == {"new": [f"{id}.2.json"]}


def test_after_an_unclean_stop_a_page_whose_lease_ran_out_long_ago_waits_at_once(
    spool: Spool, mailbox: Mailbox
) -> None:
    id = mailbox.deliver("{}")
    mailbox.claim(-10)
    until(lambda: time.time() - os.stat(spool.path("leased", mailbox.number, f"{id}.json")).st_ctime > 2)
    reopened(spool).mailbox(mailbox.number)
    assert where(spool, mailbox) == {"new": [f"{id}.2.json"]}


@pytest.mark.parametrize(
    ("files", "stays"),
    [
        ({"new": "{id}.json", "leased": "{id}.json"}, {"leased": ["{id}.json"]}),
        ({"new": "{id}.2.json", "leased": "{id}.json"}, {"new": ["{id}.2.json"]}),
        ({"new": "{id}.json", "leased": "{id}.2.json"}, {"leased": ["{id}.2.json"]}),
        ({"new": "{id}.json", "archive/{day}": "{id}.json"}, {"archive": ["{id}.json"]}),
        ({"leased": "{id}.json", "archive/{day}": "{id}.expired.json"}, {"archive": ["{id}.expired.json"]}),
        ({"new": "{id}.3.json", "archive/{day}": "{id}.2.json"}, {"archive": ["{id}.2.json"]}),
        ({"new": "{id}.json", "dead/{day}": "{id}.json"}, {"dead": ["{id}.json"]}),
        (
            {"leased": "{id}.5.json", "dead/{day}": "{id}.5.json", "dead": "why"},
            {"dead": ["{id}.5.json", "{id}.5.why"]},
        ),
    ],
)
def test_the_later_state_of_a_page_that_is_there_twice_stays(
    spool: Spool, mailbox: Mailbox, files: dict[str, str], stays: dict[str, list[str]]
) -> None:
    id, day = microseconds(), f"{now():%Y-%m-%d}"
    path = None
    for state, file in files.items():
        if file == "why":
            assert path is not None
            Path(spool.path("dead", day, mailbox.number, f"{id}.5.why")).touch()
            continue
        path = put(spool, mailbox, state.format(day=day), file.format(id=id), same_as=path)
    assert path is not None
    os.utime(path, (time.time() + 600,) * 2)  # if it is leased, that is when the lease ends
    other = put(spool, mailbox, "new", f"{microseconds()}.json")
    again = reopened(spool)
    found = where(again, again.mailbox(mailbox.number))
    found["new"].remove(other.name)
    assert {state: names for state, names in found.items() if names} == {
        state: [name.format(id=id) for name in names] for state, names in stays.items()
    }


def test_a_page_archived_in_the_last_days_is_found_again_by_recovery(spool: Spool, mailbox: Mailbox) -> None:
    id = microseconds(ago=2 * 86400)
    waiting = put(spool, mailbox, "new", f"{id}.json")
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
    put(spool, mailbox, f"archive/{yesterday}", f"{id}.json", same_as=waiting)
    assert reopened(spool).mailbox(mailbox.number).claim(60) is None


def test_a_page_that_somebody_copied_back_from_the_archive_waits_again_after_a_restart_too(
    spool: Spool, mailbox: Mailbox
) -> None:
    id = microseconds()
    put(spool, mailbox, f"archive/{now():%Y-%m-%d}", f"{id}.json")
    put(spool, mailbox, "new", f"{id}.json")
    page = reopened(spool).mailbox(mailbox.number).claim(60)
    assert page is not None
    assert page.id == id


@pytest.mark.parametrize(
    "file", ["zz-notes.txt", "2222222222222222.json", "9999999999999999.json", "١٧٩٥٩٦٦٥٥٠٢٨١٠٨٨.json"]
)
def test_strange_files_in_the_archive_do_not_disturb_a_mailbox(spool: Spool, mailbox: Mailbox, file: str) -> None:
    put(spool, mailbox, f"archive/{now():%Y-%m-%d}", file)
    Path(spool.path("archive", "old.tar.gz")).touch()
    Path(spool.path("dead", "2020-01-01")).touch()
    again = reopened(spool).mailbox(mailbox.number)
    id = again.deliver("{}")
    assert abs(int(id) / 1e6 - time.time()) < 60
    page = again.claim(60)
    assert page is not None
    assert page.id == id
