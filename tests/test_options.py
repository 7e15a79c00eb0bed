"""How a page can be sent: later, until some time, instead of another; and options that make no sense."""

import json
import os
import threading
import time
from collections.abc import Callable

import pytest
import requests
from conftest import Relay, new_key, number, until

from pagermcp.spool import Options, Spool
from pagermcp.spool import send as deliver


def send(relay: Relay, address: str, body: str = "hello", **options: str) -> requests.Response:
    """Options by header: pager_delay is Pager-Delay."""
    return relay.notify(address, body, headers={name.replace("_", "-"): value for name, value in options.items()})


def taken(relay: Relay, key: str) -> list[str]:
    return [page["payload"]["message"] for page in relay.lease(key, "max=100&lease=60&timeout=0")]


# Delay


def test_a_delayed_page_waits_when_its_time_has_come_and_rings(relay: Relay, key: str) -> None:
    accepted = send(relay, key, Pager_Delay="1").json()
    assert accepted["queued"] == 0
    assert relay.receipt(number(key), accepted["id"])["state"] == "scheduled"
    assert relay.lease(key) == []
    began = time.monotonic()
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert 0.5 < time.monotonic() - began < 1.6
    assert page["id"] == accepted["id"]
    assert page["due_at"] == accepted["due_at"]
    assert (page["age_seconds"], page["attempt"]) == (0, 1)  # it ages from when it was due


def test_a_delayed_page_is_a_file_that_ls_shows_by_its_time(relay: Relay, key: str) -> None:
    ids = [send(relay, key, Pager_Delay=delay).json()["id"] for delay in ("2h", "90s", "1d", "30m")]
    files = sorted(path.name for path in (relay.spool / "scheduled").glob(f"*-{number(key)}-*"))
    assert [name.split("-")[-1] for name in files] == [f"{ids[n]}.json" for n in (1, 3, 0, 2)]
    expected = [90, 1800, 7200, 86400]
    for name, seconds in zip(files, expected, strict=True):
        assert abs(int(name[:16]) / 1e6 - time.time() - seconds) < 5


def test_no_delay_is_no_delay(relay: Relay, key: str) -> None:
    accepted = send(relay, key, Pager_Delay="0").json()
    assert "due_at" not in accepted
    assert len(relay.lease(key)) == 1


