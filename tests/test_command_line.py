"""The `pagermcp` command itself: help, examples, exit codes, completion, colours, MODE."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from conftest import REPOSITORY, Client, Relay, require

from pagermcp.cli import EXIT_CODES, main

CONTEXT = click.Context(main, info_name="pagermcp")
NAMES = main.list_commands(CONTEXT)


def command(name: str) -> click.Command:
    found = main.get_command(CONTEXT, name)
    assert found is not None
    return found


def examples(name: str) -> list[str]:
    return re.findall(r"^ *(?:\S.* \| )?(pagermcp .*)$", command(name).help or "", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_examples_in_its_help_and_they_are_right(name: str) -> None:
    assert examples(name)
    for example in examples(name):
        line = re.sub(r" [|>].*| #.*|<.*", "", example.replace("$(pgrep -o rsync)", "1"))
        _, called, *arguments = shlex.split(line)
        command(called).make_context(called, arguments)  # raises what a wrong call raises


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_command_says_what_it_is_for(name: str) -> None:
    assert command(name).get_short_help_str(200)
    for parameter in command(name).params:
        assert isinstance(parameter, click.Argument) or parameter.help, parameter.name


def test_the_commands_are_those_of_the_documentation() -> None:
    told = set(re.findall(r"^\| `pagermcp (\S+?)[` ]", (REPOSITORY / "docs" / "client.md").read_text(), re.MULTILINE))
    assert told == set(NAMES)


def test_the_exit_codes_are_those_of_the_documentation() -> None:
    told = dict(re.findall(r"^\| ([0-9]+) \| (.*?) \|$", (REPOSITORY / "docs" / "client.md").read_text(), re.MULTILINE))
    in_help = dict(re.findall(r"^  ([0-9]+) +(.*)$", EXIT_CODES, re.MULTILINE))
    assert told == in_help
    assert set(told) == {str(code) for code in range(12)}


def test_an_unknown_command_or_option_is_a_wrong_call(client: Client) -> None:
    assert "No such command" in client("sned", code=2).stderr
    assert "No such option" in client("send", "--tow", "x", code=2).stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(client: Client, shell: str) -> None:
    assert "_PAGERMCP_COMPLETE" in client("completion", shell).stdout


def test_bash_completes_commands_and_options(client: Client) -> None:
    require("bash", "bash")
    script = """eval "$(pagermcp completion bash)"
COMP_WORDS=(pagermcp se); COMP_CWORD=1; _pagermcp_completion pagermcp; echo "${COMPREPLY[@]}"
COMP_WORDS=(pagermcp send --ex); COMP_CWORD=2; COMPREPLY=(); _pagermcp_completion pagermcp; echo "${COMPREPLY[@]}" """
    path = {"PATH": f"{Path(sys.executable).parent}:{client.environment['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=client.environment | path, cwd=client.folder, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["send serve", "--expires --expect"], done.stderr


def on_a_terminal(client: Client, *arguments: str, **environment: str) -> bytes:
    master, slave = pty.openpty()
    with client.start(*arguments, stdout=slave, environment=environment) as process:
        os.close(slave)
        output = b""
        try:
            while data := os.read(master, 65536):
                output += data
        except OSError:
            pass  # that is how it ends
        process.communicate()
    os.close(master)
    return output


def test_colours_are_for_terminals_and_for_those_who_want_them(relay: Relay, client: Client) -> None:
    assert b"\x1b[32mok" in on_a_terminal(client, "doctor", "--wait", "0")
    assert b"\x1b" not in on_a_terminal(client, "doctor", "--wait", "0", NO_COLOR="1")
    assert b"\x1b[32mok" in on_a_terminal(client, "doctor", "--wait", "0", NO_COLOR="")
    assert "\x1b" not in client("doctor", "--wait", "0").stdout


@pytest.mark.parametrize(
    "arguments", [["number"], ["inbox"], ["outbox"], ["doctor", "--wait", "0"], ["completion", "bash"]]
)
def test_output_that_can_not_be_written_has_its_exit_code(client: Client, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        error = client(*arguments, stdout=full, code=11).stderr
    assert error == "pagermcp: the output can't be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [["wait", "--timeout", "0"], ["outbox"], ["doctor", "--wait", "0"]])
def test_closed_descriptors_give_no_traceback(client: Client, arguments: list[str]) -> None:
    line = shlex.join(client.command(*arguments))
    for closed, codes in (("2>&-", (0, 1)), ("<&-", (0, 1)), (">&-", (1, 11)), (">&- 2>&- <&-", (1, 11))):
        script = f"{{ {line} {closed}; }} 2>errors; echo $?"
        done = subprocess.run(
            ["sh", "-c", script], env=client.environment, cwd=client.folder, capture_output=True, text=True, timeout=30
        )
        assert int(done.stdout.splitlines()[-1]) in codes
        assert "Traceback" not in (client.folder / "errors").read_text()


def test_the_client_does_not_load_the_relay_nor_the_relay_the_client() -> None:
    load = "import sys, pagermcp.cli as c; c.main.get_command(None, {!r}); print(*sys.modules)"
    for name, absent in (("serve", "requests"), ("send", "flask"), ("send", "pagermcp.spool")):
        done = subprocess.run([sys.executable, "-c", load.format(name)], capture_output=True, text=True, check=True)
        assert absent not in done.stdout.split()


def test_a_wrong_mode_is_refused(client: Client) -> None:
    assert "must be server or client" in client(environment={"MODE": "x"}, code=2).stderr


def test_no_key_is_on_any_command_line_or_in_an_address(relay: Relay, client: Client) -> None:
    script = "tr '\\0' ' ' </proc/$PPID/cmdline; env"
    done = client("run", "--expect", "1h", "sh", "-c", script)
    assert client.key not in done.stdout
    client("send", "m")
    client("wait", "--ack")
    assert client.key not in relay.log.read_text()
    assert client.key not in "".join(path.read_text() for path in client.state.rglob("*.json"))


def test_the_python_example_of_the_documentation_works(relay: Relay, client: Client) -> None:
    example = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "docs" / "client.md").read_text(), re.M | re.S)[0]
    handle = (
        "def handle(payload):\n    print(payload, flush=True)\n    if payload == {'message': 'end'}: raise SystemExit\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"number = {client.number!r}\n{handle}{example}"],
        cwd=client.folder,
        env=client.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "{'status': 'success'}\n"
        relay.notify(client.key, "end")
        assert process.communicate(timeout=20)[0] == "{'message': 'end'}\n"
    assert len(relay.archived(client.key)) == 1


def test_the_example_of_when_to_page_works(relay: Relay, client: Client) -> None:
    example = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "docs" / "when.md").read_text(), re.M | re.S)[0]
    (client.folder / "Makefile").write_text("all:\n\t@echo made\n")
    path = {"PATH": f"{Path(sys.executable).parent}:{client.environment['PATH']}"}
    subprocess.run(["sh", "-c", example + "wait"], cwd=client.folder, env=client.environment | path, check=True)
    assert (client.folder / "build.log").read_text() == "made\n"
    (page,) = relay.archived(client.key)
    assert json.loads(page.read_text())["payload"]["JOB_ID"] == "build-42"


def test_the_page_from_end_to_end_of_the_documentation_works(relay: Relay, client: Client) -> None:
    example = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "docs" / "client.md").read_text(), re.M | re.S)[0]
    path = {"PATH": f"{Path(sys.executable).parent}:{client.environment['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", example],
        cwd=client.folder,
        env=client.environment | path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r" acknowledged .* question +Deploy now\?$", done.stdout.splitlines()[-1])
