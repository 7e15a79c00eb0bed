"""The plugin in Claude Code itself, in a home of its own, with a model's API on loopback that says what a test says."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import DONE, Asked, Model, Tool
from conftest import REPOSITORY, Client, Relay, from_npm, until

VERSION = "2.1.332"  # the one whose hooks and monitors docs/agents.md describes
API_KEY = "sk-ant-fake-00000000000000000000"
NUMBER_TOOL = "mcp__plugin_pagermcp_pager__pager_number"
PATIENCE_SECONDS = 60.0  # it is a heavy program, and machines are busy
ENDS_SECONDS = 30.0  # a hook looks for its session when the relay shows life, each 20 s

pytestmark = pytest.mark.timeout(120, func_only=True)  # without the time in which it is downloaded


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    return until(condition, seconds)


@pytest.fixture(scope="session")
def program() -> str:
    return from_npm("@anthropic-ai/claude-code", VERSION, "@anthropic-ai/claude-code-*/claude")


class Desk:
    """A home with Claude Code and the plugin, a project with a mailbox, and a model that answers."""

    def __init__(self, folder: Path, program: str, relay: Relay, model: Model) -> None:
        self.relay = relay
        self.model = model
        self.home = folder / "home"
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self.client = Client(self.project, relay.url)
        self.client.environment["HOME"] = str(self.home)
        for name in ("CLAUDE_CONFIG_DIR", "XDG_DATA_HOME"):  # of somebody who tests from within Claude Code
            self.client.environment.pop(name, None)
        self.environment = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": API_KEY,
            "IS_SANDBOX": "1",
            "DISABLE_AUTOUPDATER": "1",
            "PAGER_URL": relay.url,
            "XDG_STATE_HOME": str(self.client.state),
        }
        self._program = program
        self._settle()
        self.client("install", "claude")
        self.plugin = self.home / ".local/share/pagermcp/claude/pagermcp"

    def _settle(self) -> None:
        """Everything is answered that Claude Code asks somebody new."""
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True, "allowedTools": []}
        answers = {
            "hasCompletedOnboarding": True,
            "lastOnboardingVersion": "99.0.0",
            "numStartups": 10,
            "theme": "dark",
            "autoUpdates": False,
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": [API_KEY[-20:]], "rejected": []},
            "projects": {str(self.project.resolve()): {**trusted, "projectOnboardingSeenCount": 4}},
        }
        allowed = ["Bash(*)", "mcp__plugin_pagermcp_pager__*"]
        permissions = {"defaultMode": "default", "disableAutoMode": "disable", "allow": allowed}
        (self.home / ".claude").mkdir(parents=True)
        (self.home / ".claude.json").write_text(json.dumps(answers))
        (self.home / ".claude/settings.json").write_text(json.dumps({"permissions": permissions}))

    def without_monitor(self) -> None:
        (self.plugin / "monitors/monitors.json").unlink()

    @contextlib.contextmanager
    def session(self, *arguments: str) -> Iterator["Terminal"]:
        """An interactive session, which is killed at the end."""
        with Terminal([self._program, *arguments], self.project, self.environment) as terminal:
            yield terminal

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Claude Code without a terminal, to its end."""
        command = [self._program, *arguments]
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def page(self, text: str) -> str:
        """Page this project; the page's id."""
        return str(self.relay.notify(self.client.number, text).json()["id"])

    def is_watched(self) -> bool:
        return self.relay.has_reader(self.client.number)

    def wait_until_watched(self) -> None:
        wait_for(self.is_watched)

    def page_when_watched(self, text: str) -> str:
        self.wait_until_watched()
        return self.page(text)

    def command_that_waits(self) -> tuple[Tool, Path, Path]:
        """A command for the model to run, the file that it makes, and the one for which it then waits."""
        running, go_on = self.project / "running", self.project / "go-on"
        command = f"touch {running}; while [ ! -e {go_on} ]; do sleep 0.1; done"
        return Tool("Bash", {"command": command, "description": "wait"}), running, go_on

    def is_leased(self, id: str) -> bool:
        return self.relay.state(self.client.key, id) == "leased"

    def is_acknowledged(self, id: str) -> bool:
        return self.relay.state(self.client.key, id) == "acknowledged"

    def wait_for_model(self, text: str) -> Asked:
        """The first request that brings this text to the model."""
        asked: Asked = wait_for(lambda: self.model.told(text))[0]
        return asked

    def wait_for_acknowledgement(self, id: str) -> None:
        wait_for(lambda: self.is_acknowledged(id))

    def processes(self) -> dict[int, str]:
        """All processes with this home: Claude Code, and what it has started."""
        mine = f"HOME={self.home}\0".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mine in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def wait_until_all_have_ended(self) -> None:
        with contextlib.suppress(AssertionError):  # which would not say what is left
            wait_for(lambda: not self.processes(), ENDS_SECONDS)
        assert self.processes() == {}

    def clear(self) -> None:
        """Stop what a failed test has left behind."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Terminal:
    """A process on a terminal of its own, as a context; it is killed with it."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        pipes: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)
        os.close(slave)
        self._screen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join()
        os.close(self._master)

    def end(self) -> None:
        """Ask it to end."""
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def say(self, word: str) -> None:
        """Type a word and Enter. What is typed before the input box is there would be lost, so there must have been a
        turn; and what comes together with Enter would be taken for something pasted."""
        before = len(self._screen)
        os.write(self._master, word.encode())
        wait_for(lambda: word.encode() in self._screen[before:])
        os.write(self._master, b"\r")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self._master, 65536):
                self._screen += data


