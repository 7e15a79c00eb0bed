"""`pagermcp serve`: start, stop, and what it says when it can't."""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, Relay, clean_environment, new_key, until

from pagermcp.files import file_system
from pagermcp.server.serve import _caution


def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """`pagermcp …`, which is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "pagermcp", *arguments],
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=20,
        cwd=REPOSITORY,
    )


def test_start_says_the_url_and_where_the_pages_are(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay()
    assert re.fullmatch(r"PagerMCP [0-9.]+ on http://127\.0\.0\.1:[0-9]+, spool /.*/spool\n", relay.greeting)
    assert str(tmp_path / "spool") in relay.greeting


def test_a_spool_in_memory_or_on_a_network_is_said_at_the_start(
    start_relay: Callable[..., Relay], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if file_system("/dev/shm") != "tmpfs":
        pytest.skip("there is no folder in memory on this machine")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        relay = start_relay(DATA_DIR=f"{folder}/spool")
        relay.stop()
        assert re.search(r"WARNING pagermcp: .*/spool is in memory \(tmpfs\)", relay.log.read_text())
    for kind in ("nfs4", "cifs", "fuse.sshfs"):
        _caution("/srv/spool", kind)
    assert [text.count("only one machine may serve it") for text in caplog.messages] == [1, 1, 1]
    caplog.clear()
    _caution("/srv/spool", "ext4")
    _caution("/srv/spool", "")
    assert caplog.messages == []


def test_the_type_of_a_file_system_is_found_by_its_device(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    line = "42 27 {}:{} / {} rw,relatime shared:1 master:2 - {} server:/export rw,vers=4.2\n"
    mounts = tmp_path / "mountinfo"
    here = (os.major(device), os.minor(device))
    mounts.write_text(line.format(0, 999, "/", "ext4") + line.format(*here, r"/with\040space", "nfs4"))
    assert file_system(str(tmp_path), str(mounts)) == "nfs4"
    mounts.write_text(line.format(0, 999, "/", "ext4"))
    assert file_system(str(tmp_path), str(mounts)) == ""  # a subvolume of btrfs
    assert file_system(str(tmp_path), str(tmp_path / "none")) == ""  # macOS


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_waits_answers_posts_under_way_and_loses_nothing(
    start_relay: Callable[..., Relay], how: signal.Signals
) -> None:
    relay = start_relay()
    waiting = [relay.start_waiting(new_key()) for _ in range(30)]
    accepted: list[tuple[str, str]] = []
    stopping = False

    def post() -> None:
        key = new_key()
        while True:
            try:
                answer = relay.notify(key)
            except OSError:
                assert stopping
                return
            if answer.status_code == 202:
                accepted.append((key, answer.json()["id"]))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        posting = [threads.submit(post) for _ in range(4)]
        until(lambda: len(accepted) > 50)
        stopping = True
        began = time.monotonic()
        assert relay.stop(how) == 0
        assert time.monotonic() - began < 3
        for one in posting:
            one.result(10)
    for one in waiting:
        answer = one.result(5)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert answer.headers["Retry-After"] == "1"
    assert all((relay.new(key) / f"{id}.json").is_file() for key, id in accepted)
    assert "Traceback" not in relay.log.read_text()


def test_accepted_pages_are_there_after_a_kill_and_a_new_start(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    ids = [relay.notify(key).json()["id"] for _ in range(5)]
    relay.stop(signal.SIGKILL)
    again = start_relay(relay.spool)
    assert [page["id"] for page in again.get(f"/mailboxes/{key}/messages").json()["messages"]] == ids


def test_a_busy_port_is_one_line_with_a_port_that_is_free(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    port = start_relay().port
    failed = run("serve", PORT=port, DATA_DIR=tmp_path / "other")
    assert failed.returncode == 1
    assert (match := re.fullmatch(rf"Error: port {port} is in use: PORT=(\d+) pagermcp serve\n", failed.stderr))
    assert int(match[1]) > port


def test_a_second_relay_on_the_same_spool_says_so_and_exits(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay()
    began = time.monotonic()
    failed = run("serve", PORT=0, DATA_DIR=relay.spool)
    assert time.monotonic() - began < 5
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"Error: another relay serves {relay.spool}: ")
    assert failed.stderr.count("\n") == 1
    assert relay.get("/healthz").status_code == 200


def test_a_stopped_relays_spool_can_be_served_again(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay()
    relay.stop(signal.SIGKILL)
    assert start_relay(relay.spool).get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("PORT", "http", "PORT='http': must be a whole number, from 0 to 65535"),
        ("PORT", "65536", "PORT='65536': must be a whole number, from 0 to 65535"),
        ("PORT", "1.5", "PORT='1.5': must be a whole number, from 0 to 65535"),
        ("MAX_MESSAGE_BYTES", "0", "MAX_MESSAGE_BYTES='0': must be a whole number, from 1 to 268435456"),
        ("MAX_MESSAGES_PER_MAILBOX", "-1", "MAX_MESSAGES_PER_MAILBOX='-1': must be a whole number, 1 or more"),
        ("WAIT_TIMEOUT_SECONDS", "soon", "WAIT_TIMEOUT_SECONDS='soon': must be a number, 0 or more"),
        ("WAIT_TIMEOUT_SECONDS", "inf", "WAIT_TIMEOUT_SECONDS='inf': must be a number, 0 or more"),
        ("WAIT_TIMEOUT_SECONDS", "nan", "WAIT_TIMEOUT_SECONDS='nan': must be a number, 0 or more"),
        ("PAGERMCP_WATCH", "yes", "PAGERMCP_WATCH='yes': must be auto or observer or off"),
        ("MESSAGE_TTL_DAYS", "999999", "MESSAGE_TTL_DAYS='999999': must be a number, from 0 to 36500"),
        *[
            (
                "PAGERMCP_PUBLIC_URL",
                url,
                f"PAGERMCP_PUBLIC_URL={url!r}: must be a plain URL, as in https://pager.example.org",
            )
            for url in ("pager.example.org", "https://x$(id)", "https://x y", "https://x`id`", "https://x}", "ftp://x")
        ],
        ("MODE", "clent", "MODE='clent': must be server or client"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(setting: str, value: str, message: str) -> None:
    failed = run(**{setting: value})
    assert (failed.returncode, failed.stderr) == (2, f"Error: {message}\n")


def test_an_option_overrules_the_environment_and_has_the_same_rules(tmp_path: Path) -> None:
    failed = run("serve", "--port", "x", PORT=0, DATA_DIR=tmp_path / "spool")
    assert (failed.returncode, failed.stderr) == (2, "Error: PORT='x': must be a whole number, from 0 to 65535\n")


@pytest.mark.parametrize("host", ["256.0.0.1", "no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_one_line(tmp_path: Path, host: str) -> None:
    failed = run("serve", HOST=host, PORT=0, DATA_DIR=tmp_path / "spool")
    assert failed.returncode == 1
    assert failed.stderr.startswith("Error: ")
    assert host in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_a_spool_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    failed = run("serve", PORT=0, DATA_DIR=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"Error: {tmp_path} is no spool")
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_it_serves_on_both_kinds_of_localhost_and_on_ipv6(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    for host, url in (("localhost", "http://localhost:"), ("::1", "http://[::1]:"), ("[::1]", "http://[::1]:")):
        relay = start_relay(tmp_path / f"spool at {host}", HOST=host)
        assert relay.url.startswith(url)
        assert relay.get("/healthz").status_code == 200
        assert relay.stop() == 0


def test_mode_says_what_a_bare_command_does_and_nothing_else(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    assert start_relay(MODE="server").get("/version").status_code == 200
    assert run("--version", MODE="client").returncode == 0


def test_help_names_every_setting_with_its_reason() -> None:
    import dataclasses

    from pagermcp.settings import Settings

    text = " ".join(run("serve", "--help").stdout.split())
    for field in dataclasses.fields(Settings):
        assert field.metadata["variable"] in text
        assert " ".join(field.metadata["reason"].split()) in text
    assert "pagermcp serve --port 8081" in text


def test_the_command_says_its_version() -> None:
    assert run("--version").stdout == "pagermcp, version 0.1.0\n"
