"""`pagermcp doctor`: what keeps this machine from being woken is found, and each finding says what to do."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from conftest import Client, Relay, new_key, until
from middle import Cut, Proxy, somebody

import pagermcp


def findings(client: Client, *arguments: str, code: int = 0) -> list[dict[str, str]]:
    done = client("doctor", "--json", *arguments, code=code)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bad(client: Client, *arguments: str) -> dict[str, str]:
    (finding,) = (one for one in findings(client, *arguments, code=1) if one["verdict"] == "bad")
    return finding


def test_when_all_is_well_it_says_so_and_leaves_the_mailbox_alone(relay: Relay, client: Client) -> None:
    relay.notify(client.key, "mine")
    lines = client("doctor", "--wait", "1").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 4
    assert lines[1] == f"ok    {relay.url} is a relay, version {pagermcp.__version__}"
    assert lines[2] == f"ok    the mailbox {client.number} can be read; pages that wait there: 1"
    assert re.fullmatch(r"ok    a page woke a wait that was open for 1 s; it took [0-9]+ ms", lines[3])
    assert client.key not in "".join(lines)
    assert relay.lease(client.key)[0]["attempt"] == 1


def test_no_relay_is_bad(client: Client) -> None:
    finding = bad(client, "--url", "http://127.0.0.1:9")
    assert finding["what"] == "http://127.0.0.1:9 does not answer: Connection refused"
    assert "pagermcp serve" in finding["remedy"]


def test_a_session_that_others_can_read_is_bad(client: Client) -> None:
    (client.folder / ".pager_session").chmod(0o644)
    finding = bad(client, "--wait", "0")
    assert "mode 644" in finding["what"]
    assert finding["remedy"] == "chmod 600 ./.pager_session"


def test_no_session_and_a_full_outbox_are_worth_a_note(client: Client) -> None:
    client("send", "--url", "http://127.0.0.1:9", "x")
    (client.folder / ".pager_session").unlink()
    notes = [one for one in findings(client, "--wait", "0") if one["verdict"] == "note"]
    assert notes[0]["what"] == f"pages in the outbox {client.outbox}: 1"
    assert "pagermcp outbox flush" in notes[0]["remedy"]
    assert "make one with: pagermcp number" in notes[1]["what"]


def test_another_version_is_worth_a_note(client: Client) -> None:
    with somebody(200, {"version": "9.9", "status": "ok", "pages": []}) as url:
        notes = [one["what"] for one in findings(client, "--url", url, "--wait", "0", code=1)]
    assert f"this is pagermcp {pagermcp.__version__}, the relay is 9.9" in notes


def test_a_proxy_that_cuts_waits_is_found(relay: Relay, client: Client) -> None:
    with Proxy(relay.port) as proxy:
        cutting = threading.Timer(2, proxy.cut)
        cutting.start()
        finding = bad(client, "--url", proxy.url, "--wait", "20")
        cutting.join()
    assert finding["what"].startswith("a wait was ended after ")
    assert "proxy_read_timeout" in finding["remedy"]


def test_a_proxy_that_buffers_is_found(relay: Relay, client: Client) -> None:
    def late(data: bytes) -> bytes:
        if b'"pages":[{"id"' in data:
            time.sleep(3)  # what a buffer does with the page
        return data

    with Proxy(relay.port, late) as proxy:
        finding = bad(client, "--url", proxy.url, "--wait", "0.5")
    assert finding["what"].startswith("something buffers waits: the page came after ")
    assert "proxy_buffering off" in finding["remedy"]


def test_a_proxy_that_swallows_pages_is_found(relay: Relay, client: Client) -> None:
    def swallow(data: bytes) -> bytes:
        if b'"pages":[{"id"' in data:
            raise Cut
        return data

    with Proxy(relay.port, swallow) as proxy:
        assert "a page did not come" in bad(client, "--url", proxy.url, "--wait", "0.5")["what"]


def test_a_clock_that_is_off_is_found(start_relay: Callable[..., Relay], client: Client) -> None:
    ahead = "import datetime, time\nnow = time.time\ntime.time = lambda: now() + 3600\n"
    ahead += "time_ns = time.time_ns\ntime.time_ns = lambda: time_ns() + 3600 * 10**9"
    relay = start_relay(prelude=ahead)
    finding = bad(client, "--url", relay.url, "--wait", "0")
    assert finding["what"] == "the relay's clock is 3600 s ahead of this machine's"
    assert "NTP" in finding["remedy"]


# --- doctor --wake


def test_an_agent_that_acknowledges_the_page_by_mcp_passes(relay: Relay, client: Client) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "wait_for_event", "arguments": {}}
    with client.start("mcp", stdin=subprocess.PIPE) as server:
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        said = client("doctor", "--wake", "mcp", "--wait", "20").stdout
        server.stdin.close()
    assert "ok    mcp received a page, and acknowledged it after " in said


def by_hook(client: Client, agent: str) -> None:
    """What this agent's hooks do when its user says something, and then once more."""
    event = json.dumps({"session_id": "s", "cwd": str(client.folder), "prompt": "hello"})
    until(lambda: client("hook", "prompt", "--client", agent, input=event).stdout)
    assert client("hook", "prompt", "--client", agent, input=event).stdout == ""


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_agent_that_acknowledges_the_page_by_its_hooks_passes(client: Client, agent: str) -> None:
    with client.start("doctor", "--wake", agent, "--wait", "30") as doctor:
        by_hook(client, agent)
        assert doctor.wait(20) == 0
        assert f"ok    {agent} received a page" in doctor.stdout.read()


