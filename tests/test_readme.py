"""The README's commands are run as they stand, from the top to the bottom, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import REPOSITORY, Client, Relay, clean_environment, new_key, number, require, until

from pagermcp.spool.room import OPEN_ROOM

README = (REPOSITORY / "README.md").read_text()
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_two_commands_it_asks_for_are_serve_and_test() -> None:
    assert [block for block in BLOCKS if "./dev" in block] == ["./dev serve\n", "./dev test\n"]


def mailboxes(relay: Relay) -> list[Path]:
    return [path for path in relay.spool.glob("new/*") if path.name != OPEN_ROOM]


def test_every_other_command_works(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    require("curl", "curl")
    relay = start_relay(tmp_path / "relay", PAGERMCP_ROOM="open")  # as ./dev serve does
    (tmp_path / "spool").symlink_to(relay.spool)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "pagermcp").symlink_to(Path(sys.executable).parent / "pagermcp")

    environment = clean_environment(HOME=tmp_path, PATH=f"{tmp_path}/.local/bin:{os.environ['PATH']}")
    environment["SERVER_PORT"] = str(relay.port)  # for the client what localhost:8080 is for curl

    def start(block: str) -> "subprocess.Popen[str]":
        script = block.replace("localhost:8080", f"localhost:{relay.port}")
        return subprocess.Popen(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(block: str) -> str:
        with start(block) as process:
            output, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        return output

    wait, page, archive, number, by_header, by_path, by_mv, *rest = (b for b in BLOCKS if "./dev" not in b)
    options, by_curl, script, path, by_client, wake, read, lease, look, install, talk, cat = rest
    with start(wait) as waiting:
        until((tmp_path / ".pager_session").exists)
        until(lambda: mailboxes(relay))
        assert '"accepted":true' in run(page)
        assert '"message":"make is done"' in waiting.communicate(timeout=30)[0]
    assert oct((tmp_path / ".pager_session").stat().st_mode)[-3:] == "600"
    until(lambda: relay.spool.glob("archive/*/*/*.json"))
    assert "make is done" in run(archive)
    (mailbox,) = mailboxes(relay)
    assert run(number) == f"page me at {mailbox.name}\n"
    assert json.loads(run(by_header))["queued"] == 1
    assert json.loads(run(by_path))["queued"] == 2
    assert run(by_mv) == ""
    assert len(list(mailbox.iterdir())) == 3

    once, reminder, progress, began, ended = map(json.loads, run(options).splitlines())
    assert once["id"]
    assert reminder["due_at"] > progress["last_read"]
    assert (began["id"], "expected_at" in began) == (None, True)
    assert ended["queued"] == progress["queued"] + 1
    assert len(run(by_curl).splitlines()) == 2
    assert run(script) == "compiling\n"
    assert run(path) == ""
    mine, output, first = run(by_client).splitlines()
    assert (mine, output) == (mailbox.name, "compiling")
    assert json.loads(first)["payload"]["message"] == "build done"

    wakes = run(wake)
    assert wakes.count(f"+++ {tmp_path}/.config/opencode/plugins/pager.js") == 2
    assert wakes.splitlines()[-1] == mailbox.name

    # the block looks and takes three; the file moved in counts from when it was noticed
    looked, consumed, waited, _ = run(read).splitlines()
    messages = [page["message"] for page in json.loads(looked)["messages"]]
    assert messages[-5:-1] == ["backup is done", "ended with 0", "passed", "Build finished"]
    assert re.fullmatch(r"done after \S+ s", messages[-1])
    assert json.loads(consumed)["message"]["message"] == "build done"
    assert json.loads(waited)["message"]
    leased, acknowledged, receipt = run(lease).splitlines()
    assert len(json.loads(leased)["pages"]) == 6
    assert json.loads(acknowledged)["acknowledged"] == [json.loads(receipt)["id"]]
    assert json.loads(receipt)["outcome"] == "acknowledged"
    until(lambda: len(list(relay.spool.glob("leased/*/*"))) == 5)
    looked = run(look)
    assert "the disk is nearly full" in looked
    assert "ok    a page woke a wait " in looked
    assert "the disk is nearly full" in (tmp_path / "pages.log").read_text()
    assert run(install).count("would write") == 4
    said, heard, agents = map(json.loads, run(talk).splitlines())
    assert heard["messages"] == [said]
    assert {agent["name"] for agent in agents["agents"]} == {"desktop", "vps"}
    assert json.loads(run(cat))["payload"]


def test_the_crontab_line_works_as_cron_would_run_it(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    line = re.findall(r"^```crontab\n(.*?)\n```", README, re.DOTALL | re.MULTILINE)[0]
    *variables, line = line.splitlines()
    times, command = re.fullmatch(r"((?:\S+ ){5})(.*)", line).groups()  # type: ignore[union-attr]
    assert times.split() == ["30", "3", "*", "*", "*"]
    relay = start_relay()
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    (tmp_path / ".local" / "bin" / "pagermcp").symlink_to(Path(sys.executable).parent / "pagermcp")
    client = Client(tmp_path, relay.url)
    (tmp_path / "backup.sh").write_text("#!/bin/sh\necho saved\nexit 3\n")
    (tmp_path / "backup.sh").chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LOGNAME": "me"}
    for variable in variables:
        name, value = variable.split("=", 1)
        environment[name] = value.replace("/home/me", str(tmp_path)).replace(
            "localhost:8080", f"localhost:{relay.port}"
        )
    done = subprocess.run(["/bin/sh", "-c", command.replace("/srv/project", str(tmp_path))], env=environment)
    assert done.returncode == 3
    (page,) = relay.lease(client.key)
    assert (page["payload"]["JOB_ID"], page["payload"]["status"]) == ("backup", "failed")


def test_the_ci_step_pages_once_however_often_it_is_tried(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    require("curl", "curl")
    step = re.findall(r"^```yaml\n(.*?)\n```", README, re.DOTALL | re.MULTILINE)[0]
    command = " ".join(step.partition("run: >-\n")[2].split("\n")).replace("${{ job.status }}", "failure")
    relay = start_relay()
    key = new_key()
    told = {"GITHUB_REPOSITORY": "me/it", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}
    environment = clean_environment(PAGER_URL=relay.url, PAGER_NUMBER=number(key), **told)
    for _ in range(2):
        subprocess.run(["bash", "-ec", command], env=environment, check=True, stdout=subprocess.DEVNULL)
    (page,) = relay.lease(key, "max=9&lease=9")
    assert page["payload"] == {"message": "me/it: failure"}


def test_the_commands_of_the_other_documents_are_there() -> None:
    for name in ("when.md", "client.md", "agents.md", "operate.md"):
        assert f"docs/{name}" in README
        assert (REPOSITORY / "docs" / name).exists()
