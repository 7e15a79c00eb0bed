"""The wheel: built as for a release, installed with pipx into an environment of its own, and used from there."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY, Client, Relay, clean_environment, until

import pagermcp


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, "."]
    run(*build, cwd=REPOSITORY)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pagermcp` as pipx has installed it, with what it depends on."""
    home = tmp_path_factory.mktemp("pipx")
    environment = clean_environment(PIPX_HOME=home, PIPX_BIN_DIR=home / "bin", PIPX_MAN_DIR=home / "man")
    run(sys.executable, "-m", "pipx", "install", wheel, env=environment)
    return home / "bin" / "pagermcp"


@pytest.fixture(scope="module")
def relay(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("relay")
    relay = Relay(folder / "spool", folder / "log", program=program)
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


class Installed(Client):
    def __init__(self, folder: Path, url: str, program: Path) -> None:
        super().__init__(folder, url)
        self._program = program
        self.environment["PATH"] = f"{program.parent}:{self.environment['PATH']}"

    def command(self, *arguments: str) -> list[str]:
        return [str(self._program), *arguments]


@pytest.fixture
def client(tmp_path: Path, relay: Relay, program: Path) -> Client:
    return Installed(tmp_path, relay.url, program)


def test_the_plugins_and_what_the_relay_serves_are_in_it(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    inside = tree(tmp_path / "pagermcp/plugins")
    assert inside == {name: content for name, content in tree(REPOSITORY / "plugins").items() if name in inside}
    assert {"pager.js", "claude/bin/hook", "claude/.claude-plugin/plugin.json", "codex/hooks.json"} <= set(inside)
    for folder in ("web/templates", "web/static", "share"):
        assert tree(tmp_path / "pagermcp" / folder) == tree(REPOSITORY / "pagermcp" / folder)


def test_it_says_its_version(relay: Relay, client: Client) -> None:
    assert client("--version").stdout == f"pagermcp, version {pagermcp.__version__}\n"
    assert relay.get("/version").json()["version"] == pagermcp.__version__


@pytest.mark.parametrize("page", ["/", "/inbox", "/chat"])
def test_its_pages_come_with_all_that_they_load(relay: Relay, page: str) -> None:
    html = relay.get(page)
    assert html.status_code == 200
    files = set(re.findall(r'(?:src|href)="(static/[^"]+)"', html.text))
    assert {"static/style.css", "static/common.js", "static/icon.svg"} < files
    for file in files:
        assert relay.get(f"/{file}").content == (REPOSITORY / "pagermcp/web" / file).read_bytes()


@pytest.mark.parametrize("path", ["/skill.md", "/install.sh", "/watch.sh", "/sample/pager.sh"])
def test_its_scripts_and_its_skill_have_the_relays_address(relay: Relay, path: str) -> None:
    answer = relay.get(path)
    assert answer.status_code == 200
    assert relay.url in answer.text


@pytest.mark.parametrize(("agent", "file"), [("opencode", "pager.js"), ("claude", "SKILL.md"), ("codex", "SKILL.md")])
def test_its_plugins_can_be_installed(client: Client, agent: str, file: str) -> None:
    client("install", agent)
    (installed,) = client.folder.rglob(file)
    (source, *_) = (REPOSITORY / "plugins").rglob(file)
    assert installed.read_bytes() == source.read_bytes()


def test_a_page_is_sent_and_waited_for(relay: Relay, client: Client) -> None:
    with client.start("wait", "--ack") as waiting:
        until(relay.new(client.key).is_dir)
        assert client("send", "it works").returncode == 0
        assert json.loads(waiting.communicate(timeout=30)[0])["payload"] == {"message": "it works"}
    assert waiting.returncode == 0
    assert client("spool", "stats", "--data-dir", str(relay.spool)).stdout.startswith(f"{relay.spool}: ")
