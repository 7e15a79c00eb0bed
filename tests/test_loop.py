"""The event loop's deadlines, by themselves."""

import math
import time

from pagermcp.server.loop import Loop


class Connection:
    """As much of one as its deadlines take."""

    accepting = False
    asked = 0

    def __init__(self) -> None:
        self.deadline = math.inf
        self._fileno: int | None = 5
        self.met: list[float] = []

    def readable(self) -> bool:
        return False

    writable = wants_to_know_of_half_close = readable

    def handle_close(self) -> None:
        pass

    handle_write = handle_close

    def handle_deadline(self) -> None:
        self.met.append(time.monotonic())


def test_one_who_is_woken_again_and_again_has_one_deadline() -> None:
    """As a room's reader is by what is said to others; his time stays the same."""
    loop, connection, at = Loop({}, lambda: None), Connection(), time.monotonic() + 60
    for _ in range(1000):
        loop.call_at(connection, at)
    assert len(loop._deadlines) == 1


def test_deadlines_that_come_back_do_not_pile_up() -> None:
    loop, connection, at = Loop({}, lambda: None), Connection(), time.monotonic() + 60
    for n in range(10_000):
        loop.call_at(connection, at if n % 2 else at + n)
    assert len(loop._deadlines) < 200


def test_a_deadline_that_replaces_another_is_the_one_that_is_met() -> None:
    loop, connection, now = Loop({}, lambda: None), Connection(), time.monotonic()
    loop.call_at(connection, now + 0.02)
    loop.call_at(connection, now + 0.1)
    while not connection.met:
        loop.turn()
    assert connection.met[0] >= now + 0.1
    loop.call_at(connection, now + 0.1)  # the same once more, which has passed
    loop.turn()
    assert len(connection.met) == 2


def test_many_deadlines_at_one_moment_do_not_keep_events_waiting() -> None:
    loop, at = Loop({}, lambda: None), time.monotonic()
    connections = [Connection() for _ in range(250)]
    for connection in connections:
        loop.call_at(connection, at)
    met = []
    for _ in range(4):
        loop.turn()
        met.append(sum(len(connection.met) for connection in connections))
    assert met == [100, 200, 250, 250]
    assert not loop._due
