"""What limits refuse, and how: the error, Retry-After, and a count of it. What they must not touch goes on."""

import contextlib
import http.client
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import raw
import requests
from conftest import Relay, new_key, number, require, until
from raw import Raw
from test_metrics import samples
from test_status import TOKEN, ask

PROXY = {"PAGERMCP_OPERATOR_TOKEN": TOKEN, "PAGERMCP_TRUSTED_PROXY": "127.0.0.1"}
ELSEWHERE = {"PAGERMCP_OPERATOR_TOKEN": TOKEN, "PAGERMCP_TRUSTED_PROXY": "192.0.2.1"}


def assert_refused(answer: requests.Response, status: int, code: str, after: range | None = None) -> None:
    """after: what Retry-After may say; None when waiting would not help."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert set(answer.json()["error"]) == {"code", "message", "hint"}
    assert answer.headers["Content-Type"] == "application/json"
    assert ("Retry-After" in answer.headers) == (after is not None)
    assert after is None or int(answer.headers["Retry-After"]) in after


def refusals(relay: Relay) -> dict[str, int]:
    """How many there were, of each kind of which there were any."""
    return {code: count for code, count in ask(relay).json()["refusals"].items() if count}


# Posts to one mailbox


def test_one_mailbox_gets_no_more_posts_than_it_may_have_and_others_do(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_POSTS_PER_HOUR=5)
    key, other = new_key(), new_key()
    posts = [relay.notify(address) for address in (key, number(key)) for _ in range(2)]
    posts.append(relay.post(f"/to/{number(key)}", "hello"))
    assert [post.status_code for post in posts] == [202] * 5
    refused = range(715, 721)
    assert_refused(relay.notify(key), 429, "too_many_posts", refused)
    assert_refused(relay.post(f"/to/{number(key)}", "hello"), 429, "too_many_posts", refused)
    assert len(list(relay.new(key).iterdir())) == 5
    assert relay.notify(other).status_code == 202
    assert len(relay.lease(key, "lease=60&max=9")) == 5  # who reads is not counted
    assert refusals(relay) == {"too_many_posts": 2}
    assert ask(relay).json()["pages"]["refused"] == 2
    assert samples(relay)["pagermcp_refusals_total", "too_many_posts"] == 2


def test_pages_sent_again_and_what_is_said_in_a_room_are_posts(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_POSTS_PER_HOUR=3)
    key, room = new_key(), new_key()
    ids = [relay.notify(key, str(n)).json()["id"] for n in range(2)]
    for _ in ids:
        relay.post(f"/mailboxes/{key}/consume")
    again = relay.with_key(key, "POST", "/replay", json={"ids": ids})
    assert_refused(again, 429, "too_many_posts", range(1190, 1201))
    assert [one["replay_of"] for one in again.json()["replayed"]] == ids[:1]
    said = [relay.with_key(room, "POST", "/api/messages", json={"from": "a", "body": "b"}) for _ in range(4)]
    assert [one.status_code for one in said[:3]] == [201] * 3
    assert_refused(said[3], 429, "too_many_posts", range(1190, 1201))


def test_a_key_sent_again_that_met_the_limit_brings_one_page_later(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_POSTS_PER_HOUR=2, PAGERMCP_TRUSTED_PROXY="")
    key = new_key()
    once = {"Idempotency-Key": "once"}
    assert [relay.notify(key, headers=once).status_code for _ in range(2)] == [202, 202]
    assert_refused(relay.notify(key, headers=once), 429, "too_many_posts", range(1790, 1801))
    assert len(list(relay.new(key).iterdir())) == 1


FLOOD = """
import socket, sys
port, key, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
post = f"POST /notify HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: {key}\\r\\nContent-Length: 5\\r\\n\\r\\nhello".encode()
connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
print("flooding", flush=True)
while True:
    for one in connections:
        one.sendall(post)
    for one in connections:
        one.recv(65536)
