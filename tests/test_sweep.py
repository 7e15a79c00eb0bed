"""The sweep: every 2 s, what was missed is found."""

import os
import sys
from pathlib import Path

import pytest
from conftest import new_key, number

from pagermcp.spool import Spool
from pagermcp.waking import Sweep, Switchboard, make_watcher
from pagermcp.waking.sweep import LOOKS


@pytest.fixture
def switchboard() -> Switchboard:
    return Switchboard()


@pytest.fixture
def sweep(spool: Spool, switchboard: Switchboard) -> Sweep:
    return Sweep(spool, switchboard, make_watcher("off", spool, switchboard))


def test_a_page_whose_event_was_lost_rings(spool: Spool, switchboard: Switchboard, sweep: Sweep) -> None:
    mailbox = spool.mailbox(number(new_key()))
    mailbox.make()
    waiter = switchboard.enter(mailbox.number)
    os.utime(spool.path("new", mailbox.number), (0, 0))
    mailbox.claim(60)
    sweep.sweep()
    assert not waiter.rung
    Path(spool.path("new", mailbox.number, "page")).touch()
    sweep.sweep()
    assert waiter.rung


def test_who_looked_right_after_a_change_is_not_rung_for_it_where_changes_can_be_told_apart(
    spool: Spool, switchboard: Switchboard, sweep: Sweep
) -> None:
    mailbox = spool.mailbox(number(new_key()))
    mailbox.make()
    waiter = switchboard.enter(mailbox.number)
    mailbox.claim(60)
    sweep.sweep()
    assert waiter.rung != spool.tells_changes_apart  # elsewhere a later change might show the same time
    waiter.about_to_look()
    mailbox.deliver("{}")
    sweep.sweep()
    assert waiter.rung


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one watch is for all mailboxes")
def test_of_more_than_a_thousand_watched_mailboxes_a_thousand_are_looked_at_in_turn(
    spool: Spool, switchboard: Switchboard
) -> None:
    watcher = make_watcher("auto", spool, switchboard)
    sweep = Sweep(spool, switchboard, watcher)
    waiters = []
    for _ in range(LOOKS + 500):
        mailbox = spool.mailbox(number(new_key()))
        mailbox.make()
        waiters.append(switchboard.enter(mailbox.number))  # nobody has looked, so each look rings
    try:
        sweep.sweep()
        assert sum(waiter.rung for waiter in waiters) == LOOKS
        sweep.sweep()
        assert all(waiter.rung for waiter in waiters)
    finally:
        watcher.stop()


def test_a_page_whose_lease_ran_out_rings(spool: Spool, switchboard: Switchboard, sweep: Sweep) -> None:
    mailbox = spool.mailbox(number(new_key()))
    mailbox.deliver("{}")
    waiter = switchboard.enter(mailbox.number)
    mailbox.claim(-1)
    sweep.come_due()
    assert waiter.rung
    assert mailbox.queued() == 1


def test_a_mailbox_that_cannot_be_looked_at_does_not_keep_the_others_from_being_rung(
    spool: Spool, switchboard: Switchboard, sweep: Sweep, tmp_path: Path
) -> None:
    broken, sound = number(new_key()), number(new_key())
    os.symlink(tmp_path, spool.path("new", broken))
    spool.mailbox(sound).make()
    waiters = [switchboard.enter(box) for box in (broken, sound)]
    sweep.sweep()
    assert [waiter.rung for waiter in waiters] == [True, True]
