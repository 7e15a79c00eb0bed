"""When the wall clock may decide what is old."""

import time

import pytest

from pagermcp.spool.clock import Clock

HOUR, DAY = 3600.0, 86400.0


class Time:
    """Both clocks, to be moved by a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.passed = 1_795_966_550.0, 1000.0
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.passed)

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_a_clock_that_runs_on_may_age_and_delete(clocks: Time) -> None:
    clock = Clock()
    clock.was_absent_since(clocks.wall - 60)
    for _ in range(100):
        clocks.pass_by(60)
        clock.check()
        assert (clock.may_age, clock.may_delete, clock.problem) == (True, True, None)


@pytest.mark.parametrize("jump", [301.0, HOUR, -HOUR, 3650 * DAY, -3650 * DAY])
def test_a_jump_stops_everything_until_it_has_lasted_for_an_hour(clocks: Time, jump: float) -> None:
    clock = Clock()
    clocks.wall += jump
    for _ in range(60):
        clock.check()
        assert (clock.may_age, clock.may_delete) == (False, False)
        assert f"jumped by {jump:+.0f} s" in str(clock.problem)
        clocks.pass_by(60)
    clock.check()
    assert (clock.may_age, clock.may_delete, clock.problem) == (True, True, None)


def test_a_jump_that_is_taken_back_is_forgotten(clocks: Time) -> None:
    clock = Clock()
    clocks.wall += DAY
    clock.check()
    assert not clock.may_age
    clocks.wall -= DAY
    clock.check()
    assert clock.may_age


def test_a_second_jump_begins_the_hour_anew(clocks: Time) -> None:
    clock = Clock()
    clocks.wall += DAY
    clock.check()
    clocks.pass_by(HOUR - 60)
    clocks.wall += DAY
    clock.check()
    clocks.pass_by(HOUR - 60)
    clock.check()
    assert not clock.may_age
    clocks.pass_by(60)
    clock.check()
    assert clock.may_age


def test_small_corrections_do_not_matter(clocks: Time) -> None:
    clock = Clock()
    clocks.wall += 299
    clock.check()
    assert clock.may_delete


@pytest.mark.parametrize("absence", [DAY + 1, 400 * DAY, -400 * DAY])
def test_after_a_long_absence_nothing_is_deleted_for_a_day(clocks: Time, absence: float) -> None:
    clock = Clock()
    clock.was_absent_since(clocks.wall - absence)
    clock.check()
    assert (clock.may_age, clock.may_delete) == (True, False)
    assert "nothing is deleted for a day" in str(clock.problem)
    clocks.pass_by(DAY - 1)
    clock.check()
    assert not clock.may_delete
    clocks.pass_by(1)
    clock.check()
    assert (clock.may_delete, clock.problem) == (True, None)


def test_the_first_start_is_no_absence(clocks: Time) -> None:
    assert Clock().may_delete
