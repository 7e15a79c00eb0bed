"""Looking at pages wherever they are, receipts for their senders, and sending copies again."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Relay, new_key, number, until


def listed(relay: Relay, key: str, query: str = "") -> list[dict[str, Any]]:
    answer = relay.with_key(key, "GET", f"/pages?{query}")
    assert answer.status_code == 200, answer.text
    pages: list[dict[str, Any]] = answer.json()["pages"]
    return pages


def acknowledge(relay: Relay, key: str, *handles: str) -> None:
    assert relay.with_key(key, "POST", "/ack", json={"ids": handles}).status_code == 200


def replay(relay: Relay, key: str, *ids: str) -> Any:
    return relay.with_key(key, "POST", "/replay", json={"ids": ids})


def dead(relay: Relay, key: str) -> str:
    """The id of a page that was handed out five times in vain."""
    id: str = relay.notify(key, "poison").json()["id"]
    for attempt in range(1, 6):
        relay.lease(key)
        handle = id if attempt == 1 else f"{id}.{attempt}"
        assert relay.with_key(key, "POST", "/release", json={"ids": [handle]}).status_code == 200
    return id


# GET /pages


def test_each_state_has_its_pages_and_what_there_is_to_say_of_them(relay: Relay, key: str) -> None:
    gone = dead(relay, key)
    archived, leased, waiting = (relay.notify(key, str(n)).json()["id"] for n in range(3))
    scheduled = relay.notify(key, headers={"Pager-Delay": "1h"}).json()
    relay.lease(key, "lease=60&max=2")
    acknowledge(relay, key, archived)
    shown = {state: listed(relay, key, f"state={state}") for state in ("waiting", "leased", "scheduled")}
    shown |= {state: listed(relay, key, f"state={state}") for state in ("archived", "dead")}
    assert {state: [page["id"] for page in pages] for state, pages in shown.items()} == {
        "waiting": [waiting],
        "leased": [leased],
        "scheduled": [scheduled["id"]],
        "archived": [archived],
        "dead": [gone],
    }
    assert all(page["state"] == state for state, (page,) in shown.items())
    assert all("payload" in page and "age_seconds" in page for (page,) in shown.values())
    assert shown["leased"][0]["lease_expires_at"].endswith("Z")
    assert shown["scheduled"][0]["due_at"] == scheduled["due_at"]
    assert shown["archived"][0]["outcome"] == "acknowledged"
    assert shown["archived"][0]["archived_at"].endswith("Z")
    assert shown["dead"][0]["why"] == "handed out 5 times and never acknowledged"
    assert shown["dead"][0]["handle"] == f"{gone}.5"
    assert listed(relay, key) == listed(relay, key, "state=waiting")


def test_looking_takes_nothing_and_wakes_nobody(relay: Relay, key: str) -> None:
    relay.notify(key)
    for _ in range(3):
        assert len(listed(relay, key)) == 1
    assert relay.lease(key)[0]["attempt"] == 1


def test_pages_come_in_portions_without_a_gap(relay: Relay, key: str) -> None:
    sent = [relay.notify(key, str(n)).json()["id"] for n in range(7)]
    assert [page["id"] for page in listed(relay, key, "limit=3")] == sent[
        4:
    ]  # the last ones, when nothing else is said
    seen, since = [], "0"
    while portion := listed(relay, key, f"limit=3&since={since}"):
        seen += [page["id"] for page in portion]
        since = seen[-1]
    assert seen == sent


def test_portions_can_be_had_from_the_last_to_the_first_too(relay: Relay, key: str) -> None:
    sent = [relay.notify(key, str(n)).json()["id"] for n in range(7)]
    seen: list[str] = []
    before = ""
    while portion := listed(relay, key, f"limit=3{before}"):
        seen = [page["id"] for page in portion] + seen
        before = f"&before={seen[0]}"
    assert seen == sent
    assert listed(relay, key, "before=0") == []


def test_pages_in_any_state_are_listed_together_each_with_its_own(relay: Relay, key: str) -> None:
    gone = dead(relay, key)
    archived, leased, waiting = (relay.notify(key, str(n)).json()["id"] for n in range(3))
    scheduled = relay.notify(key, headers={"Pager-Delay": "1h"}).json()["id"]
    relay.lease(key, "lease=60&max=2")
    acknowledge(relay, key, archived)
    shown = [(page["id"], page["state"]) for page in listed(relay, key, "state=any")]
    in_order = [(gone, "dead"), (archived, "archived"), (leased, "leased"), (waiting, "waiting")]
    assert shown == [*in_order, (scheduled, "scheduled")]
    assert [page["id"] for page in listed(relay, key, f"state=any&limit=2&before={waiting}")] == [archived, leased]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "since=x", "since=-1", "since=" + "9" * 17]
    + ["before=x", "before=-1", "before=" + "9" * 17, "since=0&before=1"],
)
def test_a_portion_that_makes_no_sense_is_refused(relay: Relay, key: str, query: str) -> None:
    answer = relay.with_key(key, "GET", f"/pages?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")


@pytest.mark.parametrize("state", ["", "new", "../../etc", "WAITING", "ANY", "any,dead"])
def test_a_state_that_is_none_is_not_found(relay: Relay, key: str, state: str) -> None:
    answer = relay.with_key(key, "GET", "/pages", params={"state": state})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_state")
    assert "waiting, leased, scheduled, archived, dead" in answer.json()["error"]["hint"]


def test_a_dead_file_that_is_no_page_is_listed_with_the_reason(relay: Relay, key: str) -> None:
    relay.notify(key)
    os.rename(_file(relay, "broken.json", "{oops"), relay.new(key) / "broken.json")
    until(lambda: relay.lease(key, "timeout=1&max=9&lease=60") or listed(relay, key, "state=dead"))
    (page,) = until(lambda: listed(relay, key, "state=dead"))
    assert page["why"].startswith("broken.json: not JSON")
    assert "payload" not in page


def _file(relay: Relay, name: str, content: str) -> Path:
    path = relay.spool / "tmp" / name
    path.write_text(content)
    return path


# GET /mailbox


def overview(relay: Relay, key: str, query: str = "") -> dict[str, Any]:
    answer = relay.with_key(key, "GET", f"/mailbox?{query}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.fixture
def looks(relay: Relay, key: str) -> Iterator[Callable[[], Future[dict[str, Any]]]]:
    """Begins to wait for a change after what is there now; once it returns the request is on its way."""
    with ThreadPoolExecutor() as threads:

        def look() -> Future[dict[str, Any]]:
            mark = settled_mark(relay, key)
            return threads.submit(overview, relay, key, f"wait=20&mark={mark}")

        yield look


def settled_mark(relay: Relay, key: str) -> str:
    """The mark, once it stays: where folders' times are coarse it is another one a moment after a change."""
    mark, since = "", 0.0

    def stays() -> bool:
        nonlocal mark, since
        now = overview(relay, key)["mark"]
        if now != mark:
            mark, since = now, time.monotonic()
        return time.monotonic() > since + 0.15

    until(stays)
    return mark


