"""Whatever is sent: an answer in the usual form, never a 500, and nothing that waits is lost by it."""

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Relay, new_key, number, until
from hypothesis import given, settings
from hypothesis import strategies as st


def talk(relay: Relay, *parts: bytes, half_close: bool = False) -> bytes:
    """Send bytes as they are; all that comes back until the relay closes."""
    with relay.connect() as connection:
        for part in parts:
            connection.sendall(part)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def memory(relay: Relay) -> int:
    """Resident bytes of the relay, at most so far."""
    text = Path(f"/proc/{relay.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) * 1024


def test_nesting_100000_deep_is_400(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=1 << 20)
    json_type = {"Content-Type": "application/json"}
    for body in (b'{"a":' + b"[" * 100_000, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 100_000):
        answer = relay.notify(key, body, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_json")
        assert relay.notify(key, body).status_code == 202  # without that type it is a text
    assert [len(page["message"]) for page in relay.get(f"/mailboxes/{key}/messages").json()["messages"]] == [
        *(100_005, 200_006, 500_000)
    ]


def test_a_chunked_body_of_a_gigabyte_is_413_with_memory_flat(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    assert relay.notify(key).status_code == 202
    before = memory(relay)
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    answer = b""
    with relay.connect() as connection:
        connection.sendall(
            b"POST /notify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Authorization: Bearer " + key.encode() + b"\r\n\r\n"
        )
        try:
            for _ in range(1024):
                connection.sendall(chunk)
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # the relay stopped listening, as it may
        while data := connection.recv(65536):
            answer += data
    assert status(answer) == 413
    assert b'"code":"too_large"' in answer
    assert memory(relay) - before < 20 << 20
    assert relay.get("/healthz").status_code == 200
    assert len(list(relay.new(key).iterdir())) == 1


def test_the_413_of_a_body_that_is_still_being_sent_can_be_read(relay: Relay, key: str) -> None:
    """Closing with unread bytes would reset the connection, and the client would not see why."""
    for _ in range(20):
        connection = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=20)
        connection.request("POST", "/notify", body=b"x" * 5_000_000, headers={"Authorization": key})
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["code"] == "too_large"
        connection.close()


def test_one_who_does_not_stop_sending_after_an_error_is_cut_off(relay: Relay) -> None:
    began = time.monotonic()

    def send_on(connection: socket.socket) -> None:
        while time.monotonic() - began < 30:
            connection.sendall(b"x" * 1000)

    with relay.connect() as connection:
        connection.sendall(b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            send_on(connection)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("half_close", [False, True])
def test_a_body_that_is_cut_off_half_way_is_no_page(relay: Relay, key: str, half_close: bool) -> None:
    head = f"POST /notify HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 100\r\n\r\n".encode()
    if half_close:
        assert talk(relay, head, b"only this", half_close=True) == b""
    else:
        with relay.connect() as connection:
            connection.sendall(head + b"only this")
    assert relay.get("/healthz").status_code == 200
    assert not relay.new(key).exists()


def test_pipelined_requests_are_answered_in_order(relay: Relay, key: str) -> None:
    post = f"POST /notify HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: 2\r\n\r\n"
    requests = "".join(f"{post}{n:02}" for n in range(10))
    take = f"POST /mailboxes/{key}/consume HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" * 11
    last = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(relay, (requests + take + last).encode()).decode()
    assert re.findall(r"HTTP/1\.1 (\d+)", answer) == ["202"] * 10 + ["200"] * 12
    assert re.findall(r'"message":"(\d\d)"', answer) == [f"{n:02}" for n in range(10)]
    assert answer.count('{"message":null}') == 1


def test_a_wait_that_is_pipelined_takes_its_page_in_turn(relay: Relay, key: str) -> None:
    with relay.connect() as connection:
        wait = f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.sendall((wait + wait).encode())
        until(relay.new(key).is_dir)
        ids = [relay.notify(key).json()["id"] for _ in range(2)]
        answer = b""
        while answer.count(b'"id":') < 2:
            answer += connection.recv(65536)
        assert [id.encode() in answer for id in ids] == [True, True]


@pytest.mark.parametrize(
    "path",
    [
        "/mailboxes/../../etc/passwd/messages",
        "/mailboxes/%2e%2e/messages",
        "/mailboxes/%2e%2e%2f%2e%2e%2fetc/messages",
        "/mailboxes/..%5c..%5c/messages",
        "/to/../healthz",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/sample/../../share/pager.sh",
        "/%00",
        "/mailboxes/{number}%00/messages",
        "//etc/passwd",
        "*",
        "http://elsewhere/mailboxes",
        "/" + "a" * 10000,
    ],
)
def test_no_path_leads_out(relay: Relay, path: str, key: str) -> None:
    target = path.format(number=number(key))
    answer = talk(relay, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert status(answer) in (400, 401, 403, 404, 405)
    assert b"root:" not in answer
    assert b"import" not in answer
    assert b'{"error":{"code":' in answer


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer",
        "Authorization: Bearer Bearer {key}",
        "Authorization: Bearer {key} {key}",
        "Authorization: Bearer\t{key}",
        "Authorization: {key},{key}",
        "Authorization: Bearer {key}\r\n continued",
        "Authorization: \xff\xfe",
        "Authorization: Bearer {key};x=1",
        "Authorization: Bearer " + "f" * 5000,
        "authorization: Digest {key}",
        "Authorization : Bearer {key}",
        "Authorization:\x00{key}",
    ],
)
def test_an_odd_authorization_is_refused_and_delivers_nothing(relay: Relay, key: str, header: str) -> None:
    head = f"POST /notify HTTP/1.1\r\nHost: x\r\n{header.format(key=key)}\r\nContent-Length: 2\r\n"
    answer = talk(relay, f"{head}Connection: close\r\n\r\nhi".encode("latin-1"))
    assert status(answer) in (400, 401)
    assert not relay.new(key).exists()
    assert key.encode() not in answer


def test_headers_too_many_or_too_long_are_431_and_given_twice_are_no_fault(relay: Relay, key: str) -> None:
    many = "".join(f"X-{n}: {n}\r\n" for n in range(5000))
    assert status(talk(relay, f"GET /version HTTP/1.1\r\nHost: x\r\n{many}\r\n".encode())) == 431
    head = f"POST /notify HTTP/1.1\r\nHost: x\r\nHost: y\r\nAuthorization: {key}\r\nContent-Type: text/plain\r\n"
    twice = "Content-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    assert status(talk(relay, (head + twice).encode())) == 202
    lengths = "Content-Length: 2\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi"
    assert status(talk(relay, (head + lengths).encode())) == 400


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """A relay whose waits end at once, and that takes little."""
    folder = tmp_path_factory.mktemp("quick")
    relay = Relay(folder / "spool", folder / "log", WAIT_TIMEOUT_SECONDS=0.001, MAX_MESSAGE_BYTES=200)
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


KEY = new_key()
segments = st.sampled_from(
    ["mailboxes", "notify", "to", "messages", "consume", "wait", "healthz", "version", "sample", "pager.sh", "static"]
    + ["", ".", "..", "%2e%2e", "%00", "%ff", "%", "%zz", KEY, number(KEY), "style.css"]
) | st.text(st.characters(codec="latin-1"), max_size=5)
paths = st.lists(segments, max_size=5).map(lambda parts: "/" + "/".join(parts))
queries = st.sampled_from(
    ["", "?", "?max_age_seconds=1", "?max_age_seconds=", "?max_age_seconds=1e999", "?%ff=%fe", "?a&b&=&&"]
)
methods = st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "X"])
headers = st.dictionaries(
    st.sampled_from(
        ["Authorization", "Content-Type", "Host", "Accept", "Range", "If-Modified-Since", "Cookie", "X-Forwarded-For"]
        + ["Content-Encoding", "Origin", "Expect", "Accept-Encoding", "Upgrade", "Pager-Delay", "Idempotency-Key"]
    ),
    st.sampled_from(
        [
            KEY,
            number(KEY),
            f"Bearer {KEY}",
            "application/json",
            "text/plain",
            "multipart/form-data",
            "",
            "x",
            "bytes=0-1",
        ]
        + ["gzip", "a; b=c; d", "text/plain; charset=utf-16", "100-continue", "1e9", "Thu, 01 Jan 1970 00:00:00 GMT"]
    )
    | st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=20),
    max_size=5,
)
bodies = st.binary(max_size=300) | st.sampled_from(
    [
        b"",
        b"{}",
        b'{"uuid":"x"}',
        b'{"a":1}',
        b"[",
        b"\xff",
        b'{"\\ud800":"\\udfff"}',
        json.dumps({"uuid": KEY}).encode(),
    ]
)


@pytest.mark.parametrize("length", ["Content-Length: 0\r\n", ""])
def test_a_client_that_asks_whether_to_go_on_and_has_no_body_is_answered(relay: Relay, length: str) -> None:
    answer = talk(
        relay, f"GET /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n{length}\r\n".encode()
    )
    assert status(answer) == 404


@settings(max_examples=400, deadline=None)
@given(methods, paths, queries, headers, bodies)
def test_nothing_is_ever_a_500(
    quick: Relay, method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> None:
    lines = [f"{method} {path}{query} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    answer = talk(quick, "\r\n".join(lines).encode("latin-1"), body)
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    code = status(answer)
    assert code < 500, answer
    head, _, rest = answer.partition(b"\r\n\r\n")
    if code >= 400 and method != "HEAD":
        assert set(json.loads(rest)["error"]) == {"code", "message", "hint"}
        assert b"application/json" in head
