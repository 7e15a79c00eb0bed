"""The outbox: what no relay takes is kept as a file, and sent once when one does."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NOBODY, Client, Relay, as_root, as_user, clean_environment, new_key, number, until
from middle import Proxy, cut, somebody

NOWHERE = "http://127.0.0.1:9"


def waiting(client: Client) -> list[Path]:
    return sorted((client.outbox / "new").glob("*.json"))


def messages(relay: Relay, client: Client) -> list[str]:
    return [page["payload"]["message"] for page in relay.lease(client.key, "max=100&lease=60&timeout=0")]


def keep(client: Client, *arguments: str) -> dict[str, Any]:
    """Send while no relay answers, and make the kept page one for the client's own relay; what is in its file."""
    before = waiting(client)
    client("send", "--url", NOWHERE, *arguments)
    (path,) = set(waiting(client)) - set(before)
    return rewrite(path, url=client.environment["PAGER_URL"])


def rewrite(path: Path, **changes: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    return content


def test_a_page_is_kept_durably_for_its_owner_alone_and_names_no_key(client: Client) -> None:
    done = client("send", "--url", NOWHERE, "--job-id", "x", "hi")
    assert done.stdout == ""
    assert done.stderr == (
        f"pagermcp: not sent yet: {NOWHERE} does not answer: Connection refused. "
        "It is kept, and goes with the next page, or by: pagermcp outbox flush\n"
    )
    (path,) = waiting(client)
    content = json.loads(path.read_text())
    assert content["to"] == client.number
    assert content["payload"] == {"JOB_ID": "x", "message": "hi"}
    assert client.key not in path.read_text()
    assert oct(path.stat().st_mode)[-3:] == "600"
    assert oct(client.outbox.stat().st_mode)[-3:] == oct(path.parent.stat().st_mode)[-3:] == "700"
    assert json.loads(client("send", "--json", "--url", NOWHERE, "{}").stdout) == {"accepted": False, "kept": True}


def test_the_next_page_brings_the_kept_ones_with_it(relay: Relay, client: Client) -> None:
    keep(client, "first")
    keep(client, "second")
    other = Client(client.folder, relay.url)  # with the same outbox, and another mailbox
    keep(other, "to another")
    (client.folder / ".pager_session").write_text(client.key)
    assert "from the outbox: 1 sent, 0 left, 0 refused" in client("send", "third").stderr
    assert messages(relay, client) == ["first", "second", "third"]  # in the order in which they were sent
    assert messages(relay, other) == ["to another"]
    assert not waiting(client)


def test_flush_sends_the_oldest_first_and_exits_with_0_when_none_is_left(relay: Relay, client: Client) -> None:
    for message in ("first", "second"):
        keep(client, message)
    assert client("outbox").stdout.splitlines()[0].split() == ["AGE", "TO", "RELAY", "MESSAGE"]
    listed = [json.loads(line) for line in client("outbox", "--json").stdout.splitlines()]
    assert [page["payload"] for page in listed] == [{"message": "first"}, {"message": "second"}]
    assert client("outbox", "flush").stdout == "2 sent, 0 left, 0 refused\n"
    assert messages(relay, client) == ["first", "second"]
    assert client("outbox", "flush", "--json").stdout == '{"sent":0,"left":0,"refused":0}\n'
    assert client("outbox").stdout == "the outbox is empty\n"


def test_what_still_can_not_be_sent_stays(client: Client) -> None:
    client("send", "--url", NOWHERE, "hi")
    assert client("outbox", "flush", code=3).stdout == "0 sent, 1 left, 0 refused\n"
    assert len(waiting(client)) == 1


def test_a_page_that_arrived_though_nobody_said_so_comes_once(relay: Relay, client: Client) -> None:
    with Proxy(relay.port, cut) as proxy:
        assert "not sent yet" in client("send", "--url", proxy.url, "hi").stderr
        assert proxy.connections == 3  # it was tried that often
        assert client("outbox", "flush", code=3).stdout == "0 sent, 1 left, 0 refused\n"
        proxy.answer = lambda data: data
        assert client("outbox", "flush").stdout == "1 sent, 0 left, 0 refused\n"
    assert messages(relay, client) == ["hi"]


def test_flushes_at_the_same_time_send_each_page_once(relay: Relay, client: Client) -> None:
    kept = [keep(client, f"page {number}")["payload"] for number in range(4)]
    flushes = [client.start("outbox", "flush") for _ in range(4)]
    for flush in flushes:
        assert flush.communicate()[1] == ""
        assert flush.returncode == 0
    assert sorted(messages(relay, client)) == sorted(kept)


@pytest.fixture
def full_relay(start_relay: Callable[..., Relay]) -> Iterator[Relay]:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1, MAX_MESSAGE_BYTES=1000)
    yield relay
    assert relay.stop() == 0


