"""Watchdog: what we use of it, and what we make of it."""

import errno
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import Relay, new_key, number, require, until
from watchdog.observers.api import EventDispatcher
from watchdog.utils import BaseThread

from pagermcp.spool import Spool
from pagermcp.waking import Switchboard, Watcher, make_watcher
from pagermcp.waking import watch as watching

if sys.platform == "linux":
    from watchdog.observers import inotify_c
    from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD, WatchDescriptor

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def switchboard() -> Switchboard:
    return Switchboard()


@pytest.fixture(params=["auto", "observer"])
def watcher(request: pytest.FixtureRequest, spool: Spool, switchboard: Switchboard) -> Iterator[Watcher]:
    watcher = make_watcher(request.param, spool, switchboard)
    yield watcher
    watcher.stop()


def waiting(spool: Spool, switchboard: Switchboard, watcher: Watcher) -> tuple[str, Callable[[], bool]]:
    """A number that somebody waits for, and whether he was rung."""
    box = number(new_key())
    waiter = switchboard.enter(box)
    spool.mailbox(box).make()
    watcher.watch(box)
    return box, lambda: waiter.rung


def test_a_file_moved_in_rings_the_waiter_of_its_mailbox_and_no_other(
    spool: Spool, switchboard: Switchboard, watcher: Watcher, tmp_path: Path
) -> None:
    box, rung = waiting(spool, switchboard, watcher)
    _, other = waiting(spool, switchboard, watcher)
    (tmp_path / "page.json").write_text("{}")
    subprocess.run(["mv", tmp_path / "page.json", spool.path("new", box)], check=True)
    until(rung)
    assert not other()
    assert watcher.state == "ok"


def test_a_page_that_another_process_delivers_rings(spool: Spool, switchboard: Switchboard, watcher: Watcher) -> None:
    box, rung = waiting(spool, switchboard, watcher)
    Spool(spool.root, worker=1).mailbox(box).deliver("{}")
    until(rung)


