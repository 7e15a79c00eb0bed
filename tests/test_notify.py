"""POST /notify: the address, the body, the answer."""

import datetime
import json
import re
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Relay, new_key, number, require, until
from hypothesis import given, settings
from hypothesis import strategies as st
from test_page import payloads


def payload_in(relay: Relay, key: str) -> Any:
    """The one waiting page's payload, as `cat` shows it."""
    (path,) = relay.new(key).glob("*.json")
    return json.loads(path.read_bytes())["payload"]


def test_a_page_is_accepted_with_its_id_number_and_what_the_sender_may_want_to_know(relay: Relay, key: str) -> None:
    answer = relay.notify(key, json={"message": "done"})
    assert answer.status_code == 202
    accepted = answer.json()
    assert re.fullmatch(r"[0-9]{16}", accepted.pop("id"))
    assert accepted == {"accepted": True, "number": number(key), "waiters": 0, "queued": 1, "last_read": None}
    assert relay.notify(key).json()["queued"] == 2


def test_an_accepted_page_is_a_file_that_cat_shows(relay: Relay, key: str) -> None:
    id = relay.notify(key, json={"JOB_ID": "b1", "status": "success", "exit_code": 0}).json()["id"]
    page = json.loads((relay.new(key) / f"{id}.json").read_text())
    assert page["payload"] == {"JOB_ID": "b1", "status": "success", "exit_code": 0}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", page["created_at"])


def test_who_waits_and_when_the_mailbox_was_read_is_said(relay: Relay, key: str) -> None:
    waiting = relay.start_waiting(key)
    accepted = relay.notify(key).json()
    assert accepted["waiters"] == 1
    assert abs(time.time() - _seconds(accepted["last_read"])) < 60
    waiting.result(10)


def _seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()


