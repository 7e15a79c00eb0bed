"""`pagermcp pid`: the end of a process that runs already is paged, whosever it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NOBODY, Client, Relay, as_root, until


def test_the_end_of_a_process_is_paged(relay: Relay, client: Client) -> None:
    options = ["--message", "through", "--expect", "1h", "--field", "a=b"]
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
        client.start("pid", str(other.pid), *options) as process,
    ):
        until(lambda: list(relay.spool.glob(f"runs/{client.number}/*")))
        assert process.poll() is None
        other.communicate()
        assert process.communicate(timeout=20) == ("", "")
    (page,) = relay.lease(client.key, "lease=60&timeout=5")
    assert page["payload"].pop("seconds") > 0
    assert page["payload"] == {
        "JOB_ID": str(other.pid),
        "status": "ended",
        "message": "through",
        "a": "b",
        "host": os.uname().nodename,
    }
    assert not list(relay.spool.glob(f"runs/{client.number}/*.json"))


@as_root
def test_another_users_process_can_be_watched(relay: Relay, client: Client) -> None:
    become = f"import os; os.setgid({NOBODY}); os.setuid({NOBODY}); print(flush=True); input()"
    for watcher, watched in ((0, NOBODY), (NOBODY, 0)):
        user = NOBODY if watched else 0
        with subprocess.Popen(
            [sys.executable, "-c", become if user else "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            script = f"from pagermcp.client.runner import wait_for_process as w; import os; os.setuid({watcher}); "
            script += f"w({other.pid}, lambda: print('found', flush=True)); print('ended')"
            with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as watching:
                assert watching.stdout is not None
                assert watching.stdout.readline() == "found\n"
                other.communicate("\n")
                assert watching.communicate(timeout=20)[0] == "ended\n"


def test_one_that_has_ended_and_is_not_yet_buried_has_ended(relay: Relay, client: Client) -> None:
    other = subprocess.Popen(["true"])
    until(lambda: ") Z " in Path(f"/proc/{other.pid}/stat").read_text())
    client("pid", str(other.pid))
    other.wait()
    assert relay.lease(client.key)[0]["payload"]["message"] == f"process {other.pid} has ended"


def test_a_process_that_is_not_there_is_said_and_nothing_is_set(relay: Relay, client: Client) -> None:
    other = subprocess.Popen(["true"])
    other.wait()
    done = client("pid", "--expect", "1h", str(other.pid), code=1)
    assert done.stderr == f"pagermcp: there is no process {other.pid}\n"
    assert not list(relay.spool.glob(f"runs/{client.number}/*"))


@pytest.mark.parametrize("pid", ["0", "-1", "x", "99999999999999999999"])
def test_what_can_be_no_process_is_refused(client: Client, pid: str) -> None:
    assert client("pid", "--", pid, code=None).returncode in (1, 2)
