"""The threads that run requests: one has the turn, and what is for the disk goes there together."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagermcp import aio, files, turn
from pagermcp import commit as commits
from pagermcp.commit import Commit, Steps
from pagermcp.server import pool as pools
from pagermcp.server.pool import Last, Pool


class Task:
    """Runs a function; `done` when it has."""

    def __init__(self, act: Callable[[], Commit[object] | None]) -> None:
        self._act = act
        self.thread = ""
        self.done = threading.Event()

    def service(self) -> Commit[object] | None:
        self.thread = threading.current_thread().name
        try:
            return self._act()
        finally:
            self.done.set()


def run(act: Callable[[], object]) -> Task:
    def once() -> None:
        act()

    return Task(once)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(pools, "PATIENCE_SECONDS", 30)
    pool = Pool(4, commits=1000)
    yield pool
    pool.stop(10)
    assert not any(worker.thread.is_alive() for worker in pool._workers)


def test_one_thread_runs_all_tasks_while_nothing_waits(pool: Pool) -> None:
    all_are_there = threading.Event()
    first = run(lambda: all_are_there.wait(10))
    more = [run(lambda: None) for _ in range(20)]
    for task in (first, *more):
        pool.add_task(task)
    all_are_there.set()
    assert all(task.done.wait(10) for task in more)
    assert {task.thread for task in more} == {first.thread}


def test_while_a_task_waits_for_the_disk_another_thread_runs(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, other = os.fsync, run(lambda: None)

    def slow(descriptor: int) -> None:
        pool.add_task(other)
        assert other.done.wait(10)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    writes = run(lambda: files.write(str(tmp_path / "page"), b"{}", 0o600))
    pool.add_task(writes)
    assert writes.done.wait(10)
    assert other.thread != writes.thread


def test_who_has_waited_goes_on_before_new_tasks(pool: Pool) -> None:
    waited, order = threading.Event(), []

    def wait() -> None:
        with turn.waiting():
            pool.add_task(busy)
            assert waited.wait(10)
        order.append("who waited")

    def keep_busy() -> None:
        pool.add_task(new)
        waited.set()
        while not pool.back:
            pass

    waits, busy, new = run(wait), run(keep_busy), run(lambda: order.append("new"))
    pool.add_task(waits)
    assert waits.done.wait(10)
    assert new.done.wait(10)
    assert order == ["who waited", "new"]


def test_the_event_loop_runs_when_there_are_no_tasks(pool: Pool) -> None:
    order, goes_on = [], threading.Event()

    def handle_events() -> None:
        with Last(pool):
            order.append("events")

    with ThreadPoolExecutor(1) as other:
        first = run(lambda: goes_on.wait(10))
        pool.add_task(first)
        events = other.submit(handle_events)
        while not pool.patient:
            pass
        second = run(lambda: order.append("task"))
        pool.add_task(second)
        goes_on.set()
        events.result(10)
    assert order == ["task", "events"]


def test_a_task_that_takes_long_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, ends = Pool(2, commits=9), threading.Event()
    try:
        slow, next_one = run(lambda: ends.wait(10)), run(lambda: None)
        pool.add_task(slow)
        pool.add_task(next_one)
        until = time.monotonic() + 10
        while not next_one.done.wait(pools.PATIENCE_SECONDS):
            assert pool.look()  # as the event loop does
            assert time.monotonic() < until
        assert not slow.done.is_set()
        with Last(pool):  # nor the loop itself, for longer than that
            pass
    finally:
        ends.set()
        pool.stop(10)
    assert slow.done.is_set()


def test_a_fault_in_a_task_does_not_end_its_thread(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = run(lambda: 1 // 0), run(lambda: None)
    pool.add_task(bad)
    pool.add_task(good)
    assert good.done.wait(10)
    assert "a fault in serving a connection" in caplog.text


def test_all_tasks_are_run_before_the_threads_end() -> None:
    pool, goes_on = Pool(3, commits=9), threading.Event()
    first = run(lambda: goes_on.wait(10))
    more = [run(lambda: None) for _ in range(10)]
    for task in (first, *more):
        pool.add_task(task)
    with ThreadPoolExecutor(1) as other:
        stopped = other.submit(pool.stop, 10)
        goes_on.set()
        stopped.result(10)
    assert all(task.done.is_set() for task in more)
    assert not any(worker.thread.is_alive() for worker in pool._workers)


class Files:
    """Tasks that each write a file by a commit, all added at once."""

    def __init__(self, pool: Pool, folder: Path, count: int) -> None:
        self.outcomes: dict[int, object] = {}
        self.done = threading.Semaphore(0)
        all_are_there = threading.Event()
        pool.add_task(run(lambda: all_are_there.wait(10)))
        for number in range(count):
            pool.add_task(Task(lambda number=number: self._begin(folder, number)))  # type: ignore[misc]
        all_are_there.set()
        for _ in range(count):
            assert self.done.acquire(timeout=10)

    def _begin(self, folder: Path, number: int) -> Commit[object]:
        def written() -> Steps[str]:
            descriptor = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            yield from files.directory_synced(str(folder))
            return str(number)

        def then() -> None:
            try:
                self.outcomes[number] = commit.result()
            except OSError as error:
                self.outcomes[number] = error
            self.done.release()

        commit: Commit[object] = Commit(written())
        commit.then = then
        assert commit.go_on()
        return commit


def test_what_several_tasks_write_is_synced_together(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = commits.sync
    monkeypatch.setattr(pools, "sync", lambda descriptors: (synced.append(len(descriptors)), sync(descriptors))[1])
    written = Files(pool, tmp_path, 100)
    assert written.outcomes == {number: str(number) for number in range(100)}
    assert sum(synced) == 200
    assert max(synced) == aio.MOST


def test_a_file_that_can_not_be_synced_fails_its_own_task_alone(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptors: list[int]) -> list[OSError | None]:
        bad = (tmp_path / "7").stat().st_ino
        return [OSError(5, "no") if os.fstat(descriptor).st_ino == bad else None for descriptor in descriptors]

    monkeypatch.setattr(pools, "sync", sync)
    outcomes = Files(pool, tmp_path, 20).outcomes
    assert isinstance(outcomes.pop(7), OSError)
    assert outcomes == {number: str(number) for number in range(20) if number != 7}


def test_when_nobody_knows_what_became_of_files_each_of_their_tasks_fails(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptors: list[int]) -> list[OSError | None]:
        raise OSError(5, "no")

    monkeypatch.setattr(pools, "sync", sync)
    outcomes = Files(pool, tmp_path, 5).outcomes
    assert [type(outcome) for outcome in outcomes.values()] == [OSError] * 5
    after = run(lambda: None)
    pool.add_task(after)
    assert after.done.wait(10)


def test_of_more_commits_than_may_have_files_open_each_has_a_thread_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    sync = commits.sync
    monkeypatch.setattr(pools, "sync", lambda descriptors: (together.append(len(descriptors)), sync(descriptors))[1])
    monkeypatch.setattr(pools, "PATIENCE_SECONDS", 30)
    pool = Pool(4, commits=3)
    try:
        assert Files(pool, tmp_path, 20).outcomes == {number: str(number) for number in range(20)}
    finally:
        pool.stop(10)
    assert max(together) <= 3
    assert pool._commits_under_way == 0


def test_a_task_that_hangs_is_noticed_also_while_the_event_loop_sleeps(pool: Pool) -> None:
    interrupted, hangs = threading.Event(), threading.Event()
    pool.interrupt = interrupted.set
    assert not pool.look()  # so the loop may sleep for long
    slow = run(lambda: hangs.wait(10))
    pool.add_task(slow)
    assert not interrupted.is_set()
    pool.add_task(run(lambda: None))
    assert interrupted.is_set()
    assert pool.look()
    hangs.set()


def test_an_event_loop_that_takes_long_holds_up_nobody() -> None:
    pool, task = Pool(2, commits=9), run(lambda: None)
    try:
        with Last(pool):
            until = time.monotonic() + 2 * pools.PATIENCE_SECONDS
            while time.monotonic() < until:
                pass
            pool.add_task(task)
            assert task.done.wait(10)
    finally:
        pool.stop(10)


def test_a_task_that_hangs_keeps_the_others_from_nothing_when_all_is_to_end() -> None:
    pool, hangs = Pool(2, commits=9), threading.Event()
    others = [run(lambda: None) for _ in range(5)]
    for task in (run(lambda: hangs.wait(10)), *others):
        pool.add_task(task)
    pool.stop(0.5)
    assert all(task.done.is_set() for task in others)
    hangs.set()
    pool.stop(10)
