"""Who is woken, and when."""

import threading
import time
from collections.abc import Callable

from pagermcp.waking import Switchboard


def never() -> bool:
    return False


def test_a_ring_wakes_the_one_that_waited_longest_and_each_next_ring_the_next() -> None:
    board = Switchboard()
    waiters = [board.enter("n") for _ in range(3)]
    other = board.enter("m")
    board.ring("n")
    assert [waiter.rung for waiter in waiters] == [True, False, False]
    board.ring("n")
    assert [waiter.rung for waiter in waiters] == [True, True, False]
    assert not other.rung


def test_those_who_only_read_are_all_rung_and_are_no_takers() -> None:
    board = Switchboard()
    assert board.takers("n") == 0
    readers = [board.enter("n", taking=False) for _ in range(2)]
    assert (board.waiting("n"), board.takers("n")) == (2, 0)
    taker = board.enter("n")
    assert (board.waiting("n"), board.takers("n")) == (3, 1)
    board.ring("n")
    assert [waiter.rung for waiter in (*readers, taker)] == [True] * 3


def test_one_that_leaves_without_having_looked_rings_the_next() -> None:
    board = Switchboard()
    first, second = board.enter("n"), board.enter("n")
    board.ring("n")
    board.leave(first)
    assert second.rung


def test_one_that_leaves_having_looked_rings_nobody() -> None:
    board = Switchboard()
    first, second = board.enter("n"), board.enter("n")
    board.ring("n")
    first.about_to_look()
    board.leave(first)
    assert not second.rung


def test_a_ring_between_the_look_and_parking_is_not_lost() -> None:
    board = Switchboard()
    waiter = board.enter("n")
    waiter.about_to_look()
    board.ring("n")
    began = time.monotonic()
    assert list(waiter.parked(began + 30).block(never)) == []
    assert time.monotonic() - began < 10
    assert not waiter.arm(lambda: None)


def test_a_ring_ends_parking() -> None:
    board = Switchboard()
    waiter = board.enter("n")
    threading.Timer(0.05, board.ring, ["n"]).start()
    began = time.monotonic()
    assert list(waiter.parked(began + 30).block(never)) == []
    assert waiter.rung
    assert time.monotonic() - began < 10


def test_parking_ends_in_time_without_a_ring() -> None:
    waiter = Switchboard().enter("n")
    began = time.monotonic()
    assert list(waiter.parked(began + 0.05).block(never)) == []
    assert time.monotonic() - began >= 0.05
    assert not waiter.rung


def test_parking_ends_when_the_client_went() -> None:
    waiter = Switchboard().enter("n")
    began = time.monotonic()
    assert list(waiter.parked(began + 60).block(lambda: True)) == []
    assert time.monotonic() - began < 5


def test_a_blocked_thread_gives_a_sign_of_life_in_time() -> None:
    waiter = Switchboard().enter("n")
    waiter.beat_at = time.monotonic() + 0.05
    assert list(waiter.parked(time.monotonic() + 0.2).block(never)) == [b" "]
    assert waiter.beat_at > time.monotonic() + 10


def test_the_first_sign_of_life_begins_the_answer_and_the_next_does_not() -> None:
    waiter = Switchboard().enter("n")
    begun: list[object] = []
    waiter.head = "200 OK", (("Content-Type", "application/json"),)
    waiter.start_response = lambda *head: begun.append(head)
    for _ in range(2):
        waiter.beat_at = time.monotonic()
        assert list(waiter.parked(time.monotonic() + 0.1).block(never)) == [b" "]
    assert begun == [("200 OK", [("Content-Type", "application/json")])]


def test_one_whose_time_is_over_has_no_sign_of_life_any_more() -> None:
    for late in (0, 20e-6, 100e-6, 1e-3):
        for _ in range(20):
            waiter = Switchboard().enter("n")
            waiter.parked(time.monotonic() + 0.002)
            waiter.beat_at = waiter.until + late
            assert list(waiter.block(never)) == []


def test_a_parked_one_goes_on_once_whatever_comes_at_the_same_moment() -> None:
    """Rings, its time, its client's going: in as many threads, again and again."""
    board = Switchboard()
    waiter = board.enter("n")
    for _ in range(300):
        went_on: list[int] = []
        waiter.about_to_look()
        start = threading.Barrier(4)

        def meet(act: Callable[[], object], start: threading.Barrier = start) -> None:
            start.wait()
            act()

        acts = (lambda: board.ring("n"), waiter.wake, board.drain)
        threads = [threading.Thread(target=meet, args=[act]) for act in acts]
        for thread in threads:
            thread.start()
        start.wait()
        if not waiter.arm(lambda gone=went_on: gone.append(1)):  # type: ignore[misc]
            went_on.append(1)
        for thread in threads:
            thread.join()
        waiter.wake()
        assert went_on == [1]


def test_draining_wakes_everybody() -> None:
    board = Switchboard()
    waiters = [board.enter(number) for number in "nnnm"]
    board.drain()
    assert board.draining
    assert all(waiter.rung for waiter in waiters)


def test_counts_follow_who_comes_and_leaves() -> None:
    board = Switchboard()
    one, two = board.enter("n"), board.enter("n")
    assert (board.waiting("n"), board.waiting("m"), board.numbers()) == (2, 0, ["n"])
    board.leave(one)
    board.leave(two)
    assert (board.waiting("n"), board.numbers()) == (0, [])


def test_ringing_a_number_nobody_waits_for_is_fine() -> None:
    Switchboard().ring("n")
    Switchboard().ring_all()
