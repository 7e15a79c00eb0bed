"""What a room's agents get: the skill, the script that installs it, and the watcher by which they are woken."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from conftest import REPOSITORY, Relay, clean_environment, new_key, require, until
from test_rooms import Talk

SCRIPTS = ("install.sh", "watch.sh", "sample/pager.sh")
SHELLS = ["dash", "bash", "busybox sh"]


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("open")
    relay = Relay(folder / "spool", folder / "log", PAGERMCP_ROOM="open")
    yield relay
    assert relay.stop() == 0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


# The skill


def test_the_skill_obeys_the_rules_for_skills(relay: Relay) -> None:
    answer = relay.get("/skill.md")
    assert answer.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    _, head, body = answer.text.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert fields["name"] == "agentchat"
    assert len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) < 150
    assert "timeout_ms: 1800000" in body


def test_the_skill_has_the_rules_of_engagement(relay: Relay) -> None:
    text = relay.get("/skill.md").text
    for rule in (
        "does that machine's work",
        "Announce before you act",
        "result ends the exchange",
        "Never answer an ack",
    ):
        assert rule in text


@pytest.mark.parametrize("path", ["/skill.md", "/install.sh", "/watch.sh"])
def test_they_name_this_relay_and_no_other(relay: Relay, start_relay: Callable[..., Relay], path: str) -> None:
    assert relay.url in relay.get(path).text
    text = relay.get(path, headers={"Host": "chat.example.org:81"}).text
    assert "http://chat.example.org:81" in text
    assert "127.0.0.1" not in text
    assert relay.get(path, headers={"Host": "x;rm -rf"}).status_code == 400
    public = start_relay(PAGERMCP_PUBLIC_URL="https://user:secret@chat.example.org/")
    assert "https://user:secret@chat.example.org" in public.get(path).text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_sound(relay: Relay, tmp_path: Path, shell: str) -> None:
    require(shell.split()[0], shell.split()[0])
    for name in SCRIPTS:
        script = tmp_path / "script"
        script.write_text(relay.get(f"/{name}").text)
        subprocess.run([*shell.split(), "-n", str(script)], check=True)
        subprocess.run([require("shellcheck", "shellcheck"), str(script)], check=True)


def test_the_skills_own_commands_work(relay: Relay) -> None:
    talk = Talk(relay)
    talk.say("somebody", "hello")
    blocks = re.findall(r"```sh\n(.*?)```", relay.get("/skill.md").text, re.DOTALL)
    said, read, watch = blocks
    for block in (said, read):
        script = (
            block.replace("NAME", "desktop").replace('"OTHER"', '"vps"').replace("since=ID&wait=50", "since=0&wait=1")
        )
        run = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=30)
        assert run.returncode == 0, run.stderr
    assert {"desktop"} <= {agent["name"] for agent in talk.get("agents").json()["agents"]}
    assert "scripts/watch.sh" in watch


# Installing


def install(relay: Relay, home: Path, *options: str, shell: str = "sh") -> "subprocess.CompletedProcess[str]":
    command = f"curl -fsSL {relay.url}/install.sh | {shell} -s -- {' '.join(options)}"
    return subprocess.run(
        ["sh", "-c", command], env=clean_environment(HOME=home), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_one_line_installs_the_skill_for_every_agent_and_again_changes_nothing(
    relay: Relay, home: Path, shell: str
) -> None:
    first = install(relay, home, shell=shell)
    assert first.returncode == 0, first.stderr
    for skills in (".claude/skills", ".agents/skills"):
        assert (home / skills / "agentchat" / "SKILL.md").read_text() == relay.get("/skill.md").text
        assert (home / skills / "agentchat" / "scripts" / "watch.sh").read_text() == relay.get("/watch.sh").text
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    again = install(relay, home, shell=shell)
    assert again.stdout.count("unchanged") == 4
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_a_dry_run_says_what_it_would_do_and_does_nothing(relay: Relay, home: Path) -> None:
    run = install(relay, home, "--dry-run")
    assert run.stdout.count("would write") == 4
    assert list(home.iterdir()) == []


def test_uninstalling_removes_what_was_installed_and_nothing_else(relay: Relay, home: Path) -> None:
    install(relay, home)
    mine = home / ".claude" / "skills" / "agentchat" / "notes.md"
    mine.write_text("mine")
    run = install(relay, home, "--uninstall")
    assert run.returncode == 0
    assert run.stdout.count("removed") == 4
    assert [path for path in home.rglob("*") if path.is_file()] == [mine]
    assert not (home / ".agents" / "skills" / "agentchat").exists()
    assert install(relay, home, "--uninstall").returncode == 0


def test_what_is_no_skill_is_not_installed(relay: Relay, home: Path, tmp_path: Path) -> None:
    script = tmp_path / "install.sh"
    script.write_text(relay.get("/install.sh").text.replace("skill.md ---", "healthz ---"))
    run = subprocess.run(["sh", script], env=clean_environment(HOME=home), capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "nothing was installed" in run.stderr
    assert list(home.iterdir()) == []


def test_an_unknown_option_and_a_relay_that_is_away_are_said(relay: Relay, home: Path, tmp_path: Path) -> None:
    assert install(relay, home, "--force").returncode == 2
    script = tmp_path / "install.sh"
    script.write_text((REPOSITORY / "pagermcp" / "share" / "install.sh").read_text().replace(":8080", ":1"))
    run = subprocess.run(["sh", script], env=clean_environment(HOME=home), capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert list(home.iterdir()) == []


# Watching


class Watcher:
    """A watcher of one agent, started as an agent's shell would."""

    def __init__(self, relay: Relay, home: Path, shell: str = "sh", **environment: object) -> None:
        script = home / "watch.sh"
        script.write_text(relay.get("/watch.sh").text)
        self.process = subprocess.Popen(
            [*shell.split(), str(script)],
            env=clean_environment(HOME=home, **{"AGENTCHAT_NAME": "me", "AGENTCHAT_URL": relay.url, **environment}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, seconds: float = 20) -> str:
        """What it printed."""
        output, errors = self.process.communicate(timeout=seconds)
        assert errors == ""
        return output

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=20)


