"""Watchdog: rings when another process, or a shell, puts a file into a mailbox that somebody waits for.

On Linux this is watchdog's InotifyFD with one watch a mailbox that has waiters, and not its recursive Observer: that
one costs a kernel watch for every mailbox there is, drops watches silently at the limit, and stalls for 500 ms after
each rename out of a watched folder, which every claim is (measured with watchdog 7.1.0). The watch asks only for files
that arrive, so a claim causes no event at all.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal, Protocol

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from pagermcp.measures import MEASURES
from pagermcp.spool import Spool
from pagermcp.spool.page import WORKERS, PageName
from pagermcp.waking.switchboard import Switchboard

if sys.platform == "linux":
    from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyFD, Mask

    if TYPE_CHECKING:
        from watchdog.observers.inotify_c import InotifyEvent, WatchDescriptor

State = Literal["ok", "degraded", "off"]

_KEEP_SECONDS = 60.0  # a client that polls in a loop should find its watch still there

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Rings the switchboard when files arrive. Slower when it fails, never wrong: the sweep looks as well.

    Nothing about watching raises. What fails is said once in the log, makes the state degraded, and is tried again
    whenever the sweep tends the watcher."""

    @property
    def state(self) -> State: ...

    def watch(self, number: str) -> None:
        """Somebody is about to wait for this number; its directory exists."""

    def tend(self, waiting: Collection[str]) -> None:
        """Mend what has failed, make watches again that are missing, and drop those that nobody needs.

        waiting: the numbers somebody waits for. Called every few seconds."""

    def stop(self) -> None: ...


def make_watcher(kind: str, spool: Spool, switchboard: Switchboard, alone: bool = False) -> Watcher:
    """The watcher for the setting PAGERMCP_WATCH. alone: no other process serves this spool."""
    if kind == "off":
        return NoWatcher()
    if kind == "auto" and sys.platform == "linux":
        return InotifyWatcher(spool, switchboard, alone)
    return ObserverWatcher(spool, switchboard)


class NoWatcher:
    """Nothing is watched: files that others bring are noticed by the sweep alone."""

    state: State = "off"

    def watch(self, number: str) -> None:
        pass

    def tend(self, waiting: Collection[str]) -> None:
        pass

    def stop(self) -> None:
        pass


def _arrived(spool: Spool, switchboard: Switchboard, number: str, name: str, complete: bool) -> None:
    """A file appeared under this name, and is complete if it was closed or moved in; otherwise it was linked, or begun.

    Never raises, for an exception would end watchdog's thread for good."""
    try:
        page = PageName.parse(name)
        ours = page is not None and int(page.id) % WORKERS == spool.worker
        if name.startswith(".") or (ours and not complete):  # what this process links itself, it rings for itself
            return
        if complete:
            spool.mailbox(number).saw_closed(name)
        switchboard.ring(number)
    except Exception:  # nothing is lost: the sweep finds the file as well
        log.exception("an event about a new file could not be used")


