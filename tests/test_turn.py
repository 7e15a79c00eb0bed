"""Threads that run requests take turns."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagermcp import files, turn


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(turn, "_PATIENCE_SECONDS", 30)
    yield
    assert not turn.give()
    assert not turn._turn.locked()


def take_and_give() -> bool:
    turn.take()
    return turn.give()


def test_the_next_thread_runs_when_this_one_gives_its_turn_away() -> None:
    turn.take()
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(take_and_give)
        assert not waits.done()
        assert turn.give()
        assert waits.result(10)


def test_while_a_file_is_made_durable_another_thread_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []
    fsync = os.fsync
    with ThreadPoolExecutor(1) as other:

        def slow(descriptor: int) -> None:
            ran.append(other.submit(take_and_give).result(10))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)
        turn.take()
        files.write(str(tmp_path / "page"), b"{}", 0o600)
        assert ran == [True]
        assert turn.give()  # it has its turn again
        files.write(str(tmp_path / "another"), b"{}", 0o600)
        assert not turn.give()  # who had none has none after it


def test_a_failed_fsync_leaves_the_turn_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    turn.take()
    with pytest.raises(OSError, match="Input/output"):
        files.write(str(tmp_path / "page"), b"{}", 0o600)
    assert turn.give()


def test_nobody_waits_longer_than_for_a_time_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert sys.getswitchinterval() == turn._PATIENCE_SECONDS
    with ThreadPoolExecutor(1) as other:
        turn.take()
        began = time.monotonic()
        assert other.submit(take_and_give).result(10) is False  # it ran without
        assert time.monotonic() - began >= turn._PATIENCE_SECONDS
    assert turn.give()
