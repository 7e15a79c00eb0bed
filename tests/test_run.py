"""`pagermcp run`: the command finds its world as it was, and its end is paged."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Client, Relay, require, until
from middle import Proxy, somebody

NOWHERE = "http://127.0.0.1:9"


def page(relay: Relay, client: Client) -> dict[str, Any]:
    """The one page that waits, which is taken."""
    (page,) = relay.lease(client.key, "lease=60&timeout=5&max=9")
    relay.with_key(client.key, "POST", "/ack", json={"ids": [page["handle"]]})
    payload: dict[str, Any] = page["payload"]
    return payload


def kept(client: Client) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((client.outbox / "new").glob("*.json"))]


def test_it_exits_as_the_command_does_and_pages_how_it_ended(relay: Relay, client: Client) -> None:
    done = client("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    paged = page(relay, client)
    seconds = paged.pop("seconds")
    assert 0 <= seconds < 5
    assert re.fullmatch(r"failed with exit code 3 after \S+ s", paged.pop("message"))
    assert paged.pop("logs") in ("out\nerr\n", "err\nout\n")  # two pipes do not tell who was first
    assert paged == {"JOB_ID": "run", "status": "failed", "exit_code": 3, "host": socket.gethostname()}
    client("run", "true")
    assert page(relay, client)["status"] == "success"


def test_options_say_more_and_the_command_line_is_told_only_when_asked_for(relay: Relay, client: Client) -> None:
    options = ["--job-id", "b1", "--project", "p", "--message", "built", "--field", "branch=x", "--field", "host=h"]
    client("run", *options, "--", "true", "secret")
    paged = page(relay, client)
    assert {"JOB_ID": "b1", "PROJECT": "p", "message": "built", "branch": "x", "exit_code": 0}.items() <= paged.items()
    assert "secret" not in json.dumps(paged)
    client("run", "no-such-secret", code=127)
    assert "secret" not in json.dumps(page(relay, client))
    client("run", "--show-command", "true", "secret")
    assert page(relay, client)["command"] == ["true", "secret"]


def test_a_command_that_can_not_be_run_is_said_and_paged(relay: Relay, client: Client, tmp_path: Path) -> None:
    assert client("run", "no-such-command", code=127).stderr == "pagermcp: no-such-command: not found\n"
    assert page(relay, client)["message"] == "could not be run: not found"
    (tmp_path / "file").write_text("text")
    assert "Permission denied" in client("run", "./file", code=126).stderr
    assert page(relay, client)["exit_code"] == 126


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV")])
def test_death_by_a_signal_is_128_and_its_number(relay: Relay, client: Client, number: int, name: str) -> None:
    client("run", "sh", "-c", f"kill -{number} $$", code=128 + number)
    paged = page(relay, client)
    assert (paged["exit_code"], paged["signal"], paged["status"]) == (128 + number, number, "failed")
    assert paged["message"].startswith(f"killed by signal {number} ({name})")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_are_passed_on(relay: Relay, client: Client, name: str) -> None:
    script = f"trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    with client.start("run", "sh", "-c", script) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.communicate(timeout=20)[0] == f"got {name}\n"
    assert process.returncode == 5
    assert page(relay, client)["exit_code"] == 5


def test_the_command_has_the_signals_that_its_caller_has(relay: Relay, client: Client) -> None:
    # But for 32 and 33, which glibc's posix_spawn leaves ignored: they are its own, and it sets them as it needs them.
    show = "sed -n 's/^\\(Sig[BI].*\\)...\\(.......\\)/\\1 \\2/p' /proc/self/status"
    for before in ("", "trap '' HUP INT; "):
        directly = subprocess.run(["sh", "-c", before + show], capture_output=True, text=True).stdout
        command = " ".join(client.command("run", "--", "sh", "-c", f'"{show}"'))
        through = subprocess.run(
            ["sh", "-c", before + command], cwd=client.folder, env=client.environment, capture_output=True, text=True
        ).stdout
        assert through == directly
        page(relay, client)


def test_a_caller_who_ignores_its_children_learns_the_exit_code_all_the_same(relay: Relay, client: Client) -> None:
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", ignore, *client.command("run", "sh", "-c", "exit 3")]
    assert subprocess.run(command, cwd=client.folder, env=client.environment).returncode == 3
    assert page(relay, client)["exit_code"] == 3


def test_output_passes_through_at_once(relay: Relay, client: Client) -> None:
    with client.start("run", "sh", "-c", "echo one; read line; echo two >&2", stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "one\n"
        assert process.poll() is None
        assert process.communicate("\n", timeout=20) == ("", "two\n")
    page(relay, client)


def test_output_passes_through_unchanged(relay: Relay, client: Client) -> None:
    with (client.folder / "copy").open("wb") as copy:
        done = client("run", "sh", "-c", "head -c 5000000 /dev/urandom | tee original", stdout=copy)
    assert (client.folder / "copy").read_bytes() == (client.folder / "original").read_bytes()
    assert not done.stderr
    logs = page(relay, client)["logs"]
    assert logs.encode().decode() == logs
    assert len(logs.encode()) < 4 * 8192


def test_nothing_is_lost_that_is_said_just_before_the_end(relay: Relay, client: Client) -> None:
    for _ in range(20):
        assert client("run", "--no-outbox", "sh", "-c", "printf '%0999d' 1; exec printf end").stdout.endswith("1end")
        logs = page(relay, client)["logs"]
        assert logs.endswith("1end")


def test_standard_input_is_the_commands_own_and_an_open_pipe_holds_up_nothing(relay: Relay, client: Client) -> None:
    assert client("run", "cat", input="a\nb").stdout == "a\nb"
    page(relay, client)
    with client.start("run", "true", stdin=subprocess.PIPE) as process:
        assert process.wait(20) == 0  # and its pipe is still open
    page(relay, client)
    rest = subprocess.run(
        ["sh", "-c", f"{' '.join(client.command('run', 'true'))}; cat"],
        input="not eaten",
        cwd=client.folder,
        env=client.environment,
        capture_output=True,
        text=True,
    )
    assert rest.stdout == "not eaten"
    page(relay, client)


@pytest.mark.parametrize(
    ("script", "tail", "logs"),
    [
        ("seq 1 100", "3", "98\n99\n100\n"),
        ("seq 1 100; echo BOOM >&2; exit 3", "2", "100\nBOOM\n"),
        ("printf 'no newline'", "10", "no newline"),
        ("printf 'a\\n\\n'", "1", "\n"),
        ("seq 1 100", "0", ""),
        ("true", "10", ""),
        ("printf 'caf\\303\\251 \\303'", "10", "café �"),
    ],
)
def test_the_last_lines_are_sent(relay: Relay, client: Client, script: str, tail: str, logs: str) -> None:
    command = ["run", "--tail", tail, "sh", "-c", script]
    client(*command, code=None, stderr=subprocess.STDOUT, input=b"")  # one pipe, so in order
    assert page(relay, client)["logs"] == logs


def test_of_long_output_the_end_is_kept_and_it_is_said(relay: Relay, client: Client) -> None:
    client("run", "sh", "-c", "seq 1 200000 | sed 's/$/é/' | tr -d '\\n'; echo BOOM; exit 3", code=3)
    logs = page(relay, client)["logs"]
    assert logs.startswith("[only the last 8192 bytes]\n")
    assert logs.endswith("BOOM\n")
    assert "�" not in logs[:40]
    client("run", "--tail", "5000", "seq", "1", "5000")
    assert page(relay, client)["logs"].splitlines()[-1] == "5000"


def test_a_child_in_the_background_holds_nothing_up_and_lives_on(relay: Relay, client: Client, tmp_path: Path) -> None:
    script = "(while [ ! -e go ]; do sleep 0.05; done; echo still here; echo alive >alive) & echo begun"
    began = time.monotonic()
    assert client("run", "sh", "-c", script).stdout == "begun\n"
    assert time.monotonic() - began < 5
    assert page(relay, client)["status"] == "success"
    (tmp_path / "go").touch()
    until((tmp_path / "alive").exists)


def test_what_a_child_in_the_background_says_later_goes_where_it_would_have_gone(relay: Relay, client: Client) -> None:
    script = "(while [ ! -e go ]; do sleep 0.05; done; echo later) & echo begun"
    with (client.folder / "output").open("w") as output:
        client("run", "sh", "-c", script, stdout=output, stderr=output)
    assert page(relay, client)["logs"] == "begun\n"
    (client.folder / "go").touch()
    until(lambda: (client.folder / "output").read_text() == "begun\nlater\n")


def test_a_reader_who_is_slow_holds_up_the_command_and_not_the_page(relay: Relay, client: Client) -> None:
    with client.start("run", "seq", "1", "30000") as process:  # more than fits into two pipes
        assert process.stdout.readline() == "1\n"
        assert relay.lease(client.key, "timeout=0&lease=5") == []
        output, _ = process.communicate(timeout=30)
    assert output.splitlines()[-1] == "30000"
    assert page(relay, client)["logs"].endswith("29999\n30000\n")
    with client.start("run", "seq", "1", "20000") as process:  # fits, but for the last pipe
        paged = page(relay, client)
        assert paged["logs"].endswith("19999\n20000\n")
        assert process.communicate(timeout=30)[0].count("\n") == 20000


@pytest.mark.parametrize("output", ["| head -1", ">/dev/full"])
def test_output_that_nobody_takes_ends_the_command_as_it_would_have(relay: Relay, client: Client, output: str) -> None:
    command = " ".join(client.command("run", "yes"))
    subprocess.run(["sh", "-c", f"{command} {output}"], cwd=client.folder, env=client.environment, timeout=30)
    assert page(relay, client)["signal"] == signal.SIGPIPE


def test_with_a_wrong_option_nothing_is_run(client: Client) -> None:
    for arguments in (["--tail", "x"], ["--expect", "soon"], ["--nothing"]):
        client("run", *arguments, "touch", "run", code=2)
    assert not (client.folder / "run").exists()


def test_without_a_mailbox_or_a_relay_to_page_the_command_is_run_all_the_same(client: Client) -> None:
    error = client("run", "--url", "nowhere", "sh", "-c", "exit 5", code=5).stderr
    assert error.startswith("pagermcp: nobody will be paged: 'nowhere' is no URL of a relay")
    (client.folder / ".pager_session").unlink()
    done = client("run", "sh", "-c", "echo out; exit 6", code=6)
    assert (done.stdout, "nobody will be paged: no mailbox" in done.stderr) == ("out\n", True)
    script = f"mkdir gone; cd gone; rmdir ../gone; {shlex.join(client.command('run', 'sh', '-c', 'echo out; exit 7'))}"
    gone = subprocess.run(
        ["sh", "-c", script], cwd=client.folder, env=client.environment, capture_output=True, text=True
    )
    assert (gone.returncode, gone.stdout) == (7, "out\n")
    assert "Traceback" not in gone.stderr


def test_what_a_helper_says_as_the_command_ends_is_not_lost(relay: Relay, client: Client) -> None:
    require("bash", "bash")
    script = "exec > >(while read l; do echo helped $l; done); for i in $(seq 50); do echo $i; done; exit 3"
    for _ in range(5):
        assert len(client("run", "bash", "-c", script, code=3).stdout.splitlines()) == 50
        assert page(relay, client)["logs"].endswith("helped 50\n")


def test_output_that_could_not_be_written_is_said(relay: Relay, client: Client) -> None:
    with Path("/dev/full").open("w") as full:
        done = client("run", "echo", "hi", stdout=full)
    assert done.stderr == "pagermcp: the output could not be written: No space left on device\n"
    paged = page(relay, client)
    assert (paged["output_lost"], paged["logs"]) == ("No space left on device", "hi\n")


def test_an_output_that_the_caller_has_closed_is_closed_for_the_command(relay: Relay, client: Client) -> None:
    for closed in ("2>&-", ">&-", "<&-"):
        script = f"echo x; echo y >&2; ls /proc/self/fd >{client.folder}/fds; exit 5"
        command = f"{' '.join(client.command('run', '--', 'sh', '-c'))} '{script}' {closed}"
        done = subprocess.run(["sh", "-c", command], cwd=client.folder, env=client.environment, capture_output=True)
        assert done.returncode == 5
        page(relay, client)


def test_a_closed_output_does_not_close_the_other(relay: Relay, client: Client) -> None:
    for closed in (">&- 2>/dev/null", ">/dev/null 2>&-"):
        script = "(echo x); echo $? >out; (echo y >&2); echo $? >err"
        command = f"{' '.join(client.command('run', '--', 'sh', '-c'))} '{script}' {closed}"
        subprocess.run(["sh", "-c", command], cwd=client.folder, env=client.environment)
        codes = [(client.folder / name).read_text() != "0\n" for name in ("out", "err")]
        assert codes == [closed.startswith(">&-"), closed.endswith("2>&-")]
        page(relay, client)


def test_what_the_caller_holds_open_is_not_held_for_a_child_in_the_background(relay: Relay, client: Client) -> None:
    require("flock", "util-linux")
    child = "(exec 9>&-; while [ ! -e go ]; do sleep 0.05; done; echo later) & exec 9>&-"
    script = f"exec 9>lock; flock 9; {' '.join(client.command('run', '--', 'sh', '-c'))} '{child}' >output 2>&1"
    subprocess.run(["sh", "-c", script], cwd=client.folder, env=client.environment, check=True, timeout=30)
    until(lambda: subprocess.run(["flock", "-n", "lock", "true"], cwd=client.folder).returncode == 0)
    (client.folder / "go").touch()
    until(lambda: (client.folder / "output").read_text() == "later\n")
    page(relay, client)


def test_a_signal_just_after_the_end_does_not_lose_the_page(relay: Relay, client: Client) -> None:
    for _ in range(3):
        client("run", "sh", "-c", "(sleep 0.03; kill -TERM $PPID; sleep 1) & exit 3", code=3)
        assert page(relay, client)["exit_code"] == 3


def test_an_empty_command_is_not_found(relay: Relay, client: Client) -> None:
    assert client("run", "", code=127).stderr == "pagermcp: : not found\n"
    page(relay, client)


def test_a_script_without_a_first_line_is_run_as_a_shell_would(relay: Relay, client: Client) -> None:
    (client.folder / "script").write_text('echo "$0 $1"; exit 4')
    (client.folder / "script").chmod(0o755)
    assert client("run", "./script", "arg", code=4).stdout == "./script arg\n"
    page(relay, client)


def test_the_commands_environment_is_the_callers(relay: Relay, client: Client) -> None:
    kept = {name: client.environment[name] for name in ("PATH", "HOME", "PAGER_URL", "XDG_STATE_HOME")}
    command = client.command("run", "env")
    done = subprocess.run(command, cwd=client.folder, env=kept, capture_output=True, text=True, timeout=30)
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == kept
    page(relay, client)


def test_a_page_that_is_too_large_comes_without_the_output(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=4000)
    client = Client(tmp_path, relay.url)
    client("run", "--tail", "999", "sh", "-c", "seq 1 3000; exit 3", code=3)
    paged = page(relay, client)
    assert paged["logs"].startswith("[left out: the body has ")
    assert paged["exit_code"] == 3
    assert not list(client.outbox.glob("*/*.json"))


# with the relay away


def test_a_relay_that_is_down_changes_nothing_and_the_page_is_kept(client: Client) -> None:
    done = client("run", "--url", NOWHERE, "sh", "-c", "echo out; exit 7", code=7)
    assert done.stdout == "out\n"
    assert done.stderr.startswith(f"pagermcp: not sent yet: {NOWHERE} does not answer")
    assert [one["payload"]["exit_code"] for one in kept(client)] == [7]
    done = client("run", "--no-outbox", "--url", NOWHERE, "sh", "-c", "exit 7", code=7)
    assert done.stderr.startswith(f"pagermcp: not sent: {NOWHERE}")
    assert len(kept(client)) == 1


def test_a_relay_that_hangs_delays_no_start(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, by the kernel, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client.start("run", "--url", url, "--expect", "1h", "sh", "-c", "echo begun; exit 4") as process:
            assert process.stdout.readline() == "begun\n"
            until(lambda: kept(client), 30)  # it is on the disk before it is sent
            process.kill()
            process.communicate()
    assert kept(client)[0]["payload"]["exit_code"] == 4


def test_neither_a_relay_nor_an_outbox_changes_the_exit_code(client: Client) -> None:
    nowhere = {"XDG_STATE_HOME": "/dev/null"}
    done = client("run", "--url", NOWHERE, "sh", "-c", "exit 7", environment=nowhere, code=7)
    assert "the outbox /dev/null/pagermcp/outbox can't be used: Not a directory" in done.stderr
    assert "not sent: " in done.stderr


def test_a_relay_that_refuses_changes_no_exit_code(client: Client) -> None:
    with somebody(403, {"error": {"code": "no", "message": "no", "hint": ""}}) as url:
        assert "not sent: no" in client("run", "--url", url, "sh", "-c", "exit 7", code=7).stderr


# a dead-man's switch


def test_a_run_that_is_killed_with_its_watcher_is_paged_as_lost(relay: Relay, client: Client) -> None:
    with client.start("run", "--expect", "2", "--job-id", "night", "sleep", "60", start_new_session=True) as process:
        until(lambda: list(relay.spool.glob(f"runs/{client.number}/*")))
        assert relay.lease(client.key, "timeout=0&lease=9") == []  # it is set silently
        os.killpg(process.pid, signal.SIGKILL)
    lost = page(relay, client)
    assert lost["status"] == "lost"
    assert re.fullmatch(r"night-[0-9a-f]{16}", lost["run"])


def test_a_run_that_ends_in_time_ends_its_switch(relay: Relay, client: Client) -> None:
    client("run", "--expect", "2h", "--job-id", "näm,e\n", "sh", "-c", "exit 1", code=1)
    assert page(relay, client)["status"] == "failed"
    assert not list(relay.spool.glob(f"runs/{client.number}/*.json"))
    assert not list(relay.spool.glob(f"scheduled/*-{client.number}-*"))


def test_a_switch_is_set_as_soon_as_the_relay_is_there(relay: Relay, client: Client) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    script = "echo begun; read line"
    options = ["--url", f"http://127.0.0.1:{port}", "--expect", "1h"]
    with client.start("run", *options, "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "begun\n"
        with Proxy(relay.port, port=port):
            until(lambda: list(relay.spool.glob(f"runs/{client.number}/*")), 20)
            assert process.communicate("\n", timeout=30) == ("", "")
    assert process.returncode == 0
    assert page(relay, client)["status"] == "success"
    assert not list(relay.spool.glob(f"runs/{client.number}/*.json"))


# with a terminal


class Terminal:
    """A shell or command on a terminal of its own."""

    def __init__(self, client: Client, command: list[str]) -> None:
        self.output = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(client.folder)
            os.execvpe(command[0], command, client.environment | {"PS1": "$ ", "TERM": "xterm", "LC_ALL": "C.UTF-8"})
        self.resize(33, 101)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, pattern: str, seconds: float = 20) -> re.Match[bytes]:
        """Read until the pattern is there; what is before its end is forgotten."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern.encode(), self.output, re.DOTALL)):
            left = deadline - time.monotonic()
            assert select.select([self.master], [], [], max(0, left))[0], self.output
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            assert data, self.output
            self.output += data
        self.output = self.output[match.end() :]
        return match

    def end(self) -> int:
        """Its exit code."""
        try:
            while os.read(self.master, 65536):
                pass
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self.master)


