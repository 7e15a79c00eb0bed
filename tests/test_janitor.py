"""What is moved and removed by age, by whom, and when not."""

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, Relay, new_key, number, until

from pagermcp.spool import Janitor, Mailbox, Spool, SpoolFull
from pagermcp.spool.agenda import Entry
from pagermcp.spool.page import page_line

DAY = 86400.0


@pytest.fixture
def rung() -> list[str]:
    return []


@pytest.fixture
def hire(rung: list[str]) -> Iterator[Callable[..., Janitor]]:
    """Make a janitor, for tests that call `tidy` themselves; his lock is given back with the test, or by `retire`."""
    janitors: list[Janitor] = []

    def make(spool: Spool, waiting: Callable[[str], int] = lambda number: 0, **days: float) -> Janitor:
        janitors.append(Janitor(spool, rung.append, waiting, **days))
        return janitors[-1]

    yield make
    for janitor in janitors:
        retire(janitor)


def retire(janitor: Janitor) -> None:
    janitor._lock.release()  # he was never started, so nothing else does


@pytest.fixture
def janitor(spool: Spool, hire: Callable[..., Janitor]) -> Janitor:
    return hire(spool)


def put(spool: Spool, box: str, state: str, days_old: float, file: str = "{id}.json") -> Path:
    """A page that was accepted so many days ago."""
    moment = time.time() - days_old * DAY
    path = Path(spool.path(state, box, file.format(id=f"{int(moment * 1e6):016d}")))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page_line('{"n":1}', datetime.datetime.fromtimestamp(moment, datetime.UTC)))
    return path


def day(ago: int) -> str:
    return f"{datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=ago):%Y-%m-%d}"


def an_hour_later(monkeypatch: pytest.MonkeyPatch, hours: float = 1) -> None:
    wall, passed = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + hours * 3600 + 1)
    monkeypatch.setattr(time, "monotonic", lambda: passed() + hours * 3600 + 1)


def test_a_page_that_nobody_took_for_a_week_goes_to_the_archive_as_expired(spool: Spool, janitor: Janitor) -> None:
    box = number(new_key())
    old, young = put(spool, box, "new", 7.01), put(spool, box, "new", 6.99)
    janitor.tidy()
    assert [path.name for path in Path(spool.path("new", box)).iterdir()] == [young.name]
    (expired,) = Path(spool.path("archive", day(0), box)).iterdir()
    assert expired.name == f"{old.stem}.expired.json"


def test_age_is_taken_from_the_page_and_not_from_its_name(spool: Spool, janitor: Janitor) -> None:
    box = number(new_key())
    young = put(spool, box, "new", 1)
    renamed = young.rename(young.with_name(f"{int((time.time() - 30 * DAY) * 1e6)}.json"))
    janitor.tidy()
    assert renamed.exists()