def test_another_agent_that_acknowledges_the_page_does_not_pass(client: Client) -> None:
    with client.start("doctor", "--wake", "codex", "--wait", "30", "--json") as doctor:
        by_hook(client, "claude")
        assert doctor.wait(20) == 1
        finding = json.loads(doctor.stdout.readlines()[-1])
    assert (finding["verdict"], finding["what"]) == ("bad", "claude acknowledged the page, and not codex")
    assert finding["remedy"].startswith("stop what takes this mailbox's pages")


@pytest.mark.parametrize("taken", [False, True])
def test_a_page_that_no_agent_acknowledges_does_not_pass(client: Client, taken: bool) -> None:
    with client.start("doctor", "--wake", "opencode", "--wait", "2") as doctor:
        if taken:
            client("wait", "--timeout", "10", "--ack")
        assert doctor.wait(20) == 1
        said = doctor.stdout.read()
    if taken:
        assert "bad   something else than opencode acknowledged the page\n      -> stop what takes" in said
    else:
        assert re.search("bad   opencode did not acknowledge a page in 2 s; it is (waiting|expired)\n", said)
        assert "-> pagermcp install opencode" in said


def test_waking_takes_time_and_a_relay(client: Client) -> None:
    assert "some time" in client("doctor", "--wake", "mcp", "--wait", "0", code=2).stderr
    said = client("doctor", "--wake", "mcp", "--url", "http://127.0.0.1:9", code=1).stdout
    assert "-> start it (pagermcp serve)" in said


def test_a_page_that_was_not_acknowledged_is_gone_afterwards(relay: Relay, client: Client) -> None:
    client("doctor", "--wake", "mcp", "--wait", "1", code=1)
    until(lambda: not relay.with_key(client.key, "GET", "/pages").json()["pages"])


@pytest.mark.parametrize(
    "probe", [None, 1, {}, {"reply": "x", "nonce": "0" * 32}, {"reply": new_key(), "nonce": "0" * 32}]
)
def test_a_page_with_something_else_for_a_probe_is_an_ordinary_page(
    relay: Relay, client: Client, probe: object
) -> None:
    relay.notify(client.number, json={"message": "m", "probe": probe})
    by_hook(client, "claude")
    until(lambda: relay.archived(client.key))