def test_a_full_mailbox_keeps_its_page_waiting_and_holds_up_no_other(full_relay: Relay, tmp_path: Path) -> None:
    first, second = (
        Client(folder, full_relay.url) for folder in (tmp_path / "a", tmp_path / "b") if not folder.mkdir()
    )
    second.environment["XDG_STATE_HOME"] = first.environment["XDG_STATE_HOME"]
    first("send", "one")
    assert "the mailbox is full" in first("send", "two").stderr
    second("send", "--url", NOWHERE, "other")
    rewrite(waiting(first)[1], url=full_relay.url)
    assert first("outbox", "flush", code=8).stdout == "1 sent, 1 left, 0 refused\n"
    full_relay.with_key(first.key, "POST", f"/mailboxes/{first.key}/consume")
    until(lambda: full_relay.archived(first.key))
    assert first("outbox", "flush").stdout == "1 sent, 0 left, 0 refused\n"


def test_what_a_relay_will_never_take_is_put_aside_with_the_reason(full_relay: Relay, tmp_path: Path) -> None:
    client = Client(tmp_path, full_relay.url)
    keep(client, "x" * 2000)
    keep(client, "small")
    done = client("outbox", "flush", code=7)
    assert done.stdout == "1 sent, 0 left, 1 refused\n"
    assert "the limit is 1000" in done.stderr
    (aside,) = (client.outbox / "refused").glob("*.json")
    assert "the limit is 1000" in aside.with_suffix(".why").read_text()
    assert json.loads(aside.read_text())["payload"] == "x" * 2000
    keep(client, "x" * 2000)
    assert "was refused, and put aside: the body has 2000 bytes" in client("send", "--replace", "a", "b").stderr
    full_relay.with_key(client.key, "POST", f"/mailboxes/{client.key}/consume")
    until(lambda: full_relay.archived(client.key))
    assert "the limit is 1000" in client("send", "x" * 2000, code=7).stderr  # at once it is not kept at all
    assert not waiting(client)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"x": 1}',
        '{"url": "x"}',
        "\x00" * 100,
        "[" * 100_000,
        '{"url": 5, "to": "UUID", "payload": "x", "idempotency_key": "x", "created": 1}',
        '{"url": "http://x", "to": "UUID", "payload": "x", "idempotency_key": "x", "created": NaN}',
        '{"url": "http://x", "to": "UUID", "payload": "x", "idempotency_key": "x", "created": 1, "expires": "1h"}',
        '{"url": "http://[", "to": "UUID", "payload": "x", "idempotency_key": "x", "created": 1}',
    ],
)
def test_a_broken_file_is_put_aside_and_holds_up_nobody(relay: Relay, client: Client, content: str) -> None:
    keep(client, "hi")
    (client.outbox / "new" / "0-broken.json").write_text(content.replace("UUID", client.number))
    if "//[" not in content:
        assert "0-broken.json" in client("outbox").stderr
    assert client("outbox", "flush", code=10).stdout == "1 sent, 0 left, 1 refused\n"
    assert messages(relay, client) == ["hi"]
    assert (client.outbox / "refused" / "0-broken.why").exists()


