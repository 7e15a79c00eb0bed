"""GET /mailboxes/<key>/wait: blocks until there is a page. (What takes long is in test_long_waits.)"""

import concurrent.futures
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from conftest import Relay, new_key, number, require, until

from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool
from pagermcp.spool.page import PageName
from pagermcp.waking import Switchboard, make_watcher
from pagermcp.web import create_app
from pagermcp.web.services import Services


def test_a_page_that_waits_already_is_answered_at_once(relay: Relay, key: str) -> None:
    id = relay.notify(key, json={"message": "early"}).json()["id"]
    answer = relay.get(f"/mailboxes/{key}/wait")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Pager-Id"] == id
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert (answer.json()["id"], answer.json()["message"]) == (id, "early")


def test_a_blocked_curl_prints_the_page_as_soon_as_it_is_posted(relay: Relay, key: str) -> None:
    curl = require("curl", "curl")
    with subprocess.Popen([curl, "-s", f"{relay.url}/mailboxes/{key}/wait"], stdout=subprocess.PIPE) as waiting:
        until(relay.new(key).is_dir)
        assert waiting.poll() is None
        relay.notify(key, json={"JOB_ID": "b", "exit_code": 0})
        page = json.loads(waiting.communicate(timeout=10)[0])
    assert (page["JOB_ID"], page["exit_code"]) == ("b", 0)
    until(lambda: [path.name for path in relay.archived(key)] == [f"{page['id']}.json"])


def test_pages_come_oldest_first_one_a_request(relay: Relay, key: str) -> None:
    for n in range(3):
        relay.notify(key, json={"n": n})
    assert [relay.get(f"/mailboxes/{key}/wait").json()["n"] for _ in range(3)] == [0, 1, 2]


def test_each_of_many_waiters_gets_a_page_of_its_own(relay: Relay, key: str) -> None:
    waiting = [relay.start_waiting(key) for _ in range(10)]
    ids = {relay.notify(key).json()["id"] for _ in range(10)}
    assert {one.result(20).json()["id"] for one in waiting} == ids


def bring(source: Path, mailbox: Path) -> None:
    """One by one: `mv a b c folder/` looks at each again afterwards, and complains when a reader was faster."""
    subprocess.run(["sh", "-c", 'for page in "$1"/?.json; do mv "$page" "$2"; done', "sh", source, mailbox], check=True)


def test_several_pages_brought_at_once_wake_as_many_waiters(relay: Relay, key: str, tmp_path: Path) -> None:
    waiting = [relay.start_waiting(key) for _ in range(5)]
    for n in range(5):
        (tmp_path / f"{n}.json").write_text(f'{{"n":{n}}}')
    bring(tmp_path, relay.new(key))
    assert sorted(one.result(20).json()["n"] for one in waiting) == [0, 1, 2, 3, 4]


def test_a_claim_never_delays_the_next_wake(relay: Relay, key: str, tmp_path: Path) -> None:
    """Watchdog's own observer stalls 500 ms after a rename out of a watched folder, which a claim is."""
    session = requests.Session()
    pause = 0.005
    delays = []
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        session.get(f"{relay.url}/version")
        relay.notify(key)
        session.get(f"{relay.url}/mailboxes/{key}/wait")
        for n in range(100):
            waiting = thread.submit(session.get, f"{relay.url}/mailboxes/{key}/wait", timeout=30)
            (tmp_path / "page.json").write_text(f'{{"n":{n}}}')
            concurrent.futures.wait([waiting], pause)  # the next comes 5 ms after the last was taken
            began = time.monotonic()
            os.rename(tmp_path / "page.json", relay.new(key) / f"page-{n}.json")
            assert waiting.result(30).json()["n"] == n
            delays.append(time.monotonic() - began)
    session.close()
    assert sum(delay > 0.4 for delay in delays) <= 5, sorted(delays)[-10:]


