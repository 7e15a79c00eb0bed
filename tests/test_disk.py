"""A disk that is full, fails, or may not be written: nothing half-written shows, and what can work does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NOBODY, RELAY_IMPORTS, Relay, as_root, as_user, clean_environment, new_key, number, require, until

FAULTS = """
import errno, os, sys

seen = []

def fail(event, arguments):
    if event != "pagermcp.file":
        return
    step, path = arguments
    with open(os.environ["TRACE"], "a") as trace:
        print(step, path, file=trace)
    try:
        with open(os.environ["FAULTS"]) as faults:
            wanted, code = faults.read().split(":")
    except FileNotFoundError:
        return
    if wanted == "second move" and step == "move" and "/leased/" in path:
        seen.append(path)
        if len(seen) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    if step in wanted.split(",") or wanted == "any":
        if wanted == "mkdir" and os.path.exists(path):
            return
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)), path)

sys.addaudithook(fail)
"""


class FaultyRelay:
    """A relay whose file layer fails at a step, for as long as it is told."""

    def __init__(self, start_relay: Callable[..., Relay], folder: Path) -> None:
        self._faults, self._trace = folder / "faults", folder / "trace"
        self.relay = start_relay(prelude=FAULTS, FAULTS=self._faults, TRACE=self._trace)

    def fail(self, step: str, code: str) -> None:
        self._trace.unlink(missing_ok=True)
        self._faults.with_suffix(".new").write_text(f"{step}:{code}")
        self._faults.with_suffix(".new").rename(self._faults)

    def recover(self) -> None:
        self._faults.unlink()

    @property
    def steps(self) -> list[list[str]]:
        return [line.split() for line in self._trace.read_text().splitlines()]


@pytest.fixture
def faulty(start_relay: Callable[..., Relay], tmp_path: Path) -> FaultyRelay:
    return FaultyRelay(start_relay, tmp_path)


def pages(relay: Relay, key: str) -> list[str]:
    return sorted(path.stem for path in relay.spool.glob(f"*/{number(key)}/*.json"))


@pytest.mark.parametrize(
    ("step", "code", "status"),
    [("write", "ENOSPC", 507), ("write", "EDQUOT", 507), ("write", "EIO", 503), ("write", "EROFS", 503)]
    + [("write", "EMFILE", 503), ("fsync", "EIO", 503), ("fsync", "ENOSPC", 507), ("link", "ENOSPC", 507)]
    + [("link", "EIO", 503), ("fsync directory", "EIO", 503), ("fsync directory", "ENOSPC", 507)]
    + [("any", "EROFS", 503), ("any", "EIO", 503), ("any", "ENOSPC", 507)],
)
def test_a_page_that_cannot_be_written_is_refused_and_nowhere_and_accepted_once_later(
    faulty: FaultyRelay, key: str, step: str, code: str, status: int
) -> None:
    refused(faulty, key, step, code, status, {})


@pytest.mark.parametrize(("step", "code", "status"), [("fsync directory", "EIO", 503), ("any", "ENOSPC", 507)])
@pytest.mark.parametrize("options", [{"Idempotency-Key": "once"}, {"Pager-Delay": "1h"}, {"Pager-Replace": "it"}])
def test_the_same_goes_for_pages_with_options(
    faulty: FaultyRelay, key: str, step: str, code: str, status: int, options: dict[str, str]
) -> None:
    refused(faulty, key, step, code, status, options)


def refused(faulty: FaultyRelay, key: str, step: str, code: str, status: int, options: dict[str, str]) -> None:
    relay = faulty.relay
    relay.notify(key, "before")
    waiting = relay.start_waiting(new_key())
    threading.Event().wait(0.1)  # until it sleeps: it looks after its folder before that, and "any" would fail there
    faulty.fail(step, code)
    answer = relay.notify(key, "page", headers=options)
    assert answer.status_code == status
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["error"]["code"] == ("disk_full" if status == 507 else "disk_error")
    assert "delivered" not in answer.json()
    faulty.recover()
    assert len(pages(relay, key)) == 1
    assert os.listdir(relay.spool / "scheduled") == []
    if step != "any":  # or else it could not be removed; then it goes later
        assert os.listdir(relay.spool / "tmp") == []
    ids = {relay.notify(key, "page", headers={**options, "Idempotency-Key": "again"}).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert not waiting.done()
    relay.stop()
    assert "Traceback" not in relay.log.read_text()


def test_an_fsync_that_failed_is_not_tried_again_on_that_file(faulty: FaultyRelay, key: str) -> None:
    faulty.fail("fsync", "EIO")
    assert faulty.relay.notify(key).status_code == 503
    synced = [step for step in faulty.steps if step[0] == "fsync" and step[1] != "directory"]
    assert len(synced) == 1
    assert list((faulty.relay.spool / "tmp").iterdir()) == []
    assert pages(faulty.relay, key) == []


def test_a_page_that_can_neither_be_made_durable_nor_removed_again_is_delivered_maybe(
    faulty: FaultyRelay, key: str
) -> None:
    faulty.relay.notify(key)
    for headers in ({}, {"Pager-Delay": "1h"}):
        faulty.fail("fsync directory,remove", "EIO")
        answer = faulty.relay.notify(key, "page", headers=headers)
        assert (answer.status_code, answer.json()["delivered"]) == (503, "maybe")
        faulty.recover()
    assert len(pages(faulty.relay, key)) == 2


def test_of_several_pages_those_that_can_be_claimed_are_handed_out(faulty: FaultyRelay, key: str) -> None:
    relay = faulty.relay
    for n in range(3):
        relay.notify(key, str(n))
    faulty.fail("second move", "EIO")
    assert [page["payload"]["message"] for page in relay.lease(key, "lease=60&max=3")] == ["0"]
    faulty.recover()
    assert len(relay.lease(key, "lease=60&max=3")) == 2


def test_a_switch_that_cannot_be_set_is_refused_and_raises_no_alarm(faulty: FaultyRelay, key: str) -> None:
    relay = faulty.relay
    for step in ("write", "fsync", "link", "replace", "fsync directory"):
        faulty.fail(step, "EIO")
        refused = relay.notify(key, "began", headers={"Pager-Run": "r", "Pager-Expect": "0.5"})
        faulty.recover()
        assert refused.status_code == 503
        assert refused.json().get("delivered") == ("maybe" if step == "replace" else None)
    assert [page["payload"] for page in relay.lease(key, "lease=60&max=9")] == [{"message": "began"}]
    assert relay.lease(key, "timeout=2") == []
    assert relay.with_key(key, "GET", "/pages?state=scheduled").json()["pages"] == []


def test_with_no_room_for_folders_pages_can_be_read_and_acknowledged(faulty: FaultyRelay, key: str) -> None:
    relay = faulty.relay
    for n in range(3):
        relay.notify(key, str(n))
    faulty.fail("mkdir", "ENOSPC")
    (page,) = relay.lease(key)
    assert relay.with_key(key, "POST", "/ack", json={"ids": [page["handle"]]}).status_code == 200
    assert relay.get(f"/mailboxes/{key}/wait").json()["message"] == "1"
    assert relay.post(f"/mailboxes/{key}/consume").json()["message"]["message"] == "2"
    assert until(lambda: pages(relay, key) == [])
    faulty.recover()
    relay.stop()
    assert "no room to archive it" in relay.log.read_text()
    assert "Traceback" not in relay.log.read_text()


def test_a_page_that_cannot_be_buried_keeps_no_other_from_being_read(faulty: FaultyRelay, key: str) -> None:
    relay = faulty.relay
    first, second = relay.notify(key, "first").json()["id"], relay.notify(key, "second").json()["id"]
    path = relay.new(key) / f"{first}.json"
    path.write_text("{oops")
    os.utime(path, (0, 0))
    faulty.fail("mkdir", "ENOSPC")
    assert [page["id"] for page in relay.lease(key)] == [second]
    faulty.recover()
    assert path.name in [path.name for path in (relay.spool / "leased" / number(key)).iterdir()]


def test_what_the_disk_does_is_said_in_one_line_and_not_for_every_request(faulty: FaultyRelay, key: str) -> None:
    relay = faulty.relay
    faulty.fail("any", "EROFS")
    for _ in range(5):
        assert relay.notify(key).status_code == 503
    assert relay.get("/healthz").status_code == 503
    faulty.recover()
    assert relay.notify(key).status_code == 202
    lines = [line for line in relay.log.read_text().splitlines() if "Read-only file system" in line]
    assert len(lines) == 1
    assert str(relay.spool) in lines[0]
    assert f"mount {relay.spool} for writing" in lines[0]


# A disk that is really full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 16 MB of its own."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    folder.mkdir()
    subprocess.run([require("mkfs.ext4", "e2fsprogs"), "-q", "-F", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here ({mounted.stderr.strip()}); the faults above are put in instead")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up the last block."""
    filler = folder / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    size = 1 << 20
    while size:
        try:
            os.write(descriptor, b"x" * size)
        except OSError:
            size //= 2
    os.fsync(descriptor)
    os.close(descriptor)
    return filler


