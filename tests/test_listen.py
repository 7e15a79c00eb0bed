"""`pagermcp listen`: stays connected, loses nothing, and has a command handle what comes."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Client, Relay, until
from middle import Proxy


def state(relay: Relay, client: Client, id: str) -> str:
    receipt = relay.receipt(client.key, id)
    return str(receipt.get("outcome", receipt["state"]))


@pytest.fixture
def listen(client: Client, relay: Relay) -> Iterator[Callable[..., Any]]:
    processes = []

    def start(*arguments: str, **options: Any) -> Any:
        process = client.start("listen", *arguments, **options)
        processes.append(process)
        until(lambda: relay.new(client.key).is_dir())
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def stop(process: Any, how: signal.Signals = signal.SIGTERM) -> str:
    process.send_signal(how)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    return without_greeting(errors)


def without_greeting(errors: str) -> str:
    return re.sub(r"^(pagermcp: made .*\n)?pagermcp: listening for pages to \S+\n", "", errors)


def test_pages_are_printed_and_acknowledged(relay: Relay, client: Client, listen: Callable[..., Any]) -> None:
    process = listen()
    ids = [relay.notify(client.key, f"{number}").json()["id"] for number in range(3)]
    assert [json.loads(process.stdout.readline())["id"] for _ in ids] == ids
    until(lambda: {state(relay, client, id) for id in ids} == {"acknowledged"})
    assert stop(process) == ""


def test_output_that_can_not_be_written_ends_it_and_is_not_acknowledged(relay: Relay, client: Client) -> None:
    relay.notify(client.key)
    with Path("/dev/full").open("w") as full:
        assert "can't be written" in client("listen", stdout=full, code=11).stderr
    assert relay.lease(client.key)[0]["attempt"] == 2


def test_a_command_gets_the_page_as_input_and_in_variables(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    text = "$(touch hacked) `touch hacked`; \"'\n\u00e9"
    relay.notify(
        client.key, json={"message": text, "status": "failed", "exit_code": 3, "JOB_ID": 7, "URL": "http://evil"}
    )
    listen("--exec", "cat >input; env -0 >variables")
    until(lambda: (client.folder / "variables").exists() and (client.folder / "variables").read_text().endswith("\0"))
    page = json.loads((client.folder / "input").read_text())
    assert page["payload"]["message"] == text
    variables = dict(one.split("=", 1) for one in (client.folder / "variables").read_text().split("\0")[:-1])
    told = {name: value for name, value in variables.items() if name.startswith("PAGER_")}
    assert told == {
        "PAGER_URL": relay.url,
        "PAGER_ID": page["id"],
        "PAGER_HANDLE": page["handle"],
        "PAGER_CREATED_AT": page["created_at"],
        "PAGER_AGE": str(page["age_seconds"]),
        "PAGER_STALE": "",
        "PAGER_ATTEMPT": "1",
        "PAGER_MESSAGE": text,
        "PAGER_STATUS": "failed",
        "PAGER_JOB_ID": "7",
        "PAGER_PROJECT": "",
        "PAGER_EXIT_CODE": "3",
    }
    until(lambda: state(relay, client, page["id"]) == "acknowledged")
    assert not (client.folder / "hacked").exists()


def test_what_no_variable_can_hold_does_not_keep_a_page_from_its_command(
    start_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=1 << 20)
    client = Client(tmp_path, relay.url)
    text = "a\0b" + "é" * 150_000
    assert relay.notify(client.key, json={"message": text, "status": "\ud800"}).status_code == 202
    with client.start("listen", "--exec", 'printf %s "$PAGER_MESSAGE" >message; cat >input') as process:
        until(lambda: list(relay.spool.glob("archive/*/*/*.json")))
        assert stop(process) == ""
    message = (tmp_path / "message").read_text()
    assert message.startswith("abé")
    assert len(message.encode()) in (99_999, 100_000)
    assert len(json.loads((tmp_path / "input").read_text())["payload"]["message"]) == len(text)


def test_a_command_that_fails_gets_the_page_again_later(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    process = listen("--exec", 'echo "$PAGER_ATTEMPT" >>attempts; exit 3')
    id = relay.notify(client.key).json()["id"]
    until(lambda: state(relay, client, id) == "scheduled")
    receipt = relay.receipt(client.key, id)
    assert (client.folder / "attempts").read_text() == "1\n"
    assert 8 < json_age(receipt["due_at"]) < 10.5
    until(lambda: (client.folder / "attempts").read_text() == "1\n2\n", 20)
    until(lambda: state(relay, client, id) == "scheduled")
    assert 38 < json_age(relay.receipt(client.key, id)["due_at"]) < 40.5
    assert f"page {id}: the command failed with exit code 3; it comes again in 10 s\n" in stop(process)


def json_age(moment: str) -> float:
    """Seconds from now until then."""
    from datetime import UTC, datetime

    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


def test_a_lease_is_renewed_while_the_command_works(relay: Relay, client: Client, listen: Callable[..., Any]) -> None:
    process = listen("--lease", "3", "--exec", "echo x >>began; while [ ! -e go ]; do sleep 0.1; done")
    id = relay.notify(client.key).json()["id"]
    until((client.folder / "began").exists)
    first = relay.receipt(client.key, id)["lease_expires_at"]
    until(lambda: json_age(first) < -1, 20)  # longer than the lease, and the relay's second of grace
    assert relay.receipt(client.key, id) | {"lease_expires_at": ""} == relay.receipt(client.key, id) | {
        "state": "leased",
        "attempt": 1,
        "lease_expires_at": "",
    }
    (client.folder / "go").touch()
    until(lambda: state(relay, client, id) == "acknowledged")
    assert (client.folder / "began").read_text() == "x\n"
    assert stop(process) == ""


@pytest.mark.parametrize(("jobs", "most"), [("1", 1), ("3", 3)])
def test_so_many_are_handled_at_once_as_was_said(
    relay: Relay, client: Client, listen: Callable[..., Any], jobs: str, most: int
) -> None:
    script = 'touch "running.$PAGER_ID"; ls | grep -c running >>counts; while [ ! -e go ]; do sleep 0.05; done; '
    process = listen("--jobs", jobs, "--exec", script + 'rm "running.$PAGER_ID"')
    ids = [relay.notify(client.key).json()["id"] for _ in range(5)]
    until(lambda: len(list(client.folder.glob("running.*"))) == most)
    (client.folder / "go").touch()
    until(lambda: {state(relay, client, id) for id in ids} == {"acknowledged"})
    counts = [int(line) for line in (client.folder / "counts").read_text().split()]
    assert (len(counts), max(counts)) == (5, most)
    assert stop(process) == ""


def test_sigterm_lets_the_command_end_and_takes_no_other_page(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    process = listen("--exec", "touch began; while [ ! -e go ]; do sleep 0.05; done; touch done")
    first, second = (relay.notify(client.key).json()["id"] for _ in range(2))
    until((client.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    (client.folder / "go").touch()
    assert process.wait(20) == 0
    assert (client.folder / "done").exists()
    assert (state(relay, client, first), state(relay, client, second)) == ("acknowledged", "waiting")


def test_a_second_signal_ends_the_command_and_gives_the_page_back(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    process = listen("--exec", "touch began; sleep 60; touch done")
    id = relay.notify(client.key).json()["id"]
    until((client.folder / "began").exists)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert "was killed by signal 15" in process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert state(relay, client, id) == "scheduled"
    assert not (client.folder / "done").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_one_that_only_waits_ends_at_once(
    relay: Relay, client: Client, listen: Callable[..., Any], how: signal.Signals
) -> None:
    began = time.monotonic()
    assert stop(listen("--exec", "true"), how) == ""
    assert time.monotonic() - began < 5


def test_nothing_is_lost_when_connections_are_cut_and_commands_fail(relay: Relay, client: Client) -> None:
    chance = random.Random(7)

    def at_times(data: bytes) -> bytes:
        if chance.random() < 0.1:
            raise OSError
        return data

    script = 'echo "$PAGER_MESSAGE" >>seen; [ $((PAGER_ATTEMPT + PAGER_MESSAGE % 10)) -ne 1 ]'  # every tenth fails once
    options = ["--jobs", "4", "--lease", "3", "--exec", script]
    with Proxy(relay.port, at_times) as proxy, client.start("listen", *options, "--url", proxy.url) as process:
        ids = [relay.notify(client.key, str(number)).json()["id"] for number in range(60)]
        until(lambda: all(state(relay, client, id) == "acknowledged" for id in ids), 60)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert set((client.folder / "seen").read_text().split()) == {str(number) for number in range(60)}


def test_what_is_in_the_outbox_goes_once_the_relay_is_there_again(relay: Relay, client: Client) -> None:
    with Proxy(relay.port) as proxy:
        client("send", "--url", "http://127.0.0.1:9", "kept")
        (path,) = client.outbox.glob("new/*.json")
        kept = path.read_text().replace("http://127.0.0.1:9", proxy.url)
        path.unlink()
        with client.start("listen", "--url", proxy.url) as process:
            relay.notify(client.key, "first")
            assert "first" in process.stdout.readline()
            path.write_text(kept)
            cut_at = [0.0]

            def gone() -> bool:
                if time.monotonic() > cut_at[0] + 2:  # the first one may have come between two requests
                    cut_at[0] = time.monotonic()
                    proxy.cut()
                return not path.exists()

            until(gone, 30)
            assert "kept" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate()


def test_a_relay_that_restarts_is_found_again(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay(PORT=0)
    client = Client(tmp_path, relay.url)
    with client.start("listen") as process:
        relay.notify(client.key, "before")
        id = json.loads(process.stdout.readline())["id"]
        until(lambda: state(relay, client, id) == "acknowledged")
        relay.stop(signal.SIGKILL)
        assert "listening for" in process.stderr.readline()
        while "could not be acknowledged" in (line := process.stderr.readline()):
            pass  # it was, and the answer was on its way
        assert "trying again in" in line
        relay = start_relay(PORT=relay.port)
        relay.notify(client.key, "after")
        assert json.loads(process.stdout.readline())["payload"]["message"] == "after"
        stop(process)
    relay.stop()


@pytest.mark.parametrize("arguments", ["--jobs 2", "--jobs 0 --exec x", "--lease x", "--lease 0.5", "--lease 13h"])
def test_a_wrong_call_is_refused(client: Client, arguments: str) -> None:
    client("listen", *arguments.split(), code=2)


def test_what_does_not_pass_by_itself_ends_it(client: Client) -> None:
    (client.folder / ".pager_session").write_text(client.number)
    assert "read with the mailbox's key" in client("listen", code=4).stderr


def test_a_command_that_does_not_want_to_end_is_killed_at_the_third_signal(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    process = listen("--exec", "trap '' TERM; touch began; sleep 60; sleep 60")
    id = relay.notify(client.key).json()["id"]
    until((client.folder / "began").exists)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)  # signals of one kind that come at once are one
    assert "was killed by signal 9" in process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert state(relay, client, id) == "scheduled"


def test_a_stop_does_not_wait_for_a_relay_that_has_gone(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay()
    client = Client(tmp_path, relay.url)
    options = ["--lease", "1h", "--exec", "touch began; while [ ! -e go ]; do sleep 0.05; done"]
    with client.start("listen", *options) as process:
        relay.notify(client.key)
        until((client.folder / "began").exists)
        relay.stop(signal.SIGKILL)
        (client.folder / "go").touch()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert ", and may come again" in process.communicate(timeout=20)[1]
    assert process.returncode == 0


def test_a_reader_who_does_not_read_can_not_keep_it_from_ending(relay: Relay, client: Client) -> None:
    with client.start("listen") as process:
        for _ in range(3):
            relay.notify(client.key, "x" * 60_000)
        until(lambda: len(list(relay.spool.glob(f"leased/{client.number}/*"))) == 1)
        until(lambda: not list(relay.spool.glob(f"leased/{client.number}/*")) or process.poll() is None)
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        assert process.wait(20) == 0
        process.communicate()


def test_a_stop_kills_no_page_however_many_jobs_there_are(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    process = listen("--jobs", "8", "--exec", "touch began; while [ ! -e go ]; do sleep 0.05; done")
    relay.notify(client.key)
    until((client.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.3)
    second = relay.notify(client.key).json()["id"]
    until(lambda: relay.receipt(client.key, second)["attempt"] <= 2)
    (client.folder / "go").touch()
    assert process.wait(20) == 0
    receipt = relay.receipt(client.key, second)
    assert (receipt["state"], receipt["attempt"] <= 2) == ("waiting", True)


def test_in_any_locale_a_command_gets_its_page(relay: Relay, client: Client, listen: Callable[..., Any]) -> None:
    id = relay.notify(client.key, "grüße").json()["id"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = listen("--exec", 'printf %s "$PAGER_MESSAGE" >message', environment=plain)
    until(lambda: state(relay, client, id) == "acknowledged")
    assert (client.folder / "message").read_bytes() == "grüße".encode()
    assert stop(process) == ""


def test_a_page_that_has_failed_for_the_last_time_is_said_to_be_dead(
    relay: Relay, client: Client, listen: Callable[..., Any]
) -> None:
    id = relay.notify(client.key).json()["id"]
    (relay.new(client.key) / f"{id}.json").rename(relay.new(client.key) / f"{id}.5.json")
    process = listen("--exec", "false")
    until(lambda: state(relay, client, id) == "dead")
    assert f"exit code 1; it is dead, and comes again by: pagermcp replay {id}" in stop(process)


@pytest.mark.parametrize("command", ["", "  "])
def test_no_command_is_not_a_command(client: Client, command: str) -> None:
    assert "--exec has no command" in client("listen", "--exec", command, code=2).stderr


def test_a_signal_that_its_caller_ignores_is_ignored(relay: Relay, client: Client) -> None:
    script = f"trap '' INT; exec {' '.join(client.command('listen'))}"
    process = subprocess.Popen(
        ["sh", "-c", script], cwd=client.folder, env=client.environment, stdout=subprocess.PIPE, text=True
    )
    with process:
        until(lambda: relay.new(client.key).is_dir())
        process.send_signal(signal.SIGINT)
        relay.notify(client.key, "still there")
        assert process.stdout is not None
        assert "still there" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_caller_who_ignores_its_children_learns_how_commands_end(relay: Relay, client: Client) -> None:
    ignore = "import os, signal as s, sys; s.signal(s.SIGCHLD, s.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", ignore, *client.command("listen", "--exec", "exit 7")]
    id = relay.notify(client.key).json()["id"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=client.folder, env=client.environment, stderr=pipe, text=True) as process:
        until(lambda: state(relay, client, id) == "scheduled")
        process.send_signal(signal.SIGTERM)
        assert "failed with exit code 7" in process.communicate(timeout=20)[1]


def test_a_standard_error_that_nobody_reads_can_not_keep_it_from_ending(relay: Relay, client: Client) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.read(read, 8192)  # room for the greeting, and for little more
    os.set_blocking(write, True)
    with client.start("listen", "--exec", "printf %9000d 1 >&2; exit 3", stderr=write) as process:
        relay.notify(client.key)
        until(lambda: list(relay.spool.glob(f"leased/{client.number}/*")))
        for _ in range(4):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        assert process.wait(20) == 0
    for end in (read, write):
        os.close(end)