def test_times_go_on_in_the_outbox(relay: Relay, client: Client) -> None:
    for options in (["--delay", "3h"], ["--delay", "30m"], ["--delay", "1h", "--expires", "30m"], ["--expires", "2h"]):
        keep(client, *options, "--", " ".join(options))
    for path in waiting(client):
        rewrite(path, created=json.loads(path.read_text())["created"] - 5400)
    done = client("outbox", "flush", code=10)
    assert done.stdout == "3 sent, 0 left, 1 refused\n"
    assert "it was for 30 min" in done.stderr
    pages = relay.lease(client.key, "max=9&lease=9")
    assert [page["payload"]["message"] for page in pages] == ["--delay 30m", "--expires 2h"]
    left = json.loads(client("inbox", "--json").stdout.splitlines()[-1])
    assert left["payload"]["message"] == "--delay 3h"
    assert "due in 1.5 h" in client("inbox").stdout


def test_an_outbox_that_can_not_be_used_is_said_and_the_page_is_not_claimed_to_be_kept(client: Client) -> None:
    done = client("send", "--url", NOWHERE, "hi", environment={"XDG_STATE_HOME": "/dev/null"}, code=3)
    assert done.stderr.splitlines() == [
        "pagermcp: the outbox /dev/null/pagermcp/outbox can't be used: Not a directory",
        f"pagermcp: {NOWHERE} does not answer: Connection refused",
    ]


def test_a_relay_that_is_in_trouble_gets_the_page_later(client: Client) -> None:
    with somebody(503, {"error": {"code": "busy", "message": "busy", "hint": ""}}, Retry_After="60") as url:
        assert "not sent yet: busy" in client("send", "--url", url, "hi").stderr
    assert len(waiting(client)) == 1


@pytest.mark.parametrize("after", [0.05, 0.15, 0.2, 0.25, 0.3])
def test_a_sender_that_is_killed_leaves_a_whole_page_or_none(client: Client, after: float) -> None:
    process = client.start("send", "--url", NOWHERE, "hi")
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for path in waiting(client):
        assert json.loads(path.read_text())["payload"] == "hi"