def test_a_delayed_page_survives_a_restart_and_one_that_is_overdue_comes_at_once(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay()
    ids = [send(relay, key, Pager_Delay=delay).json()["id"] for delay in ("1", "1h", "4")]
    relay.stop()
    until(lambda: time.time() > int(ids[0]) / 1e6 + 1)
    relay = start_relay()
    assert [page["id"] for page in relay.lease(key, "timeout=5&lease=60")] == [ids[0]]
    assert [page["id"] for page in relay.lease(key, "timeout=20&lease=60")] == [ids[2]]
    assert relay.receipt(key, ids[1])["state"] == "scheduled"


def test_scheduled_pages_count_towards_the_limit(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=3)
    assert [send(relay, key, Pager_Delay="1h").status_code for _ in range(4)] == [202, 202, 202, 429]
    relay.stop()
    assert send(start_relay(MAX_MESSAGES_PER_MAILBOX=3), key).status_code == 429


def test_what_another_process_scheduled_comes_due_here_when_that_one_is_gone(spool: Spool) -> None:
    box = number(new_key())
    other = Spool(spool.root, worker=1).mailbox(box)
    due = other.schedule("{}", 0.01)
    assert spool.come_due() == set()  # not known here
    spool.schedule.refresh()
    until(lambda: spool.come_due() == {box})
    page = spool.mailbox(box).claim(60)
    assert page is not None
    assert page.name == due.page
    assert spool.schedule.count(box) == 0


def test_what_was_removed_by_hand_is_scheduled_no_more(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    due = box.schedule("{}", 60)
    assert (box.size(), len(spool.agenda)) == (1, 1)
    os.unlink(spool.path("scheduled", due.file))
    spool.schedule.refresh()
    assert (box.size(), len(spool.agenda)) == (0, 0)


# Expires


def test_a_page_that_nobody_took_in_time_is_archived_as_expired(relay: Relay, key: str) -> None:
    id = send(relay, key, Pager_Expires="1").json()["id"]
    kept = send(relay, key, Pager_Expires="1h").json()["id"]
    assert [page["id"] for page in relay.with_key(key, "GET", "/pages").json()["pages"]] == [id, kept]
    (path,) = until(lambda: relay.archived(key), 5)  # by itself, though nobody reads
    assert path.name == f"{id}.expired.json"
    assert relay.receipt(key, id)["outcome"] == "expired"
    assert [page["id"] for page in relay.lease(key, "lease=60&max=5")] == [kept]


def test_a_page_that_is_being_read_does_not_expire(relay: Relay, key: str) -> None:
    id = send(relay, key, Pager_Expires="1").json()["id"]
    relay.lease(key, "lease=60")
    until(lambda: time.time() > int(id) / 1e6 + 1.2)
    assert relay.with_key(key, "POST", "/ack", json={"ids": [id]}).status_code == 200


def test_a_page_that_expired_while_no_relay_ran_is_not_delivered(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    expired, later = send(relay, key, Pager_Expires="1").json()["id"], send(relay, key).json()["id"]
    relay.stop()
    until(lambda: time.time() > int(expired) / 1e6 + 1)
    relay = start_relay()
    assert [page["id"] for page in relay.get(f"/mailboxes/{key}/messages").json()["messages"]] == [later]
    assert relay.get(f"/mailboxes/{key}/wait").json()["id"] == later
    assert relay.receipt(key, expired)["outcome"] == "expired"


def test_expired_pages_are_not_counted_as_waiting(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    for _ in range(2):
        id = send(relay, key, Pager_Expires="1.2").json()["id"]
    relay.lease(key, "lease=0.3")  # one comes back, and expires then
    until(lambda: time.time() > int(id) / 1e6 + 1.3)
    assert until(lambda: send(relay, key).json()["queued"]) == 1
    id = send(relay, key, Pager_Expires="0.3").json()["id"]
    relay.stop()
    relay = start_relay()
    until(lambda: time.time() > int(id) / 1e6 + 0.4)
    assert send(relay, key).json()["queued"] in (2, 3)  # this is the first contact
    assert until(lambda: send(relay, key).json()["queued"]) <= 4


def test_expired_pages_keep_no_others_out(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1)
    id = send(relay, key, Pager_Expires="0.2").json()["id"]
    relay.stop()
    until(lambda: time.time() > int(id) / 1e6 + 0.2)
    assert send(start_relay(MAX_MESSAGES_PER_MAILBOX=1), key).status_code == 202


def test_the_time_to_expire_begins_when_a_delayed_page_is_due(relay: Relay, key: str) -> None:
    send(relay, key, Pager_Delay="1", Pager_Expires="30")
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert page["expires_at"] > page["due_at"]


# Replace


def test_a_waiting_page_is_replaced_by_the_newer_one_with_the_same_key(relay: Relay, key: str) -> None:
    old = send(relay, key, "10 %", Pager_Replace="progress-7f").json()["id"]
    send(relay, key, "else", Pager_Replace="other")
    send(relay, key, "plain")
    answer = send(relay, key, "20 %", Pager_Replace="progress-7f").json()
    assert answer["queued"] == 3
    assert taken(relay, key) == ["else", "plain", "20 %"]
    assert relay.receipt(key, old)["outcome"] == "replaced"
    assert [path.name for path in relay.archived(key)] == [f"{old}.replaced.json"]


def test_a_leased_page_is_never_replaced(relay: Relay, key: str) -> None:
    old = send(relay, key, "10 %", Pager_Replace="p").json()["id"]
    relay.lease(key)
    send(relay, key, "20 %", Pager_Replace="p")
    assert relay.receipt(key, old)["state"] == "leased"
    assert taken(relay, key) == ["20 %"]
    assert relay.with_key(key, "POST", "/ack", json={"ids": [old]}).status_code == 200


def test_a_delayed_page_is_replaced_too(relay: Relay, key: str) -> None:
    old = send(relay, key, "first", Pager_Replace="p", Pager_Delay="1h").json()["id"]
    send(relay, key, "second", Pager_Replace="p", Pager_Delay="1")
    assert relay.receipt(key, old)["outcome"] == "replaced"
    assert [page["payload"]["message"] for page in relay.lease(key, "timeout=20&lease=60")] == ["second"]


def test_the_key_is_kept_as_a_hash_alone(relay: Relay, key: str) -> None:
    send(relay, key, Pager_Replace="my-secret-name", Idempotency_Key="another-secret")
    files = [path for path in relay.spool.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes() or "secret" in path.name]


def test_a_full_mailbox_takes_a_page_that_replaces_one(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=2)
    send(relay, key, "a", Pager_Replace="p")
    send(relay, key, "b")
    assert send(relay, key, "c").status_code == 429
    assert send(relay, key, "d", Pager_Replace="q").status_code == 429
    assert send(relay, key, "e", Pager_Replace="p").status_code == 202
    assert taken(relay, key) == ["b", "e"]


def test_a_page_that_comes_due_while_it_is_replaced_is_replaced(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    stopped = threading.Event()

    def sweep() -> None:
        while not stopped.is_set():
            spool.come_due()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    for n in range(100):
        for delay in (0.002, 0):
            deliver(spool, box, "{}", Options(replace=f"r{n}", delay=delay))
            stopped.wait(0.0015)
    until(lambda: not spool.schedule.of(box.number))
    stopped.set()
    sweeper.join()
    keys = [page.extra["replace"] for page in box.waiting()]
    assert len(keys) == len(set(keys)) == 100


def test_what_is_remembered_of_pages_goes_with_them(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    for _ in range(5):
        id = deliver(spool, box, "{}", Options(expires=3600)).id
        page = box.claim(60)
        assert page is not None
        assert box.acknowledge(page.name)
        assert not box.lease(page.name, 60)
        assert not box.release(page.name)
        assert not box.acknowledge(page.name)
    id = deliver(spool, box, "{}", Options(expires=0.01)).id
    os.unlink(spool.path("new", box.number, f"{id}.json"))
    until(lambda: len(spool.agenda) == 0 or spool.come_due())
    assert (len(spool.agenda), box._expiring, box._lease_marks) == (0, {}, {})


# All of them


def test_options_can_be_in_the_query(relay: Relay, key: str) -> None:
    answer = relay.post(f"/to/{number(key)}?delay=1h&expires=2h&replace=x&idempotency_key=once&pretty=1", "hi").json()
    assert relay.post(f"/to/{number(key)}?Idempotency-Key=once", "hi").json()["id"] == answer["id"]
    (page,) = relay.with_key(key, "GET", "/pages?state=scheduled").json()["pages"]
    assert page["id"] == answer["id"]
    assert relay.notify(key, headers={"Pager-Delay": "1h"}).json()["due_at"]


@pytest.mark.parametrize("value", ["", "x", "-1", "1w", "1 h", "1h30m", "inf", "nan", "1e3", "366d", "٣"])
@pytest.mark.parametrize("name", ["delay", "expires", "expect"])
def test_a_time_that_makes_no_sense_is_refused_and_nothing_delivered(
    relay: Relay, key: str, name: str, value: str
) -> None:
    answer = relay.post(f"/to/{number(key)}", "hi", params={name: value, **({"run": "r"} if name == "expect" else {})})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_option")
    assert "30m" in answer.json()["error"]["hint"]
    assert relay.lease(key) == []


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Pager-Expires": "0"}, "expires must be a time"),
        ({"Pager-Run": "r", "Pager-Expect": "0"}, "expect must be a time"),
        ({"Pager-Run": "r", "Pager-Expect": "31d"}, "at most 30d"),
        ({"Pager-Expect": "30m"}, "needs a run"),
        ({"Pager-Run": "r", "Pager-Delay": "30m"}, "can't be delayed"),
        ({"Pager-Run": ""}, "run must have 1 to 255 characters"),
        ({"Pager-Replace": "x" * 256}, "replace must have"),
        ({"Idempotency-Key": ""}, "idempotency-key must have"),
        ({"Pager-Dealy": "30m"}, "Pager-Dealy is no option"),
        ({"Pager-Run": b"\xff"}, "not UTF-8"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    relay: Relay, key: str, headers: dict[str, str | bytes], message: str
) -> None:
    answer = relay.notify(key, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_option")
    assert message in answer.json()["error"]["message"]
    assert relay.with_key(key, "GET", "/pages?state=scheduled").json()["pages"] == []


@pytest.mark.parametrize("name", ["Idempotency-Key", "Pager-Delay", "Pager-Replace", "Pager-Run"])
def test_an_option_given_twice_is_refused(relay: Relay, key: str, name: str) -> None:
    box = number(key)
    plain = name.removeprefix("Pager-").lower()
    twice = f"POST /to/{box} HTTP/1.1\r\nHost: x\r\n{name}: 1\r\n{name}: 2\r\nContent-Length: 0\r\n"
    both = f"POST /to/{box}?{plain}=1 HTTP/1.1\r\nHost: x\r\n{name}: 1\r\nContent-Length: 0\r\n"
    query = f"POST /to/{box}?{plain}=1&pager_{plain}=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
    for request in (twice, both, query):
        with relay.connect() as connection:
            connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "ambiguous"


def test_an_option_that_is_none_is_refused_in_the_query_too(relay: Relay, key: str) -> None:
    answer = relay.post(f"/to/{number(key)}?pager_dely=1h", "hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_option")