def test_the_overview_counts_the_pages_in_each_state(relay: Relay, key: str) -> None:
    nothing = overview(relay, key)
    assert nothing.pop("mark")
    none = {"waiting": 0, "leased": 0, "scheduled": 0, "archived": 0, "dead": 0}
    assert nothing == {"number": number(key), "pages": none, "waiters": 0}
    assert not relay.new(key).exists()
    dead(relay, key)
    for n in range(4):
        relay.notify(key, str(n))
    relay.notify(key, headers={"Pager-Delay": "1h"})
    leased = relay.lease(key, "lease=60&max=2")
    acknowledge(relay, key, leased[0]["handle"])
    pages = overview(relay, key)["pages"]
    assert pages == {"waiting": 2, "leased": 1, "scheduled": 1, "archived": 1, "dead": 1}


def test_without_a_change_the_overview_waits_and_then_answers_all_the_same(relay: Relay, key: str) -> None:
    relay.notify(key)
    mark = settled_mark(relay, key)
    began = time.monotonic()
    assert overview(relay, key, f"wait=1.5&mark={mark}")["mark"] == mark
    assert time.monotonic() - began > 1.4
    began = time.monotonic()
    overview(relay, key, f"wait=30&mark={mark[::-1]}")
    overview(relay, key, "wait=30")
    overview(relay, key, f"mark={mark}")
    assert time.monotonic() - began < 10


