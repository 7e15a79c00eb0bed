"""`pagermcp spool`: what an operator does with a spool, beside relays that run."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import NOBODY, REPOSITORY, Client, Relay, as_root, clean_environment, new_key, number, require, until

from pagermcp import files
from pagermcp.operator import check, moving
from pagermcp.spool import Janitor, Mailbox, Options, Spool, send
from pagermcp.spool.spool import DIRECTORIES

BOX = number("9f1c6cf7-a88c-4526-8708-faae46504050")
OTHER = number("1f1c6cf7-a88c-4526-8708-faae46504050")
OLD = time.time() - 40 * 86400


def start(spool: "Path | Spool", *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    root = spool.root if isinstance(spool, Spool) else spool
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = clean_environment(DATA_DIR=root, **options.pop("environment", {}))
    return subprocess.Popen(
        [sys.executable, "-m", "pagermcp", "spool", *arguments],
        cwd=REPOSITORY,
        env=environment,
        **{**pipes, **options},
    )


def run(
    spool: "Path | Spool", *arguments: str, input: str = "", code: int = 0, **options: Any
) -> "subprocess.CompletedProcess[str]":
    with start(spool, *arguments, **{"stdin": subprocess.PIPE, **options}) as process:
        output, errors = process.communicate(input, timeout=90)
    assert process.returncode == code, (process.returncode, output, errors)
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(arguments, code, output, errors)


def path_of(line: dict[str, Any]) -> str:
    return str(line.get("path", ""))


def ids_in(paths: Iterable[str]) -> list[str]:
    """The ids of the pages that have these paths."""
    return re.findall(r"[/-]([0-9]{16})[0-9a-z.]*\.json$", "\n".join(paths), re.MULTILINE)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def everything(spool: Spool) -> dict[str, bytes]:
    """All pages and notes on the disk, by path."""
    paths = [path for path in Path(spool.root).rglob("*.*") if path.is_file() and path.parent != Path(spool.root)]
    return {str(path.relative_to(spool.root)): path.read_bytes() for path in paths if path.name[0] != "."}


@pytest.fixture
def box(spool: Spool) -> Mailbox:
    return spool.mailbox(BOX)


@pytest.fixture
def other_spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "other"))


def fill(spool: Spool, number: str = BOX) -> None:
    """A mailbox with pages in every state, and all that a mailbox may have beside them."""
    box = spool.mailbox(number)
    for n in range(9):
        box.deliver(f'{{"n": {n}, "as it was":  1.10}}')
    for _ in range(2):
        taken = box.claim(60)
        assert taken
        box.acknowledge(taken.name)
    given_back = box.claim(60)
    assert given_back
    box.release(given_back.name)
    box.claim(60)
    box.expire(box.look()[0])
    send(spool, box, '{"n": 10}', Options(replace="r"))
    send(spool, box, '{"n": 11}', Options(replace="r", expires=3600))
    send(spool, box, '{"n": 12}', Options(delay=3600, idempotency_key="k"))
    send(spool, box, '{"n": 13}', Options(run="r", expect=3600))
    Path(spool.path("new", number, "1795966550281088.json")).write_bytes(b"no page")
    os.chmod(spool.path("new", number, "1795966550281088.json"), 0o600)
    os.utime(spool.path("new", number, "1795966550281088.json"), (OLD, OLD))
    held = [box.claim(60) for _ in range(9)]  # it meets the broken one, which becomes dead
    for page in held:
        if page and page.payload["n"] % 2:
            box.withdraw(page.name)


# Check


def test_a_spool_in_use_is_clean_and_check_changes_nothing_in_it(spool: Spool) -> None:
    fill(spool)
    before = everything(spool)
    done = run(spool, "check", "--repair")
    assert done.stdout == done.stderr == ""
    assert everything(spool) == before


def old(path: str | Path) -> str:
    os.utime(path, (OLD, OLD), follow_symlinks=False)
    return str(path)


def wrong_mode(spool: Spool, box: str) -> str:
    path = spool.path("new", box, f"{spool.mailbox(box).deliver('{}')}.json")
    os.chmod(path, 0o644)
    return path


def wrong_mode_of_a_folder(spool: Spool, box: str) -> str:
    spool.mailbox(box).deliver("{}")
    os.chmod(spool.path("new", box), 0o755)
    return spool.path("new", box)


def unreadable_mode(spool: Spool, box: str) -> str:
    path = spool.path("new", box, f"{spool.mailbox(box).deliver('{}')}.json")
    os.chmod(path, 0)
    return path


def broken_page(spool: Spool, box: str) -> str:
    path = Path(spool.path("leased", box, "1795966550281088.json"))
    spool.mailbox(box).deliver("{}")
    path.write_text('{"created_at": "never"}')
    path.chmod(0o600)
    os.utime(path, (time.time() + 7200,) * 2)
    return str(path)


def empty_page(spool: Spool, box: str) -> str:
    path = Path(spool.path("archive", "2026-01-01", box, "1795966550281088.expired.json"))
    path.parent.mkdir(0o700, parents=True)
    path.parent.parent.chmod(0o700)
    path.touch(0o600)
    return str(path)


def two_names(spool: Spool, box: str) -> str:
    mailbox = spool.mailbox(box)
    mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page
    os.link(spool.path("leased", box, page.name.file), spool.path("new", box, page.name.file))
    return spool.path("new", box, page.name.file)


def same_id(spool: Spool, box: str) -> str:
    mailbox = spool.mailbox(box)
    id = mailbox.deliver('{"n": 1}')
    content = Path(spool.path("new", box, f"{id}.json")).read_bytes()
    page = mailbox.claim(60)
    assert page
    mailbox.acknowledge(page.name)
    copy = Path(spool.path("new", box, f"{id}.json"))
    copy.write_bytes(content)
    copy.chmod(0o600)
    return str(copy)


def left_over(spool: Spool, box: str) -> str:
    path = spool.path("tmp", "abc")
    Path(path).touch(0o600)
    return path


def left_over_that_was_brought(spool: Spool, box: str) -> str:
    path = spool.temporary(adopted=(box, "page.json"))
    Path(path).write_text('{"from": "a shell"}')
    return path


def run_without_its_alarm(spool: Spool, box: str) -> str:
    send(spool, spool.mailbox(box), "{}", Options(run="r", expect=3600))
    (alarm,) = [name for name in os.listdir(spool.path("scheduled")) if box in name]
    os.unlink(spool.path("scheduled", alarm))
    (record,) = os.listdir(spool.path("runs", box))
    return spool.path("runs", box, record)


def symbolic_link(spool: Spool, box: str) -> str:
    path = spool.path("new", box, f"{spool.mailbox(box).deliver('{}')}.json")
    os.rename(path, f"{spool.root}/../elsewhere")
    os.symlink(f"{spool.root}/../elsewhere", path)
    return path


def symbolic_link_as_mailbox(spool: Spool, box: str) -> str:
    os.symlink("/", spool.path("new", box))
    return spool.path("new", box)


def stranger(spool: Spool, box: str) -> str:
    Path(spool.path("thesis.tex")).touch()
    return spool.path("thesis.tex")


def page_in_no_mailbox(spool: Spool, box: str) -> str:
    Path(spool.path("new", "page.json")).write_text("{}")
    return spool.path("new", "page.json")


def stranger_among_scheduled(spool: Spool, box: str) -> str:
    Path(spool.path("scheduled", "tomorrow.json")).touch()
    return spool.path("scheduled", "tomorrow.json")


def folder_in_a_mailbox(spool: Spool, box: str) -> str:
    spool.mailbox(box).make()
    os.mkdir(spool.path("new", box, "page.json"))
    return spool.path("new", box, "page.json")


def stranger_in_the_archive(spool: Spool, box: str) -> str:
    os.mkdir(spool.path("archive", "last year"))
    return spool.path("archive", "last year")


def note_that_is_none(spool: Spool, box: str) -> str:
    send(spool, spool.mailbox(box), "{}", Options(idempotency_key="k"))
    (key,) = Path(spool.path("keys", box)).iterdir()
    key.write_text("nothing")
    return str(key)


MENDED = [wrong_mode, wrong_mode_of_a_folder, unreadable_mode, broken_page, empty_page, two_names, same_id, left_over]
MENDED += [left_over_that_was_brought, run_without_its_alarm]
LEFT = [symbolic_link, symbolic_link_as_mailbox, stranger, page_in_no_mailbox, stranger_among_scheduled]
LEFT += [folder_in_a_mailbox, stranger_in_the_archive, note_that_is_none]

LATER = """import time
now = time.time
time.time = lambda: now() + 3000
"""  # as if all of it had been so for a while; less than the hour for which runs here may not report


def check_later(spool: Spool, *arguments: str, code: int) -> str:
    script = f"{LATER}from pagermcp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "spool", "check", "--data-dir", spool.root, *arguments],
        env=clean_environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


def pages(spool: Spool) -> list[bytes]:
    return sorted(content for path, content in everything(spool).items() if re.search(r"[0-9]{16}[a-z.]*\.json$", path))


def test_what_is_wrong_is_told_in_one_line_and_mended_without_losing_a_page(spool: Spool) -> None:
    fill(spool, OTHER)
    wrong = [make(spool, number(new_key())) for make in MENDED]
    record = Path(wrong[MENDED.index(run_without_its_alarm)])
    before = {path.stat().st_ino for path in Path(spool.root).rglob("*.json") if path != record}
    for arguments, code in ((), 1), (["--repair"], 0):
        told = check_later(spool, *arguments, code=code).splitlines()
        assert sorted(line.partition(": ")[0] for line in told) == sorted(wrong)
        assert all(line.endswith(", or let --repair do it") for line in told) == (code == 1)
    assert check_later(spool, code=0) == ""
    assert not record.exists()
    assert before <= {path.stat().st_ino for path in Path(spool.root).rglob("*.json")}


def test_what_cannot_be_mended_safely_is_only_told(spool: Spool) -> None:
    wrong = [make(spool, number(new_key())) for make in LEFT]
    told = check_later(spool, "--repair", code=1).splitlines()
    assert sorted(line.partition(": ")[0] for line in told) == sorted(wrong)
    assert "--repair" not in "".join(told)
    assert all(map(os.path.lexists, wrong))


def test_what_was_mended_is_dead_with_its_reason_or_waits_again(spool: Spool) -> None:
    broken, copy, brought = (number(new_key()) for _ in range(3))
    broken_page(spool, broken)
    id = same_id(spool, copy)[-21:-5]
    left_over_that_was_brought(spool, brought)
    assert "is no page (no payload)" in check_later(spool, "--repair", code=0)
    (dead,) = Path(spool.root).glob(f"dead/*/{broken}/*.json")
    assert dead.read_text() == '{"created_at": "never"}'
    assert "no payload" in dead.with_suffix(".why").read_text()
    for box, payload in ((copy, {"n": 1}), (brought, {"from": "a shell"})):
        (path,) = Path(spool.path("new", box)).iterdir()
        old(path)
        page = spool.mailbox(box).claim(60)
        assert page
        assert page.payload == payload
        assert page.id != id
    assert len(list(Path(spool.root).glob(f"archive/*/{copy}/{id}.json"))) == 1


@as_root
def test_files_of_somebody_else_are_told_and_root_leaves_none_behind(shared_folder: Path) -> None:
    spool = Spool(str(shared_folder / "spool"))
    send(spool, spool.mailbox(BOX), "{}", Options(idempotency_key="k"))
    for path in [Path(spool.root), *Path(spool.root).rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    assert run(spool, "check").stdout == ""
    page = spool.path("leased", BOX, "1795966550281088.json")
    Path(page).touch(0o600)
    (line,) = run(spool, "check", "--repair", code=1).stdout.splitlines()
    assert line.startswith(f"{page}: belongs to uid 0; chown {NOBODY} it")
    os.unlink(page)
    exported = run(spool, "export", BOX).stdout
    run(spool, "import", input=exported.replace(BOX, OTHER))
    assert {path.stat().st_uid for path in Path(spool.root).rglob("*")} == {NOBODY}


@as_root
def test_another_user_is_told_whose_the_spool_is(shared_folder: Path, spool: Spool) -> None:
    os.chmod(shared_folder, 0o755)
    spool = Spool(str(shared_folder / "spool"))
    os.chmod(spool.root, 0o755)
    os.chmod(spool.path("FORMAT"), 0o644)
    script = (
        f"import os; from pagermcp.operator import commands; os.setuid({NOBODY}); from pagermcp.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "spool", "check", "--data-dir", spool.root],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=clean_environment(),
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(": Permission denied: run this as root, or as uid 0, to whom the spool belongs")


def test_a_spool_of_another_version_is_refused(spool: Spool) -> None:
    Path(spool.path("FORMAT")).write_text("pagermcp spool 2\n")
    (line,) = run(spool, "check", "--repair", code=2).stderr.splitlines()
    assert f"{spool.path('FORMAT')} is not 'pagermcp spool 1'" in line


def test_a_folder_named_by_a_key_is_told_without_it(spool: Spool, key: str) -> None:
    os.mkdir(spool.path("new", key))
    done = run(spool, "check", code=1)
    assert key not in done.stdout + done.stderr
    assert f"new/{number(key)}: is nothing of a spool" in done.stdout


def test_names_do_not_reach_a_terminal_as_they_are(spool: Spool) -> None:
    Path(spool.path("tmp", "\x1b[2J")).mkdir()
    Path(spool.path("\x1b[2J\n")).touch()
    assert "\x1b" not in run(spool, "check", code=1).stdout


# Beside a relay


class Load:
    """Posters and readers of one relay, until it is closed."""

    def __init__(self, relay: Relay, keys: list[str], posts: bool = True) -> None:
        self.posted: dict[str, set[str]] = {key: set() for key in keys if posts}
        self.rounds = 0
        self._ended = threading.Event()
        acts = (self.post, self.read) if posts else (self.read,)
        self._threads = [threading.Thread(target=act, args=[relay, key]) for key in keys for act in acts]
        for thread in self._threads:
            thread.start()

    def post(self, relay: Relay, key: str) -> None:
        n = 0
        while not self._ended.is_set():
            n += 1
            headers: dict[str, str] = [{}, {"Pager-Delay": "0.1"}, {"Idempotency-Key": f"{n}"}, {"Pager-Run": "r"}][
                n % 4
            ]
            if n % 8 == 3:
                headers = {"Pager-Run": "r", "Pager-Expect": "1h"}
            answer = relay.notify(key, json={"n": n}, headers=headers)
            assert answer.status_code in (202, 429), answer.text
            if answer.status_code == 202:
                self.posted[key].add(answer.json()["id"])
            self.rounds += 1

    def read(self, relay: Relay, key: str) -> None:
        calls = 0
        while not self._ended.is_set():
            calls += 1
            self.rounds += 1
            handles = [page["handle"] for page in relay.lease(key, "timeout=0.1&max=5&lease=1")]
            if handles and calls % 4:
                call = "ack" if calls % 4 < 3 else "release"
                relay.with_key(key, "POST", f"/{call}", json={"ids": handles})

    def __enter__(self) -> "Load":
        until(lambda: self.rounds > 20 or not self.posted, 60)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)


def test_under_load_check_finds_nothing_and_repairs_nothing(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    with Load(relay, [new_key() for _ in range(2)]) as load:
        for _ in range(3):
            began = load.rounds
            assert run(relay.spool, "check", "--repair").stdout == ""
            until(lambda began=began: load.rounds > began, 60)  # type: ignore[misc]
    assert "Traceback" not in relay.log.read_text()


def test_under_load_each_page_is_exported_once_and_imported_beside_another_relay(
    start_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    other = start_relay(tmp_path / "other", MAX_MESSAGES_PER_MAILBOX=1000)
    key = new_key()
    with Load(relay, [key]) as load, Load(other, [key], posts=False):
        for _ in range(3):
            before = set(load.posted[key]) - {None}
            exported = run(relay.spool, "export", number(key)).stdout
            paths = [path_of(line) for line in lines(exported)]
            ids = ids_in(paths)
            assert before <= set(ids)
            assert len(ids) == len(set(ids))
            assert lines(exported)[-1]["files"] == len(paths) - 1
            run(other.spool, "import", input=exported)
    there = ids_in(map(str, other.spool.rglob("*.json")))
    assert before <= set(there)
    assert len(there) == len(set(there))
    for log in (relay.log, other.log):
        assert "Traceback" not in log.read_text()


def test_a_page_that_is_always_where_nobody_looks_is_exported(
    spool: Spool, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = box.deliver("{}")
    real = files.names
    moves = 2

    def names(path: str) -> list[str]:
        """Those who wait are listed while the page is leased, and those who are leased when it waits again."""
        nonlocal moves
        if path != spool.path("new", BOX) or not moves:
            return real(path)
        moves -= 1
        with monkeypatch.context() as patched:
            patched.setattr(files, "names", real)
            page = box.claim(60)
            seen = real(path)
            assert page
            box.withdraw(page.name)
        return seen

    monkeypatch.setattr(files, "names", names)
    assert list(moving.places(spool, BOX)) == [id]
    assert not moves


def test_a_page_that_moves_on_during_a_look_is_no_finding(
    spool: Spool, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.deliver("{}")
    real = files.names

    def names(path: str) -> list[str]:
        if path == spool.path("leased"):
            assert box.claim(60)
        return real(path)

    monkeypatch.setattr(files, "names", names)
    look = check.Look(spool)
    assert (look.pages, look.found) == (2, set())


def test_what_is_over_at_the_next_look_is_no_finding(
    spool: Spool, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wrong_mode(spool, BOX)
    monkeypatch.setattr(check.time, "sleep", lambda seconds: os.chmod(path, 0o600))
    assert check.Look(spool).found
    assert check.examine(spool).found == set()


def test_a_repair_beside_a_relay_leaves_pages_to_their_readers(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    for n in range(3):
        relay.notify(key, json={"n": n})
    (leased,) = relay.lease(key)
    twice = relay.spool / "new" / number(key) / f"{leased['id']}.json"
    os.link(relay.spool / "leased" / number(key) / twice.name, twice)
    run(relay.spool, "check", "--repair")
    assert not twice.exists()
    assert relay.with_key(key, "POST", "/ack", json={"ids": [leased["handle"]]}).json()["acknowledged"]
    assert [page["payload"]["n"] for page in relay.lease(key, "timeout=0&max=9&lease=9")] == [1, 2]


# Stats


def test_stats_count_pages_by_state_and_day_and_name_the_fullest(spool: Spool) -> None:
    fill(spool)
    spool.mailbox(OTHER).deliver("{}")
    found = json.loads(run(spool, "stats", "--json").stdout)
    told = {state: one["pages"] for state, one in found["pages"].items()}
    on_disk = {
        state: len(list(Path(spool.root).glob(f"{pattern}.json")))
        for state, pattern in {
            "waiting": "new/*/*",
            "leased": "leased/*/*",
            "scheduled": "scheduled/*",
            "archived": "archive/*/*/*",
            "dead": "dead/*/*/*",
        }.items()
    }
    assert told == on_disk
    assert min(told.values()) > 0
    assert found["mailboxes"] == 2
    assert found["fullest"][0]["number"] == BOX
    assert found["oldest_waiting"]["number"] == BOX
    (day,) = found["days"]
    assert (day["archived"], day["dead"]) == (told["archived"], told["dead"])
    table = run(spool, "stats").stdout
    assert re.search(rf"^waiting +{told['waiting']} +{found['pages']['waiting']['bytes']}$", table, re.MULTILINE)
    assert f"longest waiting: {found['oldest_waiting']['id']} of {BOX}" in table
    assert re.search(rf"^{BOX} +{told['waiting'] - 1} +{told['leased']} +{told['scheduled']}$", table, re.MULTILINE)


def test_many_mailboxes_are_counted_quickly(spool: Spool) -> None:
    line = b'{"created_at":"2026-11-30T04:51:55.683692Z","payload":{}}\n'
    for n in range(10_000):
        box = spool.path("new", f"{n:08x}-a88c-8526-8708-faae46504050")
        os.mkdir(box, 0o700)
        Path(box, "1795966550281088.json").write_bytes(line)
    before = os.times()
    found = json.loads(run(spool, "stats", "--json").stdout)
    after = os.times()
    assert found["mailboxes"] == found["pages"]["waiting"]["pages"] == 10_000
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 5  # of the CPU, whoever else is busy; it takes 0.7 s


# Export and import


def test_a_mailbox_comes_to_another_spool_as_it_was_and_once(spool: Spool, other_spool: Spool) -> None:
    fill(spool)
    exported = run(spool, "export", BOX).stdout
    assert {path_of(line).partition("/")[0] for line in lines(exported)} == {
        *("new", "leased", "scheduled", "archive", "dead", "keys", "runs", "")  # the last line has no path
    }
    n = lines(exported)[-1]["files"]
    done = run(other_spool, "import", input=exported).stdout
    assert done == f"{n} files taken in, 0 were here already, 0 refused\n"
    assert everything(other_spool) == everything(spool)
    assert run(other_spool, "import", input=exported).stdout == f"0 files taken in, {n} were here already, 0 refused\n"
    assert everything(other_spool) == everything(spool)
    assert run(other_spool, "export", BOX).stdout == exported
    assert run(other_spool, "check").stdout == ""


def test_what_a_shell_brought_and_what_is_no_text_comes_along(spool: Spool, other_spool: Spool) -> None:
    content = bytes(range(256))
    for name in ("page.json", "ünicode"):
        spool.mailbox(BOX).make()
        Path(spool.path("new", BOX, name)).write_bytes(content)
    run(other_spool, "import", input=run(spool, "export", BOX).stdout)
    brought = {path.name: path.read_bytes() for path in Path(other_spool.path("new", BOX)).iterdir()}
    assert brought == {"page.json": content, "ünicode": content}


def test_what_was_taken_in_is_handed_out_by_a_relay_that_runs_there(
    start_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    key = new_key()
    first = start_relay(tmp_path / "first")
    second = start_relay(tmp_path / "second")
    for n in range(5):
        first.notify(key, json={"n": n})
    (leased,) = first.lease(key, "timeout=0&lease=600")
    waiting = second.start_waiting(key)
    exported = run(first.spool, "export", number(key)).stdout
    run(second.spool, "import", input=exported)
    assert waiting.result(30).json()["n"] in range(1, 5)  # it rings, whichever came first
    acknowledged = second.with_key(key, "POST", "/ack", json={"ids": [leased["handle"]]}).json()
    assert acknowledged["acknowledged"] == [leased["handle"]]
    ids = {page["id"] for page in second.lease(key, "timeout=0&max=9&lease=60")}
    until(lambda: len(second.archived(key)) == 2)
    assert len(ids) == 3
    run(second.spool, "import", input=exported)
    assert second.lease(key) == []  # what was read here meanwhile does not come again
    assert second.notify(key).json()["id"] > max(ids)
    assert "Traceback" not in second.log.read_text()


def test_a_run_and_a_key_hold_where_they_were_moved_to(
    start_relay: Callable[..., Relay], tmp_path: Path, key: str
) -> None:
    first = start_relay(tmp_path / "first")
    once = first.notify(key, "once", headers={"Idempotency-Key": "once"}).json()
    first.notify(key, "", headers={"Pager-Run": "r", "Pager-Expect": "1"})
    first.stop(signal.SIGKILL)
    other = Spool(str(tmp_path / "second"))
    run(other, "import", input=run(first.spool, "export", number(key)).stdout)
    second = start_relay(tmp_path / "second")
    again = second.notify(key, "once", headers={"Idempotency-Key": "once"}).json()
    assert (again["id"], again["duplicate"]) == (once["id"], True)
    lost = until(lambda: [page for page in second.lease(key) if page["payload"].get("status") == "lost"], 30)
    assert lost[0]["payload"]["run"] == "r"


def test_a_room_stays_a_room(start_relay: Callable[..., Relay], tmp_path: Path, key: str) -> None:
    first, second = start_relay(tmp_path / "first"), start_relay(tmp_path / "second")
    said = {"from": "a", "body": "hello"}
    answer = first.with_key(key, "POST", "/api/messages", json=said)
    assert answer.status_code in (200, 201, 202), answer.text
    run(second.spool, "import", input=run(first.spool, "export", number(key)).stdout)
    heard = second.with_key(key, "GET", "/api/messages?agent=b&since=0").json()["messages"]
    assert [message["body"] for message in heard] == ["hello"]
    assert run(second.spool, "check").stdout == ""


PAGE = {"created_at": "2026-11-30T04:51:55.683692Z", "payload": {"n": 1}}


def page_line(path: str = f"new/{BOX}/1795966550281088.json", text: object = PAGE, **changes: object) -> str:
    line = {"path": path, "at": "2026-11-30T04:51:55Z", "text": text if isinstance(text, str) else json.dumps(text)}
    return json.dumps({name: value for name, value in {**line, **changes}.items() if value is not None})


BAD = {
    "no json": "not JSON",
    "[1]": "not a JSON object",
    page_line(text=None): "not a JSON object",
    page_line(at=None): "no 'at'",
    page_line(path=f"new/{new_key()}/1795966550281088.json"): "named by its number",
    page_line(path=f"new/{BOX}/../../FORMAT"): "named by its number",
    page_line(path=f"new/{BOX}/.."): "named by its number",
    page_line(path=f"new/{BOX}/a\0b"): "named by its number",
    page_line(path=f"new/{BOX}/a\ud800b"): "named by its number",
    page_line(path="FORMAT"): "named by its number",
    page_line(path=f"new/{BOX}"): "named by its number",
    page_line(path=f"/new/{BOX}/1795966550281088.json"): "named by its number",
    page_line(path=f"leased/{BOX}/12.json"): "named by its number",
    page_line(path=f"leased/{BOX}/1795966550281088.expired.json"): "named by its number",
    page_line(path=f"archive/../{BOX}/1795966550281088.json"): "named by its number",
    page_line(path=f"runs/{BOX}/../../FORMAT", text="{}"): "named by its number",
    page_line(path=f"keys/{BOX}/{'0' * 64}.json", text="[]"): "not a JSON object",
    page_line(path=f"new/{BOX}/{'9' * 16}.json"): "a day ahead",
    page_line(text={"payload": {}}): "no created_at",
    page_line(text={"created_at": "now", "payload": {}}): "created_at",
    page_line(text="\ud800"): "surrogates",
    page_line(text="\udcff"): "not UTF-8",
    page_line(at="yesterday"): "",
    page_line(at="1950-11-30T04:51:55Z"): "out of range",
    page_line(text={**PAGE, "payload": {"t": "x" * 500_000}}): "MAX_MESSAGE_BYTES",
    '{"path": "': "not JSON",
}


def test_each_line_that_is_wrong_is_named_and_the_next_one_taken(spool: Spool) -> None:
    wrong = list(BAD)
    good = [page_line(f"new/{BOX}/{1795966550281088 + n}.json") for n in range(len(wrong))]
    both = [line for pair in zip(wrong, good, strict=True) for line in pair]
    done = run(spool, "import", input="\n".join([*both, "", ""]), code=1)
    assert done.stdout == f"{len(good)} files taken in, 0 were here already, {len(wrong)} refused\n"
    told = done.stderr.splitlines()
    for n, (line, said) in enumerate(zip(wrong, told, strict=False)):
        assert said.startswith(f"pagermcp: line {2 * n + 1}: "), said
        assert BAD[line] in said
    assert told[len(wrong) :] == [
        f"pagermcp: the last line about {BOX} is missing, so there may be more of it: export it again"
    ]
    assert len(os.listdir(spool.path("new", BOX))) == len(good)
    assert set(os.listdir(spool.root)) == {"FORMAT", *DIRECTORIES}
    assert os.listdir(spool.path("tmp")) == []


def test_bytes_that_are_no_text_are_a_line_that_is_refused(spool: Spool) -> None:
    process: subprocess.Popen[Any] = start(spool, "import", stdin=subprocess.PIPE, text=False)
    _, errors = process.communicate(b"\xff\n\x00\n" + b'{"path":"\xff"}', timeout=60)
    assert process.returncode == 1
    assert errors.count(b"pagermcp: line ") == 3
    assert b"Traceback" not in errors


def test_another_page_with_the_same_id_is_refused_and_the_one_here_stays(spool: Spool, box: Mailbox) -> None:
    id = box.deliver('{"mine": 1}')
    before = everything(spool)
    assert (
        f"another page of {BOX} has the id {id}"
        in run(spool, "import", input=page_line(f"new/{BOX}/{id}.json"), code=1).stderr
    )
    assert everything(spool) == before


def test_a_key_is_refused_and_not_repeated(spool: Spool, key: str) -> None:
    for arguments in (["purge", "--number", key], [key], ["stats", key]):
        done = run(spool, *arguments, code=2)
        assert key not in done.stdout + done.stderr
        assert "no key" in done.stderr or "--number" not in arguments
    done = run(spool, "import", input=page_line(f"new/{key}/1795966550281088.json"), code=1)
    assert key not in done.stderr
    assert key not in "".join(everything(spool))


def test_a_number_that_nothing_belongs_to_is_said(spool: Spool) -> None:
    for arguments in (["export", OTHER], ["purge", "--number", OTHER, "--yes"]):
        assert run(spool, *arguments, code=1).stderr == f"pagermcp: nothing in {spool.root} belongs to {OTHER}\n"


def test_an_import_that_is_killed_and_begun_again_brings_every_page_once(spool: Spool, other_spool: Spool) -> None:
    box = spool.mailbox(BOX)
    for n in range(120):
        box.deliver(f'{{"n": {n}}}')
        if n % 3:
            page = box.claim(60)
            assert page
            box.acknowledge(page.name)
    exported = run(spool, "export", BOX).stdout
    some = exported.splitlines(keepends=True)
    for step in range(1, 4):  # it has taken about so many lines, and may be in any step of the next one
        process = start(other_spool, "import", stdin=subprocess.PIPE)
        assert process.stdin
        process.stdin.writelines(some[: 30 * step])
        process.stdin.flush()
        until(lambda step=step: len(everything(other_spool)) > 25 * step, 60)  # type: ignore[misc]
        process.kill()
        process.communicate()
    done = run(other_spool, "import", input=exported).stdout
    assert re.fullmatch(r"[0-9]+ files taken in, [1-9][0-9]+ were here already, 0 refused\n", done)
    assert pages(other_spool) == pages(spool)
    assert everything(other_spool).keys() == everything(spool).keys()


def test_an_import_is_as_durable_as_a_delivery(spool: Spool, other_spool: Spool) -> None:
    id = spool.mailbox(BOX).deliver("{}")
    script = """import json, sys
