"""Handing pages to a reader who takes long."""

import pytest
from conftest import new_key, number

from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool
from pagermcp.waking import Switchboard, Waiter, make_watcher
from pagermcp.web.handover import Handover
from pagermcp.web.later import Connection
from pagermcp.web.services import Services


class Slow(Connection):
    """One that has taken all at the third time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def flushed(self, waiter: Waiter) -> bool | None:
        self.asked += 1
        return True if self.asked > 2 else None


@pytest.mark.parametrize("disk", ["works", "fails"])
def test_pages_stay_a_slow_readers_also_when_the_disk_fails_as_their_lease_is_renewed(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    switchboard = Switchboard()
    watcher = make_watcher("off", spool, switchboard)
    relay = Services(Settings(), spool, switchboard, watcher, Janitor(spool, switchboard.ring, switchboard.waiting))
    mailbox = spool.mailbox(number(new_key()))
    mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page

    def fail(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    if disk == "fails":
        monkeypatch.setattr(mailbox, "lease", fail)
    handover = Handover(relay, mailbox, [page], Slow())
    handover.body = b"the page"
    steps = list(handover)
    handover.close()
    assert steps[0] == b"the page"
    assert [type(step) for step in steps[1:]] == [Waiter, Waiter]
    assert mailbox.queued() == 0
    assert mailbox.size() == 0
