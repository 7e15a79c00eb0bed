"""`pagermcp number`: the session file, for its owner alone and out of git's reach."""

import os
import subprocess
import uuid
from pathlib import Path

import pytest
from conftest import NOBODY, Client, as_root, number, require


@pytest.fixture
def client(tmp_path: Path) -> Client:
    client = Client(tmp_path, "http://127.0.0.1:9")  # no relay is asked
    client.session = tmp_path / ".pager_session"  # type: ignore[attr-defined]
    client.session.unlink()  # type: ignore[attr-defined]
    return client


def session(client: Client) -> Path:
    return client.folder / ".pager_session"


def git(folder: Path, *arguments: str) -> str:
    require("git", "git")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_it_makes_a_key_for_its_owner_alone_and_prints_its_number(client: Client) -> None:
    printed = client("number").stdout
    key = session(client).read_text().strip()
    assert uuid.UUID(key).version == 4
    assert printed == number(key) + "\n"
    assert oct(session(client).stat().st_mode)[-3:] == "600"
    assert client("number").stdout == printed
    assert client("number", "--key").stdout == key + "\n"


def test_many_at_once_make_one_key(client: Client) -> None:
    processes = [client.start("number") for _ in range(12)]
    printed = {process.communicate()[0] for process in processes}
    assert printed == {number(session(client).read_text().strip()) + "\n"}


def test_the_variables_say_where_it_is(client: Client, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    client("number", environment={"PROJECT_DIR": "project"})
    assert (tmp_path / "project" / ".pager_session").exists()
    client("number", environment={"PROJECT_DIR": "project", "PAGER_SESSION_FILE": "elsewhere"})
    assert (tmp_path / "elsewhere").exists()


def test_git_does_not_see_it(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    for _ in range(2):
        client("number", environment={"PROJECT_DIR": "sub"})
    assert ".pager_session" not in git(tmp_path, "status", "--porcelain", "-uall")
    excluded = (tmp_path / ".git" / "info" / "exclude").read_text().splitlines()
    assert excluded.count(".pager_session") == 1


def test_in_a_worktree_git_does_not_see_it_either(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "main")
    git(tmp_path / "main", "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path / "main", "worktree", "add", "-q", "../tree")
    client("number", environment={"PROJECT_DIR": "tree"})
    assert git(tmp_path / "tree", "status", "--porcelain") == ""


def test_what_git_ignores_anyhow_is_left_at_that(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    before = (tmp_path / ".git" / "info" / "exclude").read_text()
    (tmp_path / ".gitignore").write_text(".pager_*\n")
    client("number")
    assert (tmp_path / ".git" / "info" / "exclude").read_text() == before


def test_without_git_a_repository_is_found_all_the_same(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    client("number", environment={"PATH": "/nonexistent", "PROJECT_DIR": "sub"})
    assert ".pager_session" not in git(tmp_path, "status", "--porcelain", "-uall")


def test_one_that_git_tracks_is_refused(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    client("number")
    git(tmp_path, "add", "-f", ".pager_session")
    error = client("number", code=2).stderr
    assert "git tracks" in error
    assert "git rm --cached" in error
    assert session(client).read_text().strip() not in error


@as_root
def test_for_root_it_belongs_to_the_folders_owner_or_as_told(client: Client, tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    client("number")
    assert (session(client).stat().st_uid, session(client).stat().st_gid) == (NOBODY, NOBODY)
    client("number", environment={"PAGER_UID": "1234", "PAGER_GID": "4321"})
    assert (session(client).stat().st_uid, session(client).stat().st_gid) == (1234, 4321)
    assert "PAGER_UID='root'" in client("number", environment={"PAGER_UID": "root"}, code=2).stderr


def test_one_that_others_could_read_is_narrowed(client: Client) -> None:
    client("number")
    session(client).chmod(0o644)
    client("number")
    assert oct(session(client).stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize(
    ("content", "says"), [("", "is empty"), ("not a UUID", "holds no UUID"), ("\udcff" * 300, "holds no UUID")]
)
def test_one_that_holds_no_address_is_said(client: Client, content: str, says: str) -> None:
    session(client).write_text(content, errors="surrogateescape")
    for command in ("number", "inbox"):
        error = client(command, code=2).stderr
        assert says in error
        assert error.count("\n") == 1


def test_a_folder_that_is_not_there_is_one_line(client: Client) -> None:
    error = client("number", environment={"PAGER_SESSION_FILE": "no/where"}, code=2).stderr
    assert error == "pagermcp: no/where: No such file or directory; name another with PAGER_SESSION_FILE\n"