def listening(talk: Talk, name: str = "me") -> bool:
    agents = talk.get("agents").json()["agents"]
    return any(agent["name"] == name and agent["listening"] for agent in agents)


@pytest.fixture
def talk(relay: Relay, key: str) -> Talk:
    talk = Talk(relay, key)
    talk.say("me", "makes the room")
    return talk


@pytest.fixture
def watch(relay: Relay, home: Path, talk: Talk) -> Iterator[Callable[..., Watcher]]:
    watchers: list[Watcher] = []

    def start(**options: object) -> Watcher:
        watchers.append(Watcher(relay, home, **{"AGENTCHAT_KEY": talk.key, **options}))  # type: ignore[arg-type]
        return watchers[-1]

    yield start
    for watcher in watchers:
        if watcher.process.poll() is None:
            watcher.stop()


@pytest.mark.parametrize("shell", SHELLS)
def test_it_ends_with_a_line_for_each_message(talk: Talk, watch: Callable[..., Watcher], shell: str) -> None:
    watcher = watch(shell=shell)
    until(lambda: listening(talk))
    message = talk.say("desktop", "two\nlines, \t and a \u001b[31mcolour", "me")
    assert watcher.ends() == f"MESSAGE id={message['id']} from=desktop to=me: two lines, and a [31mcolour\n"
    assert watcher.process.returncode == 0


def test_nothing_is_missed_or_repeated_between_two_watchers(talk: Talk, watch: Callable[..., Watcher]) -> None:
    watcher = watch()
    until(lambda: listening(talk))
    talk.say("a", "1")
    seen = watcher.ends()
    for n in range(2, 30):
        talk.say("a", str(n))
        talk.say("me", "my own")
        talk.say("a", "not for me", "b")
    for _ in range(2):
        seen += watch().ends()
    assert [line.rpartition(": ")[2] for line in seen.splitlines()] == [str(n) for n in range(1, 30)]


def test_a_long_message_is_a_short_line(talk: Talk, watch: Callable[..., Watcher]) -> None:
    talk.say("a", "x" * 60000)
    line = watch().ends()
    assert len(line) < 480
    assert "(60000 characters)" in line


def test_a_second_watcher_says_that_there_is_one_and_ends(talk: Talk, watch: Callable[..., Watcher]) -> None:
    first = watch()
    until(lambda: listening(talk))
    assert watch().ends() == f"agentchat: me is watching already (pid {first.process.pid})\n"
    talk.say("a", "x")
    assert ": x" in first.ends()


def test_watchers_of_other_agents_and_rooms_do_not_mind(talk: Talk, watch: Callable[..., Watcher]) -> None:
    watch()
    assert "makes the room" in watch(AGENTCHAT_NAME="other").ends()
    other = watch(AGENTCHAT_NAME="other")
    until(lambda: listening(talk) and listening(talk, "other"))
    room = Talk(talk.relay, new_key())
    room.say("a", "elsewhere")
    assert ": elsewhere" in watch(AGENTCHAT_KEY=room.key).ends()
    talk.say("a", "here", "other")
    assert ": here" in other.ends()


def test_what_a_killed_watcher_left_is_taken_over(talk: Talk, watch: Callable[..., Watcher]) -> None:
    first = watch()
    until(lambda: listening(talk))
    first.process.kill()
    first.process.communicate()
    talk.say("a", "x")
    assert ": x" in watch().ends()


@pytest.mark.parametrize("age", [0, 300])
def test_a_lock_with_the_number_of_some_other_process_is_taken_over_when_it_is_old(
    talk: Talk, home: Path, watch: Callable[..., Watcher], age: int
) -> None:
    first = watch(AGENTCHAT_NAME="ME")
    until(lambda: listening(talk))
    first.process.kill()
    first.process.communicate()
    (pid,) = (home / ".local/state/agentchat").glob("me-*.lock/pid")
    pid.write_text(f"{os.getpid()}\n")
    os.utime(pid, (time.time() - age,) * 2)
    talk.say("a", "x")
    assert (": x" in watch().ends()) is (age > 0)


