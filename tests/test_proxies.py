"""The relay behind a real nginx, with TLS, and a real Caddy, as deploy/ configures them.

All long waits are at the same time, so that the file takes some 75 s."""

import contextlib
import http.server
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from conftest import REPOSITORY, Relay, new_key, require, until
from proxies import KINDS, Proxy, proxied

LONG_SECONDS = 70


@pytest.fixture(scope="module")
def proxies(relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Proxy]]:
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("proxies")
        yield {kind: stack.enter_context(proxied(kind, folder / kind, relay.port)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def proxy(request: pytest.FixtureRequest, proxies: dict[str, Proxy]) -> Proxy:
    chosen: Proxy = proxies[request.param]
    return chosen


class Waited(NamedTuple):
    """Seconds from the start to each byte of an answer, to its end, and the answer."""

    at: list[float]
    end: float
    body: bytes


def wait(proxy: Proxy, path: str, key: str = "") -> Waited:
    began = time.monotonic()
    at, body = [], b""
    with proxy.call("GET", path, key, stream=True) as answer:
        assert answer.status_code == 200
        for byte in answer.iter_content(1):
            at.append(time.monotonic() - began)
            body += byte
    return Waited(at, time.monotonic() - began, body)


@pytest.fixture(scope="module")
def waits(relay: Relay, proxies: dict[str, Proxy]) -> dict[str, Waited]:
    """By proxy, the wait that gets a page after more than a minute; and, as `idle …`, a poll that gets none."""
    keys = {kind: new_key() for kind in KINDS}
    with ThreadPoolExecutor() as threads:
        began = time.monotonic()
        under_way = {kind: threads.submit(wait, proxies[kind], f"/mailboxes/{keys[kind]}/wait") for kind in KINDS}
        for kind in KINDS:
            under_way[f"idle {kind}"] = threads.submit(wait, proxies[kind], "/wait", new_key())
        threading.Event().wait(began + LONG_SECONDS - time.monotonic())
        for kind in KINDS:
            relay.notify(keys[kind], json={"message": f"by {kind}"})
        return {name: one.result(10) for name, one in under_way.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_after_seventy_seconds_comes_through_a_read_timeout_of_sixty(
    waits: dict[str, Waited], kind: str
) -> None:
    waited = waits[kind]
    assert json.loads(waited.body)["message"] == f"by {kind}"
    assert LONG_SECONDS <= waited.end < LONG_SECONDS + 3


@pytest.mark.parametrize("kind", KINDS)
def test_heartbeats_are_passed_on_when_they_come(waits: dict[str, Waited], kind: str) -> None:
    waited = waits[kind]
    assert waited.body.startswith(b'   {"')
    for count, at in enumerate(waited.at[:3], 1):
        assert 20 * count - 1 < at < 20 * count + 5


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_poll_ends_by_itself_within_a_minute(waits: dict[str, Waited], kind: str) -> None:
    waited = waits[f"idle {kind}"]
    assert json.loads(waited.body) == {"pages": []}
    assert 49 < waited.end < 60


def test_headers_pass_in_both_directions(proxy: Proxy, key: str) -> None:
    once = {"Idempotency-Key": "8c0e0f52", "Pager-Expires": "1h"}
    first, again = [proxy.call("POST", "/notify", key, data="x" * 60_000, headers=once).json() for _ in range(2)]
    assert (first["accepted"], again["duplicate"], again["id"]) == (True, True, first["id"])
    taken = proxy.call("GET", f"/mailboxes/{key}/wait")
    assert taken.headers["Pager-Id"] == first["id"]
    assert taken.headers["Cache-Control"] == "no-store"
    assert taken.json()["expires_at"]
    assert len(taken.json()["message"]) == 60_000


def test_what_is_too_large_and_who_may_not_read_is_said_by_the_relay(proxy: Proxy, key: str) -> None:
    large = proxy.call("POST", "/notify", key, data="x" * 100_000)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
    number = proxy.call("POST", "/mailboxes").json()["number"]
    refused = proxy.call("GET", "/wait", number)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "number_cannot_read")


def test_the_relay_notices_a_client_that_goes(proxy: Proxy, relay: Relay, key: str) -> None:
    with subprocess.Popen(proxy.curl(f"/mailboxes/{key}/wait")) as waiting:
        until(lambda: relay.has_reader(key))
        waiting.kill()
    until(lambda: not relay.has_reader(key))


@pytest.mark.parametrize("kind", KINDS)
def test_the_relay_is_told_the_address_that_the_proxy_saw_and_not_one_that_a_client_claims(
    kind: str, tmp_path: Path
) -> None:
    forwarded = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            forwarded.append(self.headers.get_all("X-Forwarded-For"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            with proxied(kind, tmp_path / kind, server.server_port) as proxy:
                proxy.call("GET", "/", headers={"X-Forwarded-For": "192.0.2.1"})
        finally:
            server.shutdown()
            thread.join()
    assert forwarded == [["127.0.0.1"]]


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_in_a_log_also_when_the_relay_is_away_and_it_is_served_again_when_it_is_back(
    start_relay: Callable[..., Relay], tmp_path: Path, kind: str
) -> None:
    relay, key = start_relay(), new_key()
    spellings = [key, key.upper(), uuid.UUID(key).hex]
    paths = [f"/mailboxes/{one}/messages" for one in spellings] + [
        f"/to/{key}",
        f"/mailboxes/{key}/messages?uuid={key}",
    ]
    with proxied(kind, tmp_path / kind, relay.port) as proxy:
        assert proxy.call("GET", paths[0]).status_code == 200
        relay.stop()
        assert {proxy.call("GET", path, key).status_code for path in paths} == {502}
        again = start_relay(relay.spool, PORT=relay.port)
        assert again.port == relay.port
        assert proxy.call("GET", paths[0]).status_code == 200
        with subprocess.Popen(proxy.curl(f"/mailboxes/{key}/wait")) as waiting:
            until(lambda: again.has_reader(key))
            again.stop()  # in the midst of a request
            waiting.wait(10)
    logs = b"".join(path.read_bytes() for path in proxy.folder.glob("*.log"))
    assert b"/mailboxes" in logs
    assert not [one for one in spellings if one.encode() in logs]


def test_nginx_sends_http_to_https(proxies: dict[str, Proxy]) -> None:
    answer = requests.post(f"{proxies['nginx'].plain_url}/notify?delay=1m", allow_redirects=False, timeout=10)
    assert (answer.status_code, answer.headers["Location"]) == (308, "https://127.0.0.1/notify?delay=1m")


def test_caddy_finds_no_fault_in_the_caddyfile() -> None:
    caddy = require("caddy", "caddy")
    command = [caddy, "validate", "--adapter", "caddyfile", "--config", REPOSITORY / "deploy" / "Caddyfile"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "Valid configuration\n"), checked.stderr