def test_whatever_happens_to_pages_ends_the_wait(
    relay: Relay, key: str, looks: Callable[[], Future[dict[str, Any]]]
) -> None:
    told: dict[str, Any] = {}

    def comes(**expected: int) -> None:
        while expected.items() - told["pages"].items():
            began = time.monotonic()
            told.update(overview(relay, key, f"wait=20&mark={told['mark']}"))
            assert time.monotonic() - began < 10

    def happens(act: Callable[[], Any], **expected: int) -> None:
        looking = looks()
        act()
        told.update(looking.result(10))
        comes(**expected)

    relay.lease(key)  # makes the mailbox
    happens(lambda: relay.notify(key), waiting=1)
    happens(lambda: relay.notify(key, headers={"Pager-Delay": "1h"}), scheduled=1)
    leased: list[dict[str, Any]] = []
    happens(lambda: leased.extend(relay.lease(key, "lease=60")), leased=1, waiting=0)
    ids = {"ids": [leased[0]["handle"]]}
    happens(lambda: relay.with_key(key, "POST", "/extend", json={**ids, "lease": 600}), leased=1)
    happens(lambda: relay.with_key(key, "POST", "/release", json=ids), leased=0, waiting=1)
    happens(lambda: relay.lease(key, "lease=1.5"), leased=1)
    comes(leased=0, waiting=1)  # the lease ran out
    happens(lambda: relay.lease(key, "lease=0&timeout=0"), waiting=0, archived=1)
    happens(lambda: os.rename(_file(relay, "x.json", "{}"), relay.new(key) / "x.json"), waiting=1)
    happens(lambda: [path.unlink() for path in relay.new(key).iterdir()], waiting=0)


def test_who_only_looks_takes_no_page_and_is_nobody_who_waits_for_one(
    relay: Relay, key: str, looks: Callable[[], Future[dict[str, Any]]]
) -> None:
    relay.notify(key)
    relay.lease(key, "lease=0")
    looking = looks()
    until(lambda: relay.notify(key, headers={"Pager-Run": "x"}, data="").json()["last_read"])
    assert relay.waiters(key) == 0
    taking = relay.start_waiting(key)
    assert looking.result(5)["waiters"] == 1  # that somebody waits is a change, too
    looking = looks()
    sent = relay.notify(key).json()
    assert sent["waiters"] == 1
    assert taking.result(2).json()["id"] == sent["id"]
    assert looking.result(5)["number"] == number(key)


def test_the_page_is_the_readers_however_many_look(relay: Relay, key: str) -> None:
    relay.notify(key)
    relay.lease(key, "lease=0")
    mark = settled_mark(relay, key)
    with ThreadPoolExecutor() as threads:
        looking = [threads.submit(overview, relay, key, f"wait=20&mark={mark}") for _ in range(5)]
        taking = threads.submit(relay.lease, key, "timeout=20&lease=60")
        id = relay.notify(key).json()["id"]
        assert [page["id"] for page in taking.result(5)] == [id]
        assert {look.result(5)["number"] for look in looking} == {number(key)}


