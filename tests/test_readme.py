"""The README's commands are run as they stand, from the top to the bottom, in an empty folder."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from conftest import REPOSITORY, Relay, clean_environment, require, until

from pagermcp.spool.room import OPEN_ROOM

BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_two_commands_it_asks_for_are_serve_and_test() -> None:
    assert [block for block in BLOCKS if "./dev" in block] == ["./dev serve\n", "./dev test\n"]


def mailboxes(relay: Relay) -> list[Path]:
    return [path for path in relay.spool.glob("new/*") if path.name != OPEN_ROOM]


def test_every_other_command_works(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    require("curl", "curl")
    relay = start_relay(tmp_path / "relay", PAGERMCP_ROOM="open")  # as ./dev serve does
    (tmp_path / "spool").symlink_to(relay.spool)

    def start(block: str) -> "subprocess.Popen[str]":
        script = block.replace("localhost:8080", f"localhost:{relay.port}")
        return subprocess.Popen(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=clean_environment(),
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
    options, script, read, lease, install, talk, cat = rest
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
    assert run(script) == "compiling\n"

    # the block looks and takes three of the seven; the file moved in counts from when it was noticed
    looked, consumed, waited, _ = run(read).splitlines()
    assert [page["message"] for page in json.loads(looked)["messages"][:2]] == ["build done"] * 2
    assert json.loads(consumed)["message"]["message"] == "build done"
    assert json.loads(waited)["message"] == "build done"
    leased, acknowledged, receipt = run(lease).splitlines()
    assert len(json.loads(leased)["pages"]) == 4
    assert json.loads(acknowledged)["acknowledged"] == [json.loads(receipt)["id"]]
    assert json.loads(receipt)["outcome"] == "acknowledged"
    until(lambda: len(list(relay.spool.glob("leased/*/*"))) == 3)
    assert run(install).count("would write") == 4
    said, heard, agents = map(json.loads, run(talk).splitlines())
    assert heard["messages"] == [said]
    assert {agent["name"] for agent in agents["agents"]} == {"desktop", "vps"}
    assert json.loads(run(cat))["payload"]
