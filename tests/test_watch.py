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

import pytest
from conftest import Relay, new_key, number, until

from pagermcp.spool import Spool
from pagermcp.waking import Switchboard, Watcher, make_watcher
from pagermcp.waking.watch import NoWatcher

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

    def test_an_instance_limit_that_is_reached_leaves_a_relay_that_sweeps(
        self, spool: Spool, switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from watchdog.observers.inotify_c import InotifyFD

        def refuse(cls: type[InotifyFD]) -> int:
            raise OSError(errno.EMFILE, "inotify instance limit reached")

        monkeypatch.setattr(InotifyFD, "_create_inotify_fd", classmethod(refuse))
        watcher = make_watcher("auto", spool, switchboard)
        assert isinstance(watcher, NoWatcher)
        assert watcher.state == "degraded"

    def test_an_overflow_rings_everybody(self, spool: Spool, switchboard: Switchboard, watcher: Watcher) -> None:
        from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD, WatchDescriptor

        (thread,) = (one for one in threading.enumerate() if isinstance(one, InotifyFD))
        boxes = [waiting(spool, switchboard, watcher) for _ in range(3)]
        thread.handle_event(InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b""))
        assert all(rung() for _, rung in boxes)

    def test_watchdogs_inotify_is_as_we_use_it(self) -> None:
        """A contract test: it fails when a new watchdog changes underneath."""
        from watchdog.observers import inotify_c

        fd = inotify_c.InotifyFD
        assert list(inspect.signature(fd.add_callback).parameters) == ["self", "path", "mask", "callback", "id_"]
        assert list(inspect.signature(fd.remove_callbacks).parameters) == ["self", "callbacks"]
        assert issubclass(fd, threading.Thread)
        callbacks = {name for name in vars(inotify_c.WatchCallback) if name.startswith("on_")}
        assert callbacks == {"on_event", "on_watch_deleted", "on_queue_overflow"}
        assert {"is_create", "is_close_write", "is_moved_to", "name"} <= set(dir(inotify_c.InotifyEvent)) | {"name"}


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