@pytest.mark.parametrize("query", ["wait=x", "wait=-1", "wait=1&wait=2", "wait="])
def test_a_wait_that_makes_no_sense_is_refused(relay: Relay, key: str, query: str) -> None:
    answer = relay.with_key(key, "GET", f"/mailbox?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert relay.with_key(key, "GET", "/mailbox?mark=a&mark=b").json()["error"]["code"] == "ambiguous"


def test_looking_needs_the_key(relay: Relay, key: str) -> None:
    assert relay.with_key(number(key), "GET", "/mailbox?wait=5").status_code == 403
    assert relay.get("/mailbox?wait=5").status_code == 401


def test_who_looks_is_answered_when_the_relay_stops(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    relay.notify(key)
    mark = settled_mark(relay, key)
    with ThreadPoolExecutor() as threads:
        looking = threads.submit(relay.with_key, key, "GET", f"/mailbox?wait=50&mark={mark}")
        until(lambda: relay.notify(key, headers={"Pager-Run": "x"}, data="").json()["last_read"])
        assert relay.stop() == 0
        assert looking.result(5).json()["error"]["code"] == "stopping"


# Acknowledging what only waits


def test_a_person_can_be_done_with_a_page_that_nobody_has_taken(relay: Relay, key: str) -> None:
    waiting, leased = (relay.notify(key, str(n)).json()["id"] for n in range(2))
    relay.lease(key, "lease=60")
    waiting, leased = leased, waiting
    body = {"ids": [waiting, leased], "waiting": True}
    assert relay.with_key(key, "POST", "/ack", json=body).json() == {"acknowledged": [waiting, leased]}
    assert relay.state(key, waiting) == relay.state(key, leased) == "acknowledged"
    assert relay.with_key(key, "POST", "/ack", json=body).status_code == 200  # twice is fine
    assert relay.lease(key) == []


def test_without_saying_so_a_waiting_page_stays(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    for more in ({}, {"waiting": False}):
        assert relay.with_key(key, "POST", "/ack", json={"ids": [id], **more}).status_code == 409
    scheduled = relay.notify(key, headers={"Pager-Delay": "1h"}).json()["id"]
    assert relay.with_key(key, "POST", "/ack", json={"ids": [scheduled], "waiting": True}).status_code == 409
    assert relay.state(key, id) == "waiting"


@pytest.mark.parametrize("waiting", [1, "true", None, [], {}])
def test_waiting_is_true_or_false(relay: Relay, key: str, waiting: Any) -> None:
    id = relay.notify(key).json()["id"]
    answer = relay.with_key(key, "POST", "/ack", json={"ids": [id], "waiting": waiting})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert relay.state(key, id) == "waiting"


# Receipts


def test_a_receipt_follows_the_page_and_needs_the_number_alone(relay: Relay, key: str) -> None:
    box = number(key)
    id = relay.notify(box).json()["id"]
    receipt = relay.receipt(box, id)
    assert receipt.pop("created_at").endswith("Z")
    assert receipt == {"id": id, "state": "waiting", "attempt": 1}
    relay.lease(key, "lease=0.1")
    assert relay.receipt(box, id)["state"] == "leased"
    until(lambda: relay.receipt(box, id)["state"] == "waiting")
    (page,) = relay.lease(key)
    receipt = relay.receipt(box, id)
    assert (receipt["state"], receipt["attempt"]) == ("leased", 2)
    acknowledge(relay, key, page["handle"])
    receipt = relay.receipt(box, id)
    assert (receipt["state"], receipt["outcome"], receipt["attempt"]) == ("archived", "acknowledged", 2)
    assert re.fullmatch(r"20[0-9-]{8}T[0-9:.]{15}Z", receipt["archived_at"])
    assert "payload" not in receipt


def test_a_receipt_can_be_had_while_the_page_moves(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    statuses: set[int] = set()
    moved = threading.Event()

    def ask() -> None:
        while not moved.is_set():
            statuses.add(relay.with_key(number(key), "GET", f"/receipts/{id}").status_code)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for _ in range(200):
        (page,) = relay.get(f"/mailboxes/{key}/messages").json()["messages"] or [None]
        box, leased = relay.new(key), relay.spool / "leased" / number(key)
        os.rename(box / f"{page['id']}.json", leased / f"{page['id']}.json")
        os.rename(leased / f"{page['id']}.json", box / f"{page['id']}.json")
    moved.set()
    for asker in askers:
        asker.join()
    assert statuses == {200}


@pytest.mark.parametrize("id", ["1000000000000000", "x", "1", "1" * 17, "1000000000000000.0", "..%2f..%2fFORMAT"])
def test_a_receipt_for_a_page_that_never_was_is_not_found(relay: Relay, key: str, id: str) -> None:
    answer = relay.with_key(key, "GET", f"/receipts/{id}")
    assert answer.status_code == 404
    assert answer.json()["error"]["hint"]


def test_a_page_in_another_mailbox_is_not_found(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    assert relay.with_key(number(new_key()), "GET", f"/receipts/{id}").status_code == 404


def test_asking_for_mailboxes_that_do_not_exist_makes_nothing(relay: Relay) -> None:
    stranger = new_key()
    before = set(relay.spool.rglob("*"))
    relay.with_key(stranger, "GET", "/receipts/1000000000000000")
    relay.with_key(stranger, "GET", "/pages?state=dead")
    relay.get(f"/mailboxes/{stranger}/messages")
    assert {path for path in set(relay.spool.rglob("*")) - before if number(stranger) in str(path)} == set()


# Replay


def test_a_copy_of_an_archived_or_dead_page_waits_again(relay: Relay, key: str) -> None:
    gone = dead(relay, key)
    archived = relay.notify(key, json={"n": 1.5, "deep": [{"a": "é"}]}).json()["id"]
    relay.lease(key)
    acknowledge(relay, key, archived)
    answer = replay(relay, key, archived, gone)
    assert answer.status_code == 200
    copies = answer.json()["replayed"]
    assert [copy["replay_of"] for copy in copies] == [archived, gone]
    first, second = relay.lease(key, "max=9&lease=60")
    assert [first["id"], second["id"]] == [copy["id"] for copy in copies]
    assert first["payload"] == {"n": 1.5, "deep": [{"a": "é"}]}
    assert (first["attempt"], first["replay_of"], first["age_seconds"]) == (1, archived, 0)
    assert relay.receipt(key, archived)["state"] == "archived"  # the original stays where it is


def test_a_page_named_several_times_is_replayed_once(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.lease(key)
    acknowledge(relay, key, id)
    assert len(replay(relay, key, id, f"{id}.2", id, f"{id}.7").json()["replayed"]) == 1


def test_a_replay_wakes_who_waits(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.lease(key)
    acknowledge(relay, key, id)
    waiting = relay.start_waiting(key)
    replay(relay, key, id)
    assert waiting.result(1.5).json()["replay_of"] == id


@pytest.mark.parametrize("state", ["waiting", "leased", "scheduled"])
def test_a_page_that_has_not_ended_cannot_be_replayed(relay: Relay, key: str, state: str) -> None:
    id = relay.notify(key, headers={"Pager-Delay": "1h"} if state == "scheduled" else {}).json()["id"]
    if state == "leased":
        relay.lease(key)
    answer = replay(relay, key, id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_ended")
    assert state in answer.json()["error"]["message"]


def test_a_replay_with_an_id_that_never_was_replays_none(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.lease(key)
    acknowledge(relay, key, id)
    assert replay(relay, key, id, "1000000000000000").status_code == 404
    assert relay.lease(key) == []


def test_what_is_no_page_cannot_be_replayed(relay: Relay, key: str) -> None:
    relay.notify(key)
    os.rename(_file(relay, "broken.json", "{oops"), relay.new(key) / "broken.json")
    relay.lease(key, "timeout=1&lease=60")
    (page,) = until(lambda: relay.lease(key, "lease=60&timeout=0") or listed(relay, key, "state=dead"))
    answer = replay(relay, key, page["id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_page")


def test_a_replay_into_a_full_mailbox_says_what_it_did(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=2)
    ids = []
    for n in range(3):
        ids.append(relay.notify(key, str(n)).json()["id"])
        relay.lease(key)
        acknowledge(relay, key, ids[-1])
    answer = replay(relay, key, *ids)
    assert answer.status_code == 429
    assert [one["replay_of"] for one in answer.json()["replayed"]] == ids[:2]


# Stale, and last read


@pytest.mark.parametrize(("age", "stale"), [(890, False), (910, True)])
def test_a_page_older_than_a_quarter_of_an_hour_is_marked_stale_everywhere(
    relay: Relay, key: str, age: int, stale: bool
) -> None:
    id = relay.notify(key).json()["id"]
    path = relay.new(key) / f"{id}.json"
    page = json.loads(path.read_text())
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
    path.write_text(json.dumps({**page, "created_at": moment}))
    (waiting,) = relay.get(f"/mailboxes/{key}/messages").json()["messages"]
    shown = [waiting, listed(relay, key)[0], relay.lease(key, "lease=60")[0], listed(relay, key, "state=leased")[0]]
    relay.with_key(key, "POST", "/release", json={"ids": [id]})
    shown.append(relay.post(f"/mailboxes/{key}/consume").json()["message"])
    assert [page["stale"] for page in shown] == [stale] * 5
    assert all(age <= page["age_seconds"] < age + 60 for page in shown)


def test_when_a_mailbox_was_last_read_outlives_the_relay(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    assert relay.notify(key).json()["last_read"] is None
    relay.lease(key)
    read = relay.notify(key).json()["last_read"]
    assert read is not None
    relay.stop()
    noted = start_relay().notify(key).json()["last_read"]
    assert abs(datetime.fromisoformat(noted) - datetime.fromisoformat(read)) <= timedelta(seconds=10)