def test_the_page_is_on_the_disk_while_it_is_being_sent(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client.start("send", "--url", url, "hi") as process:
            until(lambda: waiting(client))
            process.kill()
            process.communicate()
    assert json.loads(waiting(client)[0].read_text())["payload"] == "hi"


def test_a_newer_page_does_not_overtake_an_older_one_to_the_same_mailbox(relay: Relay, client: Client) -> None:
    keep(client, "--replace", "progress", "50 %")
    keep(client, "--run", "night", "--expect", "1h", "begun")
    client("send", "--replace", "progress", "100 %")
    client("send", "--run", "night", "ended")
    assert messages(relay, client) == ["begun", "100 %", "ended"]
    assert not list(relay.spool.glob(f"runs/{client.number}/*.json"))


def test_a_report_that_comes_too_late_is_delivered_and_the_run_is_lost(relay: Relay, client: Client) -> None:
    keep(client, "--run", "night", "--expect", "30m", "begun")
    keep(client, "--run", "other", "--expect", "30m", "")  # but a bare switch would be an alarm about nothing
    for path in waiting(client):
        rewrite(path, created=json.loads(path.read_text())["created"] - 5400)
    assert client("outbox", "flush", code=10).stdout == "1 sent, 0 left, 1 refused\n"
    pages = until(lambda: (len(found := relay.lease(client.key, "max=9&timeout=5")) == 2 and found) or None)
    assert [page["payload"].get("status", page["payload"]["message"]) for page in pages] == ["begun", "lost"]


def test_what_was_put_aside_is_listed_with_the_reason(full_relay: Relay, tmp_path: Path) -> None:
    client = Client(tmp_path, full_relay.url)
    keep(client, "x" * 2000)
    client("outbox", "flush", code=7)
    assert "refused: the body has 2000 bytes" in client("outbox").stdout
    assert "2000 bytes" in json.loads(client("outbox", "--json").stdout)["refused"]


def test_any_idempotency_key_can_be_kept(relay: Relay, client: Client) -> None:
    keep(client, "--idempotency-key", "build/42/../done", "hi")
    client("outbox", "flush")
    client("send", "--idempotency-key", "build/42/../done", "hi")
    assert messages(relay, client) == ["hi"]


def test_one_page_that_a_proxy_will_not_have_holds_up_no_other(relay: Relay, client: Client) -> None:
    with somebody(500, b"<html>") as url:
        client("send", "--url", url, "big")
        keep(client, "small")
        assert client("outbox", "flush", code=3).stdout == "1 sent, 1 left, 0 refused\n"
    assert messages(relay, client) == ["small"]


def test_a_relay_that_is_away_does_not_delay_what_is_sent_to_another(relay: Relay, client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keep(client, "hi")
        rewrite(waiting(client)[0], url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        client("send", "now")
        client("run", "true")
    assert time.monotonic() - began < 8


def test_without_a_home_it_is_said_and_no_folder_is_made_here(client: Client) -> None:
    done = client("send", "--url", NOWHERE, "hi", environment={"XDG_STATE_HOME": "relative"}, code=3)
    assert "say where with XDG_STATE_HOME" in done.stderr or "can't be used" in done.stderr
    assert not (client.folder / "relative").exists()


def test_no_page_is_tried_before_an_older_one_to_the_same_mailbox(relay: Relay, client: Client) -> None:
    asked: list[str] = []
    with somebody(502, b"<html>", asked) as url:
        for number in range(3):
            client("send", "--url", url, f"{number}")
        before = len(asked)
        client("outbox", "flush", code=3)
        assert len(asked) == before + 1
        for path in waiting(client):
            rewrite(path, url=relay.url)
    client("send", "newest")
    assert messages(relay, client) == ["0", "1", "2", "newest"]


def test_a_clock_that_was_set_back_does_not_change_the_order(relay: Relay, client: Client) -> None:
    keep(client, "old")
    (path,) = waiting(client)
    path.rename(path.with_name("9999999999999999-0.json"))
    client("send", "new")
    assert messages(relay, client) == ["old", "new"]


def test_a_report_that_is_too_large_is_kept_without_its_logs(full_relay: Relay, tmp_path: Path) -> None:
    client = Client(tmp_path, full_relay.url)
    client("send", "one")
    assert "It is kept" in client("run", "--tail", "999", "seq", "1", "2000").stderr
    (path,) = waiting(client)
    assert json.loads(path.read_text())["payload"]["logs"].startswith("[left out: ")


def test_what_a_killed_sender_left_half_written_is_removed_in_time(relay: Relay, client: Client) -> None:
    keep(client, "hi")
    old, young = (client.outbox / "new" / name for name in (".0-old.json", ".0-young.json"))
    for path in (old, young):
        path.write_text("half")
    os.utime(old, (0, 0))
    assert client("outbox", "flush").stdout == "1 sent, 0 left, 0 refused\n"
    assert (old.exists(), young.exists()) == (False, True)


def test_a_page_that_is_put_back_gets_a_new_reason_or_none(relay: Relay, client: Client) -> None:
    keep(client, "--expires", "5s", "hi")
    (path,) = waiting(client)
    good = path.read_text()
    path.write_text("broken")
    client("outbox", "flush", code=10)
    aside = client.outbox / "refused" / path.name
    aside.unlink()
    path.write_text(good)
    rewrite(path, created=json.loads(good)["created"] - 100)
    client("outbox", "flush", code=10)
    assert "it was for 5 s" in client("outbox").stdout
    aside.rename(path)
    rewrite(path, created=time.time())
    client("outbox", "flush")
    assert list((client.outbox / "refused").iterdir()) == []


@as_root
def test_a_page_that_the_outbox_can_not_keep_is_sent_all_the_same(relay: Relay, shared_folder: Path) -> None:
    (shared_folder / "state" / "pagermcp" / "outbox" / "new").mkdir(parents=True)
    for folder in (shared_folder / "state").rglob("*"):
        os.chown(folder, NOBODY, NOBODY)
    (shared_folder / "state" / "pagermcp" / "outbox" / "new").chmod(0o300)
    imports = "import encodings.idna, pagermcp.client.agents; from pagermcp.cli import main"
    key = new_key()
    arguments = ["send", "--to", number(key), "--url", relay.url, "m"]
    command = as_user(NOBODY, imports, f"import sys; sys.argv[1:] = {arguments}; main()")
    environment = clean_environment(XDG_STATE_HOME=shared_folder / "state")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "outbox can't be used: Permission denied" in done.stderr
    assert len(relay.lease(key, "max=9&lease=9")) == 1