steps = []
sys.addaudithook(lambda event, told: steps.append(told) if event == "pagermcp.file" else None)
from pagermcp.operator.moving import Intake
from pagermcp.spool import Spool
intake = Intake(Spool(sys.argv[1]))
steps.clear()
for line in sys.stdin.buffer:
    intake.take(line)
print(json.dumps([f"{step} {path.removeprefix(sys.argv[1])}" for step, path in steps]))"""
    exported = run(spool, "export", BOX).stdout
    command = [sys.executable, "-c", script, other_spool.root]
    done = subprocess.run(command, input=exported, capture_output=True, text=True, check=True)
    steps = [re.sub("/tmp/.*", "/tmp/", step) for step in json.loads(done.stdout)]
    in_order = ["write /tmp/", "fsync /tmp/", f"link /new/{BOX}/{id}.json", f"fsync directory /new/{BOX}"]
    assert [step for step in steps if step in in_order] == in_order
    assert f"mkdir /leased/{BOX}" in steps  # while there is room: what waits must be takeable
    made = steps.index(f"mkdir /new/{BOX}")
    assert made < steps.index("fsync directory /new") < steps.index(in_order[2])


def test_a_reader_that_stops_reading_ends_the_export(spool: Spool, box: Mailbox) -> None:
    for _ in range(60):
        box.deliver(json.dumps({"text": "x" * 3000}))
    with start(spool, "export", BOX) as process:
        assert process.stdout
        process.stdout.close()
        process.stdout = None
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 11
    assert errors == "pagermcp: the output can't be written: Broken pipe\n"


@pytest.mark.parametrize("command", [["check"], ["export", BOX]])
def test_output_that_cannot_be_written_is_said(spool: Spool, box: Mailbox, command: list[str]) -> None:
    box.deliver("{}")
    stranger(spool, BOX)
    with Path("/dev/full").open("w") as full:
        assert "can't be written" in run(spool, *command, stdout=full, code=11).stderr


def test_on_a_full_disk_it_stops_with_what_is_kept_free(spool: Spool) -> None:
    done = run(spool, "import", input=page_line(), code=9, environment={"PAGERMCP_MIN_FREE_BYTES": 10**18})
    assert "kept free" in done.stderr
    assert done.stdout == "0 files taken in, 0 were here already, 0 refused\n"
    assert not os.path.exists(spool.path("new", BOX))


def test_text_of_a_page_reaches_no_terminal_as_it_is(spool: Spool, box: Mailbox) -> None:
    box.deliver('{"text": "\x9b2J\u202e"}')
    exported = run(spool, "export", BOX).stdout
    assert r"\u009b2J\u202e" in exported
    assert "\x9b" not in exported


# Purge


def age_all(spool: Spool, day: str) -> None:
    for top in ("archive", "dead"):
        for path in list(Path(spool.path(top)).iterdir()):
            path.rename(path.parent / day)


def test_old_days_are_deleted_only_with_yes_and_young_ones_stay(spool: Spool) -> None:
    fill(spool)
    age_all(spool, "2026-01-01")
    page = spool.mailbox(BOX).claim(60)
    assert page
    spool.mailbox(BOX).acknowledge(page.name)
    before = everything(spool)
    done = run(spool, "purge", "--older-than", "30d")
    assert re.search(r"^would delete [1-9] files in archive/2026-01-01$", done.stdout, re.MULTILINE)
    assert "--yes" in done.stderr
    assert everything(spool) == before
    assert "deleted 2 files in dead/2026-01-01" in run(spool, "purge", "--older-than", "30d", "--yes").stdout
    assert everything(spool) == {path: content for path, content in before.items() if "2026-01-01" not in path}
    assert not list(Path(spool.root).glob("*/2026-01-01"))
    assert run(spool, "purge", "--older-than", "0", "--yes").stdout == "deleted nothing\n"


def test_the_archive_of_a_room_is_kept_unless_it_is_named(spool: Spool) -> None:
    fill(spool)
    fill(spool, OTHER)
    age_all(spool, "2026-01-01")
    os.mkdir(spool.path("rooms", BOX))
    run(spool, "purge", "--older-than", "30d", "--yes")
    assert {path.parent.name for path in Path(spool.root).glob("archive/*/*/*.json")} == {BOX}
    run(spool, "purge", "--older-than", "30d", "--number", BOX, "--yes")
    assert not list(Path(spool.root).glob("archive/*/*/*.json"))
    assert os.listdir(spool.path("new", BOX))


def test_a_mailbox_is_deleted_with_all_that_belongs_to_it_and_no_other(spool: Spool) -> None:
    fill(spool, OTHER)
    others = everything(spool)
    fill(spool)
    Path(spool.path("new", BOX, "brought.json")).write_text("{}")
    before = everything(spool)
    assert "would delete 2 files in scheduled" in run(spool, "purge", "--number", BOX).stdout
    assert everything(spool) == before
    assert "deleted 2 files in scheduled" in run(spool, "purge", "--number", BOX, "--yes").stdout
    assert everything(spool) == others
    assert run(spool, "purge", "--number", BOX, "--yes").stdout == "deleted nothing\n"
    assert {path.parent.name for path in Path(spool.root).rglob(BOX)} == {"new", "leased"}  # which the janitor removes


def test_links_in_place_of_folders_are_not_followed(spool: Spool, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    fill(spool)
    age_all(spool, "2026-01-01")
    for top in ("archive", "dead"):
        (elsewhere / top).parent.mkdir(exist_ok=True)
        Path(spool.path(top, "2026-01-01")).rename(elsewhere / top)
        Path(spool.path(top, "2026-01-01")).symlink_to(elsewhere / top)
    os.mkdir(spool.path("rooms", OTHER), 0o700)
    (elsewhere / "archive" / OTHER).mkdir()
    before = set(elsewhere.rglob("*"))
    run(spool, "purge", "--older-than", "30d", "--yes")
    run(spool, "purge", "--number", BOX, "--yes")
    Janitor(spool, ring=lambda number: None, waiting=lambda number: 0).tidy()
    assert set(elsewhere.rglob("*")) == before
    assert len(run(spool, "check", code=1).stdout.splitlines()) == 2
    os.rename(spool.path("archive"), elsewhere / "all")
    os.symlink(elsewhere / "all", spool.path("archive"))
    assert f"{spool.path('archive')} is no folder" in run(spool, "stats", code=2).stderr


def test_a_mailbox_that_was_purged_beside_its_relay_goes_on(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    for n in range(3):
        relay.notify(key, json={"n": n}, headers={"Pager-Delay": "1h"} if n else {})
    run(relay.spool, "purge", "--number", number(key), "--yes")
    assert relay.lease(key) == []
    relay.notify(key, json={"n": 9})
    assert [page["payload"] for page in relay.lease(key)] == [{"n": 9}]
    assert "Traceback" not in relay.log.read_text()


# All of them


def test_a_folder_that_is_no_spool_is_one_line_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    (tmp_path / "empty").mkdir()
    for name, *command in (
        ("missing", "check", "--repair"),
        ("foreign", "stats"),
        ("foreign", "export", BOX),
        ("empty", "import"),
        ("empty", "purge", "--number", BOX),
    ):
        done = run(tmp_path / name, *command, code=2)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert str(tmp_path / name) in line
        assert "DATA_DIR" in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "foreign", "thesis.tex"]


def test_wrong_calls_exit_with_2(spool: Spool) -> None:
    assert "say what" in run(spool, "purge", code=2).stderr
    assert "is no time" in run(spool, "purge", "--older-than", "soon", code=2).stderr
    assert "MAX_MESSAGE_BYTES" in run(spool, "stats", code=2, environment={"MAX_MESSAGE_BYTES": "x"}).stderr


def test_the_commands_of_the_documentation_work(relay: Relay, client: Client) -> None:
    text = (
        (REPOSITORY / "docs" / "operate.md").read_text().partition("## Commands for the spool")[2].partition("\n## ")[0]
    )
    new = Spool(str(client.folder / "new"))
    client("send", "hello")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DATA_DIR": str(relay.spool)}
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    require("jq", "jq")
    for block in blocks:
        script = block.replace("/srv/new/spool", new.root)
        subprocess.run(["sh", "-euc", script], cwd=client.folder, env=client.environment | path, check=True)
    assert len(list(Path(new.root).glob("new/*/*.json"))) == 1
    assert not list(relay.spool.glob(f"new/{client.number}/*.json"))
    (line,) = re.findall(r"^```crontab\n(.*?)\n```", text, re.MULTILINE)
    command = line.split(" ", 5)[5].replace("/var/lib/pagermcp", str(relay.spool)).replace("/opt/pagermcp/bin/", "")
    done = subprocess.run(["sh", "-c", command], env=client.environment | path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