"""


@pytest.mark.parametrize(("limit", "code"), [(1000, "too_many_posts"), (36_000, "mailbox_full")])
def test_a_flooded_mailbox_does_not_slow_another(start_relay: Callable[..., Relay], limit: int, code: str) -> None:
    most = 2000 if code == "too_many_posts" else 128
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_POSTS_PER_HOUR=limit, MAX_MESSAGES_PER_MAILBOX=most)
    key = new_key()

    def took() -> float:
        """The median of the seconds that a post takes."""
        times = []
        with Raw(relay) as sender:
            for _ in range(100):
                began = time.monotonic()
                sender.notify(key)
                times.append(time.monotonic() - began)
                relay.post(f"/mailboxes/{key}/consume")
        return statistics.median(times)

    before = took()
    flood = [sys.executable, "-c", FLOOD, str(relay.port), new_key(), "100"]
    with subprocess.Popen(flood, stdout=subprocess.PIPE) as flooding:
        assert flooding.stdout is not None
        flooding.stdout.readline()
        until(lambda: refusals(relay).get(code, 0) > 100, 30)
        during = took()
        met = refusals(relay)[code]
        until(lambda: refusals(relay)[code] > met)  # it has gone on to the end
        began = time.monotonic()
        assert relay.stop() == 0
        assert time.monotonic() - began < 3.5
        flooding.kill()
    assert during < 4 * before + 0.01, (before, during)


# New mailboxes of one address

SAID = {"from": "a", "body": "b"}
WAYS: dict[str, Callable[[Relay, str, dict[str, str]], requests.Response]] = {
    "notify": lambda relay, key, more: relay.post("/notify", "x", headers={"Authorization": key, **more}),
    "to": lambda relay, key, more: relay.post(f"/to/{number(key)}", "x", headers=more),
    "later": lambda relay, key, more: relay.post(f"/to/{number(key)}?delay=1h", "x", headers=more),
    "switch": lambda relay, key, more: relay.post(f"/to/{number(key)}?run=a&expect=1h", "", headers=more),
    "once": lambda relay, key, more: relay.post(f"/to/{number(key)}", "x", headers={"Idempotency-Key": "a", **more}),
    "seed's wait": lambda relay, key, more: relay.get(f"/mailboxes/{key}/wait", headers=more),
    "wait": lambda relay, key, more: relay.get("/wait?timeout=9", headers={"Authorization": key, **more}),
    "look": lambda relay, key, more: relay.get("/mailbox?wait=9", headers={"Authorization": key, **more}),
    "say": lambda relay, key, more: relay.post("/api/messages", json=SAID, headers={"Authorization": key, **more}),
    "check in": lambda relay, key, more: relay.post(
        "/api/agents", json={"name": "a"}, headers={"Authorization": key, **more}
    ),
    "listen": lambda relay, key, more: relay.get("/api/messages?wait=9", headers={"Authorization": key, **more}),
}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("proxied")
    relay = Relay(
        folder / "spool",
        folder / "log",
        PAGERMCP_NEW_MAILBOXES_PER_HOUR=2,
        PAGERMCP_MAX_CONNECTIONS_PER_ADDRESS=3,
        PAGERMCP_MAX_WAITS_PER_MAILBOX=5,
        **PROXY,
    )
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


def mint(relay: Relay, forwarded: str) -> requests.Response:
    return relay.post("/mailboxes", headers={"X-Forwarded-For": forwarded})


@pytest.mark.parametrize(("place", "way"), list(enumerate(WAYS)))
def test_an_address_makes_no_more_mailboxes_than_it_may_in_whatever_way(proxied: Relay, place: int, way: str) -> None:
    client = {"X-Forwarded-For": f"203.0.113.{place}"}
    known = [mint(proxied, client["X-Forwarded-For"]).json()["uuid"] for _ in range(2)]
    key, before = new_key(), refusals(proxied).get("too_many_new_mailboxes", 0)
    assert_refused(WAYS[way](proxied, key, client), 429, "too_many_new_mailboxes", range(1790, 1801))
    assert not list(proxied.spool.rglob(f"*{number(key)}*"))
    assert refusals(proxied)["too_many_new_mailboxes"] == before + 1
    assert WAYS["notify"](proxied, known[0], client).status_code == 202  # it goes on with those that it has
    assert WAYS["notify"](proxied, key, {"X-Forwarded-For": f"198.51.100.{place}"}).status_code == 202
    assert WAYS["notify"](proxied, key, client).status_code == 202  # which another has made


def test_clients_of_ipv6_are_one_within_64_bits_and_what_a_client_writes_himself_is_nothing(proxied: Relay) -> None:
    assert [mint(proxied, f"6.6.6.{n}, 2001:db8:0:1:{n}::1").status_code for n in range(3)] == [201, 201, 429]
    assert mint(proxied, "6.6.6.1, 2001:db8:0:2::1").status_code == 201


def test_looking_at_what_is_not_there_makes_nothing_and_counts_for_nothing(proxied: Relay) -> None:
    client = {"X-Forwarded-For": "203.0.113.200"}
    for _ in range(5):
        key = {"Authorization": new_key(), **client}
        for path in ("/pages", "/mailbox", "/api/messages"):
            assert proxied.get(path, headers=key).status_code == 200
    assert mint(proxied, client["X-Forwarded-For"]).status_code == 201


@pytest.mark.parametrize("proxy", ["", "192.0.2.1"])
def test_x_forwarded_for_is_nothing_unless_it_comes_from_the_proxy(
    start_relay: Callable[..., Relay], proxy: str
) -> None:
    relay = start_relay(PAGERMCP_TRUSTED_PROXY=proxy, PAGERMCP_NEW_MAILBOXES_PER_HOUR=2)
    statuses = [mint(relay, f"203.0.113.{n}").status_code for n in range(3)]
    assert statuses == ([201, 201, 429] if proxy else [201] * 3)  # without a proxy nobody on this machine is counted
    assert [mint(relay, "203.0.113.9").status_code for _ in range(3)] == ([429] * 3 if proxy else [201] * 3)


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
http {{
  access_log off; {temporary}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{relay}; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
}}
"""