@as_root
def test_on_a_full_disk_posts_are_refused_reading_works_and_it_recovers_by_itself(
    start_relay: Callable[..., Relay], small_disk: Path, key: str
) -> None:
    limits = {"PAGERMCP_MIN_FREE_BYTES": 0, "MAX_MESSAGE_BYTES": 20_000, "MAX_MESSAGES_PER_MAILBOX": 10_000}
    relay = start_relay(small_disk / "spool", **limits)
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    accepted = []
    while (answer := relay.notify(key, f"{len(accepted)} {'x' * 20_000}"[:20_000])).status_code == 202:
        accepted.append(answer.json()["id"])
    assert (answer.status_code, answer.headers["Retry-After"]) == (507, "60")
    assert "bytes are free on the spool's disk" in answer.json()["error"]["message"]
    filler = fill(small_disk)
    assert os.statvfs(small_disk).f_bavail == 0
    for options in ({}, {"Idempotency-Key": "a"}, {"Pager-Delay": "1h"}, {"Pager-Run": "r", "Pager-Expect": "1h"}):
        assert relay.notify(key, "x", headers=options).status_code == 507
    assert relay.get("/healthz").status_code == 503
    assert [path.stem for path in sorted(relay.new(key).iterdir())] == accepted
    assert all(json.loads(path.read_text())["payload"]["message"] for path in relay.new(key).iterdir())
    assert os.listdir(relay.spool / "tmp") == []

    first, second, third, fourth = accepted[:4]
    (page,) = relay.lease(key)
    assert page["id"] == first
    assert relay.with_key(key, "POST", "/extend", json={"ids": [first]}).status_code == 200
    assert relay.with_key(key, "POST", "/ack", json={"ids": [first]}).status_code == 200
    assert relay.get(f"/mailboxes/{key}/wait").json()["id"] == second
    assert relay.post(f"/mailboxes/{key}/consume").json()["message"]["id"] == third
    assert relay.lease(key)[0]["id"] == fourth
    assert relay.with_key(key, "POST", "/release", json={"ids": [fourth]}).status_code == 200
    until(lambda: len(list(relay.new(key).iterdir())) == len(accepted) - 3)

    filler.unlink()
    (small_disk / "ballast").unlink()
    until(lambda: relay.get("/healthz").ok)
    again = until(lambda: (sent := relay.notify(key, "x", headers={"Idempotency-Key": "a"})).ok and sent)
    left = {page["id"] for page in relay.with_key(key, "GET", "/pages?limit=1000").json()["pages"]}
    assert left == {*accepted[3:], again.json()["id"]}
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