def test_pages_older_than_max_age_seconds_are_archived_and_not_delivered(relay: Relay, key: str) -> None:
    relay.new(key).mkdir()
    old = time.time() - 900
    page = {"created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(old)), "payload": {"old": True}}
    (relay.new(key) / f"{int(old * 1e6)}.json").write_text(json.dumps(page))
    waiting = relay.start_waiting(key, "?max_age_seconds=600")
    (path,) = until(lambda: relay.archived(key))
    assert path.name == f"{int(old * 1e6)}.expired.json"
    assert not waiting.done()
    relay.notify(key, json={"old": False})
    assert waiting.result(10).json()["old"] is False


def test_a_page_younger_than_max_age_seconds_is_delivered(relay: Relay, key: str) -> None:
    relay.notify(key)
    assert relay.get(f"/mailboxes/{key}/wait?max_age_seconds=0").status_code == 200


@pytest.mark.parametrize("query", ["x", "", "-1", "nan", "1&max_age_seconds=2"])
def test_a_max_age_that_is_no_number_of_seconds_is_400(relay: Relay, key: str, query: str) -> None:
    answer = relay.get(f"/mailboxes/{key}/wait?max_age_seconds={query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")


def test_head_takes_no_page(relay: Relay, key: str) -> None:
    relay.notify(key)
    answer = requests.head(f"{relay.url}/mailboxes/{key}/wait", timeout=10)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
    assert len(list(relay.new(key).iterdir())) == 1


def test_with_a_timeout_set_a_wait_ends_with_408(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(WAIT_TIMEOUT_SECONDS=0.5)
    began = time.monotonic()
    answer = relay.get(f"/mailboxes/{key}/wait")
    assert 0.5 <= time.monotonic() - began < 5
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")
    relay.notify(key)
    assert relay.get(f"/mailboxes/{key}/wait").status_code == 200


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_client_that_went_takes_no_page(relay: Relay, key: str, how: str) -> None:
    gone = relay.connect()
    gone.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    until(relay.new(key).is_dir)
    if how == "half-close":
        gone.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: gone.recv(65536), b""))
        assert answer == b"" or b'"code":"client_gone"' in answer  # as who notices first
    if how == "reset":
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    waiting = relay.start_waiting(key)
    id = relay.notify(key).json()["id"]
    assert waiting.result(10).json()["id"] == id


def test_a_client_that_went_behind_pipelined_requests_takes_no_page(relay: Relay, key: str) -> None:
    gone = relay.connect()
    gone.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    until(relay.new(key).is_dir)
    gone.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"G")
    gone.close()
    began = time.monotonic()
    until(lambda: relay.notify(key).json()["waiters"] == 0)
    assert time.monotonic() - began < 2
    assert relay.archived(key) == []


def test_a_client_that_closes_as_soon_as_it_has_the_page_has_it_once(relay: Relay, key: str) -> None:
    ids = []
    for _ in range(300):
        with relay.connect() as connection:
            connection.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if not ids:
                until(relay.new(key).is_dir)
            ids.append(relay.notify(key).json()["id"])
            answer = b""
            while not answer.endswith(b"}\n"):
                answer += connection.recv(65536)
        assert f'"id":"{ids[-1]}"'.encode() in answer
    assert relay.post(f"/mailboxes/{key}/consume").json() == {"message": None}
    until(lambda: len(relay.archived(key)) == 300)


@pytest.mark.parametrize("reads_on", [True, False])
def test_a_page_counts_as_taken_when_its_last_byte_was_handed_over(
    start_relay: Callable[..., Relay], key: str, reads_on: bool
) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=64 << 20)
    size = 30_000_000
    id = relay.notify(key, b"x" * size, headers={"Content-Type": "text/plain"}).json()["id"]
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", relay.port))
        slow.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        leased = relay.spool / "leased" / number(key) / f"{id}.json"
        until(leased.exists)
        slow.recv(1000)
        assert relay.archived(key) == []
        if reads_on:
            while slow.recv(1 << 20):
                assert leased.exists() or relay.archived(key)
    if reads_on:
        assert [path.name for path in until(lambda: relay.archived(key))] == [f"{id}.json"]
    else:
        assert len(relay.get(f"/mailboxes/{key}/wait").json()["message"]) == size