def test_of_many_that_take_over_at_once_one_stays(talk: Talk, watch: Callable[..., Watcher]) -> None:
    first = watch()
    until(lambda: listening(talk))
    first.process.kill()
    first.process.communicate()
    watchers = [watch() for _ in range(5)]
    until(lambda: sum(watcher.process.poll() is None for watcher in watchers) <= 1, 30)
    until(lambda: listening(talk))
    talk.say("a", "x")
    assert sum(": x" in watcher.ends() for watcher in watchers) == 1


def test_an_answer_that_is_cut_is_none(home: Path, relay: Relay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watcher = Watcher(relay, home, AGENTCHAT_URL=f"http://127.0.0.1:{port}")
        for line in (
            b"MESSAGE id=1795966550281088 from=a to=all: the who",
            b"MESSAGE id=1795966550281088 from=a: whole\n",
        ):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                length = 100 if b"the who" in line else len(line)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + line)
        assert watcher.ends() == "MESSAGE id=1795966550281088 from=a: whole\n"


def test_after_its_time_without_a_message_it_ends_and_says_so(talk: Talk, watch: Callable[..., Watcher]) -> None:
    assert watch(AGENTCHAT_MINUTES=0).ends() == "agentchat: nothing new in 0 minutes; start the watcher again\n"


def test_it_ends_when_its_parent_has_gone(relay: Relay, home: Path, talk: Talk) -> None:
    (home / "watch.sh").write_text(relay.get("/watch.sh").text)
    environment = clean_environment(HOME=home, AGENTCHAT_NAME="me", AGENTCHAT_URL=relay.url, AGENTCHAT_KEY=talk.key)
    parent = subprocess.Popen(
        ["sh", "-c", 'sh "$HOME/watch.sh" & echo $!; wait'], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    watcher = int(parent.stdout.readline())
    until(lambda: listening(talk))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not Path(f"/proc/{watcher}").exists())
    until(lambda: not listening(talk))


def test_it_reconnects_quietly(start_relay: Callable[..., Relay], home: Path, key: str) -> None:
    relay = start_relay()
    Talk(relay, key).say("me", "makes the room")
    watcher = Watcher(relay, home, AGENTCHAT_KEY=key)
    until(lambda: listening(Talk(relay, key)))
    relay.stop()
    with socket.create_server(("127.0.0.1", relay.port), reuse_port=False) as other:  # something else, for a while
        other.listen()
        other.accept()[0].close()
    relay = start_relay(PORT=relay.port)
    Talk(relay, key).say("a", "after")
    assert ": after\n" in watcher.ends(30)


def test_a_room_that_refuses_it_is_said_at_once(relay: Relay, talk: Talk, watch: Callable[..., Watcher]) -> None:
    watcher = watch(AGENTCHAT_KEY="no-key")
    assert "is not a UUID" in watcher.ends()
    assert watcher.process.returncode == 1


def test_what_could_not_be_printed_is_not_remembered(
    relay: Relay, talk: Talk, home: Path, watch: Callable[..., Watcher]
) -> None:
    talk.say("a", "x")
    (home / "watch.sh").write_text(relay.get("/watch.sh").text)
    environment = clean_environment(HOME=home, AGENTCHAT_NAME="me", AGENTCHAT_URL=relay.url, AGENTCHAT_KEY=talk.key)
    run = subprocess.run(["sh", "-c", 'sh "$HOME/watch.sh" >/dev/full'], env=environment, stderr=subprocess.DEVNULL)
    assert run.returncode == 1
    assert ": x" in watch().ends()


def test_the_key_is_on_no_command_line_and_in_no_file(talk: Talk, home: Path, watch: Callable[..., Watcher]) -> None:
    watcher = watch()
    until(lambda: listening(talk))
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not [command for command in commands if str(talk.key).encode() in command]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if str(talk.key) in path.read_text() or str(talk.key) in str(path)]
    assert {oct(path.stat().st_mode)[-2:] for path in (home / ".local" / "state" / "agentchat").rglob("*")} == {"00"}
    watcher.stop()


def test_the_name_is_this_machines_unless_another_is_given(relay: Relay, home: Path) -> None:
    key = new_key()
    Talk(relay, key).say("a", "x")
    Watcher(relay, home, AGENTCHAT_NAME="", AGENTCHAT_KEY=key).ends()
    name = subprocess.check_output(["hostname", "-s"], text=True).strip()
    seen = [agent["name"] for agent in Talk(relay, key).get("agents").json()["agents"]]
    assert re.sub(r"[^A-Za-z0-9._-]", "-", name) in seen


def test_lines_are_an_answer_of_the_relay(relay: Relay, talk: Talk) -> None:
    assert (
        requests.get(f"{relay.url}/api/messages?for=x&format=lines&since={8 * 10**15}", headers=talk.headers).text == ""
    )