def processes_below(pid: int) -> list[str]:
    """The state of all children of a process, and theirs, from /proc."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    below = [one for child in children for one in processes_below(int(child))]
    return [Path(f"/proc/{child}/stat").read_text() for child in children] + below


@pytest.fixture
def terminal(client: Client) -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def start(*command: str) -> Terminal:
        terminals.append(Terminal(client, [*command]))
        return terminals[-1]

    yield start
    for one in terminals:
        one.close()


def test_a_terminal_stays_one_of_the_same_size(relay: Relay, client: Client, terminal: Callable[..., Terminal]) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && echo all; read x; stty size <&1; "
    script += "trap 'stty size <&1' WINCH; echo go; read y; read z"
    nested = f"sh -c {shlex.quote(script)}; true"  # its grandchild has to know too
    with_terminal = terminal(*client.command("run", "--tail", "2", "sh", "-c", nested))
    with_terminal.expect("all\r\n")
    with_terminal.type("\n")
    with_terminal.expect("33 101\r\n")
    with_terminal.expect("go\r\n")
    with_terminal.resize(20, 50)
    with_terminal.type("\n")
    with_terminal.expect("20 50\r\n")
    with_terminal.type("\n")
    assert with_terminal.end() == 0
    assert page(relay, client)["logs"].endswith("20 50\n")


def test_bytes_on_a_terminal_are_those_that_it_would_show(
    relay: Relay, client: Client, terminal: Callable[..., Terminal]
) -> None:
    script = "printf '\\033[31mred\\033[0m\\ta\\r\\nb\\n\\004\\003end'"
    direct, through = terminal("sh", "-c", script), terminal(*client.command("run", "sh", "-c", script))
    assert direct.expect("end").string == through.expect("end").string
    through.end()
    page(relay, client)


def test_ctrl_c_reaches_the_command_once(relay: Relay, client: Client, terminal: Callable[..., Terminal]) -> None:
    script = """import signal, sys
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
print("ready", flush=True)
while not count: pass
sys.stdin.readline()
print("got", len(count))"""
    with_terminal = terminal(*client.command("run", "--", sys.executable, "-c", script))
    with_terminal.expect("ready")
    with_terminal.type("\x03")
    with_terminal.expect("\\^C")
    with_terminal.type("\n")
    with_terminal.expect("got 1\r\n")
    assert with_terminal.end() == 0
    page(relay, client)


def test_ctrl_c_ends_a_command(relay: Relay, client: Client, terminal: Callable[..., Terminal]) -> None:
    with_terminal = terminal(*client.command("run", "sh", "-c", "echo ready; exec sleep 60"))
    with_terminal.expect("ready")
    with_terminal.type("\x03")
    assert with_terminal.end() == -signal.SIGINT  # as a shell wants it; it says 130
    paged = page(relay, client)
    assert (paged["signal"], paged["exit_code"]) == (signal.SIGINT, 130)


def test_ctrl_c_reaches_a_command_in_a_group_of_its_own(
    relay: Relay, client: Client, terminal: Callable[..., Terminal]
) -> None:
    with_terminal = terminal(*client.command("run", "timeout", "60", "sh", "-c", "echo ready; exec sleep 60"))
    with_terminal.expect("ready")
    with_terminal.type("\x03")
    with_terminal.end()
    assert page(relay, client)["exit_code"] != 0


def test_ctrl_c_ends_a_shells_loop(relay: Relay, client: Client, terminal: Callable[..., Terminal]) -> None:
    require("bash", "bash")
    loop = f"for i in 1 2; do echo round $i; {' '.join(client.command('run', 'sleep', '60'))}; done; echo after"
    shell = terminal("bash", "-c", loop)
    shell.expect("round 1")
    until(lambda: any("(sleep)" in one for one in processes_below(shell.pid)))
    shell.type("\x03")
    shell.end()
    assert b"round 2" not in shell.output
    page(relay, client)


def test_a_closed_terminal_reaches_the_command(relay: Relay, client: Client) -> None:
    with_terminal = Terminal(client, client.command("run", "sh", "-c", "echo ready; exec sleep 60"))
    with_terminal.expect("ready")
    with_terminal.close()
    os.waitpid(with_terminal.pid, 0)
    assert page(relay, client)["signal"] == signal.SIGHUP


def test_a_shells_job_control_works(relay: Relay, client: Client, terminal: Callable[..., Terminal]) -> None:
    require("bash", "bash")
    shell = terminal("bash", "--norc", "-i")
    shell.expect(r"\$ ")
    shell.type(" ".join(client.command("run", "--", "sh", "-c", "'echo be''gun; read x; echo $x; exit 6'")) + "\n")
    shell.expect("begun\r\n")
    shell.type("\x1a")
    shell.expect("Stopped.*\\$ ")
    until(lambda: all(" T " in one for one in processes_below(shell.pid)))  # the one that reads may be a little later
    shell.type("fg\n")
    shell.expect("exit 6.*\r\n")
    shell.type("word\n")
    shell.expect("word\r\nword\r\n")
    shell.type("echo code $?\n")
    shell.expect("code 6\r\n")
    shell.type("exit\n")
    shell.end()
    assert page(relay, client)["exit_code"] == 6
