"""`pagermcp number`: the session file, for its owner alone and out of git's reach."""

import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import NOBODY, Client, as_root, as_user, number, require


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
    first = client("number")
    printed = first.stdout
    assert first.stderr == "pagermcp: made ./.pager_session, with the key of a new mailbox\n"
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
    assert error == "pagermcp: no/where: No such file or directory; name another file with PAGER_SESSION_FILE\n"


@as_root
def test_a_link_gives_nobody_another_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    os.chown(tmp_path / "project", NOBODY, NOBODY)
    (tmp_path / "victim").write_text("secret")
    (tmp_path / "victim").chmod(0o644)
    (tmp_path / "hard").write_text(f"{uuid.uuid4()}\n")
    (tmp_path / "project" / ".pager_session").symlink_to(tmp_path / "victim")
    assert "holds no UUID" in client("number", environment={"PROJECT_DIR": "project"}, code=2).stderr
    (tmp_path / "project" / ".pager_session").unlink()
    (tmp_path / "project" / ".pager_session").hardlink_to(tmp_path / "hard")
    client("number", environment={"PROJECT_DIR": "project"})
    for name in ("victim", "hard"):
        assert (tmp_path / name).stat().st_uid == 0
    assert oct((tmp_path / "victim").stat().st_mode)[-3:] == "644"


@as_root
def test_one_that_somebody_else_has_put_there_is_refused(shared_folder: Path) -> None:
    os.chown(shared_folder, 0, 0)
    os.chmod(shared_folder, 0o1777)
    planted = shared_folder / ".pager_session"
    planted.write_text(f"{uuid.uuid4()}\n")
    planted.chmod(0o644)
    read = f"read_session({str(planted)!r})"
    for owner, refused in ((222, True), (NOBODY, False), (0, False)):
        os.chown(planted, owner, owner)
        command = as_user(NOBODY, "from pagermcp.client.session import read_session", read)
        done = subprocess.run(command, capture_output=True, text=True)
        assert ("belongs to uid 222" in done.stderr) == refused


def test_where_git_can_not_be_kept_from_it_that_is_said(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git" / "info" / "exclude").unlink()
    (tmp_path / ".git" / "info" / "exclude").mkdir()
    done = client("number")
    assert done.stdout == number(session(client).read_text().strip()) + "\n"
    assert "could not be kept out of git" in done.stderr
    assert ".gitignore" in done.stderr


def test_without_git_a_tracked_one_is_known_and_a_worktree_is_found(client: Client, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "main")
    git(tmp_path / "main", "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path / "main", "worktree", "add", "-q", "../tree")
    without_git = {"PATH": "/nonexistent", "PROJECT_DIR": "tree"}
    client("number", environment=without_git)
    assert git(tmp_path / "tree", "status", "--porcelain") == ""
    git(tmp_path / "tree", "add", "-f", ".pager_session")
    assert "git tracks" in client("number", environment=without_git, code=2).stderr
    other = {"PROJECT_DIR": "tree", "GIT_DIR": str(tmp_path / "main" / ".git")}  # as in a hook of another repository
    assert "git tracks" in client("number", environment=other, code=2).stderr


def test_a_number_has_no_key_to_print(client: Client) -> None:
    mine = number(str(uuid.uuid4()))
    session(client).write_text(mine)
    assert client("number").stdout == mine + "\n"
    assert "its key is elsewhere" in client("number", "--key", code=2).stderr


@pytest.mark.parametrize(("make", "says"), [(os.mkfifo, "can't be read"), (os.mkdir, "can't be read")])
def test_what_is_no_file_is_said(client: Client, make: Callable[[Path], None], says: str) -> None:
    make(session(client))
    assert says in client("number", code=2).stderr


def test_one_in_a_folder_above_is_pointed_at(client: Client, tmp_path: Path) -> None:
    client("number")
    (tmp_path / "sub" / "sub").mkdir(parents=True)
    error = client("inbox", environment={"PROJECT_DIR": "sub/sub"}, code=2).stderr
    assert f"there is one in {tmp_path}: use it with PROJECT_DIR={tmp_path}" in error
