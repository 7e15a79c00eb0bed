"""The image as far as it can be tested without a Docker engine: its entry point, its health check, and the files beside
the Dockerfile. docs/operate.md says how the image itself was built and tried."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from conftest import REPOSITORY, Relay, as_root, clean_environment, missing, new_key, require, until
from middle import somebody

from pagermcp.settings import Settings

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
PACKAGES = sysconfig.get_path("purelib")
OWNER, GROUP = 1234, 4321  # of nobody here

# A place as a container is one, by a mount namespace: only /mnt/data and /tmp can be written, and whoever it runs as
# reaches Python, wherever it is. $1 is that user and group.
CONTAINER = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/source /mnt/python /mnt/packages /mnt/bin /mnt/data
mount --bind "$REPOSITORY" /mnt/source
mount --bind "$PYTHON" /mnt/python
mount --bind "$PACKAGES" /mnt/packages
mount --bind "$DATA" /mnt/data
printf '#!/bin/sh\\nexec /mnt/python/bin/python3 -m pagermcp "$@"\\n' >/mnt/bin/pagermcp
chmod +x /mnt/bin/pagermcp
mount -o remount,ro /mnt
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /tmp
cd /
user=$1
shift
exec setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups $RIGHTS /mnt/source/deploy/entrypoint "$@"
"""


class Container:
    """The entry point in such a place. `data` is the folder at DATA_DIR."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.running: list[subprocess.Popen[str]] = []

    def start(self, user: str, *arguments: str, **settings: object) -> "subprocess.Popen[str]":
        """user: UID:GID, as docker's --user"""
        places = {"REPOSITORY": REPOSITORY, "PYTHON": sys.base_prefix, "PACKAGES": PACKAGES, "DATA": self.data}
        there = {"PYTHONPATH": "/mnt/source:/mnt/packages", "LD_LIBRARY_PATH": "/mnt/python/lib"}
        there["PATH"] = f"/mnt/bin:{os.environ['PATH']}"
        image = {"MODE": "server", "HOST": "0.0.0.0", "PORT": 0, "DATA_DIR": "/mnt/data", "PYTHONDONTWRITEBYTECODE": 1}
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", CONTAINER, "container", user, *arguments],
            env=clean_environment(**{**places, "RIGHTS": "", **there, **image, **settings}),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        return process

    def run(self, user: str, *arguments: str, **settings: object) -> tuple[int, str, str]:
        """Its exit code and output."""
        process = self.start(user, *arguments, **settings)
        output, errors = process.communicate(timeout=30)
        return process.returncode, output, errors

    @contextlib.contextmanager
    def relay(self, user: str, **settings: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
        """A relay that serves in there, and its URL."""
        process = self.start(user, **settings)
        assert process.stdout is not None
        greeting = process.stdout.readline()
        assert " on http" in greeting, process.communicate()
        yield process, greeting.split(" on ")[1].split(",")[0].replace("0.0.0.0", "127.0.0.1")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors

    def owners(self) -> set[str]:
        found = [self.data, *self.data.rglob("*")]
        return {f"{status.st_uid}:{status.st_gid}" for status in (path.stat(follow_symlinks=False) for path in found)}


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    mounted = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if mounted.returncode:
        missing(f"there are no mount namespaces here: {mounted.stderr.strip()}")
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1707)  # as in the image
    os.chown(data, 10001, 10001)
    container = Container(data)
    yield container
    for process in container.running:
        with process:
            process.kill()


def page(url: str, key: str) -> dict[str, Any]:
    """Send one and take it."""
    sent = requests.post(f"{url}/notify", "hello", headers={"Authorization": key}, timeout=10)
    assert sent.status_code == 202, sent.text
    taken: dict[str, Any] = requests.get(f"{url}/mailboxes/{key}/wait", timeout=10).json()
    return taken


