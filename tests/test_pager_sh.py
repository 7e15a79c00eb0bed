"""GET /sample/pager.sh, and the script itself, under three shells and three awks."""

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, Relay, clean_environment, new_key, number, require, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_notify import payload_in

SOURCE = REPOSITORY / "pagermcp" / "share" / "pager.sh"


class Pager:
    """The script as downloaded from a relay, in a folder with a session file."""

    def __init__(self, relay: Relay, folder: Path, shell: list[str], tools: Path | None) -> None:
        self.relay, self.folder, self.shell = relay, folder, shell
        self.key = new_key()
        self.path = f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]
        (folder / ".pager_session").write_text(self.key + "\n")
        (folder / "pager.sh").write_text(relay.get("/sample/pager.sh").text)

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        environment = clean_environment(PATH=self.path, **options.pop("environment", {}))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [*self.shell, "pager.sh", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=environment, **pipes)

    def run(self, *arguments: str, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(stdin, timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def page(self) -> Any:
        return payload_in(self.relay, self.key)


@pytest.fixture(params=["dash", "bash", "busybox"])
def pager(request: pytest.FixtureRequest, relay: Relay, tmp_path: Path) -> Pager:
    """Each shell comes with an awk of its own, and busybox with all of its tools."""
    tools = tmp_path / "tools"
    tools.mkdir()
    if request.param == "busybox":
        busybox = require("busybox", "busybox")
        for tool in ("awk", "od", "tail", "tee", "mkfifo", "sed", "tr", "cat", "mktemp", "sleep", "ps", "rm"):
            (tools / tool).symlink_to(busybox)
        shell = [busybox, "sh"]
    else:
        shell = [require(request.param, request.param)]
        awk = {"dash": "mawk", "bash": "gawk"}[request.param]
        (tools / "awk").symlink_to(require(awk, awk))
    require("curl", "curl")
    return Pager(relay, tmp_path, shell, tools)


def test_the_relay_serves_the_script_with_its_own_url(relay: Relay) -> None:
    answer = relay.get("/sample/pager.sh", headers={"Host": "pager.example:81"})
    assert answer.headers["Content-Type"] == "text/x-shellscript; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "url=${PAGER_URL:-http://pager.example:81}\n" in answer.text
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize("host", ["$(id)", "x;y", "a b", "`id`", '"'])
def test_no_host_header_can_put_a_command_into_it(relay: Relay, host: str) -> None:
    assert relay.get("/sample/pager.sh", headers={"Host": host}).status_code == 400


def test_shellcheck_finds_no_fault_in_it() -> None:
    checked = subprocess.run([require("shellcheck", "shellcheck"), "-s", "sh", SOURCE], capture_output=True, text=True)
    assert checked.stdout == ""


def test_run_shows_the_output_pages_once_and_exits_with_the_commands_code(pager: Pager) -> None:
    done = pager.run("--run", "echo one; echo two >&2; exit 3", "--message", "Build finished", "--job-id", "b")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"one\n", b"two\n")
    page = pager.page()
    assert sorted(page.pop("logs").splitlines()) == ["one", "two"]
    assert page == {"JOB_ID": "b", "status": "failed", "message": "Build finished", "exit_code": 3}


def test_success_has_its_own_status_and_the_fields_are_the_seeds(pager: Pager) -> None:
    arguments = ["--project", "web", "--success-status", "ok", "--field", "host=a=b", "--field", 'q"=é']
    assert pager.run("--run", "true", *arguments).returncode == 0
    assert pager.page() == {
        **{"PROJECT": "web", "JOB_ID": "run", "status": "ok", "message": "process done", "exit_code": 0, "logs": ""},
        **{"host": "a=b", 'q"': "é"},
    }


def test_a_failure_can_have_its_own_status(pager: Pager) -> None:
    pager.run("--run", "false", "--fail-status", "broken")
    assert pager.page()["status"] == "broken"


def test_only_the_last_lines_of_the_output_are_sent_and_they_are_bounded(pager: Pager) -> None:
    pager.run("--run", "seq 1 1000", "--tail", "3")
    assert pager.page()["logs"] == "998\n999\n1000\n"


def test_long_lines_keep_their_end_and_no_half_character(pager: Pager) -> None:
    pager.run("--run", "head -c 100000 /dev/zero | tr '\\0' x; printf 'é%.0s' $(seq 1 4095); printf x; echo BOOM")
    logs = pager.page()["logs"]
    assert logs.endswith("éxBOOM\n")
    assert len(logs.encode()) <= 8192
    assert "\ufffd" not in logs


def test_no_lines_are_sent_when_none_are_wanted(pager: Pager) -> None:
    assert pager.run("--run", "echo secret", "--tail", "0").stdout == b"secret\n"
    assert pager.page()["logs"] == ""


def test_the_command_can_come_from_standard_input(pager: Pager) -> None:
    assert pager.run("--run", "-", stdin=b"echo from stdin\nexit 4\n").returncode == 4
    assert pager.page()["logs"] == "from stdin\n"


def test_a_bare_pipe_is_an_error_with_a_hint_and_is_never_executed(pager: Pager) -> None:
    done = pager.run("--message", "x", stdin=b"touch executed\n")
    assert done.returncode == 2
    assert b"--run -" in done.stderr
    assert not (pager.folder / "executed").exists()
    assert not pager.relay.new(pager.key).exists()


def test_the_commands_input_is_its_own(pager: Pager) -> None:
    assert pager.run("--run", "cat", stdin=b"typed\n").stdout == b"typed\n"


def test_the_output_can_be_kept_in_a_file_too(pager: Pager) -> None:
    assert pager.run("--run", "echo kept", "--log", "build.log").stdout == b"kept\n"
    assert (pager.folder / "build.log").read_text() == "kept\n"


def test_on_success_another_commands_output_can_be_the_logs(pager: Pager) -> None:
    pager.run("--run", "echo noise", "--success-cmd", "echo summary")
    assert pager.page()["logs"] == "summary\n"


def test_a_child_left_in_the_background_does_not_hold_it_up(pager: Pager) -> None:
    began = time.monotonic()
    with pager.start("--run", "sleep 30 & echo $! >pid; echo started; exit 0") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        os.kill(int((pager.folder / "pid").read_text()), signal.SIGTERM)
    assert time.monotonic() - began < 20
    assert pager.page()["logs"] == "started\n"


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_command_that_its_terminal_ended_is_still_paged(pager: Pager, how: signal.Signals, code: int) -> None:
    with pager.start("--run", "touch begun; exec sleep 30", start_new_session=True) as process:
        until((pager.folder / "begun").exists)
        until(lambda: b"sleep" in subprocess.check_output(["ps", "-o", "args=", "-s", str(process.pid)]))
        os.killpg(process.pid, how)
        assert process.wait(20) == code
    assert (pager.page()["status"], pager.page()["exit_code"]) == ("failed", code)


def test_a_command_finds_its_umask_and_its_environment_as_they_were(pager: Pager) -> None:
    names = ["url", "mode", "command", "session", "message", "project", "log", "key", "work", "status", "code", "tail"]
    environment = {name: f"the caller's {name}" for name in names}
    command = "umask; " + "; ".join(f'echo "${name}"' for name in names)
    expected = "".join(f"{value}\n" for value in environment.values())
    done = pager.run("--run", command, environment=environment, umask=0o022)
    assert done.stdout.decode() == "0022\n" + expected
    assert pager.run("--run", "env", environment=environment).stdout.decode().count(pager.key) == 0


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_watching_a_process_can_be_stopped_and_leaves_nothing(pager: Pager, how: signal.Signals, code: int) -> None:
    temporary = pager.folder / "temporary"
    temporary.mkdir()
    with pager.start(
        "--pid", str(os.getpid()), "--interval", "1", start_new_session=True, environment={"TMPDIR": temporary}
    ) as process:
        until(lambda: any(temporary.iterdir()))
        os.killpg(process.pid, how)
        assert process.wait(20) in (code, -how)  # bash ends by the signal itself when its sleep did
    assert list(temporary.iterdir()) == []
    assert not pager.relay.new(pager.key).exists()


def test_a_command_whose_output_nobody_reads_on_is_still_paged(pager: Pager) -> None:
    script = " ".join([*pager.shell, "pager.sh", "--run", "'seq 1 100000'", "| head -1"])
    shown = subprocess.run(
        ["sh", "-c", script], cwd=pager.folder, env=clean_environment(PATH=pager.path), capture_output=True, timeout=60
    )
    assert shown.stdout == b"1\n"
    assert pager.page()["JOB_ID"] == "run"


def test_a_log_file_or_a_command_may_begin_with_a_dash(pager: Pager) -> None:
    assert pager.run("--run", "echo kept", "--log", "-x").stdout == b"kept\n"
    assert (pager.folder / "-x").read_text() == "kept\n"
    assert pager.run("--run", "-c").returncode == 127  # there is no such command, but it was looked for


def test_notify_without_any_text_has_the_usual_message(pager: Pager) -> None:
    assert pager.run("--notify", stdin=b"").returncode == 0
    assert pager.page()["message"] == "process done"


def test_notify_of_bytes_that_are_no_text_still_pages(pager: Pager) -> None:
    assert pager.run("--notify", stdin=b"\xff" * 20000).returncode == 0
    assert pager.page()["message"] == "\ufffd" * 8192


def test_notify_pages_at_once_with_the_message_or_with_standard_input(pager: Pager) -> None:
    assert pager.run("--notify", "--message", "I am done", "--job-id", "j").returncode == 0
    page = {"JOB_ID": "j", "status": "success", "message": "I am done", "exit_code": 0, "logs": ""}
    assert pager.page() == page
    pager.relay.post(f"/mailboxes/{pager.key}/consume")
    assert pager.run("--notify", stdin=b"disk\nfull\n").returncode == 0
    assert (pager.page()["message"], pager.page()["JOB_ID"]) == ("disk\nfull", "notify")


def test_pid_pages_when_the_process_has_ended(pager: Pager) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as watched,
        pager.start("--pid", str(watched.pid), "--interval", "1") as process,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=1.5)
        assert not pager.relay.new(pager.key).exists()
        watched.kill()  # and stays unburied, until this test looks
        process.communicate(timeout=20)
        assert process.returncode == 0
    page = pager.page()
    assert (page["JOB_ID"], page["status"], page["exit_code"]) == (str(watched.pid), "success", None)


def test_a_dry_run_runs_and_sends_nothing_and_exits_as_told(pager: Pager) -> None:
    done = pager.run("--run", "touch ran", "--dry-run=5", "--job-id", "d")
    assert done.returncode == 5
    assert json.loads(done.stdout) == {
        **{"JOB_ID": "d", "status": "failed", "message": "process done", "exit_code": 5, "logs": ""}
    }
    assert json.loads(pager.run("--notify", "--dry-run").stdout)["status"] == "success"
    assert not (pager.folder / "ran").exists()
    assert not pager.relay.new(pager.key).exists()


def test_verbose_shows_the_page_on_standard_error(pager: Pager) -> None:
    done = pager.run("--run", "echo x", "--verbose")
    assert done.stdout == b"x\n"
    assert json.loads(done.stderr)["logs"] == "x\n"


def test_a_relay_that_is_down_is_said_and_changes_no_exit_code(pager: Pager) -> None:
    nowhere = {"PAGER_URL": "http://127.0.0.1:9"}
    for code in (0, 7):
        done = pager.run("--run", f"echo out; exit {code}", environment=nowhere)
        assert (done.returncode, done.stdout) == (code, b"out\n")
        assert b"not paged" in done.stderr
    assert pager.run("--notify", "--message", "x", environment=nowhere).returncode == 1


def test_a_page_that_is_refused_says_why(pager: Pager) -> None:
    done = pager.run("--notify", "--message", "x" * 70000)
    assert done.returncode == 1
    assert b"too_large" in done.stderr


def test_the_mailbox_can_be_named_by_uuid_or_by_another_file(pager: Pager) -> None:
    other = new_key()
    (pager.folder / "other").write_text(other)
    (pager.folder / ".pager_session").unlink()
    for session in (other, "other", number(other), uuid.UUID(other).hex):
        assert pager.run("--notify", "--message", "x", "--session", session).returncode == 0
    assert len(list(pager.relay.new(other).iterdir())) == 4


def test_the_key_is_on_no_command_line(pager: Pager) -> None:
    (pager.folder / "tools" / "curl").write_text('#!/bin/sh\necho "$@" >>args\nexec "$REAL_CURL" "$@"\n')
    (pager.folder / "tools" / "curl").chmod(0o755)
    real = shutil.which("curl")
    assert pager.run("--notify", "--message", "x", environment={"REAL_CURL": real}).returncode == 0
    assert "/notify" in (pager.folder / "args").read_text()
    assert pager.key not in (pager.folder / "args").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run"], b"--run needs a value"),
        (["--run", ""], b"--run has no command"),
        (["--run", "true", "--notify"], b"exclude each other"),
        (["--notify", "--nonsense"], b"unknown option --nonsense"),
        (["--notify", "extra"], b"unknown option extra"),
        (["--run", "true", "--tail", "x"], b"--tail needs a number"),
        (["--pid", "x"], b"--pid needs the number of a process"),
        (["--pid", "1", "--interval", "0"], b"--interval needs"),
        (["--notify", "--dry-run=x"], b"--dry-run needs an exit code"),
        (["--run", "touch ran", "--dry-run="], b"--dry-run needs an exit code"),
        (["--run", "touch ran", "--dry-run=256"], b"--dry-run needs an exit code"),
        (["--notify", "--field", "x"], b"--field needs NAME=VALUE"),
        (["--notify", "--field", "=x"], b"has no name"),
        (["--notify", "--field", "status=x"], b"or one that is taken"),
        (["--notify", "--session", "no such file"], b"no file with a UUID"),
        ([], b"nothing to do"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(pager: Pager, arguments: list[str], message: bytes) -> None:
    done = pager.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_without_a_session_file_it_says_what_to_give(pager: Pager) -> None:
    (pager.folder / ".pager_session").unlink()
    done = pager.run("--run", "touch ran")
    assert done.returncode == 2
    assert b"--session" in done.stderr
    assert not (pager.folder / "ran").exists()


def test_help_lists_every_option_with_this_relays_url(pager: Pager) -> None:
    done = pager.run("--help")
    assert done.returncode == 0
    for option in ("run", "pid", "notify", "session", "message", "job-id", "project", "field", "success-status"):
        assert f"  --{option}".encode() in done.stdout
    for option in ("fail-status", "log", "tail", "success-cmd", "interval", "dry-run", "verbose", "help"):
        assert f"  --{option}".encode() in done.stdout
    assert pager.relay.url.encode() in done.stdout


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_message_arrives_as_it_was_given(pager: Pager, message: str) -> None:
    done = pager.run("--notify", "--message", message, "--dry-run")
    assert json.loads(done.stdout)["message"] == message


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_any_bytes_in_the_output_give_valid_json_that_keeps_what_is_text(pager: Pager, output: bytes) -> None:
    (pager.folder / "bytes").write_bytes(b"start" + output)
    pager.key = new_key()
    (pager.folder / ".pager_session").write_text(pager.key)
    done = pager.run("--run", "cat bytes", "--tail", "99")
    assert done.stdout == b"start" + output
    text = (b"start" + output).decode(errors="replace")
    logs = pager.page()["logs"]
    assert logs.replace("\ufffd", "") == text.replace("\ufffd", "")
    assert ("\ufffd" in logs) == ("\ufffd" in text)