def test_hundreds_of_clients_that_went_leave_nothing_behind(relay: Relay) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{relay.process.pid}/fd"))

    before = descriptors()
    keys = [new_key() for _ in range(300)]
    connections = []
    for key in keys:
        connections.append(relay.connect())
        connections[-1].sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    until(lambda: all(relay.new(key).is_dir() for key in keys))
    for n, connection in enumerate(connections):
        if n % 3 == 1:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if n % 3 == 2:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        connection.close()
    began = time.monotonic()
    until(lambda: descriptors() <= before)
    # nobody waits any more: the answer to a page says how many do
    until(lambda: all(relay.notify(key).json()["waiters"] == 0 for key in keys[::10]))
    assert time.monotonic() - began < 3
    for key in keys[::10]:
        assert relay.get(f"/mailboxes/{key}/wait").status_code == 200


@pytest.fixture
def services(spool: Spool) -> Services:
    """What an application needs, without a server and without watching."""
    switchboard = Switchboard()
    watcher = make_watcher("off", spool, switchboard)
    janitor = Janitor(spool, switchboard.ring, switchboard.waiting)
    return Services(Settings(), spool, switchboard, watcher, janitor)


def test_a_wait_answers_under_another_server_too(services: Services, key: str) -> None:
    """The application alone, as any WSGI server would call it."""
    switchboard, client = services.switchboard, create_app(services).test_client()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.get, f"/mailboxes/{key}/wait")
        until(lambda: switchboard.waiting(number(key)))
        accepted = client.post("/notify", data="hi", headers={"Authorization": key})
        assert accepted.json is not None
        assert accepted.json["waiters"] == 1
        with waiting.result(10) as answer:
            assert answer.json is not None
            assert answer.json["message"] == "hi"
    assert switchboard.numbers() == []


def test_a_stop_that_comes_just_before_the_look_is_not_missed(services: Services, key: str) -> None:
    def stop_now() -> bool:
        services.switchboard.drain()
        return False

    client = create_app(services).test_client()
    began = time.monotonic()
    answer = client.get(f"/mailboxes/{key}/wait", environ_overrides={"waitress.client_disconnected": stop_now})
    assert answer.status_code == 503
    assert time.monotonic() - began < 10


def test_a_page_that_is_taken_while_a_person_acknowledges_it_is_acknowledged(
    services: Services, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, mailbox = create_app(services).test_client(), services.spool.mailbox(number(key))
    headers = {"Authorization": key}
    accepted = client.post("/notify", data="hi", headers=headers).json
    assert accepted is not None
    acknowledge_waiting = mailbox.acknowledge_waiting

    def too_late(name: PageName) -> bool:
        assert mailbox.claim(60)
        return acknowledge_waiting(name)

    with monkeypatch.context() as patch:
        patch.setattr(mailbox, "acknowledge_waiting", too_late)
        answer = client.post("/ack", json={"ids": [accepted["id"]], "waiting": True}, headers=headers)
    assert answer.json == {"acknowledged": [accepted["id"]]}


def test_a_wait_whose_page_cannot_be_given_back_still_gives_back_its_place(
    services: Services, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = create_app(services).test_client()
    client.post("/notify", data="hi", headers={"Authorization": key})
    answer = client.get(f"/mailboxes/{key}/wait")  # not read: as if the client had gone

    def fail(name: object) -> bool:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(services.spool.mailbox(number(key)), "withdraw", fail)
        answer.close()
    assert services.switchboard.numbers() == []


def test_without_watching_one_look_wakes_as_many_waiters_as_there_are_pages(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay(PAGERMCP_WATCH="off")
    waiting = [relay.start_waiting(key) for _ in range(5)]
    began = time.monotonic()
    for n in range(5):
        (tmp_path / f"{n}.json").write_text(f'{{"n":{n}}}')
    bring(tmp_path, relay.new(key))
    assert sorted(one.result(20).json()["n"] for one in waiting) == [0, 1, 2, 3, 4]
    assert time.monotonic() - began < 6  # and not 2 s for each