@pytest.mark.parametrize(
    "header",
    [
        "Bearer {key}",
        "bearer {key}",
        "{key}",
        "Bearer {hex}",
        "Bearer {number}",
        "Bearer urn:uuid:{key}",
        "BEARER  {key} ",
    ],
)
def test_the_address_may_come_in_any_form(relay: Relay, key: str, header: str) -> None:
    text = header.format(key=key, hex=uuid.UUID(key).hex.upper(), number=number(key))
    answer = relay.post("/notify", "hello", headers={"Authorization": text})
    assert answer.json()["number"] == number(key)
    assert answer.status_code == 202


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer x", "Basic dTpw", "Bearer " + "f" * 31, "Token {key}"])
def test_without_a_valid_address_it_is_401_and_says_how_to_send_one(relay: Relay, key: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.format(key=key)}
    answer = relay.post("/notify", "hello", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="pagermcp"'
    assert answer.json()["error"]["code"] == "unauthorized"
    assert "Authorization: Bearer" in answer.json()["error"]["hint"]
    assert key not in answer.text


def test_an_authorization_given_twice_is_ambiguous(relay: Relay, key: str) -> None:
    with relay.connect() as connection:
        connection.sendall(
            f"POST /notify HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nAuthorization: Bearer {new_key()}\r\n"
            "Content-Length: 2\r\nConnection: close\r\n\r\nhi".encode()
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"code":"ambiguous"' in answer


def test_a_uuid_in_the_body_addresses_when_there_is_no_authorization_and_is_taken_out(relay: Relay, key: str) -> None:
    answer = relay.post("/notify", json={"uuid": key, "message": "hi"})
    assert answer.json()["number"] == number(key)
    assert payload_in(relay, key) == {"message": "hi"}


def test_a_uuid_in_the_body_is_taken_out_but_does_not_overrule_the_authorization(relay: Relay, key: str) -> None:
    assert relay.notify(key, json={"uuid": new_key(), "message": "hi"}).json()["number"] == number(key)
    assert payload_in(relay, key) == {"message": "hi"}


@pytest.mark.parametrize("value", ["nonsense", 5, None, ["x"]])
def test_a_uuid_in_the_body_that_is_none_is_401_without_an_authorization(relay: Relay, value: object) -> None:
    assert relay.post("/notify", json={"uuid": value}).status_code == 401


JSON, FORM, TEXT = "application/json", "application/x-www-form-urlencoded", "text/plain"


@pytest.mark.parametrize(
    ("type", "body", "payload"),
    [
        (JSON, b'{"a": 1}', {"a": 1}),
        ("application/json; charset=utf-8", b'{"a": 1}', {"a": 1}),
        ("Application/JSON", b'{"a": 1}', {"a": 1}),
        (JSON, b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (JSON, b'{"id":"x","created_at":5,"age_seconds":null}', {"id": "x", "created_at": 5, "age_seconds": None}),
        (JSON, b'{"a":"\\ud800 \\u0000"}', {"a": "\ud800 \x00"}),
        (JSON, b"{}", {}),
        (JSON, b"", {"message": ""}),
        (None, b'{"a": 1}', {"a": 1}),
        (None, b"make is done", {"message": "make is done"}),
        (None, b"[1, 2]", {"message": "[1, 2]"}),
        (None, b"", {"message": ""}),
        (FORM, b'{"a": 1}', {"a": 1}),
        (FORM, b"a=1&b=%20", {"message": "a=1&b=%20"}),
        (FORM, b'{"a": 1', {"message": '{"a": 1'}),
        (TEXT, b'{"a": 1}', {"message": '{"a": 1}'}),
        (TEXT, b"\xef\xbb\xbfx", {"message": "\ufeffx"}),
        (
            TEXT,
            b" \"q\" 's' $HOME \\ \\n\r\n\t\x00\x1b end\n\n",
            {"message": " \"q\" 's' $HOME \\ \\n\r\n\t\x00\x1b end\n\n"},
        ),
        (TEXT, "é 日本 🎉".encode(), {"message": "é 日本 🎉"}),
        ("text/html", b"<b>", {"message": "<b>"}),
        ("application/octet-stream", b"bytes", {"message": "bytes"}),
        ("nonsense", b"x", {"message": "x"}),
    ],
)
def test_the_body_becomes_the_payload(relay: Relay, key: str, type: str | None, body: bytes, payload: Any) -> None:
    answer = relay.notify(key, body, headers={"Content-Type": type} if type else {})
    assert answer.status_code == 202, answer.text
    assert payload_in(relay, key) == payload


@pytest.mark.parametrize(
    ("type", "body", "status", "code", "message"),
    [
        (JSON, b'{"a": "say "hi""}', 400, "bad_json", "line 1 column 13"),
        (JSON, b'{"a":\n\n  oops}', 400, "bad_json", "line 3 column 3"),
        (JSON, b"[1]", 400, "bad_json", "not a JSON object but an array"),
        (JSON, b"3", 400, "bad_json", "a number"),
        (JSON, b'{"a":NaN}', 400, "bad_json", "NaN"),
        (JSON, b'{"a":1e999}', 400, "bad_json", "1e999"),
        (JSON, b'{"a":' + b"[" * 30000, 400, "bad_json", "nested deeper than 100"),
        (JSON, b"\xff\xfe{\x00", 400, "not_utf8", "byte 0"),
        (TEXT, b"caf\xe9", 400, "not_utf8", "byte 3"),
        (None, b"\xed\xa0\x80", 400, "not_utf8", "byte 0"),
        ("multipart/form-data; boundary=x", b"--x--", 415, "unsupported_media_type", "multipart"),
    ],
)
def test_a_body_that_is_no_page_is_refused_with_the_reason_and_nothing_is_delivered(
    relay: Relay, key: str, type: str | None, body: bytes, status: int, code: str, message: str
) -> None:
    answer = relay.notify(key, body, headers={"Content-Type": type} if type else {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["hint"]
    assert not relay.new(key).exists()


def test_a_compressed_body_is_refused(relay: Relay, key: str) -> None:
    assert relay.notify(key, b"x", headers={"Content-Encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize("chunked", [False, True])
def test_the_limit_counts_bytes_and_is_exact(relay: Relay, key: str, chunked: bool) -> None:
    def send(body: bytes) -> Any:
        return relay.notify(key, iter([body]) if chunked else body, headers={"Content-Type": TEXT})

    body = "é".encode() * 32768  # 65536 bytes
    assert send(body[:-1] + b"x").status_code == 400  # the last character is cut in two
    assert send(body).status_code == 202
    answer = send(body + b"x")
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body has 65537 bytes and the limit is 65536"
    assert len(list(relay.new(key).iterdir())) == 1


def test_a_body_far_over_the_limit_is_413_in_the_same_form(relay: Relay, key: str) -> None:
    curl = require("curl", "curl")
    command = [curl, "-s", "-H", f"Authorization: Bearer {key}", "--data-binary", "@-", f"{relay.url}/notify"]
    answer = subprocess.run(command, input=b"x" * 3_000_000, capture_output=True, check=True, timeout=30)
    assert json.loads(answer.stdout)["error"]["code"] == "too_large"
    assert "65536" in json.loads(answer.stdout)["error"]["message"]


def test_a_text_of_control_characters_up_to_the_limit_can_be_read_again(relay: Relay, key: str) -> None:
    text = "\x01" * 65536
    assert relay.notify(key, text, headers={"Content-Type": TEXT}).status_code == 202
    assert relay.post(f"/mailboxes/{key}/consume").json()["message"]["message"] == text


@settings(max_examples=60, deadline=None)
@given(payloads)
def test_any_json_object_comes_out_as_it_went_in(relay: Relay, payload: dict[str, Any]) -> None:
    key = new_key()
    body = json.dumps(payload).encode()
    if len(body) <= 65536 and "uuid" not in payload:
        assert relay.notify(key, body, headers={"Content-Type": JSON}).status_code == 202
        message = relay.post(f"/mailboxes/{key}/consume").json()["message"]
        assert {name: message[name] for name in payload} == payload


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([JSON, FORM, TEXT, "x/y"]))
def test_no_body_is_a_500(relay: Relay, body: bytes, type: str) -> None:
    assert relay.notify(new_key(), body, headers={"Content-Type": type}).status_code in (202, 400)


def test_a_full_mailbox_is_429_with_retry_after_and_nothing_is_dropped(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=2)
    assert [relay.notify(key).status_code for _ in range(3)] == [202, 202, 429]
    answer = relay.notify(key)
    assert answer.json()["error"]["code"] == "mailbox_full"
    assert int(answer.headers["Retry-After"]) > 0
    relay.post(f"/mailboxes/{key}/consume")
    until(lambda: relay.archived(key))  # which is after the answer was written, since only then is it taken
    assert relay.notify(key).status_code == 202
    assert relay.notify(new_key()).status_code == 202


def test_a_full_disk_is_507_with_retry_after(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(PAGERMCP_MIN_FREE_BYTES=1 << 60)
    answer = relay.notify(key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    assert int(answer.headers["Retry-After"]) > 0
    assert list(relay.spool.glob("new/*/*")) == []


def test_a_spool_that_went_away_is_503_and_the_relay_goes_on(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay()
    (tmp_path / "spool").rename(tmp_path / "elsewhere")
    answer = relay.notify(key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "disk_error")
    assert int(answer.headers["Retry-After"]) > 0
    (tmp_path / "elsewhere").rename(tmp_path / "spool")
    assert until(lambda: relay.notify(key).status_code == 202)


def test_the_answer_comes_after_the_page_is_on_disk(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    strace = require("strace", "strace")
    relay = start_relay()
    relay.notify(key, "so that the mailbox is there")
    trace = tmp_path / "trace"
    calls = "trace=write,fsync,fdatasync,link,linkat,sendto,openat,unlink"
    command = [strace, "-f", "-y", "-s", "200", "-e", calls, "-o", str(trace), "-p", str(relay.process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        relay.notify(key, "traced")
        tracer.terminate()
        tracer.stderr.read()
    lines = [line for line in trace.read_text().splitlines() if "unfinished" not in line]

    def first(*words: str) -> int:
        return next(n for n, line in enumerate(lines) if all(word in line for word in words))

    steps = [
        first("write(", "/tmp/", "traced"),
        first("fsync(", "/tmp/"),
        first("link", f"new/{number(key)}/", ".json"),
        first("fsync(", f"new/{number(key)}>"),
        first("sendto(", "202 ACCEPTED"),
    ]
    assert steps == sorted(steps)
