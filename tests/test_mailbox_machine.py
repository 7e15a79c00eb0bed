"""A state machine over a mailbox, against a model in memory: whatever is done, in any order, also after crashes."""

import dataclasses
import os
import shutil
import sys
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from pagermcp.spool import Mailbox, MailboxFull, Options, Spool, send
from pagermcp.spool.mailbox import MAX_ATTEMPTS
from pagermcp.spool.page import PageName
from pagermcp.spool.whereabouts import STATES, find, listing

BOX = "9f1c6cf7-a88c-8526-8708-faae46504050"
LIMIT = 12


@dataclasses.dataclass
class Modelled:
    """What a page should be."""

    payload: int
    state: str = "waiting"
    attempt: int = 1
    outcome: str | None = None
    replace: str | None = None
    turn: int = 0  # waits in this order


class Killed(BaseException):
    """The process ends at a step of the file layer."""


class MailboxMachine(RuleBasedStateMachine):
    pages = Bundle("pages")

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="pagermcp-machine-")
        self.model: dict[str, Modelled] = {}
        self.turns = 0
        self.sent = 0
        self.keys: dict[str, tuple[int, str]] = {}
        self.open()

    def open(self) -> None:
        self.spool = Spool(self.root, max_messages=LIMIT)
        self.spool.recover()
        self.mailbox: Mailbox = self.spool.mailbox(BOX)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def in_state(self, *states: str) -> list[str]:
        return [id for id, page in self.model.items() if page.state in states]

    def next_turn(self) -> int:
        self.turns += 1
        return self.turns

    # What can be done

    @rule(target=pages, delayed=st.booleans(), replace=st.sampled_from([None, None, "a", "b"]))
    def deliver(self, delayed: bool, replace: str | None) -> Any:
        self.sent += 1
        superseded = [
            id for id in self.in_state("waiting", "scheduled") if replace and self.model[id].replace == replace
        ]
        options = Options(delay=3600 if delayed else 0, replace=replace)
        full = len(self.in_state("waiting", "leased", "scheduled")) - len(superseded) >= LIMIT
        try:
            sent = send(self.spool, self.mailbox, f'{{"n":{self.sent}}}', options)
        except MailboxFull:
            assert full
            return multiple()
        assert not full
        assert sent.id is not None
        assert sent.id not in self.model
        for id in superseded:
            self.model[id].state, self.model[id].outcome = "archived", "replaced"
        state = "scheduled" if delayed else "waiting"
        self.model[sent.id] = Modelled(self.sent, state, replace=replace, turn=self.next_turn())
        return sent.id

    @rule(target=pages, key=st.sampled_from("kl"))
    def deliver_once(self, key: str) -> Any:
        payload, id = self.keys.get(key, (self.sent + 1, None))
        full = len(self.in_state("waiting", "leased", "scheduled")) >= LIMIT
        try:
            sent = send(self.spool, self.mailbox, f'{{"n":{payload}}}', Options(idempotency_key=key))
        except MailboxFull:
            assert full
            assert id is None
            return multiple()
        if id is not None:
            assert sent.id == id
            assert sent.duplicate
            return multiple()
        assert sent.id is not None
        self.sent += 1
        self.keys[key] = (payload, sent.id)
        self.model[sent.id] = Modelled(payload, turn=self.next_turn())
        return sent.id

    @rule()
    def claim(self) -> None:
        waiting = self.in_state("waiting")
        page = self.mailbox.claim(3600)
        if not waiting:
            assert page is None
            return
        assert page is not None
        expected = min(waiting, key=lambda id: self.model[id].turn)
        assert page.id == expected
        assert page.payload == {"n": self.model[expected].payload}
        assert page.name.attempt == self.model[expected].attempt
        self.model[expected].state = "leased"

    @rule(id=pages, stale=st.booleans())
    def acknowledge(self, id: str, stale: bool) -> None:
        name, mine = self.handle(id, stale)
        assert self.mailbox.acknowledge(name) == mine
        if mine:
            self.model[id].state, self.model[id].outcome = "archived", "acknowledged"

    @rule(id=pages, stale=st.booleans(), later=st.booleans())
    def release(self, id: str, stale: bool, later: bool) -> None:
        name, mine = self.handle(id, stale)
        assert self.mailbox.release(name, 3600 if later else 0) == mine
        if mine:
            self.handed_back(id, "scheduled" if later else "waiting")

    @rule(times=st.integers(1, 12))
    def fail_again_and_again(self, times: int) -> None:
        for _ in range(times):
            self.claim()
            for id in self.in_state("leased")[-1:]:
                assert self.mailbox.release(PageName(id, self.model[id].attempt))
                self.handed_back(id, "waiting")

    @rule(id=pages)
    def run_out(self, id: str) -> None:
        name, mine = self.handle(id, False)
        if not mine:
            return
        assert self.mailbox.lease(name, -1)
        self.spool.come_due()
        self.handed_back(id, "waiting")

    @rule(id=pages)
    def withdraw(self, id: str) -> None:
        name, mine = self.handle(id, False)
        assert self.mailbox.withdraw(name) == mine
        if mine:
            self.model[id].state = "waiting"
            if name.attempt > 1:
                self.model[id].turn = self.next_turn()

    @rule(id=pages)
    def come_due(self, id: str) -> None:
        for due in self.spool.schedule.of(BOX):
            if due.page.id == id:
                assert self.mailbox.come_due(due)
                assert self.model[id].state == "scheduled"
                self.model[id].state = "waiting"
                if due.page.attempt > 1:
                    self.model[id].turn = self.next_turn()
                return
        assert self.model[id].state != "scheduled"

    @rule(id=pages)
    def expire(self, id: str) -> None:
        self.mailbox.expire_at_once(id)
        if self.model[id].state == "waiting":
            self.model[id].state, self.model[id].outcome = "archived", "expired"

    @rule(target=pages, id=consumes(pages))
    def replay(self, id: str) -> Any:
        place = find(self.spool, BOX, id)
        assert place is not None
        if self.model[id].state not in ("archived", "dead"):
            return id
        page, _ = place.read(self.spool)
        try:
            copy = self.mailbox.deliver(f'{{"n":{page.payload["n"]}}}', replay_of=id)
        except MailboxFull:
            return id
        self.model[copy] = Modelled(self.model[id].payload, turn=self.next_turn())
        return copy

    @rule()
    def restart(self) -> None:
        """The process ends, and another one begins."""
        self.open()

    @precondition(lambda self: self.in_state("waiting"))
    @rule(step=st.integers(0, 5), call=st.sampled_from(["claim", "deliver", "acknowledge", "release", "expire"]))
    def crash(self, step: int, call: str) -> None:
        """The process ends at some step of the file layer, and another one begins: a page is as before, or as after."""
        before = {id: (page.state, page.attempt) for id, page in self.model.items()}
        oldest = min(self.in_state("waiting"))
        left = [step]

        def hook(event: str, arguments: Any) -> None:
            if event == "pagermcp.file" and armed:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed

        armed = [True]
        _hooks.append(hook)
        leased = [PageName(id, self.model[id].attempt) for id in self.in_state("leased")]
        try:
            if call == "claim":
                self.mailbox.claim(3600)
            elif call == "deliver":
                self.mailbox.deliver('{"n":0}')
            elif call == "expire":
                self.mailbox.expire_at_once(oldest)
            elif leased:
                getattr(self.mailbox, call)(leased[0])
        except (Killed, MailboxFull):
            pass
        finally:
            _hooks.remove(hook)
            armed.clear()
        self.open()
        for id, (state, attempt) in before.items():
            place = find(self.spool, BOX, id)
            assert place is not None, f"{id} was {state} and is gone"
            page = self.model[id]
            if (place.state, place.name.attempt) == (state, attempt):
                if call == "expire" and id == oldest and attempt > 1:
                    page.turn = self.next_turn()  # it has the time at which it was to go to the archive
                continue
            page.state, page.attempt, page.outcome = place.state, place.name.attempt, place.outcome
            if place.state == "waiting":
                page.turn = self.next_turn()
        for place in listing(self.spool, BOX, "waiting"):
            if place.name.id not in before:  # it was delivered before the end, though nobody was told
                self.model[place.name.id] = Modelled(0, turn=self.next_turn())

    def handle(self, id: str, stale: bool) -> tuple[PageName, bool]:
        """A handle of the page, current or not, and whether it is that of a lease."""
        page = self.model[id]
        attempt = page.attempt + 1 if stale else page.attempt
        return PageName(id, attempt), page.state == "leased" and not stale

    def handed_back(self, id: str, state: str) -> None:
        page = self.model[id]
        if page.attempt == MAX_ATTEMPTS:
            page.state = "dead"
        else:
            page.state, page.attempt, page.turn = state, page.attempt + 1, self.next_turn()

    # What is always so

    @invariant()
    def every_page_is_where_the_model_has_it_and_nowhere_else(self) -> None:
        found = {
            place.name.id: (state, place.name.attempt, place.outcome)
            for state in STATES
            for place in listing(self.spool, BOX, state)
        }
        assert found == {id: (page.state, page.attempt, page.outcome) for id, page in self.model.items()}
        assert sum(len(listing(self.spool, BOX, state)) for state in STATES) == len(self.model)

    @invariant()
    def the_counts_are_true(self) -> None:
        assert self.mailbox.queued() == len(self.in_state("waiting"))
        assert self.mailbox.size() == len(self.in_state("waiting", "leased", "scheduled"))
        assert [page.id for page in self.mailbox.waiting()] == sorted(self.in_state("waiting"))

    @invariant()
    def nothing_half_written_is_left(self) -> None:
        assert all(
            os.path.getsize(os.path.join(self.root, "tmp", name)) >= 0 for name in os.listdir(f"{self.root}/tmp")
        )


_hooks: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def one_audit_hook() -> None:
    """Audit hooks can't be taken off again, so there is one, which does what is in the list."""
    sys.addaudithook(lambda event, arguments: [hook(event, arguments) for hook in list(_hooks)] and None)


TestMailbox = MailboxMachine.TestCase
TestMailbox.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
