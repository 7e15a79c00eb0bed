"""`pagermcp wait`: pages as lines of JSON, acknowledged only when they were printed."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import Client, Relay, until
from middle import Proxy


def test_a_page_is_a_line_of_json_and_the_exit_code_says_whether_there_was_one(relay: Relay, client: Client) -> None:
    assert client("wait", "--timeout", "0", code=1).stdout == ""
    relay.notify(client.key, json={"status": "success", "message": "höi"})
    done = client("wait", "--ack")
    page = json.loads(done.stdout)
    assert (page["payload"], page["attempt"], page["stale"]) == ({"status": "success", "message": "höi"}, 1, False)
    assert "höi" in done.stdout
    assert relay.receipt(client.key, page["id"])["outcome"] == "acknowledged"


def test_it_wakes_when_a_page_comes(relay: Relay, client: Client) -> None:
    with client.start("wait", "--ack") as process:
        until(lambda: relay.new(client.key).is_dir())
        id = relay.notify(client.key).json()["id"]
        assert json.loads(process.communicate(timeout=20)[0])["id"] == id
    assert process.returncode == 0


def test_without_ack_it_is_leased_until_it_is_acknowledged(relay: Relay, client: Client) -> None:
    relay.notify(client.key, "one")
    relay.notify(client.key, "two")
    pages = [json.loads(line) for line in client("wait", "--max", "5", "--lease", "10m").stdout.splitlines()]
    assert [page["payload"]["message"] for page in pages] == ["one", "two"]
    assert relay.receipt(client.key, pages[0]["id"])["state"] == "leased"
    assert client("ack", *(page["handle"] for page in pages)).stdout == ""
    assert {relay.receipt(client.key, page["id"])["state"] for page in pages} == {"archived"}
    assert "no page 1234567890123456" in client("ack", "1234567890123456", code=5).stderr


def test_old_pages_go_to_the_archive_unread(relay: Relay, client: Client) -> None:
    id = relay.notify(client.key).json()["id"]
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 2)  # the relay counts whole seconds
    assert client("wait", "--timeout", "0", "--max-age", "1", code=1).stdout == ""
    assert relay.receipt(client.key, id)["outcome"] == "expired"


@pytest.mark.parametrize("output", [">/dev/full", ">&-", "| sleep 0"])
def test_output_that_can_not_be_written_is_not_acknowledged(relay: Relay, client: Client, output: str) -> None:
    id = relay.notify(client.key).json()["id"]
    command = " ".join(client.command("wait", "--ack"))
    gone = "sleep 0.5; " if "|" in output else ""  # its reader has gone by then
    script = f"{{ {gone}{command}; echo $? >code; }} {output}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=client.folder, env=client.environment, capture_output=True, text=True, timeout=30
    )
    assert done.stderr.startswith("pagermcp: the output can't be written: ")
    assert (client.folder / "code").read_text() == "11\n"
    (page,) = relay.lease(client.key)  # it was given back at once
    assert (page["id"], page["attempt"]) == (id, 2)


def test_a_reader_that_is_killed_before_it_has_printed_gets_it_again(relay: Relay, client: Client) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    with client.start("wait", "--ack", "--lease", "1", stdout=write) as process:
        id = relay.notify(client.key).json()["id"]
        until(lambda: relay.receipt(client.key, id)["state"] == "leased")
        process.send_signal(signal.SIGKILL)
    for end in (read, write):
        os.close(end)
    (page,) = relay.lease(client.key, "lease=9&timeout=10")
    assert (page["id"], page["attempt"]) == (id, 2)


def test_what_is_in_the_outbox_goes_when_the_relay_is_there_again(relay: Relay, client: Client) -> None:
    with Proxy(relay.port) as proxy, client.start("wait", "--ack", "--url", proxy.url) as process:
        until(lambda: proxy.answers)
        client("send", "--url", "http://127.0.0.1:9", "kept")
        (path,) = client.outbox.glob("new/*.json")
        path.write_text(path.read_text().replace("http://127.0.0.1:9", proxy.url))
        proxy.cut()
        assert json.loads(process.communicate(timeout=20)[0])["payload"] == {"message": "kept"}


def test_a_relay_that_goes_away_while_it_waits_is_connected_again(relay: Relay, client: Client) -> None:
    with Proxy(relay.port) as proxy, client.start("wait", "--ack", "--url", proxy.url) as process:
        until(lambda: proxy.answers)  # it has looked, and begins to wait
        proxy.cut()
        until(lambda: proxy.connections >= 2)
        id = relay.notify(client.key).json()["id"]
        assert json.loads(process.communicate(timeout=20)[0])["id"] == id
