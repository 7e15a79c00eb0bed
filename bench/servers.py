"""The relays that are measured: how each is started in a folder of its own, filled, counted and stopped."""

import contextlib
import dataclasses
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.load import Cannot
from pagermcp.address import number_of

HERE = Path(__file__).parent
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = '{"nonce": 0, "status": "success", "message": "build done"}'


@dataclasses.dataclass(frozen=True)
class Variant:
    """A relay. `fill` puts a page into each of these mailboxes while it does not run; `count` counts pages on disk."""

    name: str
    command: Callable[[Path], list[str]]
    fill: Callable[[Path, Iterable[str]], None] | None = None
    count: Callable[[Path], int] | None = None
    files: bool = False  # a page may be brought by mv


def _python(*arguments: str | Path) -> list[str]:
    return [sys.executable, *map(str, arguments)]


def _fill_database(folder: Path, keys: Iterable[str]) -> None:
    with contextlib.closing(sqlite3.connect(folder / "pages.db")) as database, database:
        insert = "insert into page (id, mailbox, body, at) values (?, ?, ?, ?)"
        database.executemany(insert, ((str(uuid.uuid4()), key, _PAGE, time.time()) for key in keys))


def _count_rows(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "pages.db")) as database:
        return int(database.execute("select count(*) from page").fetchone()[0])


def _fill_spool(folder: Path, keys: Iterable[str]) -> None:
    created = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    for key in keys:
        mailbox = mailbox_folder(folder, key)
        mailbox.mkdir(mode=0o700)
        page = mailbox / f"{time.time_ns() // 1000}.json"
        page.write_text(f'{{"created_at":"{created}","payload":{_PAGE}}}\n')
        page.chmod(0o600)


def _count_files(folder: Path) -> int:
    return sum(len(list(mailbox.iterdir())) for mailbox in (folder / "spool" / "new").iterdir())


def mailbox_folder(folder: Path, key: str) -> Path:
    return folder / "spool" / "new" / str(number_of(uuid.UUID(key)))


def _relay(*options: str) -> Callable[[Path], list[str]]:
    serve = ("-m", "pagermcp", "serve", "--port", "0", *options, "--data-dir")
    return lambda folder: _python(*serve, folder / "spool")


def _threads(folder: Path) -> list[str]:
    return _python(HERE / "threads.py", "serve", "--port", "0", "--data-dir", folder / "spool")


def _reference(name: str, *options: str) -> Variant:
    command = lambda folder: _python(HERE / "reference.py", folder / "pages.db", *options)  # noqa: E731
    return Variant(name, command, fill=_fill_database, count=_count_rows)


# Every relay that is measured, in the order of the table's columns; the second is compared with the first. A further
# variant of ours (plain threads, more workers) is one more line like that of "relay", with the options for it.
VARIANTS = (
    _reference("reference"),
    Variant("relay", _relay(), fill=_fill_spool, count=_count_files, files=True),
    Variant("workers-2", _relay("--workers", "2"), fill=_fill_spool, count=_count_files, files=True),
    Variant("threads", _threads, fill=_fill_spool, count=_count_files, files=True),
    _reference("reference-wal", "wal"),
)
NOTHING = Variant("nothing", lambda folder: _python(HERE / "nothing.py"))


class Server:
    """A relay that runs until the end of the `with` block. Raises Cannot when it does not start."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        self._log = folder / "log"
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # and no settings
        environment["PYTHONPATH"] = str(HERE.parent)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                variant.command(folder), env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            address = re.search(r" on http://127\.0\.0\.1:([0-9]+)", line)
            if address is None:
                raise Cannot(f"it did not start: {self._log.read_text().strip().rpartition(chr(10))[2]}")
            self.port = int(address[1])
        except BaseException:  # also when the bench is told to stop
            self.stop()
            raise

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def kill(self) -> None:
        """As a crash would end it."""
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def memory(self) -> float:
        """Resident kilobytes, with those of its children. Linux only, as `cpu`."""
        return sum(int(text.split("VmRSS:")[1].split()[0]) for text in self._told("status"))

    def cpu(self) -> float:
        """Seconds for which it and its children have run, in their own code and in the system's."""
        return sum(sum(map(int, text.rpartition(")")[2].split()[11:13])) for text in self._told("stat")) / _TICKS

    def _told(self, file: str) -> list[str]:
        return [Path(f"/proc/{pid}/{file}").read_text() for pid in self._pids()]

    def _pids(self) -> list[int]:
        pids = [self._process.pid]
        for pid in pids:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # a thread that has just ended
                    pids += map(int, children.read_text().split())
        return pids
