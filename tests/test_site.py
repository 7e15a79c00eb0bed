"""GET /, /version, and errors that belong to no call."""

import re
from collections.abc import Callable

import pytest
from conftest import Relay

import pagermcp


def test_the_start_page_shows_commands_with_this_relays_url(relay: Relay) -> None:
    answer = relay.get("/")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert f"{relay.url}/notify" in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["", "chat"])
def test_all_that_a_page_loads_is_the_relays_own_and_has_its_type(relay: Relay, path: str) -> None:
    page = relay.get(f"/{path}").text
    loaded = re.findall(r'(?:src|rel="\w+" href)="([^"]*)"', page)
    assert {"static/style.css", "static/common.js", "static/icon.svg"} <= set(loaded)
    types = {"css": "text/css", "js": "javascript", "svg": "image/svg+xml"}
    for one in loaded:
        answer = relay.get(f"/{one}")
        assert answer.status_code == 200
        assert types[one.rpartition(".")[2]] in answer.headers["Content-Type"]
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", page)


def test_the_url_is_the_one_the_client_called(relay: Relay) -> None:
    assert "http://pager.example:81/notify" in relay.get("/", headers={"Host": "pager.example:81"}).text
    assert "http://[::1]:81/notify" in relay.get("/", headers={"Host": "[::1]:81"}).text


@pytest.mark.parametrize("host", ["a b", 'x"><script>', "x/y", "x@y", "$(id)"])
def test_a_host_that_is_no_host_name_is_400(relay: Relay, host: str) -> None:
    answer = relay.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert host not in answer.text


def test_a_public_url_overrules_what_the_client_called(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_PUBLIC_URL="https://user:pass%20word@pager.example:8443/relay/")
    for path in ("/", "/sample/pager.sh"):
        assert "https://user:pass%20word@pager.example:8443/relay" in relay.get(path, headers={"Host": "x y"}).text


def test_the_version_and_build_are_said(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_BUILD="abc123")
    assert relay.get("/version").json() == {"version": pagermcp.__version__, "build": "abc123"}


@pytest.mark.parametrize("path", ["/nothing", "/mailboxes/", "//mailboxes", "/notify/", "/mailboxes//messages"])
def test_an_unknown_address_is_404_or_405_in_the_usual_form_and_never_a_redirect(relay: Relay, path: str) -> None:
    answer = relay.get(path, allow_redirects=False)
    assert answer.status_code in (404, 405)
    assert set(answer.json()["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20000 + b"\r\n\r\n", 431, "request_header_fields_too_large"),
        (b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413, "too_large"),
        (b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "bad_request"),
        (b"POST /notify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not_implemented"),
    ],
)
def test_what_the_server_itself_refuses_has_the_usual_form_too(
    relay: Relay, request_bytes: bytes, status: int, code: str
) -> None:
    with relay.connect() as connection:
        connection.sendall(request_bytes)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode()
    assert b"Content-Type: application/json" in head
    assert f'"code":"{code}"'.encode() in body
