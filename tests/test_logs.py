"""The log: text or JSON, a line for each request if that is wanted, and no secret in it."""

import email.utils
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Relay, new_key, number, until
from test_serve import run

from pagermcp.server.log import JsonFormatter

TOKEN = "0123456789abcdef0123456789abcdef"  # which might be a key


def lines(relay: Relay) -> list[dict[str, Any]]:
    """Those of a log in JSON."""
    return [json.loads(line) for line in relay.log.read_text().splitlines()]


def of_request(relay: Relay, id: str) -> dict[str, Any]:
    """The line about the request that was answered with this id."""
    (line,) = until(lambda: [line for line in lines(relay) if line.get("request") == id])
    return dict(line)


@pytest.fixture
def relay(start_relay: Callable[..., Relay]) -> Relay:
    return start_relay(PAGERMCP_LOG="json", PAGERMCP_LOG_REQUESTS="on", PAGERMCP_OPERATOR_TOKEN=TOKEN)


def test_each_request_is_a_line_with_id_route_status_time_and_the_beginning_of_the_number(
    relay: Relay, key: str
) -> None:
    for answer, method, route, mailbox in (
        (relay.notify(key), "POST", "/notify", key[:8]),
        (relay.post("/notify", json={"uuid": key}), "POST", "/notify", key[:8]),
        (relay.post(f"/to/{number(key)}", "x"), "POST", "/to/<number>", key[:8]),
        (relay.get(f"/mailboxes/{key}/messages"), "GET", "/mailboxes/<key>/messages", key[:8]),
        (relay.post(f"/mailboxes/{key}/consume"), "POST", "/mailboxes/<key>/consume", key[:8]),
        (relay.with_key(key, "GET", "/wait?timeout=0"), "GET", "/wait", key[:8]),
        (relay.get(f"/mailboxes/{new_key()}/nothing"), "GET", None, None),
        (relay.get("/notify"), "GET", None, None),
        (relay.get("/healthz"), "GET", "/healthz", None),
    ):
        line = of_request(relay, answer.headers["X-Request-Id"])
        assert (line["method"], line["route"], line["mailbox"]) == (method, route, mailbox)
        assert line["status"] == answer.status_code
        assert 0 <= line["seconds"] < 10
        assert (line["logger"], line["level"]) == ("pagermcp.web.requestlog", "INFO")
        assert line["time"].endswith("Z")
    assert key not in relay.log.read_text()


def test_a_wait_is_told_when_it_is_over_with_how_long_it_was(relay: Relay, key: str) -> None:
    waiting = relay.start_waiting(key)
    until(lambda: relay.has_reader(key))
    assert not [line for line in lines(relay) if line.get("route") == "/mailboxes/<key>/wait"]
    relay.notify(key)
    line = of_request(relay, waiting.result(10).headers["X-Request-Id"])
    assert (line["status"], line["mailbox"]) == (200, key[:8])
    with relay.connect() as connection:
        connection.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until(lambda: relay.has_reader(key))
    waits = until(lambda: (found := [line for line in lines(relay) if "/wait" in str(line.get("route"))])[1:] and found)
    assert waits[0]["status"] == 200
    assert waits[1]["status"] in (
        None,
        408,
    )  # who went was not answered; 408 if it looked once more, and saw that itself
    relay.notify(key)
    assert len(relay.get(f"/mailboxes/{key}/messages").json()["messages"]) == 1


EARLY = """
import pagermcp.waking.waiter as waiter
waiter.BEAT_SECONDS = 1.5
"""


def test_a_wait_that_begins_its_answer_before_it_has_a_page_is_told_as_others(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(prelude=EARLY, PAGERMCP_LOG="json", PAGERMCP_LOG_REQUESTS="on")
    with relay.connect() as connection:
        connection.sendall(f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        asked_at = time.time()
        head = connection.recv(1000).decode()
        assert time.time() - asked_at > 1.4
        relay.notify(key, {"message": "late"})
        assert b"late" in connection.recv(1000)
    headers = email.message_from_string(head.partition("\r\n")[2])
    assert email.utils.parsedate_to_datetime(headers["Date"]).timestamp() > asked_at  # when it began, cut to a second
    line = of_request(relay, headers["X-Request-Id"])
    assert (line["route"], line["status"], line["mailbox"]) == ("/mailboxes/<key>/wait", 200, key[:8])


def test_the_operators_token_is_not_in_it_not_even_a_part(relay: Relay) -> None:
    for path in ("/status.json", "/metrics", "/status"):
        answer = relay.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert of_request(relay, answer.headers["X-Request-Id"])["mailbox"] is None
    assert TOKEN[:8] not in relay.log.read_text()


def test_a_fault_names_the_request_and_hides_keys(start_relay: Callable[..., Relay], key: str) -> None:
    broken = f"import pagermcp.web.site as s\ndef own_url():\n raise RuntimeError('{key}')\ns.own_url = own_url"
    for form in ("json", "text"):
        relay = start_relay(prelude=broken, PAGERMCP_LOG=form, PAGERMCP_LOG_REQUESTS="on")
        answer = relay.get("/")
        assert answer.status_code == 500
        id = answer.headers["X-Request-Id"]
        until(lambda id=id: relay.log.read_text().count(id) == 2)  # noqa: B023
        assert relay.stop() == 0
        log = relay.log.read_text()
        assert key not in log
        if form == "json":
            (fault,) = [line for line in lines(relay) if line["level"] == "ERROR"]
            assert fault["request"] == id
            assert f"RuntimeError: {number(key)}" in fault["exception"]
            relay.log.write_text("")
        else:
            assert f"a fault in site.start [{id}]\nTraceback" in log
            assert " INFO pagermcp.web.requestlog: GET / 500 " in log


def test_without_it_no_request_is_a_line_and_the_log_is_text(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    assert "X-Request-Id" not in relay.notify(key).headers
    assert relay.stop() == 0
    (line,) = relay.log.read_text().splitlines()
    assert line.endswith(" INFO pagermcp: stopped")


def test_a_line_of_json_is_one_line_with_no_key_in_it(key: str) -> None:
    try:
        raise ValueError(f"two\nlines with {key}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "at %s: \x1b[1m\u2028", (key,), sys.exc_info())
    text = JsonFormatter().format(record)
    assert len(text.splitlines()) == 1
    assert key not in text
    assert json.loads(text)["message"] == f"at {number(key)}: \x1b[1m\u2028"


@pytest.mark.parametrize(("name", "right"), [("PAGERMCP_LOG", "text or json"), ("PAGERMCP_LOG_REQUESTS", "on")])
def test_another_value_is_one_line(name: str, right: str) -> None:
    failed = run("serve", **{name: "xml"})
    assert (failed.returncode, failed.stderr) == (2, f"Error: {name}='xml': must be {right}\n")
