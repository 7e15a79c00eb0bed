"""The commands of docs/operate.md that stand for themselves are run as they stand. (The others have tests of their own:
test_systemd, test_container, test_proxies, test_spool_command.)"""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from conftest import REPOSITORY, Relay, clean_environment, new_key, number, require, until

OPERATE = (REPOSITORY / "docs" / "operate.md").read_text()


def commands(title: str) -> str:
    """The block of commands in the section with that title."""
    section = OPERATE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return str(block)


def run(block: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_can_be_looked_at_with_a_shell(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    require("jq", "jq")
    relay, first, second = start_relay(), new_key(), new_key()
    oldest = relay.notify(first, json={"job": "build", "n": 1}).json()["id"]
    leased = relay.notify(second, "taken").json()["id"]
    relay.lease(second)
    expired = relay.notify(second, "late", headers={"Pager-Expires": "1"}).json()["id"]
    (tmp_path / "brought").write_bytes(b"\xff")
    (tmp_path / "brought").rename(relay.new(first) / "brought")
    until(lambda: relay.get(f"/mailboxes/{first}/messages") and list(relay.spool.glob("dead/*/*/*.why")))
    until(lambda: list(relay.spool.glob(f"archive/*/*/{expired}.expired.json")))
    relay.notify(second, "the last")

    looked = run(commands("Look"), relay.spool.parent)
    assert number(first) in looked
    assert f"spool/leased/{number(second)}/:\n{leased}.json\n" in looked
    assert re.search(r'^20\S+Z  \{"job":"build","n":1\}$', looked, re.MULTILINE)
    assert f"\n{oldest}.json spool/new/{number(first)}/{oldest}.json\n1\n" in looked
    assert "brought: not UTF-8" in looked


def test_a_spool_is_backed_up_and_restored_with_tar(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay, key = start_relay(), new_key()
    relay.notify(key, "leased")
    relay.notify(key, "kept")
    relay.lease(key, "lease=3600")
    relay.stop()
    run(commands("Back up and restore"), tmp_path)
    again = start_relay(DATA_DIR=tmp_path / "restored")
    assert os.stat(tmp_path / "restored").st_mode & 0o777 == 0o700
    told = again.with_key(key, "GET", "/mailbox").json()["pages"]
    assert (told["waiting"], told["leased"]) == (1, 1)
    assert again.lease(key)[0]["payload"] == {"message": "kept"}