if sys.platform == "linux":

    class InotifyWatcher:
        """One non-recursive inotify watch a mailbox with waiters, kept a minute after the last one."""

        _MASK = Mask(
            InotifyConstants.IN_MOVED_TO
            | InotifyConstants.IN_CLOSE_WRITE
            | InotifyConstants.IN_MOVE_SELF
            | InotifyConstants.IN_ONLYDIR
        )
        _ID = CallbackId(1)

        def __init__(self, spool: Spool, switchboard: Switchboard, alone: bool) -> None:
            self._mask = self._MASK
            if not alone:  # then only this process links pages, and an event for each of its own is work for nothing
                self._mask = Mask(self._MASK | InotifyConstants.IN_CREATE)
            self._spool = spool
            self._switchboard = switchboard
            self._lock = threading.RLock()  # stopping watchdog calls back, in this thread, for each watch
            self._watches: dict[str, _MailboxWatch] = {}
            self._failed: set[str] = set()
            self._overflowed = False
            self._inotify: InotifyFD | None = None
            self._reported = False
            self._start()

        @property
        def state(self) -> State:
            return "degraded" if self._failed or self._overflowed or not self._alive() else "ok"

        def _alive(self) -> bool:
            return self._inotify is not None and self._inotify.is_alive()

        def _start(self) -> None:
            """Begin watching, or begin anew, with no watch yet."""
            if self._inotify is not None:
                log.warning("watching had ended and begins anew")
                MEASURES.count("watcher_restart")
                self._inotify.stop()
            self._watches.clear()
            self._inotify = None
            try:
                inotify = InotifyFD()
                try:
                    inotify.start()
                except RuntimeError:
                    inotify._close_resources()  # its thread would, but there is none
                    raise
                self._inotify = inotify
                self._reported = False
            except (OSError, RuntimeError) as error:  # no instance or no thread left; both are asked for again
                if not self._reported:
                    log.warning("watching is not possible (%s); new files are noticed within 2 s", error)
                self._reported = True

        def watch(self, number: str) -> None:
            with self._lock:
                known = self._watches.get(number)
                if known is not None:
                    known.idle_since = math.inf
                    return
                watch = _MailboxWatch(number, self._arrived, self._deleted, self._overflow)
                if self._inotify is None:
                    return
                try:
                    watch.descriptor = self._inotify.add_callback(
                        os.fsencode(self._spool.path("new", number)), self._mask, watch, self._ID
                    )
                    if watch.descriptor == -1:  # what watchdog returns, without a word, when access is denied
                        self._inotify.remove_callbacks([(watch.descriptor, self._ID)])
                        raise PermissionError("no access to the mailbox's directory")
                except OSError as error:
                    if number not in self._failed:
                        log.warning("%s can't be watched (%s); new files are noticed within 2 s", number, error)
                    self._failed.add(number)
                else:
                    self._failed.discard(number)
                    self._watches[number] = watch

        def tend(self, waiting: Collection[str]) -> None:
            self._overflowed = False
            if not self._alive():
                with self._lock:
                    self._start()
                self._switchboard.ring_all()
            wanted, now = set(waiting), time.monotonic()
            with self._lock:
                for number in wanted - self._watches.keys():
                    self.watch(number)
                self._failed &= wanted
                for number in self._watches.keys() - wanted:
                    watch = self._watches[number]
                    watch.idle_since = min(watch.idle_since, now)
                    if watch.idle_since < now - _KEEP_SECONDS and self._inotify is not None:
                        del self._watches[number]
                        self._inotify.remove_callbacks([(watch.descriptor, self._ID)])

        def stop(self) -> None:
            if self._inotify is not None:
                self._inotify.stop()
                self._inotify.join(1)

        def _arrived(self, number: str, event: "InotifyEvent") -> None:
            if event.is_move_self:  # this is another folder now; the mailbox's own is watched once it is there again
                self._deleted(number, event.wd)
                if self._inotify is not None:
                    self._inotify.remove_callbacks([(event.wd, self._ID)])
                return
            complete = event.is_close_write or event.is_moved_to
            _arrived(self._spool, self._switchboard, number, os.fsdecode(event.name), complete)

        def _deleted(self, number: str, descriptor: "WatchDescriptor") -> None:
            with self._lock:
                watch = self._watches.get(number)
                if watch is not None and watch.descriptor == descriptor:  # and not made again meanwhile
                    del self._watches[number]
            self._switchboard.ring(number)

        def _overflow(self) -> None:
            if not self._overflowed:  # every watch is told, but one ring for all is enough
                self._overflowed = True
                self._switchboard.ring_all()

    class _MailboxWatch:
        """What watchdog calls for one mailbox (its WatchCallback)."""

        descriptor: "WatchDescriptor"

        def __init__(
            self,
            number: str,
            arrived: "Callable[[str, InotifyEvent], None]",
            deleted: "Callable[[str, WatchDescriptor], None]",
            overflowed: Callable[[], None],
        ) -> None:
            self.idle_since = math.inf  # monotonic: nobody waits since then
            self._number, self._arrived, self._deleted, self._overflowed = number, arrived, deleted, overflowed

        def on_event(self, event: "InotifyEvent") -> None:
            self._arrived(self._number, event)

        def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
            self._deleted(self._number, wd)

        def on_queue_overflow(self) -> None:
            self._overflowed()


class ObserverWatcher(FileSystemEventHandler):
    """Watchdog's public Observer on all of new/: for systems without inotify."""

    def __init__(self, spool: Spool, switchboard: Switchboard) -> None:
        self._spool = spool
        self._switchboard = switchboard
        self._observer: BaseObserver | None = None
        self._reported = False
        self._start()

    @property
    def state(self) -> State:
        return "ok" if self._alive() else "degraded"

    def _alive(self) -> bool:
        threads = [] if self._observer is None else [self._observer, *self._observer.emitters]
        return len(threads) > 1 and all(thread.is_alive() for thread in threads)

    def _start(self) -> None:
        self.stop()
        try:
            self._observer = Observer()
            self._observer.schedule(self, self._spool.path("new"), recursive=True)
            self._observer.start()
            self._reported = False
        except (OSError, RuntimeError) as error:
            self._observer = None
            if not self._reported:
                log.warning("watching is not possible (%s); new files are noticed within 2 s", error)
            self._reported = True

    def watch(self, number: str) -> None:
        pass

    def tend(self, waiting: Collection[str]) -> None:
        if not self._alive():
            MEASURES.count("watcher_restart")
            self._start()
            self._switchboard.ring_all()

    def stop(self) -> None:
        if self._observer is not None:
            self._observer.unschedule_all()  # its other threads, which a dead one no longer ends
            if self._observer.is_alive():
                self._observer.stop()
                self._observer.join(1)

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.is_directory or event.event_type not in ("created", "moved", "closed"):
            return
        path = os.fsdecode(event.dest_path or event.src_path)
        directory, name = os.path.split(path)
        if os.path.dirname(directory) == self._spool.path("new"):
            number = os.path.basename(directory)
            _arrived(self._spool, self._switchboard, number, name, event.event_type != "created")
