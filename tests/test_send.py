"""`pagermcp send`: what a page becomes of what is typed, piped, or given as options."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Client, Relay, new_key, number, until
from middle import Proxy, cut, somebody

import pagermcp.client as api


def payload(relay: Relay, client: Client) -> Any:
    (page,) = relay.lease(client.key)
    relay.with_key(client.key, "POST", "/ack", json={"ids": [page["handle"]]})
    return page["payload"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["hi"], "hi"),
        (["two\nlines \"'$\\n"], "two\nlines \"'$\\n"),
        (['{"not": "parsed"}'], '{"not": "parsed"}'),
        (["--", "-x"], "-x"),
        ([""], ""),
    ],
)
def test_a_message_comes_as_it_was_typed(relay: Relay, client: Client, arguments: list[str], text: str) -> None:
    printed = client("send", *arguments).stdout
    (page,) = relay.lease(client.key)
    assert page["payload"] == {"message": text}
    assert printed == page["id"] + "\n"


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_comes_byte_for_byte(relay: Relay, client: Client, arguments: list[str]) -> None:
    client("send", *arguments, input="a\r\n\tb\n")
    assert payload(relay, client) == {"message": "a\r\n\tb\n"}


def test_what_is_not_utf8_is_shown_as_such_and_not_lost(relay: Relay, client: Client) -> None:
    client("send", input=b"caf\xe9")
    assert payload(relay, client) == {"message": "caf�"}
    client("send", os.fsdecode(b"caf\xe9"), "--job-id", os.fsdecode(b"\xff"))
    assert payload(relay, client) == {"JOB_ID": "�", "message": "caf�"}


def test_fields_stand_beside_the_message(relay: Relay, client: Client) -> None:
    fields = ["--job-id", "build", "--status", "success", "--project", "p", "--field", "a=b=c", "--field", "n="]
    client("send", *fields, "hi")
    expected = {"PROJECT": "p", "JOB_ID": "build", "status": "success", "a": "b=c", "n": ""}
    assert payload(relay, client) == expected | {"message": "hi"}
    client("send", *fields)
    assert payload(relay, client) == expected
    client("send", *fields, input="from a pipe")
    assert payload(relay, client) == expected | {"message": "from a pipe"}


def test_json_is_sent_as_an_object_and_answered_as_one(relay: Relay, client: Client) -> None:
    answer = json.loads(client("send", "--json", '{"a": [1, 2.5, null]}', "--status", "x").stdout)
    assert payload(relay, client) == {"a": [1, 2.5, None], "status": "x"}
    assert (answer["accepted"], answer["number"]) == (True, client.number)
    client("send", "--json", input='{"from": "stdin"}')
    assert payload(relay, client) == {"from": "stdin"}


@pytest.mark.parametrize("address", [number, str])
def test_others_are_paged_by_their_number_and_by_what_their_old_client_calls_one(
    relay: Relay, client: Client, address: Any
) -> None:
    other = new_key()
    (client.folder / ".pager_session").unlink()  # not needed to send
    id = client("send", "--to", address(other), "hi").stdout.strip()
    assert relay.lease(other)[0]["id"] == id
    (client.folder / ".pager_session").write_text(client.key)
    assert "is the number right?" in client("send", "--to", address(new_key()), "hi").stderr
    assert client("send", "--to", address(other), "hi").stderr == ""
    assert client("receipt", "--to", number(other), id).stdout.startswith(f"id: {id}\nstate: leased\n")


def test_options_reach_the_relay(relay: Relay, client: Client) -> None:
    later = client("send", "--delay", "2h", "later").stdout.strip()
    assert relay.receipt(client.key, later)["state"] == "scheduled"
    key = new_key()
    first = client("send", "--replace", key, "40 %").stdout.strip()
    client("send", "--replace", key, "--expires", "10m", "50 %")
    assert relay.receipt(client.key, first)["outcome"] == "replaced"
    once = [client("send", "--idempotency-key", key, "once").stdout for _ in range(2)]
    assert once[0] == once[1]
    answer = json.loads(client("send", "--json", "--run", key, "--expect", "30m").stdout)
    assert "expected_at" in answer
    assert client("send", "--run", key, "").stdout == ""  # a silent report brings no page
    assert [page["payload"]["message"] for page in relay.lease(client.key, "max=10&lease=9")[:2]] == ["50 %", "once"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--delay", "2x", "m"], "no time"),
        (["--expires", "0", "m"], "no time"),
        (["--expect", "2h", "m"], "--expect needs --run"),
        (["--run", "k", "--delay", "2h", "m"], "can't be delayed"),
        (["--replace", "a,b", "m"], "no comma"),
        (["--replace", "", "m"], "1 to 255"),
        (["--idempotency-key", "\n", "m"], "printed"),
        (["--to", "me", "m"], "no UUID"),
        (["--field", "x", "m"], "NAME=VALUE"),
        (["--field", "uuid=x", "m"], "NAME=VALUE"),
        (["--json", "{"], "not JSON"),
        (["--json", "[1]"], "JSON object"),
        (["--json", '{"uuid": "x"}'], "--to"),
        (["--json", "[" * 100_000], "not JSON"),
        (["--url", "ftp://x", "m"], "no URL of a relay"),
        (["--url", "http://user:secret@host", "m"], "password"),
        (["--url", "http://host:x", "m"], "no URL of a relay"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(client: Client, arguments: list[str], says: str) -> None:
    error = client("send", *arguments, code=2).stderr
    assert says in error
    assert "secret" not in error
    assert not client.outbox.exists()


def error(code: str, hint: str = "wait") -> dict[str, object]:
    return {"error": {"code": code, "message": f"a \x1b[31m{code}", "hint": hint}}


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, 4), (403, 4), (404, 5), (409, 6), (422, 6), (413, 7), (429, 8), (500, 9), (507, 9), (400, 10)],
)
def test_every_kind_of_refusal_has_its_exit_code(client: Client, status: int, code: int) -> None:
    with somebody(status, error("no"), Retry_After="60") as url:
        said = client("send", "--no-outbox", "--url", url, "m", code=code).stderr
    assert said == "pagermcp: a \\x1b[31mno; wait\n"  # what others write can't colour our terminal


@pytest.mark.parametrize(
    ("status", "body", "headers", "says"),
    [
        (200, b"<html>", {}, "answers 200, and not as a relay does"),
        (502, b"<html>", {}, "answers 502, and not as a relay does"),
        (200, {"other": "JSON"}, {}, "not as a relay does"),
        (301, b"", {"Location": "https://relay.example.org/notify?x"}, "sends on to https://relay.example.org/notify:"),
    ],
)
def test_who_is_no_relay_has_not_accepted(
    client: Client, status: int, body: object, headers: dict[str, str], says: str
) -> None:
    with somebody(status, body, **headers) as url:
        assert says in client("send", "--no-outbox", "--url", url, "m", code=3).stderr


def test_without_a_relay_it_fails_if_the_page_is_not_to_be_kept(client: Client) -> None:
    said = client("send", "--no-outbox", "--url", "http://127.0.0.1:9", "m", code=3).stderr
    assert said == "pagermcp: http://127.0.0.1:9 does not answer: Connection refused\n"
    assert not client.outbox.exists()


def test_an_answer_that_was_cut_off_makes_no_second_page(relay: Relay, client: Client) -> None:
    answers = []

    def cut_the_first(data: bytes) -> bytes:
        answers.append(data)
        return cut(data) if len(answers) == 1 else data

    with Proxy(relay.port, cut_the_first) as proxy:
        id = client("send", "--url", proxy.url, "once").stdout.strip()
    assert [page["id"] for page in relay.lease(client.key, "max=10&lease=9")] == [id]


def test_netrc_and_a_proxy_for_the_world_do_not_matter_for_a_relay_on_this_machine(
    relay: Relay, client: Client, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    (tmp_path / ".netrc").chmod(0o600)
    client("send", "m", environment={"http_proxy": "http://127.0.0.1:9"})
    assert payload(relay, client) == {"message": "m"}


def test_the_relay_is_found_by_the_variables_in_their_order(relay: Relay, client: Client) -> None:
    del client.environment["PAGER_URL"]
    nowhere = {"SERVER_HOST": "127.0.0.1", "SERVER_PORT": "9"}
    client("send", "m", environment={"SERVER_HOST": "127.0.0.1", "SERVER_PORT": str(relay.port)})
    client("send", "m", environment={**nowhere, "SERVER_URL": relay.url})
    client("send", "m", environment={**nowhere, "SERVER_URL": "http://127.0.0.1:9", "PAGER_URL": relay.url + "/"})
    assert len(relay.lease(client.key, "max=9&lease=9")) == 3


def test_a_silent_pipe_is_said_and_waited_for(relay: Relay, client: Client) -> None:
    with client.start("send", stdin=subprocess.PIPE) as process:
        assert "standard input, where nothing comes" in process.stderr.readline()
        output, _ = process.communicate("late")
    assert process.returncode == 0
    until(lambda: output)
    assert payload(relay, client) == {"message": "late"}


def test_without_standard_error_a_page_that_was_sent_is_a_success(relay: Relay, client: Client) -> None:
    command = " ".join(client.command("send", "m"))
    done = subprocess.run(["sh", "-c", f"{command} 2>&-"], cwd=client.folder, env=client.environment, timeout=30)
    assert done.returncode == 0
    assert payload(relay, client) == {"message": "m"}


def test_an_older_relay_that_accepts_without_an_id_has_accepted(client: Client) -> None:
    with somebody(202, {"accepted": True, "queued": 1}) as url:
        assert client("send", "--url", url, "m").stdout == ""
    assert not list(client.outbox.glob("new/*.json"))


def test_what_the_relay_says_can_not_colour_the_terminal(client: Client) -> None:
    with somebody(202, {"accepted": True, "id": "\x1b[31m1", "last_read": "never"}) as url:
        assert client("send", "--url", url, "m").stdout == "\\x1b[31m1\n"


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, {"other": "JSON"}), (413, b"<html>too large"), (404, b"<html>"), (202, {"accepted": False})],
)
def test_an_answer_that_is_final_is_not_asked_for_again(client: Client, status: int, body: object) -> None:
    asked: list[str] = []
    with somebody(status, body, asked) as url:
        client("send", "--url", url, "m", code=3)
    assert len(asked) == 1
    assert not list(client.outbox.glob("*/*.json"))


@pytest.mark.parametrize("body", [b"[" * 200_000, b"<html>log in to this network"])
def test_what_says_nothing_of_the_page_leaves_it_kept(client: Client, body: bytes) -> None:
    with somebody(200, body) as url:
        assert "not as a relay does" in client("send", "--url", url, "m").stderr
    assert len(list(client.outbox.glob("new/*.json"))) == 1


def test_an_answer_without_end_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagermcp.client.relay._MOST_ANSWER_BYTES", 100_000)
    with somebody(200, b" " * 1_000_000) as url, pytest.raises(api.Unreachable, match="without end"):
        api.Relay(client.key, url, tries=1).send("m")