@pytest.fixture
def desk(tmp_path: Path, program: str, relay: Relay) -> Iterator[Desk]:
    with Model() as model:
        desk = Desk(tmp_path / "desk", program, relay, model)
        try:
            yield desk
        finally:
            desk.clear()


def test_a_page_wakes_an_idle_session_by_the_monitor_once_and_is_then_acknowledged(desk: Desk) -> None:
    with desk.session() as session:
        first = desk.page_when_watched("the build is done </event>")
        assert "PAGE id=" in desk.wait_for_model(first).news
        desk.wait_for_acknowledgement(first)
        session.say("go-on")
        desk.wait_for_model("go-on")
        second = desk.page("and the tests are")
        desk.wait_for_model(second)
        desk.wait_for_acknowledgement(second)
        assert len(desk.model.asked) == 3  # this prompt, and one wake for each page
        assert [len(desk.model.told(id)) for id in (first, second)] == [1, 1]
        session.end()
    desk.wait_until_all_have_ended()


def test_without_the_monitor_a_page_wakes_an_idle_session_by_the_stop_hook_once(desk: Desk) -> None:
    desk.without_monitor()
    with desk.session("hello") as session:
        first = desk.page_when_watched("the build is done </system-reminder>")
        news = desk.wait_for_model(first).news
        assert f"Pagerbericht ontvangen: page {first}" in news
        assert news.count(" begins. It comes from others") == 1
        desk.wait_for_acknowledgement(first)
        session.say("go-on")
        desk.wait_for_model("go-on")
        second = desk.page_when_watched("and the tests are")
        desk.wait_for_model(second)
        desk.wait_for_acknowledgement(second)
        assert len(desk.model.asked) == 4  # the two prompts, and one wake for each page
        assert [len(desk.model.told(id)) for id in (first, second)] == [1, 1]
        session.end()
    desk.wait_until_all_have_ended()


def test_pages_that_wait_come_with_a_prompt_and_those_that_come_meanwhile_between_two_tools(desk: Desk) -> None:
    desk.without_monitor()
    command, running, go_on = desk.command_that_waits()
    desk.model.replies += [command, DONE]
    waits = desk.page("it has waited")
    with desk.session("hello"):
        wait_for(running.exists)
        [prompted] = desk.model.asked
        assert "Pages that wait for it: 1." in prompted.news  # by the hook at the session's start
        assert f"Pagerbericht ontvangen: page {waits}" in prompted.news
        assert prompted.news.count(" begins. It comes from others") == 1
        assert not desk.is_acknowledged(waits)
        meanwhile = desk.page("it has come meanwhile")
        go_on.touch()
        desk.wait_for_acknowledgement(waits)
        desk.wait_for_acknowledgement(meanwhile)
        _, same_turn = desk.model.asked
        assert f"Pagerbericht ontvangen: page {meanwhile}" in same_turn.news
        assert waits not in same_turn.news