def test_behind_nginx_each_client_has_limits_of_his_own(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    nginx = require("nginx", "nginx")
    relay = start_relay(PAGERMCP_NEW_MAILBOXES_PER_HOUR=2, **PROXY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    conf = tmp_path / "nginx.conf"
    conf.write_text(NGINX.format(folder=tmp_path, port=port, relay=relay.port, temporary=temporary))

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    def mints(client: str) -> int:
        """What a client gets there, who says that he is another each time."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(client, 0))
        with contextlib.closing(connection):
            connection.request("POST", "/mailboxes", headers={"X-Forwarded-For": f"6.6.6.{random.randrange(256)}"})
            return connection.getresponse().status

    with subprocess.Popen([nginx, "-e", f"{tmp_path}/error.log", "-c", conf]) as running:
        try:
            until(listens)
            assert [mints("127.0.0.2") for _ in range(3)] == [201, 201, 429]
            assert mints("127.0.0.3") == 201
        finally:
            running.terminate()


# Mailboxes there may be


def test_there_are_no_more_mailboxes_than_there_may_be_and_when_one_goes_there_may_be_another(
    start_relay: Callable[..., Relay],
) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_MAX_MAILBOXES=3)
    first, second, key = relay.post("/mailboxes").json()["uuid"], new_key(), new_key()
    assert relay.notify(second).status_code == 202
    relay.with_key(new_key(), "GET", "/wait?timeout=0")
    assert_refused(relay.post("/mailboxes"), 507, "too_many_mailboxes", range(3600, 3601))
    assert_refused(relay.notify(key), 507, "too_many_mailboxes", range(3600, 3601))
    assert_refused(relay.get(f"/mailboxes/{key}/wait"), 507, "too_many_mailboxes", range(3600, 3601))
    assert relay.notify(first).status_code == 202
    assert relay.get(f"/mailboxes/{second}/wait").status_code == 200
    assert refusals(relay) == {"too_many_mailboxes": 3}
    relay.new(second).rmdir()
    until(lambda: relay.notify(key).status_code == 202)
    relay.new(first).rename(relay.spool / "new" / number(second))  # by a shell, and that one counts as well
    assert relay.notify(first).status_code == 507


# Requests that wait


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("crowded")
    few = {"PAGERMCP_MAX_CONNECTIONS_PER_ADDRESS": 3, "PAGERMCP_MAX_WAITS_PER_MAILBOX": 4}
    relay = Relay(folder / "spool", folder / "log", PAGERMCP_NEW_MAILBOXES_PER_HOUR=0, **few, **PROXY)
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


def wait(relay: Relay, client: str, key: str = "") -> requests.Response:
    """A wait that ends at once."""
    return relay.get("/wait?timeout=0", headers={"Authorization": key or new_key(), "X-Forwarded-For": client})


def wait_in_three_ways(relay: Relay, client: str, waiters: list[Raw], keys: list[str], seconds: int) -> None:
    """For pages, for a change and for what is said; once this returns the relay knows of all."""
    relay.notify(keys[1])
    mark = relay.get("/mailbox", headers={"Authorization": keys[1]}).json()["mark"]
    paths = [f"/wait?timeout={seconds}", f"/mailbox?wait={seconds}&mark={mark}", f"/api/messages?wait={seconds}"]
    for one, key, path in zip(waiters, keys, paths, strict=True):
        one.ask("GET", path, key, X_Forwarded_For=client)
    until(lambda: ask(relay).json()["waiters"] == 3)


@pytest.mark.parametrize("end", ["page", "error", "time", *raw.HOWS])
def test_an_address_has_so_many_waits_and_one_that_ends_in_whatever_way_makes_place(crowded: Relay, end: str) -> None:
    client = "203.0.113.1"
    for _ in range(2):  # a count that was not undone, or twice, would show the second time
        keys = [new_key() for _ in range(3)]
        with raw.many(crowded, 3) as waiters:
            wait_in_three_ways(crowded, client, waiters, keys, 1 if end == "time" else 50)
            if end != "time":
                assert_refused(wait(crowded, client), 429, "too_many_waits", range(10, 11))
            assert wait(crowded, "203.0.113.2").status_code == 200
            if end == "page":
                crowded.notify(keys[0])
                crowded.notify(keys[1])
            if end == "error":  # it has become a room
                crowded.with_key(keys[0], "POST", "/api/messages", json=SAID)
            if end in ("page", "error"):
                crowded.with_key(keys[2], "POST", "/api/messages", json=SAID)
            if end == "error":
                crowded.notify(keys[1])
            if end in raw.HOWS:
                for one in waiters:
                    one.go(end)
            else:
                statuses = [answer.status for answer in raw.answers(waiters)]
                assert statuses == [409 if end == "error" else 200, 200, 200]
            until(lambda: ask(crowded).json()["waiters"] == 0)
            assert wait(crowded, client).status_code == 200


def test_a_mailbox_has_so_many_waits_of_whatever_kind(crowded: Relay, key: str) -> None:
    with raw.many(crowded, 5) as waiters:
        for n, one in enumerate(waiters[:4]):
            path = "/api/messages?wait=50" if n % 2 else "/wait?timeout=50"
            one.ask("GET", path, key, X_Forwarded_For=f"198.51.100.{n}")
        until(lambda: ask(crowded).json()["waiters"] == 4)
        assert_refused(wait(crowded, "203.0.113.9", key), 429, "too_many_waits", range(10, 11))
        seeds = crowded.get(f"/mailboxes/{key}/wait", headers={"X-Forwarded-For": "203.0.113.9"})
        assert_refused(seeds, 429, "too_many_waits", range(10, 11))
        assert wait(crowded, "203.0.113.9").status_code == 200
        waiters[0].close()
        until(lambda: wait(crowded, "203.0.113.9", key).status_code == 200)
        assert refusals(crowded)["too_many_waits"] >= 2


# Connections


def test_an_address_has_so_many_connections_and_when_one_ends_another_comes_in(
    start_relay: Callable[..., Relay],
) -> None:
    relay = start_relay(PAGERMCP_MAX_CONNECTIONS_PER_ADDRESS=4, **ELSEWHERE)
    with raw.many(relay, 4) as inside:
        for one in inside:
            one.ask("GET", "/version")
        assert [answer.status for answer in raw.answers(inside)] == [200] * 4
        with Raw(relay) as outside:
            outside.ask("GET", "/version")
            answer = outside.answer()
            assert answer.error == (503, "too_many_connections")
            assert "from your address" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) > 0
            assert outside.rest() == b""
        with raw.many(relay, 60) as crowd:  # of whom it tells some, and keeps none
            raw.receive_until(lambda one: one.ended, crowd)
            assert 0 < sum(b"too_many_connections" in one.came for one in crowd) < 60
            assert relay.descriptors() < 60
        inside[0].ask("GET", "/version")
        assert inside[0].answer().status == 200
    assert until(lambda: refusals(relay) == {"too_many_connections": 61})


def test_a_proxy_and_whoever_is_on_this_machine_have_as_many_as_they_need(
    crowded: Relay, start_relay: Callable[..., Relay]
) -> None:
    for relay in (crowded, start_relay(PAGERMCP_MAX_CONNECTIONS_PER_ADDRESS=3)):
        with raw.many(relay, 20) as connections:
            for one in connections:
                one.ask("GET", "/version")
            assert [answer.status for answer in raw.answers(connections)] == [200] * 20