# A spool that can't be used


def fails_to_start(spool: Path, command: list[str] | None = None, **settings: Any) -> str:
    """The one line that it says."""
    run = subprocess.run(
        command or [sys.executable, "-m", "pagermcp"],
        env=clean_environment(DATA_DIR=spool, PORT=0, **settings),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert run.returncode == 1, run
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    return line


@as_root
def test_a_spool_that_is_mounted_read_only_is_refused_in_one_line(tmp_path: Path, start_relay: Any) -> None:
    relay = start_relay()
    relay.stop()
    folder = tmp_path / "read-only"
    folder.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(relay.spool), str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        line = fails_to_start(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert "Read-only file system (it belongs to uid 0)" in line
    assert f"mount {folder} for writing" in line


@as_root
def test_a_spool_that_becomes_somebody_elses_is_one_line_with_owner_uid_and_remedy(
    start_relay: Callable[..., Relay], shared_folder: Path, key: str
) -> None:
    relay = start_relay(shared_folder / "spool", user=NOBODY)
    relay.notify(key)
    for folder, _, names in os.walk(relay.spool):
        for path in [folder, *(f"{folder}/{name}" for name in names)]:
            os.chown(path, 1234, 1234)
    for _ in range(3):
        assert relay.notify(key).status_code == 503
    until(lambda: relay.get("/healthz").status_code == 503)
    lines = [line for line in relay.log.read_text().splitlines() if "(it belongs to uid 1234" in line]
    assert len(lines) == 1
    assert f"the relay runs as {NOBODY}): chown -R {NOBODY} {relay.spool}" in lines[0]
    relay.stop()
    user = as_user(NOBODY, RELAY_IMPORTS, "main()")
    assert f"chown -R {NOBODY} {relay.spool}" in fails_to_start(relay.spool, user)
    relay = start_relay(relay.spool)  # root may
    (page,) = relay.lease(key, "timeout=20&lease=60")  # as a stranger's file
    assert page["payload"] == {"message": "hello"}


def test_a_spool_that_is_deleted_under_the_relay_is_one_line_and_no_page_goes_into_nothing(
    start_relay: Callable[..., Relay], tmp_path: Path, key: str
) -> None:
    relay = start_relay()
    id = relay.notify(key).json()["id"]
    waiting = relay.start_waiting(new_key())
    relay.spool.rename(tmp_path / "elsewhere")  # as when a disk is unmounted
    for _ in range(3):
        answer = relay.notify(key)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    until(lambda: relay.get("/healthz").status_code == 503)
    assert not relay.spool.exists()
    relay.spool.mkdir()  # the folder on which it was mounted
    assert relay.notify(key).status_code == 503
    assert list(relay.spool.iterdir()) == []
    lines = [line for line in relay.log.read_text().splitlines() if "is gone" in line]
    assert len(lines) in (1, 2)
    assert all(f"the spool {relay.spool} is gone: put it back, and restart the relay" in line for line in lines)
    relay.spool.rmdir()
    (tmp_path / "elsewhere").rename(relay.spool)
    until(lambda: relay.get("/healthz").ok)
    assert relay.lease(key)[0]["id"] == id
    assert relay.notify(key).status_code == 202
    assert relay.process.poll() is None
    relay.stop()
    waiting.exception(10)