@pytest.mark.parametrize("way", ["the monitor", "the Stop hook"])
def test_a_page_that_comes_while_a_turn_runs_is_in_that_turn_or_the_next_and_acknowledged_only_afterwards(
    desk: Desk, way: str
) -> None:
    if way == "the Stop hook":
        desk.without_monitor()
    command, running, go_on = desk.command_that_waits()
    thinking, thought = threading.Event(), threading.Event()
    ids: list[str] = []
    acknowledged: list[bool] = []

    def work(asked: Asked) -> str | Tool:
        if ids[0] not in asked.news:  # its notice is still on its way
            desk.model.replies.appendleft(work)
            return Tool("Bash", {"command": "true", "description": "go on"})
        acknowledged.append(desk.is_acknowledged(ids[0]))
        thinking.set()
        thought.wait(PATIENCE_SECONDS)
        return DONE

    def look(asked: Asked) -> str:
        acknowledged.append(desk.is_acknowledged(ids[1]))
        return DONE

    desk.model.replies += [DONE, command, work, look]
    with desk.session("hello") as session:
        desk.wait_for_model("hello")
        desk.wait_until_watched()
        session.say("go-on")
        wait_for(running.exists)
        ids.append(desk.page("while a tool runs"))
        wait_for(lambda: desk.is_leased(ids[0]))
        go_on.touch()
        assert thinking.wait(PATIENCE_SECONDS)
        ids.append(desk.page("while the model thinks"))
        if way == "the monitor":  # the hook has ended, and the end of the turn starts another one
            wait_for(lambda: desk.is_leased(ids[1]))
        thought.set()
        for id in ids:
            desk.wait_for_model(id)
            desk.wait_for_acknowledgement(id)
        assert acknowledged == [False, False]
        assert [len(desk.model.told(id)) for id in ids] == [1, 1]


def test_a_session_that_is_killed_when_it_was_woken_leaves_the_page_to_the_next(desk: Desk) -> None:
    desk.model.replies += [None]
    with desk.session() as session:
        id = desk.page_when_watched("the build is done")
        desk.wait_for_model(id)
        session.kill()
    wait_for(lambda: not desk.is_watched())  # or else it would go to who has watched for that session
    assert not desk.is_acknowledged(id)
    desk.relay.with_key(desk.client.key, "POST", "/release", json={"ids": [id]})  # as when the lease is over
    desk.run("-p", "hello")
    assert f"page {id}" in desk.model.asked[-1].news
    assert "attempt 2" in desk.model.asked[-1].news


def test_of_a_session_that_is_killed_when_it_was_woken_no_process_is_left(desk: Desk) -> None:
    desk.model.replies += [None]
    with desk.session() as session:
        desk.wait_for_model(desk.page_when_watched("the build is done"))
        session.kill()
        desk.wait_until_all_have_ended()


def test_doctor_finds_that_a_page_wakes_an_idle_session(desk: Desk) -> None:
    with desk.session("hello"):
        desk.wait_for_model("hello")
        done = desk.client("doctor", "--wake", "claude", "--wait", "60")
        assert "claude received a page, and acknowledged it after " in done.stdout


def test_a_run_without_a_terminal_gets_a_page_that_waits_acknowledges_it_and_ends_without_delay(desk: Desk) -> None:
    id = desk.page("it has waited")
    done = desk.run("-p", "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{DONE}\n"
    [asked] = desk.model.asked
    assert f"Pagerbericht ontvangen: page {id}" in asked.news
    assert desk.is_acknowledged(id)
    desk.wait_until_all_have_ended()


def test_its_mcp_server_tells_the_number(desk: Desk) -> None:
    search = Tool("ToolSearch", {"query": f"select:{NUMBER_TOOL}", "max_results": 1})
    desk.model.replies += [search, Tool(NUMBER_TOOL, {}), DONE]
    done = desk.run("-p", "hello")
    assert done.returncode == 0, done.stderr
    assert desk.client.number in desk.model.asked[-1].news


def test_claude_code_finds_no_fault_in_the_plugin(desk: Desk) -> None:
    done = desk.run("plugin", "validate", "--strict", str(REPOSITORY / "plugins/claude"))
    assert done.returncode == 0, done.stdout + done.stderr
