"""Steps that wait for the disk, alone and together."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pagermcp import aio, commit
from pagermcp.commit import Commit, Steps, at_once
from pagermcp.measures import MEASURES


@pytest.fixture
def descriptors(tmp_path: Path) -> list[int]:
    opened = []
    for number in range(5):
        opened.append(os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT))
        os.write(opened[-1], b"page")
    opened.append(os.open(tmp_path, os.O_RDONLY))
    return opened


def syncs() -> int:
    return sum(MEASURES.durations("fsync")[0])


def test_steps_go_on_when_what_they_gave_is_on_the_disk(descriptors: list[int]) -> None:
    order: list[str] = []

    def steps() -> Steps[str]:
        order.append("write")
        yield descriptors[0]
        order.append("link")
        yield descriptors[5]
        return "done"

    under_way = Commit(steps())
    assert under_way.go_on()
    assert (order, under_way.descriptor) == (["write"], descriptors[0])
    assert under_way.go_on()
    assert (order, under_way.descriptor) == (["write", "link"], descriptors[5])
    assert not under_way.go_on()
    assert under_way.result() == "done"
    before = syncs()
    assert at_once(steps()) == "done"
    assert syncs() == before + 2


def test_what_could_not_be_synced_is_raised_where_the_steps_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def steps(mends: bool) -> Steps[str]:
        try:
            yield 0
        except OSError:
            if mends:
                return "mended"
            raise
        return "synced"

    monkeypatch.setattr(os, "fsync", fail)
    assert at_once(steps(mends=True)) == "mended"
    with pytest.raises(OSError, match="Input/output"):
        at_once(steps(mends=False))


def test_steps_that_need_no_disk_are_over_at_once() -> None:
    def steps() -> Steps[int]:
        yield from ()
        return 7

    assert at_once(steps()) == 7


def test_many_are_synced_at_once_and_each_is_measured(descriptors: list[int]) -> None:
    before = syncs()
    assert commit.sync(descriptors) == [None] * 6
    assert syncs() == before + 6


def test_one_that_can_not_be_synced_says_so_and_the_others_are(descriptors: list[int]) -> None:
    pipe = os.pipe()[1]
    for at, bad, reason in ((0, pipe, errno.EINVAL), (3, 9999, errno.EBADF), (6, pipe, errno.EINVAL)):
        errors = commit.sync([*descriptors[:at], bad, *descriptors[at:]])
        assert [error and error.errno for error in errors] == [reason if place == at else None for place in range(7)]


def test_an_error_that_the_disk_reports_later_is_that_of_its_file(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aio.fsync(descriptors) == [None] * 6
    context: Any = aio._mine.context
    call = context._call

    def report(number: Any, *arguments: Any) -> int:
        came: int = call(number, *arguments)
        if number is context._getevents:
            for event in context._events[:came]:
                event.result = -errno.EIO if event.data == 2 else 0
        return came

    monkeypatch.setattr(context, "_call", report)
    errors = aio.fsync(descriptors)
    assert errors is not None
    assert [error and error.errno for error in errors] == [None, None, errno.EIO, None, None, None]


def test_a_signal_while_it_waits_changes_nothing(descriptors: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    aio.fsync(descriptors)
    context: Any = aio._mine.context
    call, interrupted = context._call, []

    def interrupt(number: Any, *arguments: Any) -> int:
        if number is context._getevents and not interrupted:
            interrupted.append(True)
            raise InterruptedError
        came: int = call(number, *arguments)
        return came

    monkeypatch.setattr(context, "_call", interrupt)
    assert aio.fsync(descriptors) == [None] * 6
    assert interrupted


@pytest.mark.parametrize("reason", ["another processor", "forbidden"])
def test_where_the_system_can_not_sync_many_they_are_synced_one_by_one(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    synced: list[int] = []

    def forbid(context: Any, *numbers: int) -> None:
        context._id = 0
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as seccomp has it

    monkeypatch.setattr(aio, "_mine", type("Nobody", (), {})())
    if reason == "forbidden":
        monkeypatch.setattr(aio._Context, "__init__", forbid)
    else:
        monkeypatch.setattr(aio.platform, "machine", lambda: "pdp11")
    monkeypatch.setattr(os, "fsync", synced.append)
    assert commit.sync(descriptors) == [None] * 6
    assert synced == descriptors


def test_what_was_left_under_way_is_not_taken_for_what_comes_next(
    descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    aio.fsync(descriptors)
    context: Any = aio._mine.context
    call = context._call

    def forbid(number: Any, *arguments: Any) -> int:
        if number is context._getevents:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        came: int = call(number, *arguments)
        return came

    monkeypatch.setattr(context, "_call", forbid)
    with pytest.raises(PermissionError):
        aio.fsync(descriptors)
    assert aio.fsync(descriptors) is None
    monkeypatch.delattr(aio._mine, "context")


def test_what_is_asked_of_the_disk_is_fsync_and_nothing_weaker() -> None:
    """IOCB_CMD_FSYNC is 2; IOCB_CMD_FDSYNC, which leaves out what a file's data do not need, is 3 (linux/aio_abi.h)."""
    context = aio._Context.make()
    if context is None:
        pytest.skip("this system has no io_submit")
    assert {control.opcode for control in context._controls} == {2}
    assert {control.flags_of_rw for control in context._controls} == {0}