def test_pages_are_looked_at_once_an_hour_and_also_those_that_were_young_then(
    spool: Spool, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    page = put(spool, box, "new", 7 - 0.5 / 24)  # half an hour to go
    folder_is_older = time.time() - 60
    os.utime(page.parent, (folder_is_older,) * 2)
    janitor.tidy()
    an_hour_later(monkeypatch, hours=0.9)
    janitor.tidy()
    assert page.exists()
    an_hour_later(monkeypatch, hours=0.2)
    janitor.tidy()
    assert not page.exists()


def test_a_page_that_came_after_the_last_look_is_seen_by_the_next(
    spool: Spool, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    spool.mailbox(box).make()
    janitor.tidy()
    page = put(spool, box, "new", 8)
    an_hour_later(monkeypatch)
    janitor.tidy()
    assert not page.exists()


def test_an_empty_mailbox_that_was_unused_for_a_month_is_removed_and_made_again_when_needed(
    spool: Spool, janitor: Janitor
) -> None:
    used, unused, full = (number(new_key()) for _ in range(3))
    for box in (used, unused):
        spool.mailbox(box).make()
    os.mkdir(spool.path("leased", unused))
    put(spool, full, "new", 1)
    for box, ago in ((used, 29), (unused, 31), (full, 31)):
        os.utime(spool.path("new", box), (time.time() - ago * DAY,) * 2)
    janitor.tidy()
    assert sorted(os.listdir(spool.path("new"))) == sorted([used, full])
    assert os.listdir(spool.path("leased")) == []
    spool.mailbox(unused).deliver("{}")
    assert spool.mailbox(unused).queued() == 1


def test_mailboxes_that_were_only_asked_for_are_not_remembered_for_ever(spool: Spool, janitor: Janitor) -> None:
    asked, made = spool.mailbox(number(new_key())), spool.mailbox(number(new_key()))
    assert asked.waiting() == []
    made.deliver("{}")
    janitor.tidy()
    assert spool.mailbox(made.number) is made
    assert spool.mailbox(asked.number) is not asked


def test_a_mailbox_that_somebody_waits_for_stays_the_one_even_while_its_folder_is_away(
    spool: Spool, hire: Callable[..., Janitor]
) -> None:
    waited_for = spool.mailbox(number(new_key()))
    hire(spool, lambda number: 1).tidy()
    assert spool.mailbox(waited_for.number) is waited_for


def test_archive_and_dead_days_older_than_a_month_are_deleted(spool: Spool, janitor: Janitor) -> None:
    box = number(new_key())
    for ago in (0, 29, 30, 31, 400):
        for state in ("archive", "dead"):
            put(spool, box, f"{state}/{day(ago)}", ago)
    Path(spool.path("archive", "notes.txt")).touch()
    janitor.tidy()
    assert spool.days() == [day(0), day(29), day(30)]
    assert Path(spool.path("archive", "notes.txt")).exists()


def test_nought_keeps_everything_for_ever(spool: Spool, hire: Callable[..., Janitor]) -> None:
    janitor = hire(spool, mailbox_days=0, message_days=0, archive_days=0)
    box, empty = number(new_key()), number(new_key())
    page = put(spool, box, "new", 4000)
    archived = put(spool, box, f"archive/{day(4000)}", 4000)
    spool.mailbox(empty).make()
    os.utime(spool.path("new", empty), (0, 0))
    janitor.tidy()
    assert page.exists()
    assert archived.exists()
    assert os.path.isdir(spool.path("new", empty))


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_lease_that_a_dead_process_left_is_returned_and_rings(
    seen_before: bool, spool: Spool, janitor: Janitor, rung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    other = Spool(spool.root, worker=1).mailbox(box)
    id = other.deliver("{}")
    spool.mailbox(box)  # met before, so that it is not this first contact which mends it
    other.claim(30)
    janitor.tidy()
    assert rung == []
    an_hour_later(monkeypatch, hours=1 / 60)
    if seen_before:
        assert spool.come_due() == {box}
    else:
        spool.agenda.drop(Entry("lease", box, f"{id}.json"))
        janitor.tidy()
        assert rung == [box]
    assert os.listdir(spool.path("new", box)) == [f"{id}.2.json"]


def test_a_lease_that_another_process_lengthened_is_not_returned(spool: Spool, janitor: Janitor) -> None:
    box = number(new_key())
    other = Spool(spool.root, worker=1).mailbox(box)
    other.deliver("{}")
    spool.mailbox(box)
    page = other.claim(0.2)
    assert page is not None
    janitor.tidy()  # now it is known here
    assert other.lease(page.name, 60)
    until(lambda: time.time() > os.stat(spool.path("leased", box, page.name.file)).st_mtime - 59)
    assert spool.come_due() == set()
    assert other.acknowledge(page.name)


def test_a_page_whose_lease_ran_out_five_times_is_dead_with_the_reason(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    id = box.deliver("{}")
    for attempt in range(1, 6):
        page = box.claim(-1)
        assert page is not None
        assert page.name.attempt == attempt
        assert (spool.come_due() == {box.number}) == (attempt < 5)
    assert box.size() == 0
    dead = Path(spool.path("dead", day(0), box.number))
    assert (dead / f"{id}.5.json").exists()
    assert (dead / f"{id}.5.why").read_text() == "handed out 5 times and never acknowledged\n"


def with_an_old_empty_folder_of_leases(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    box = spool.mailbox(number(new_key()))
    box.deliver("{}")
    page = box.claim(60)
    assert page is not None
    box.acknowledge(page.name)
    an_hour_later(monkeypatch, hours=0.1)
    return box


def test_folders_of_leases_go_when_they_are_empty(
    spool: Spool, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_an_old_empty_folder_of_leases(spool, monkeypatch)
    janitor.tidy()
    assert os.listdir(spool.path("leased")) == []


def test_folders_of_leases_stay_while_somebody_waits_and_a_lease_in_one_is_still_noticed(
    spool: Spool, hire: Callable[..., Janitor], rung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    janitor = hire(spool, waiting=lambda number: 1)
    box = with_an_old_empty_folder_of_leases(spool, monkeypatch)
    for _ in range(2):  # the second time it knows that there was nothing
        janitor.tidy()
        assert os.listdir(spool.path("leased")) == [box.number]
    box.deliver("{}")
    other = Spool(spool.root, worker=1)
    assert other.mailbox(box.number).claim(-1)  # by a process that is no more
    until(lambda: (janitor.tidy(), rung)[1] == [box.number], 10)


def test_a_clock_that_jumped_ages_and_deletes_nothing_and_health_says_so(
    spool: Spool, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    janitor.tidy()
    box = number(new_key())
    page, archived = put(spool, box, "new", 1), put(spool, box, f"archive/{day(1)}", 1)
    wall, passed = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + 3650 * DAY)
    for minutes in (0, 59, 118):  # past the hourly and the daily look
        monkeypatch.setattr(time, "monotonic", lambda minutes=minutes: passed() + minutes * 60)
        if minutes == 118:
            monkeypatch.setattr(time, "time", lambda: wall() + 7300 * DAY)  # and it jumps again
        janitor.tidy()
    assert janitor.state.startswith("the clock jumped")
    assert page.exists()
    assert archived.exists()


def test_after_a_long_absence_days_are_not_deleted_for_a_day_also_not_by_a_restart(
    spool: Spool, janitor: Janitor, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(spool.path("janitor.last")).touch()
    os.utime(spool.path("janitor.last"), (time.time() - 3 * DAY,) * 2)
    archived = put(spool, number(new_key()), f"archive/{day(60)}", 60)
    janitor.tidy()
    assert "nobody was here for 3.0 days" in janitor.state
    retire(janitor)
    again = hire(spool)
    again.tidy()
    assert archived.exists()
    an_hour_later(monkeypatch, hours=24)
    again.tidy()
    assert again.state == "ok"
    assert not archived.exists()


def test_one_process_of_several_is_the_janitor_and_another_takes_over_when_it_is_killed(
    spool: Spool, janitor: Janitor
) -> None:
    script = (
        "import sys; from pagermcp.spool import Spool, Janitor; "
        "janitor = Janitor(Spool(sys.argv[1], worker=1), print, len); janitor.tidy(); "
        "print(janitor.state, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, spool.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ok\n"
        box = number(new_key())
        page = put(spool, box, "new", 30)
        janitor.tidy()
        assert janitor.state == "another process does it"
        assert page.exists()
        other.kill()
    janitor.tidy()
    assert janitor.state == "ok"
    assert not page.exists()


class Disk:
    """A disk of a given size, as far as statvfs says; the files are real."""

    def __init__(self, spool: Spool, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.size, self.inodes, self.root = size, 10**6, Path(spool.root)
        monkeypatch.setattr(os, "statvfs", self.statvfs)

    def statvfs(self, path: str) -> Any:
        used = sum(file.stat().st_size for file in self.root.rglob("*") if file.is_file())
        numbers = {"f_bavail": self.size - used, "f_frsize": 1, "f_files": 10**6, "f_favail": self.inodes}
        return type("Statvfs", (), numbers)


@pytest.fixture
def small(tmp_path: Path) -> Spool:
    """A spool that keeps 1,000,000 bytes free."""
    return Spool(str(tmp_path / "small"), min_free_bytes=1_000_000, max_message_bytes=100)


def test_on_a_disk_that_gets_full_the_oldest_days_go_before_any_post_is_refused(
    small: Spool, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    for ago in (0, 1, 2, 3):
        put(small, box, f"archive/{day(ago)}", ago).write_bytes(b" " * 1_000_000)
    disk = Disk(small, monkeypatch, size=6_000_000)
    janitor = hire(small)
    janitor.tidy()
    assert small.days() == [day(0), day(1), day(2)]  # twice a million is free again
    disk.size = 4_200_000  # somebody else filled it
    small.mailbox(box).deliver("{}")
    assert small.pressed.is_set()  # which wakes the janitor
    janitor.tidy()
    assert small.days() == [day(0), day(1)]
    disk.size = 2_500_000
    small.mailbox(box).deliver("{}")
    assert small.days() == [day(0)]
    disk.size = 1_500_000
    with pytest.raises(SpoolFull, match="bytes are free"):
        small.mailbox(box).deliver("{}")
    assert small.days() == [day(0)]  # today's stay


def test_a_disk_short_of_inodes_is_a_full_disk(
    small: Spool, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    put(small, box, f"archive/{day(9)}", 9)
    disk = Disk(small, monkeypatch, size=10**9)
    janitor = hire(small)
    disk.inodes = 1999
    janitor.tidy()
    assert small.days() == []
    disk.inodes = 999
    with pytest.raises(SpoolFull, match="999 inodes are free"):
        small.mailbox(box).deliver("{}")


def test_a_clock_that_cannot_be_trusted_deletes_nothing_on_a_full_disk_either(
    small: Spool, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    put(small, box, f"archive/{day(9)}", 9)
    Path(small.path("janitor.last")).touch()
    os.utime(small.path("janitor.last"), (0, 0))
    janitor = hire(small)
    Disk(small, monkeypatch, size=500_000)
    janitor.tidy()
    with pytest.raises(SpoolFull):
        small.mailbox(box).deliver("{}")
    assert small.days() == [day(9)]


def test_a_clock_that_jumped_since_the_last_pass_is_noticed_before_anything_is_deleted(
    small: Spool, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    put(small, box, f"archive/{day(0)}", 0)
    disk = Disk(small, monkeypatch, size=10**9)
    janitor = hire(small)
    janitor.tidy()
    disk.size = 500_000
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 365 * DAY)  # so that today is long ago
    with pytest.raises(SpoolFull):
        small.mailbox(box).deliver("{}")
    assert len(small.days()) == 1


def test_one_mailbox_that_cannot_be_tidied_does_not_keep_the_others_from_it(
    spool: Spool, janitor: Janitor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = number(new_key())
    os.symlink(loop, spool.path("new", loop))
    os.makedirs(spool.path("runs", "lost+found"))  # no mailbox's
    os.utime(spool.path("runs", "lost+found"), (0, 0))
    elsewhere, linked = tmp_path / "elsewhere", number(new_key())
    elsewhere.mkdir()
    os.symlink(elsewhere, spool.path("new", linked))
    foreign = put(spool, linked, "new", 9)
    pages = [put(spool, number(new_key()), "new", 9) for _ in range(20)]
    old = put(spool, number(new_key()), f"archive/{day(99)}", 99)
    for _ in range(2):
        janitor.tidy()
        janitor._walk_due = 0
    assert not any(page.exists() for page in [*pages, old])
    assert foreign.exists()
    assert janitor.state == "ok"
    assert len([message for message in caplog.messages if "could not be tidied" in message]) == 2


def test_a_pass_that_fails_is_said_in_health_until_one_succeeds(
    start_relay: Callable[..., Relay], tmp_path: Path, hire: Callable[..., Janitor]
) -> None:
    relay = start_relay()
    assert relay.get("/healthz").json()["retention"] == "ok"
    (relay.spool / "janitor.last").unlink()
    (relay.spool / "janitor.last").mkdir()
    spool = Spool(str(tmp_path / "spool"))
    janitor = hire(spool)
    relay.stop()
    with pytest.raises(IsADirectoryError):
        janitor.tidy()
    (relay.spool / "janitor.last").rmdir()
    janitor.tidy()
    assert (relay.spool / "janitor.last").is_file()


def test_pages_that_came_while_the_clock_was_ahead_expire_too(
    spool: Spool, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: wall() + 200)  # less than what counts as a jump
        janitor.tidy()
    page = put(spool, number(new_key()), "new", 9)
    os.utime(page.parent, (wall() + 1,) * 2)  # before the last walk, by its clock
    an_hour_later(monkeypatch)
    janitor.tidy()
    assert not page.exists()


def test_a_mailbox_that_somebody_waits_for_is_in_use(spool: Spool, hire: Callable[..., Janitor]) -> None:
    janitor = hire(spool, lambda number: 1)
    box = number(new_key())
    spool.mailbox(box).make()
    os.utime(spool.path("new", box), (0, 0))
    janitor.tidy()
    assert os.path.isdir(spool.path("new", box))


def test_a_live_relay_tidies_at_its_start(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    expired = put(Spool(str(tmp_path / "spool")), number(new_key()), "new", 8)
    relay = start_relay()
    until(lambda: not expired.exists())
    assert relay.get("/healthz").json()["retention"] == "ok"


def test_a_page_that_a_killed_relay_was_handing_out_comes_to_who_waits_for_it(
    start_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    spool, key = Spool(str(tmp_path / "spool")), new_key()
    id = spool.mailbox(number(key)).deliver("{}")
    spool.mailbox(number(key)).claim(3)  # and here it is killed
    relay = start_relay()
    assert relay.start_waiting(key).result(20).json()["id"] == id


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Spool:
    """A spool with 100,000 mailboxes and 10,000 pages."""
    spool = Spool(str(tmp_path_factory.mktemp("crowded") / "spool"))
    for n in range(100_000):
        box = number(new_key())
        os.mkdir(spool.path("new", box))
        if n % 10 == 0:
            put(spool, box, "new", 1)
    return spool


def test_with_100000_mailboxes_an_idle_pass_costs_less_than_a_second(
    crowded: Spool, hire: Callable[..., Janitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    janitor = hire(crowded)
    janitor.tidy()
    for hours in (0.02, 1):  # the pass of each minute, and the look of each hour
        an_hour_later(monkeypatch, hours)
        began = time.thread_time()
        janitor.tidy()
        assert time.thread_time() - began < 1


def test_with_100000_mailboxes_a_relay_answers_within_three_seconds(
    start_relay: Callable[..., Relay], crowded: Spool
) -> None:
    began = time.monotonic()
    relay = start_relay(Path(crowded.root))
    assert relay.notify(new_key()).status_code == 202
    assert time.monotonic() - began < 3
