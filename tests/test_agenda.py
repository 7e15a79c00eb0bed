"""What is to happen when, in monotonic time."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pagermcp.spool.agenda import Agenda, Entry


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


def entry(n: int) -> Entry:
    return Entry("lease", "box", f"{n}")


def test_entries_are_due_in_the_order_of_their_times_and_once(agenda: Agenda) -> None:
    for n, seconds in enumerate((-1, 0.02, -3, 0.01, -2, 60)):
        agenda.put(entry(n), seconds)
    taken = agenda.take_due()
    assert taken[:3] == [entry(2), entry(4), entry(0)]
    while len(taken) < 5:  # a slow machine finds both due at once
        agenda.wait(time.monotonic() + 10)
        taken += agenda.take_due()
    assert taken[3:] == [entry(3), entry(1)]
    assert (len(agenda), entry(5) in agenda, entry(0) in agenda) == (1, True, False)


def test_an_entry_can_be_put_off_brought_forward_and_dropped(agenda: Agenda) -> None:
    agenda.put(entry(1), -1)
    agenda.put(entry(1), 60)
    assert agenda.take_due() == []
    agenda.put(entry(1), -1)
    agenda.put(entry(2), -1)
    agenda.drop(entry(2))
    agenda.drop(entry(3))
    assert agenda.take_due() == [entry(1)]


def test_waiting_ends_when_something_sooner_is_put(agenda: Agenda) -> None:
    agenda.put(entry(1), 60)
    waiting = threading.Thread(target=agenda.wait, args=[time.monotonic() + 60])
    waiting.start()
    agenda.put(entry(2), 0)
    waiting.join(5)
    assert not waiting.is_alive()


def test_waiting_ends_at_its_time_and_by_an_interrupt(agenda: Agenda) -> None:
    began = time.monotonic()
    agenda.wait(began + 0.1)
    assert 0.1 <= time.monotonic() - began < 5
    agenda.interrupt()
    agenda.wait(time.monotonic() + 60)
    assert time.monotonic() - began < 5


def test_what_is_put_off_again_and_again_takes_no_memory(agenda: Agenda) -> None:
    for _ in range(10_000):
        agenda.put(entry(1), 60)
    assert len(agenda._heap) < 200


def test_threads_that_put_drop_and_take_at_once_lose_nothing(agenda: Agenda, switch_often: None) -> None:
    taken: list[Entry] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set() or len(agenda):
            taken.extend(agenda.take_due())

    def put_and_drop(first: int) -> None:
        for n in range(first, first + 5000):
            agenda.put(entry(n), 0)
            agenda.put(entry(-n - 1), 0.0001)
            agenda.drop(entry(-n - 1))

    takers = [threading.Thread(target=take) for _ in range(2)]
    putters = [threading.Thread(target=put_and_drop, args=[n * 5000]) for n in range(3)]
    for thread in takers + putters:
        thread.start()
    for thread in putters:
        thread.join()
    done.set()
    for thread in takers:
        thread.join()
    assert sorted(one for one in taken if not one.file.startswith("-")) == sorted(map(entry, range(15_000)))


@pytest.fixture
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
