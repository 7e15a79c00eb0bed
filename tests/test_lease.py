"""GET /wait, and what becomes of a leased page: POST /ack, /release, /extend, or nothing until the lease runs out."""

import concurrent.futures
import datetime
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Relay, new_key, number, until


def ids(relay: Relay, key: str, path: str, handles: list[str], **more: Any) -> Any:
    return relay.with_key(key, "POST", path, json={"ids": handles, **more})


def seconds_until(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp() - time.time()


# GET /wait


def test_a_page_comes_wrapped_so_that_the_senders_fields_hide_nothing(relay: Relay, key: str) -> None:
    id = relay.notify(key, json={"id": "mine", "stale": "no", "message": "done"}).json()["id"]
    (page,) = relay.lease(key)
    assert 59 < seconds_until(page.pop("lease_expires_at")) < 61
    assert page.pop("created_at").endswith("Z")
    assert page == {
        "id": id,
        "handle": id,
        "age_seconds": 0,
        "stale": False,
        "attempt": 1,
        "payload": {"id": "mine", "stale": "no", "message": "done"},
    }
    assert [path.name for path in (relay.spool / "leased" / number(key)).iterdir()] == [f"{id}.json"]


def test_without_a_lease_a_page_is_taken_when_it_was_handed_over(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    (page,) = relay.lease(key, "")
    assert page["lease_expires_at"] is None
    until(lambda: relay.archived(key))
    assert relay.receipt(key, id)["outcome"] == "acknowledged"


def test_a_wait_ends_with_an_empty_list_when_its_time_is_over(relay: Relay, key: str) -> None:
    began = time.monotonic()
    answer = relay.with_key(key, "GET", "/wait?timeout=0.5")
    assert 0.4 < time.monotonic() - began < 5
    assert (answer.status_code, answer.json()) == (200, {"pages": []})
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_page_that_comes_wakes_the_wait(relay: Relay, key: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(relay.lease, key, "timeout=30&lease=5")
        until(lambda: relay.new(key).is_dir())
        id = relay.notify(key).json()["id"]
        assert [page["id"] for page in waiting.result(5)] == [id]


def test_up_to_max_pages_come_at_once_oldest_first_and_the_rest_waits(relay: Relay, key: str) -> None:
    sent = [relay.notify(key, str(n)).json()["id"] for n in range(5)]
    assert [page["id"] for page in relay.lease(key, "max=3&lease=60")] == sent[:3]
    assert [page["id"] for page in relay.lease(key, "max=100&lease=60")] == sent[3:]
    assert relay.lease(key, "max=100&lease=60&timeout=0") == []


def test_pages_older_than_max_age_go_to_the_archive_unread(relay: Relay, key: str) -> None:
    old = relay.notify(key).json()["id"]
    until(lambda: relay.with_key(key, "GET", "/pages").json()["pages"][0]["age_seconds"] >= 1)
    young = relay.notify(key).json()["id"]
    assert [page["id"] for page in relay.lease(key, "max_age_seconds=0&lease=60&max=5")] == [young]
    assert relay.receipt(key, old)["outcome"] == "expired"


def test_a_timeout_that_is_too_long_is_clamped_and_said(relay: Relay, key: str) -> None:
    relay.notify(key)
    assert relay.with_key(key, "GET", "/wait?timeout=3600").json()["timeout"] == 300
    relay.notify(key)
    assert "timeout" not in relay.with_key(key, "GET", "/wait?timeout=300").json()


@pytest.mark.parametrize(
    "query",
    ["timeout=-1", "timeout=x", "timeout=nan", "timeout=1&timeout=2", "max=0", "max=101", "max=1.5", "lease=-1"]
    + ["lease=43201", "lease=inf", "max_age_seconds=-1", "ack=x", "ack=1795966550281088.0", "ack=" + "1" * 17],
)
def test_a_parameter_that_makes_no_sense_is_refused(relay: Relay, key: str, query: str) -> None:
    answer = relay.with_key(key, "GET", f"/wait?timeout=0&{query}" if "timeout" not in query else f"/wait?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert "as in" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/wait"), ("POST", "/ack"), ("POST", "/release"), ("POST", "/extend"), ("GET", "/pages")]
    + [("POST", "/replay"), ("GET", "/receipts/1795966550281088")],
)
def test_a_key_is_needed_in_the_header(relay: Relay, key: str, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp5"}):
        answer = relay.get(path, headers=headers) if method == "GET" else relay.post(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    if "receipts" not in path:
        assert relay.with_key(number(key), method, path).status_code == 403


def test_head_takes_nothing(relay: Relay, key: str) -> None:
    relay.notify(key)
    assert relay.with_key(key, "HEAD", "/wait").status_code == 405
    assert len(list(relay.new(key).iterdir())) == 1


# Acknowledging


def test_an_acknowledged_page_is_in_the_archive_and_comes_no_more(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    (page,) = relay.lease(key)
    assert ids(relay, key, "/ack", [page["handle"]]).json() == {"acknowledged": [id]}
    assert [path.name for path in relay.archived(key)] == [f"{id}.json"]
    assert relay.lease(key) == []


def test_acknowledging_twice_is_fine(relay: Relay, key: str) -> None:
    relay.notify(key)
    handle = relay.lease(key)[0]["handle"]
    for _ in range(3):
        answer = ids(relay, key, "/ack", [handle, handle])
        assert (answer.status_code, answer.json()) == (200, {"acknowledged": [handle]})


def test_the_next_wait_can_acknowledge_first(relay: Relay, key: str) -> None:
    sent = [relay.notify(key, str(n)).json()["id"] for n in range(4)]
    relay.lease(key, "lease=60&max=2")
    assert [page["id"] for page in relay.lease(key, f"lease=60&ack={sent[0]},{sent[1]}")] == [sent[2]]
    relay.lease(key, f"lease=60&ack={sent[2]}&ack={sent[0]}")
    assert [path.stem for path in relay.archived(key)] == sent[:3]


def test_acknowledging_what_somebody_else_now_holds_is_refused_and_does_not_touch_it(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    assert relay.lease(key, "lease=0.1")[0]["handle"] == id
    (again,) = relay.lease(key, "lease=60&timeout=20")
    assert (again["id"], again["handle"], again["attempt"]) == (id, f"{id}.2", 2)
    for path in ("/ack", "/release", "/extend"):
        answer = ids(relay, key, path, [id])
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_leased")
        assert answer.json()["refused"] == [{"id": id, "state": "leased", "handle": f"{id}.2"}]
        assert f"leased as {id}.2" in answer.json()["error"]["message"]
    assert ids(relay, key, "/ack", [f"{id}.2"]).status_code == 200
    assert ids(relay, key, "/ack", [id]).status_code == 409  # it was acknowledged under another handle


def test_of_several_pages_those_that_can_be_are_acknowledged_and_the_others_are_named(relay: Relay, key: str) -> None:
    sent = [relay.notify(key, str(n)).json()["id"] for n in range(3)]
    relay.lease(key, "lease=60&max=2")
    answer = ids(relay, key, "/ack", [*sent, "1000000000000000"])
    assert answer.status_code == 409
    assert answer.json()["acknowledged"] == sent[:2]
    waiting = {"id": sent[2], "state": "waiting", "handle": sent[2]}
    assert answer.json()["refused"] == [waiting, {"id": "1000000000000000", "state": None}]
    assert len(relay.archived(key)) == 2


def test_a_page_that_never_was_is_not_found(relay: Relay, key: str) -> None:
    relay.notify(key)
    id = relay.lease(key)[0]["id"]
    answer = ids(relay, key, "/ack", ["1000000000000000", id])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_page")
    assert answer.json()["acknowledged"] == [id]
    stranger = ids(relay, new_key(), "/ack", [id])
    assert stranger.status_code == 404


@pytest.mark.parametrize("path", ["/ack", "/release", "/extend", "/replay"])
@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "bad_json"), (b"[]", "bad_json"), (b'{"ids":', "bad_json"), (b'"\xff"', "not_utf8")]
    + [(b"{}", "bad_parameter"), (b'{"ids":[]}', "bad_parameter"), (b'{"ids":"1795966550281088"}', "bad_parameter")]
    + [(b'{"ids":[1795966550281088]}', "bad_parameter"), (b'{"ids":["../../etc/passwd"]}', "bad_parameter")]
    + [(b'{"ids":[{}]}', "bad_parameter"), (b'{"ids":[["a"]]}', "bad_parameter"), (b'{"ids":[null]}', "bad_parameter")]
    + [(json.dumps({"ids": ["1795966550281088"] * 101}).encode(), "bad_parameter")],
)
def test_a_body_that_names_no_pages_is_refused(relay: Relay, key: str, path: str, body: bytes, code: str) -> None:
    answer = relay.with_key(key, "POST", path, data=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert "ids" in answer.json()["error"]["hint"]


def test_the_hint_fits_what_happened(relay: Relay, key: str) -> None:
    never_leased = relay.notify(key).json()["id"]
    assert "lease it first" in ids(relay, key, "/ack", [never_leased]).json()["error"]["hint"]
    relay.lease(key, "lease=0.1")
    until(lambda: relay.receipt(key, never_leased)["attempt"] == 2)
    assert "ran out" in ids(relay, key, "/ack", [never_leased]).json()["error"]["hint"]


# Releasing


def test_a_released_page_waits_again_at_once_and_wakes_who_waits(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.lease(key)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(relay.lease, key, "timeout=30&lease=5")
        until(lambda: relay.notify(key, headers={"Pager-Delay": "1h"}).json()["waiters"])
        assert ids(relay, key, "/release", [id]).json() == {"released": [id]}
        (page,) = waiting.result(1.5)
    assert (page["handle"], page["attempt"]) == (f"{id}.2", 2)


def test_a_page_can_be_released_for_later(relay: Relay, key: str) -> None:
    id = relay.notify(key).json()["id"]
    relay.lease(key)
    assert ids(relay, key, "/release", [id], delay=1.5).status_code == 200
    assert relay.receipt(key, id)["state"] == "scheduled"
    began = time.monotonic()
    (page,) = relay.lease(key, "timeout=20&lease=5")
    assert 1 < time.monotonic() - began < 3
    assert page["handle"] == f"{id}.2"


def test_a_page_that_fails_again_and_again_blocks_nobody_and_is_dead_in_the_end(relay: Relay, key: str) -> None:
    poison = relay.notify(key, "poison").json()["id"]
    others = [relay.notify(key, str(n)).json()["id"] for n in range(3)]
    seen = []
    while pages := relay.lease(key):
        (page,) = pages
        seen.append(page["handle"])
        ids(relay, key, "/release" if page["id"] == poison else "/ack", [page["handle"]])
    assert seen == [poison, *others, *(f"{poison}.{n}" for n in range(2, 6))]
    receipt = relay.receipt(number(key), poison)
    assert (receipt["state"], receipt["attempt"]) == ("dead", 5)
    assert receipt["why"] == "handed out 5 times and never acknowledged"


def test_a_page_released_for_later_waits_its_turn_from_then_and_not_from_the_end_of_its_lease(
    relay: Relay, key: str
) -> None:
    released = relay.notify(key, "released").json()["id"]
    relay.lease(key, "lease=3600")
    ids(relay, key, "/release", [released], delay=0.2)
    until(lambda: relay.receipt(key, released)["state"] == "waiting")
    later = relay.notify(key, "later").json()["id"]
    assert [page["id"] for page in relay.lease(key, "max=9&lease=60")] == [released, later]


@pytest.mark.parametrize("path", ["/ack", "/release", "/extend"])
def test_naming_pages_that_are_not_there_leaves_nothing_behind(relay: Relay, path: str) -> None:
    stranger = new_key()
    assert ids(relay, stranger, path, ["0000000000000000.5", "1000000000000000.999999"]).status_code == 404
    assert [place for place in relay.spool.rglob("*") if number(stranger) in str(place)] == []


@pytest.mark.parametrize("call", ["/ack", "/wait", "/pages", "/receipts"])
def test_an_error_never_repeats_a_key(relay: Relay, key: str, call: str) -> None:
    path = {"/wait": f"/wait?ack={key}", "/pages": f"/pages?since=x{key}", "/receipts": f"/receipts/{key}"}.get(call)
    answer = relay.with_key(key, "GET", path) if path else ids(relay, key, call, [f"junk {key}"])
    assert 400 <= answer.status_code < 500
    assert key[9:] not in answer.text


@pytest.mark.parametrize("delay", [-1, "5", None, True, 1e9, [1]])
def test_a_delay_that_makes_no_sense_is_refused_and_the_page_stays_leased(relay: Relay, key: str, delay: Any) -> None:
    relay.notify(key)
    (page,) = relay.lease(key)
    answer = ids(relay, key, "/release", [page["handle"]], delay=delay)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert relay.receipt(key, page["id"])["state"] == "leased"


# Extending, and running out


def test_an_extended_lease_lasts_longer(relay: Relay, key: str) -> None:
    relay.notify(key)
    (page,) = relay.lease(key, "lease=1.5")
    answer = ids(relay, key, "/extend", [page["handle"]], lease=4)
    assert answer.json()["extended"] == [page["handle"]]
    assert 3 < seconds_until(answer.json()["lease_expires_at"]) < 4.1
    assert relay.lease(key, "timeout=3&lease=60") == []
    assert relay.lease(key, "timeout=20&lease=60")[0]["attempt"] == 2


@pytest.mark.parametrize("lease", [0, -1, 43201, "60", None, False])
def test_a_lease_that_makes_no_sense_is_refused(relay: Relay, key: str, lease: Any) -> None:
    relay.notify(key)
    (page,) = relay.lease(key)
    assert ids(relay, key, "/extend", [page["handle"]], lease=lease).status_code == 400


def test_a_lease_that_runs_out_rings_at_that_moment(relay: Relay, key: str) -> None:
    relay.notify(key)
    relay.lease(key, "lease=1")
    began = time.monotonic()
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert 0.5 < time.monotonic() - began < 1.5
    assert page["attempt"] == 2


def test_a_lease_outlives_the_relay(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    id = relay.notify(key).json()["id"]
    relay.lease(key, "lease=60")
    relay.stop()
    relay = start_relay()
    assert relay.lease(key) == []
    assert ids(relay, key, "/ack", [id]).status_code == 200


def test_pages_that_a_client_did_not_live_to_receive_wait_as_they_were(relay: Relay, key: str) -> None:
    # more than the system takes for a client who does not read (4 MB)
    sent = [relay.notify(key, "x" * 60000).json()["id"] for _ in range(100)]
    connection = relay.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"GET /wait?lease=3600&max=100 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
    connection.sendall(head.encode())
    connection.recv(1000)
    assert len(list((relay.spool / "leased" / number(key)).iterdir())) == 100
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    until(lambda: len(list(relay.new(key).iterdir())) == 100)
    assert [page["handle"] for page in relay.lease(key, "max=100&lease=60")] == sent


def test_a_long_wait_keeps_the_connection_alive_by_white_space(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    with relay.connect() as connection:
        head = f"GET /wait?timeout=60&lease=9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}"
        connection.sendall(f"{head}\r\n\r\n".encode())
        began = time.monotonic()
        came = connection.recv(65536)
        assert 18 < time.monotonic() - began < 25
        assert b"Transfer-Encoding: chunked" in came
        id = relay.notify(key).json()["id"]
        came += b"".join(iter(lambda: connection.recv(65536), b""))
    chunks = came.partition(b"\r\n\r\n")[2].split(b"\r\n")
    assert chunks[:2] == [b"1", b" "]
    assert json.loads(chunks[-4])["pages"][0]["id"] == id
    assert relay.receipt(key, id)["state"] == "leased"