@on_linux
def test_a_process_that_is_alone_has_no_event_for_what_it_links_itself(
    spool: Spool, switchboard: Switchboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(watching, "_arrived", lambda spool, switchboard, number, name, complete: events.append(name))
    watcher = make_watcher("auto", spool, switchboard, alone=True)
    try:
        box, _ = waiting(spool, switchboard, watcher)
        spool.mailbox(box).deliver("{}")
        Path(spool.path("new", box, "copied")).write_text("{}")
        (tmp_path / "moved").write_text("{}")
        (tmp_path / "moved").rename(spool.path("new", box, "moved"))
        until(lambda: events == ["copied", "moved"])
    finally:
        watcher.stop()


def test_hidden_files_do_not_ring(spool: Spool, switchboard: Switchboard, watcher: Watcher) -> None:
    box, rung = waiting(spool, switchboard, watcher)
    Path(spool.path("new", box, ".hidden")).write_text("{}")
    sentinel, sentinel_rung = waiting(spool, switchboard, watcher)
    Path(spool.path("new", sentinel, "shown")).write_text("{}")
    until(sentinel_rung)  # events come in order, so the hidden file's has been handled
    assert not rung()


def test_a_handler_that_fails_does_not_end_watching(
    spool: Spool, switchboard: Switchboard, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, rung = waiting(spool, switchboard, watcher)
    failed = threading.Event()

    def fail(number: str) -> None:
        failed.set()
        raise RuntimeError("a fault in the handler")

    with monkeypatch.context() as patch:
        patch.setattr(switchboard, "ring", fail)
        Path(spool.path("new", box, "one")).write_text("{}")
        assert failed.wait(10)
    Path(spool.path("new", box, "two")).write_text("{}")
    until(rung)


def test_the_watched_folder_may_be_removed_and_made_again(
    spool: Spool, switchboard: Switchboard, watcher: Watcher
) -> None:
    box, _ = waiting(spool, switchboard, watcher)
    os.rmdir(spool.path("new", box))
    os.rmdir(spool.path("new"))
    until(lambda: watcher.tend([box]) or watcher.state == "degraded")
    spool.mailbox(box).make()
    until(lambda: watcher.tend([box]) or watcher.state == "ok")
    waiter = switchboard.enter(box)
    switchboard.ring(box)  # the one before
    waiter.about_to_look()
    Path(spool.path("new", box, "page")).write_text("{}")
    until(lambda: waiter.rung)


@on_linux
def test_an_observer_that_is_replaced_leaves_nothing_behind(spool: Spool, switchboard: Switchboard) -> None:
    watcher = make_watcher("observer", spool, switchboard)

    def replace() -> tuple[int, int]:
        observer = cast(Any, watcher)._observer
        BaseThread.stop(observer)
        observer.event_queue.put(EventDispatcher.stop_event)
        observer.join(10)
        assert watcher.state == "degraded"
        watcher.tend([])
        assert watcher.state == "ok"
        return threading.active_count(), descriptors()

    replace()
    before = replace()
    for _ in range(3):
        replace()
    until(lambda: threading.active_count() <= before[0] and descriptors() <= before[1])
    watcher.stop()


def test_off_watches_nothing_and_says_so(spool: Spool, switchboard: Switchboard) -> None:
    watcher = make_watcher("off", spool, switchboard)
    watcher.watch(number(new_key()))
    watcher.tend([])
    watcher.stop()
    assert watcher.state == "off"


@on_linux
class TestInotify:
    @pytest.fixture
    def watcher(self, spool: Spool, switchboard: Switchboard) -> Iterator[Watcher]:
        watcher = make_watcher("auto", spool, switchboard)
        yield watcher
        watcher.stop()

    def test_what_this_process_linked_itself_does_not_ring_a_second_time(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        box, rung = waiting(spool, switchboard, watcher)
        spool.mailbox(box).deliver("{}")
        sentinel, sentinel_rung = waiting(spool, switchboard, watcher)
        Path(spool.path("new", sentinel, "page")).write_text("{}")
        until(sentinel_rung)
        assert not rung()

    @pytest.mark.parametrize("name", ["²", "16", "1" * 300, "0000000000000016.json"])
    def test_no_file_name_ends_watching(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher, name: str
    ) -> None:
        box, rung = waiting(spool, switchboard, watcher)
        Path(spool.path("new", box, name[:250])).write_text("{}")
        until(rung)
        assert watcher.state == "ok"

    def test_a_claim_causes_no_event(self, spool: Spool, switchboard: Switchboard, watcher: Watcher) -> None:
        box, rung = waiting(spool, switchboard, watcher)
        spool.mailbox(box).deliver("{}")
        spool.mailbox(box).claim(60)
        sentinel, sentinel_rung = waiting(spool, switchboard, watcher)
        Path(spool.path("new", sentinel, "page")).write_text("{}")
        until(sentinel_rung)
        assert not rung()

    def test_a_removed_mailbox_rings_its_waiter_and_is_watched_again_once_it_is_back(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        box = number(new_key())
        waiter = switchboard.enter(box)
        spool.mailbox(box).make()
        watcher.watch(box)
        os.rmdir(spool.path("new", box))
        until(lambda: waiter.rung)
        watcher.tend([box])
        assert watcher.state == "degraded"  # it can't be watched while it is away
        spool.mailbox(box).make()
        watcher.tend([box])
        assert watcher.state == "ok"
        waiter.about_to_look()
        Path(spool.path("new", box, "page")).write_text("{}")
        until(lambda: waiter.rung)

    def test_a_mailbox_moved_away_and_made_again_is_watched_again(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        box, rung = waiting(spool, switchboard, watcher)
        os.rename(spool.path("new", box), spool.path("new", "backup"))
        until(rung)
        spool.mailbox(box).make()
        watcher.tend([box])
        waiter = switchboard.enter(box)
        switchboard.ring(box)
        waiter.about_to_look()
        Path(spool.path("new", box, "page")).write_text("{}")
        until(lambda: waiter.rung)

    def test_a_thread_that_cannot_be_started_leaks_nothing_and_is_asked_for_again(
        self, spool: Spool, switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: InotifyFD) -> None:
            raise RuntimeError("can't start new thread")

        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(InotifyFD, "start", refuse)
            watcher = make_watcher("auto", spool, switchboard)
            for _ in range(5):
                watcher.tend([])
            assert watcher.state == "degraded"
            assert descriptors() <= before
        watcher.tend([])
        assert watcher.state == "ok"
        watcher.stop()
        until(lambda: descriptors() <= before)

    def test_a_watch_is_kept_for_a_minute_after_the_last_waiter(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def watches() -> int:
            return _inotify_watches()

        before = watches()
        box, _ = waiting(spool, switchboard, watcher)
        assert watches() == before + 1
        watcher.tend([])
        assert watches() == before + 1
        later = time.monotonic() + 61
        monkeypatch.setattr(time, "monotonic", lambda: later)
        watcher.tend([box])
        assert watches() == before + 1
        later += 61
        watcher.tend([])
        assert watches() == before

    def test_a_mailbox_that_cannot_be_watched_makes_it_degraded_until_nobody_waits_there(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        box = number(new_key())  # and no folder
        watcher.watch(box)
        assert watcher.state == "degraded"
        watcher.tend([])
        assert watcher.state == "ok"

    def test_an_instance_limit_that_is_reached_is_degraded_until_there_is_room(
        self, spool: Spool, switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(cls: type[InotifyFD]) -> int:
            raise OSError(errno.EMFILE, "inotify instance limit reached")

        with monkeypatch.context() as patch:
            patch.setattr(InotifyFD, "_create_inotify_fd", classmethod(refuse))
            watcher = make_watcher("auto", spool, switchboard)
            box, rung = waiting(spool, switchboard, watcher)
            watcher.tend([box])
            assert watcher.state == "degraded"
            assert len(caplog.messages) == 1
        watcher.tend([box])
        assert watcher.state == "ok"
        Path(spool.path("new", box, "page")).write_text("{}")
        until(rung)
        watcher.stop()

    def test_an_overflow_rings_everybody_and_is_degraded_for_a_moment(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        boxes = [waiting(spool, switchboard, watcher) for _ in range(3)]
        overflow = InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b"")
        inotify_of(watcher).handle_event(overflow)
        assert all(rung() for _, rung in boxes)
        assert watcher.state == "degraded"
        watcher.tend([box for box, _ in boxes])
        assert watcher.state == "ok"

    def test_a_real_overflow_loses_no_page(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        box, _ = waiting(spool, switchboard, watcher)
        late, late_rung = waiting(spool, switchboard, watcher)
        blocked, go = threading.Event(), threading.Event()
        handle = InotifyFD.handle_event

        def handle_slowly(self: InotifyFD, event: InotifyEvent) -> None:
            blocked.set()
            assert go.wait(60)
            handle(self, event)

        monkeypatch.setattr(InotifyFD, "handle_event", handle_slowly)
        for n in range(limit + 3000):
            os.link(spool.path("FORMAT"), spool.path("new", box, f"{n}"))
        assert blocked.is_set()
        Path(spool.path("new", late, "page")).write_text("{}")  # its event is among those that were lost
        go.set()
        until(late_rung, 30)

    def test_a_thread_of_watchdogs_that_ended_is_replaced(
        self, spool: Spool, switchboard: Switchboard, watcher: Watcher
    ) -> None:
        box, rung = waiting(spool, switchboard, watcher)
        before = inotify_threads()
        dead = inotify_of(watcher)
        dead.stop()
        dead.join()
        assert watcher.state == "degraded"
        watcher.tend([box])
        assert watcher.state == "ok"
        assert rung()  # for what may have been missed
        other, other_rung = waiting(spool, switchboard, watcher)
        for one in (box, other):
            Path(spool.path("new", one, "page")).write_text("{}")
        until(other_rung)
        assert inotify_threads() == before

    def test_watchdogs_inotify_is_as_we_use_it(self) -> None:
        """A contract test: it fails when a new watchdog changes underneath."""
        fd = inotify_c.InotifyFD
        assert list(inspect.signature(fd.add_callback).parameters) == ["self", "path", "mask", "callback", "id_"]
        assert list(inspect.signature(fd.remove_callbacks).parameters) == ["self", "callbacks"]
        assert issubclass(fd, threading.Thread)
        callbacks = {name for name in vars(inotify_c.WatchCallback) if name.startswith("on_")}
        assert callbacks == {"on_event", "on_watch_deleted", "on_queue_overflow"}
        assert {"is_create", "is_close_write", "is_moved_to", "name"} <= set(dir(inotify_c.InotifyEvent)) | {"name"}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def inotify_of(watcher: Watcher) -> "InotifyFD":
    """The thread that a watcher has from watchdog; there may be others, which watchdog's observers share."""
    inotify = cast(Any, watcher)._inotify
    assert isinstance(inotify, InotifyFD)
    return inotify


def inotify_threads() -> int:
    return sum(isinstance(one, InotifyFD) for one in threading.enumerate())


def _inotify_watches() -> int:
    """How many inotify watches this process has, by the kernel's account."""
    count = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        try:
            count += path.read_text().count("inotify wd:")
        except FileNotFoundError:
            continue
    return count


def test_a_relay_with_the_portable_observer_wakes_too(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay(PAGERMCP_WATCH="observer")
    assert relay.get("/healthz").json()["watching"] == "ok"
    held = relay.start_waiting(key)
    (tmp_path / "page.json").write_text('{"from":"mv"}')
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    began = time.monotonic()
    assert held.result(15).json()["from"] == "mv"
    assert time.monotonic() - began < 3  # it can't see that the file is complete, and waits until nobody writes to it


def in_namespace(limit: str) -> list[str]:
    """A command that runs another where inotify has that limit."""
    unshare = require("unshare", "util-linux")
    return [unshare, "--user", "--map-root-user", "sh", "-c", f'echo {limit} && exec "$@"', "sh"]


@on_linux
@pytest.mark.parametrize("limit", ["3 >/proc/sys/user/max_inotify_watches", "0 >/proc/sys/user/max_inotify_instances"])
def test_at_the_systems_limits_pages_still_come_within_a_sweep_and_health_says_degraded(
    start_relay: Callable[..., Relay], tmp_path: Path, limit: str
) -> None:
    relay = start_relay(prefix=in_namespace(limit))
    keys = [new_key() for _ in range(6)]
    held = [relay.start_waiting(key) for key in keys]
    until(lambda: relay.get("/healthz").json()["watching"] == "degraded")
    began = time.monotonic()
    for key in keys:
        (tmp_path / "page.json").write_text('{"from":"mv"}')
        os.utime(tmp_path / "page.json", (0, 0))
        subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert all(one.result(15).json()["from"] == "mv" for one in held)
    assert time.monotonic() - began < 4
    assert relay.notify(keys[0]).status_code == 202
    assert "Traceback" not in relay.log.read_text()
    assert relay.log.read_text().count("limit reached") <= 6


@on_linux
def test_5000_mailboxes_made_and_removed_in_seconds_leave_it_well(
    start_relay: Callable[..., Relay], tmp_path: Path, key: str
) -> None:
    relay = start_relay()
    held = relay.start_waiting(key)
    connections = []
    for n in range(5000):
        box = number(new_key())
        (relay.spool / "new" / box).mkdir()
        (relay.spool / "new" / box).rmdir()
        if n % 25 == 0:  # and 200 of those that somebody waits for
            waited = new_key()
            connections.append(relay.connect())
            connections[-1].sendall(f"GET /mailboxes/{waited}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            until(relay.new(waited).is_dir)
            relay.new(waited).rmdir()
    for connection in connections:
        connection.close()
    until(lambda: relay.get("/healthz").json()["watching"] == "ok")
    (tmp_path / "page.json").write_text('{"from":"mv"}')
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert held.result(15).json()["from"] == "mv"
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()