def facts(process: "subprocess.Popen[str]") -> dict[str, list[str]]:
    """What the kernel says of a process: of its users, groups and rights."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: values.split() for name, _, values in (line.partition(":") for line in lines)}


@as_root
@pytest.mark.parametrize("user", ["10001:10001", f"{OWNER}:{GROUP}"])
def test_any_user_serves_from_a_new_volume_when_nothing_else_can_be_written(
    container: Container, key: str, user: str
) -> None:
    with container.relay(user) as (process, url):
        assert page(url, key)["message"] == "hello"
        assert facts(process)["Uid"][1] == user.partition(":")[0]
    with container.relay(user) as (_, url):  # on what the first has made
        assert page(url, key)["message"] == "hello"
    assert {path.stat().st_mode & 0o077 for path in container.data.rglob("*")} == {0}


@as_root
def test_root_gives_the_spool_to_pager_uid_and_serves_without_any_rights(
    container: Container, key: str, tmp_path: Path
) -> None:
    with container.relay("10001:10001") as (_, url):
        requests.post(f"{url}/notify", "from before", headers={"Authorization": key}, timeout=10)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (container.data / "keys" / "link").symlink_to(elsewhere)
    with container.relay("0:0", PAGER_UID=OWNER, PAGER_GID=GROUP) as (process, url):
        assert page(url, key)["message"] == "from before"
        known = facts(process)
        assert (known["Uid"], known["Gid"]) == ([str(OWNER)] * 4, [str(GROUP)] * 4)
        assert (known["Groups"], known["NoNewPrivs"], int(known["CapEff"][0], 16)) == ([], ["1"], 0)
    assert container.owners() == {f"{OWNER}:{GROUP}"}
    assert elsewhere.stat().st_uid == 0


@as_root
def test_what_is_in_a_folder_that_is_no_spool_is_given_to_nobody(container: Container) -> None:
    (container.data / "thesis.tex").touch()
    before = container.data.stat().st_uid
    code, _, errors = container.run("0:0", PAGER_UID=OWNER)
    assert code == 2
    assert "it is no spool (it has no FORMAT) and not empty" in errors
    assert (container.data / "thesis.tex").stat().st_uid == 0
    assert container.data.stat().st_uid == before


@as_root
def test_a_spool_that_is_theirs_already_is_not_walked_through_again(container: Container) -> None:
    with container.relay("0:0", PAGER_UID=OWNER):
        pass
    assert container.owners() == {f"{OWNER}:{OWNER}"}
    (container.data / "tmp" / "other").touch()
    with container.relay("0:0", PAGER_UID=OWNER):
        pass
    assert container.owners() == {f"{OWNER}:{OWNER}", "0:0"}


@as_root
def test_a_spool_that_could_not_be_given_away_is_one_line_and_is_tried_again(container: Container) -> None:
    with container.relay("10001:10001"):
        pass
    code, output, errors = container.run("0:0", PAGER_UID=OWNER, RIGHTS="--bounding-set=-dac_override,-dac_read_search")
    assert "10001:10001" in container.owners()
    assert (code, output) == (2, "")
    assert re.fullmatch(r"pagermcp: /mnt/data can't be given to 1234:1234: .* DAC_OVERRIDE.*\n", errors)
    with container.relay("0:0", PAGER_UID=OWNER):
        pass
    assert container.owners() == {f"{OWNER}:{OWNER}"}


@as_root
@pytest.mark.parametrize(
    ("user", "settings", "line"),
    [
        ("0:0", {"PAGER_GID": "5"}, "PAGER_GID=5 needs PAGER_UID: the number of the user"),
        (
            "0:0",
            {"PAGER_UID": "me", "PAGER_GID": "5"},
            "PAGER_UID='me' PAGER_GID='5': must be the numbers of a user and a group",
        ),
        (
            "10001:10001",
            {"PAGER_UID": "5"},
            "PAGER_UID=5 needs a start as root (--user 0); or leave it out, and use --user 5:5",
        ),
    ],
)
def test_a_wrong_pager_uid_is_one_line(container: Container, user: str, settings: dict[str, str], line: str) -> None:
    assert container.run(user, **settings) == (2, "", f"pagermcp: {line}\n")
    assert container.owners() == {"10001:10001"}


@as_root
def test_commands_are_passed_on(container: Container) -> None:
    code, output, _ = container.run("10001:10001", "serve", "--help")
    assert (code, output.split("\n")[0]) == (0, "Usage: python -m pagermcp serve [OPTIONS]")


@as_root
@pytest.mark.parametrize(
    ("user", "settings"), [(f"{OWNER}:{GROUP}", {}), ("0:0", {"PAGER_UID": OWNER, "PAGER_GID": GROUP})]
)
def test_the_client_leaves_a_session_file_that_its_user_owns(
    container: Container, user: str, settings: dict[str, object]
) -> None:
    os.chown(container.data, OWNER, GROUP)
    (container.data / ".pager_session").write_text(new_key())  # of a former run as root
    os.chown(container.data / ".pager_session", *([0, 0] if user == "0:0" else [OWNER, GROUP]))
    with container.start(user, MODE="client", PROJECT_DIR="/mnt/data", **settings) as process:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(ask) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "pagermcp"
        assert facts(process)["Uid"] == [str(OWNER)] * 4
        process.stdin.close()
        assert process.wait(10) == 0
    assert container.owners() == {f"{OWNER}:{GROUP}"}


def health(**settings: object) -> tuple[int, str, str]:
    """What the image's health check says."""
    (command,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    *python, script = json.loads(command)
    assert python == ["python", "-I"]
    (source,) = re.findall(rf"^COPY (\S+) {script}$", DOCKERFILE, re.MULTILINE)
    environment = clean_environment(
        **{"MODE": "server", "HOST": "0.0.0.0", "http_proxy": "http://127.0.0.1:1", **settings}
    )
    checked = subprocess.run(
        [sys.executable, "-I", REPOSITORY / source], env=environment, capture_output=True, text=True
    )
    return checked.returncode, checked.stdout, checked.stderr


def test_the_health_check_follows_the_relay(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(HOST="0.0.0.0")
    code, said, errors = health(PORT=relay.port)
    assert (code, json.loads(said)["status"], errors) == (0, "ok", "")
    (relay.spool / "tmp").rename(relay.spool / "away")
    until(lambda: health(PORT=relay.port)[0] == 1)
    (relay.spool / "away").rename(relay.spool / "tmp")
    relay.stop()
    code, said, errors = health(PORT=relay.port)
    assert (code, said) == (1, "")
    assert re.fullmatch(r"the relay does not answer: ConnectionRefusedError.*\n", errors)
    assert health(PORT=relay.port, MODE="client")[0] == 0


def test_the_dockerfile_has_no_root_its_own_stop_and_pages_in_a_volume() -> None:
    final = DOCKERFILE.split("\nFROM ")[-1]
    for line in ("USER 10001:10001", "VOLUME /data", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["pagermcp-entrypoint"]'):
        assert f"\n{line}\n" in final
    assert "MODE=server HOST=0.0.0.0 PORT=8080 DATA_DIR=/data" in final
    assert "COPY deploy/entrypoint /usr/local/bin/pagermcp-entrypoint\n" in final
    assert os.access(REPOSITORY / "deploy" / "entrypoint", os.X_OK)


@as_root  # buildah mounts
def test_the_build_gets_what_it_needs_and_no_history_spool_or_key(tmp_path: Path) -> None:
    buildah = require("buildah", "buildah")
    context, needed = (
        tmp_path / "context",
        ["README.md", "pyproject.toml", "deploy/entrypoint", "deploy/healthcheck.py"],
    )
    needed += ["pagermcp/spool/page.py", "plugins/claude/.mcp.json"]
    others = [
        ".git/config",
        ".venv/bin/python",
        ".env",
        ".pager_session",
        "operator-token",
        "tests/x.py",
        "spool/FORMAT",
    ]
    others += ["plugins/.pager_session", "plugins/.pager_header", "pagermcp/spool/__pycache__/page.pyc", ".cache/x"]
    for name in needed + others:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).touch()
    shutil.copy(REPOSITORY / ".dockerignore", context)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    storage = ["--root", tmp_path / "storage", "--runroot", tmp_path / "run", "--storage-driver", "vfs"]

    def run(*arguments: object) -> str:
        done = subprocess.run([buildah, *storage, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("build", "--isolation", "chroot", "--tag", "context", "--file", tmp_path / "Dockerfile", context)
    root = Path(run("mount", run("from", "context")))
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == sorted(needed)


def compose(name: str) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((REPOSITORY / name).read_text())["services"]
    assert list(services) == ["pagermcp"]
    service: dict[str, Any] = services["pagermcp"]
    return service


def test_compose_publishes_nothing_and_compose_local_only_on_loopback() -> None:
    service = compose("compose.yml")
    assert "ports" not in service
    assert "network_mode" not in service
    assert service["volumes"] == ["${PAGERMCP_DATA:-pages}:/data:z"]
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert compose("compose.local.yml")["ports"] == ["127.0.0.1:${PORT:-8080}:8080"]


def test_compose_passes_every_setting_on_but_those_that_the_image_decides() -> None:
    settings = [field.metadata["variable"] for field in dataclasses.fields(Settings)]
    assert compose("compose.yml")["environment"] == [
        name for name in settings if name not in ("HOST", "PORT", "DATA_DIR", "PAGERMCP_BUILD")
    ]


def test_a_build_in_ci_pushes_the_commit_and_latest_once_it_is_healthy_and_calls_the_hook(tmp_path: Path) -> None:
    # docker and its registry can't be had here, so that a script stands in for it that writes down what it is asked
    (tmp_path / "docker").write_text('#!/bin/sh\necho "$@" >>asked\ncase $1 in inspect) echo healthy; esac\n')
    (tmp_path / "docker").chmod(0o755)
    jobs = yaml.safe_load((REPOSITORY / "deploy" / "ci" / "build.yml").read_text())["jobs"]
    assert [step["run"] for step in jobs["check"]["steps"] if ".ci" in step.get("run", "")] == [".ci/run"]
    assert jobs["build"]["needs"] == "check"
    names = {"IMAGE": "images.example.org/me/pagermcp:abc", "LATEST": "images.example.org/me/pagermcp:latest"}
    secrets = {"REGISTRY_USER": "me", "REGISTRY_PASSWORD": "secret"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    called: list[str] = []
    with somebody(200, {}, called) as url:
        environment = clean_environment(**names, **secrets, GITHUB_SHA="abc", PATH=path, UPDATE_HOOK=f"{url}/hook?t=1")
        for step in jobs["build"]["steps"]:
            if script := step.get("run"):
                subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=True)
    assert called == ["/hook?t=1"]
    asked = [shlex.split(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [words[0] for words in asked] == ["build", "run", "inspect", "logs", "stop", "login", "push", "push"]
    assert {"--build-arg", "BUILD=abc", *names.values()} < set(asked[0])
    assert asked[5] == ["login", "images.example.org", "--username", "me", "--password-stdin"]
    assert [words[1] for words in asked[-2:]] == list(names.values())
