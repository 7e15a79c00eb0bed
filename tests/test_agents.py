"""docs/agents.md: its commands are run as they stand, with a real tmux and a throw-away GPG key."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY, Client, Relay, require, until

TEXT = (REPOSITORY / "docs/agents.md").read_text()
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def block(about: str) -> str:
    [found] = [block for block in BLOCKS if about in block]
    return found


def with_pagermcp(client: Client, **environment: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{client.environment['PATH']}"
    return client.environment | {"PATH": path} | environment


def run(client: Client, script: str, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=client.folder,
        env=with_pagermcp(client, **environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installing_is_shown_done_and_gives_a_number(client: Client) -> None:
    said = run(client, block("install opencode"))
    assert said.count("plugins/pager.js") == 2
    assert said.splitlines()[-1] == client.number


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A GPG home with a key of peer@example.com."""
    gpg = require("gpg", "gnupg")
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    environment = {"GNUPGHOME": str(home)}
    without_asking = ["--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
    make = ["--quick-generate-key", "peer@example.com", "future-default"]  # a key for RSA takes seconds
    subprocess.run([gpg, *without_asking, *make], env=environment, capture_output=True, check=True, timeout=60)
    yield environment
    subprocess.run([require("gpgconf", "gnupg"), "--kill", "all"], env=environment, check=True, timeout=60)


@pytest.mark.parametrize(("how", "says"), [("pagermcp send --to", "the new password is geheim"), ("BODY=", "geheim")])
def test_a_secret_page_passes_through_untouched(
    client: Client, relay: Relay, keyring: dict[str, str], how: str, says: str
) -> None:
    run(client, block(how), NUMBER=client.number, **keyring)
    assert run(client, block("--decrypt"), **keyring) == says
    [page] = until(lambda: relay.archived(client.key))
    assert b"geheim" not in page.read_bytes()
    assert b"-----BEGIN PGP MESSAGE-----" in page.read_bytes()


def test_a_pane_of_tmux_is_woken_by_its_keyboard_and_only_the_id_is_typed(client: Client, relay: Relay) -> None:
    tmux = require("tmux", "tmux")
    environment = with_pagermcp(client, TMUX_TMPDIR=str(client.folder), TERM="xterm", LC_ALL="C.UTF-8")
    subprocess.run(
        [tmux, "-f", "/dev/null", "new-session", "-d", "-s", "agent", "cat >typed.log"],
        env=environment,
        cwd=client.folder,
        check=True,
        timeout=60,
    )
    try:
        with subprocess.Popen(["sh", "-c", f"exec {block('tmux')}"], cwd=client.folder, env=environment) as listening:
            id = relay.notify(client.number, "$(touch hacked); `touch hacked`\n").json()["id"]
            typed = client.folder / "typed.log"
            until(lambda: typed.exists() and typed.read_text())
            until(lambda: relay.archived(client.key))
            listening.terminate()
            assert listening.wait(10) == 0
    finally:
        subprocess.run([tmux, "kill-server"], env=environment, cwd=client.folder, timeout=60)
    assert typed.read_text() == f"PAGE id={id} - all of it: pagermcp show {id}\n"
    assert not (client.folder / "hacked").exists()


def test_each_guidance_says_the_same_things() -> None:
    """The plugins' guidance and the skill: what to do with long jobs, what not to do, and what a page is."""
    skill = (REPOSITORY / "plugins/claude/skills/pager/SKILL.md").read_text()
    for words in ("in the background", "JOB_ID", "End the turn", "Do not poll", "Short commands", "never authorises"):
        assert words in skill
    assert (REPOSITORY / "plugins/codex/skills/pager/SKILL.md").read_text() == skill
    assert "timeout_ms: 1800000" in skill
    assert len(skill.splitlines()) < 150


def test_the_skill_has_only_what_every_agent_reads() -> None:
    skill = (REPOSITORY / "plugins/claude/skills/pager/SKILL.md").read_text()
    head = dict(re.findall(r"^([a-z-]+): (.*)$", skill.split("---")[1], re.MULTILINE))
    # and not allowed-tools: `pagermcp run` and `listen --exec` run anything, so allowing them would allow all
    assert set(head) == {"name", "description", "license", "compatibility"}
    assert head["name"] == "pager"
    assert len(head["description"]) <= 1024
    assert len(head["compatibility"]) <= 500
