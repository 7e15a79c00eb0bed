"""Pages that a shell brings, by mv or cp, into a mailbox's folder."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import NOBODY, Relay, as_root, new_key, number, until

from pagermcp.spool import Janitor, Mailbox, Spool
from pagermcp.spool.page import now, page_line
from pagermcp.waking import Switchboard


@pytest.fixture
def mailbox(spool: Spool) -> Mailbox:
    mailbox = spool.mailbox(number(new_key()))
    mailbox.make()
    return mailbox


def bring(spool: Spool, mailbox: Mailbox, name: str, content: bytes | str, age: float = 60) -> Path:
    path = Path(spool.path("new", mailbox.number, name))
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (time.time() - age,) * 2)
    return path


def taken(mailbox: Mailbox) -> list[dict[str, object]]:
    payloads = []
    while (page := mailbox.claim(60)) is not None:
        payloads.append(page.payload)
    return payloads


@pytest.mark.parametrize("name", ["page.json", "no-ending", "with space.json", "1.json", "é.json", "x" * 255])
def test_a_json_file_under_any_name_becomes_a_page(spool: Spool, mailbox: Mailbox, name: str) -> None:
    bring(spool, mailbox, name, '{\n  "from": "mv"\n}\n')
    assert [page.payload for page in mailbox.waiting()] == [{"from": "mv"}]
    assert taken(mailbox) == [{"from": "mv"}]
    assert os.listdir(spool.path("tmp")) == []


def test_a_name_that_is_not_even_text_is_fine(spool: Spool, mailbox: Mailbox) -> None:
    path = os.path.join(os.fsencode(spool.path("new", mailbox.number)), b"\xff\xfe.json")
    with open(path, "wb") as file:
        file.write(b'{"from":"mv"}')
    os.utime(path, (time.time() - 60,) * 2)
    assert taken(mailbox) == [{"from": "mv"}]


def test_names_that_begin_with_a_dot_are_left_alone(spool: Spool, mailbox: Mailbox) -> None:
    path = bring(spool, mailbox, ".page.json.swp", "{}")
    assert taken(mailbox) == []
    assert mailbox.queued() == 0
    assert path.exists()


def test_a_file_is_not_taken_before_it_was_left_alone_for_two_seconds(spool: Spool, mailbox: Mailbox) -> None:
    path = bring(spool, mailbox, "page.json", '{"half":', age=0)
    assert taken(mailbox) == []
    assert mailbox.changed()  # so the sweep rings again
    path.write_text('{"half":"no"}')
    assert taken(mailbox) == []
    os.utime(path, (time.time() - 3,) * 2)
    assert taken(mailbox) == [{"half": "no"}]


def test_a_file_that_was_seen_closed_is_taken_at_once(spool: Spool, mailbox: Mailbox) -> None:
    bring(spool, mailbox, "page.json", "{}", age=0)
    mailbox.saw_closed("page.json")
    assert taken(mailbox) == [{}]


def test_an_mtime_in_the_future_does_not_keep_a_page_waiting(spool: Spool, mailbox: Mailbox) -> None:
    bring(spool, mailbox, "page.json", "{}", age=-86400 * 365)
    assert taken(mailbox) == [{}]


def test_a_page_with_an_id_from_the_future_is_taken_and_does_not_lift_later_ids(spool: Spool, mailbox: Mailbox) -> None:
    bring(spool, mailbox, "9999999999999999.json", page_line('{"from":"afar"}', now()))
    page = mailbox.claim(60)
    assert page is not None
    assert page.payload == {"from": "afar"}
    assert int(mailbox.deliver("{}")) / 1e6 < time.time() + 60


def test_an_archived_page_that_is_moved_back_waits_again(spool: Spool, mailbox: Mailbox) -> None:
    id = mailbox.deliver('{"n":1}')
    page = mailbox.claim(60)
    assert page is not None
    mailbox.acknowledge(page.name)
    (archived,) = Path(spool.path("archive")).glob("*/*/*.json")
    shutil.move(archived, spool.path("new", mailbox.number))
    again = mailbox.claim(60)
    assert again is not None
    assert again.id == id


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello", "not JSON"),
        ("[1]", "not a JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        ('{"a":"' + "x" * 70000 + '"}', "larger than 65536 bytes"),
        ('{"a":' + "[" * 50000, "nested deeper"),
    ],
)
def test_what_is_no_json_goes_to_dead_with_the_reason(
    spool: Spool, mailbox: Mailbox, content: bytes | str, reason: str
) -> None:
    bring(spool, mailbox, "bad.json", content)
    bring(spool, mailbox, "good.json", '{"good":true}')
    assert taken(mailbox) == [{"good": True}]
    (why,) = Path(spool.path("dead")).glob(f"*/{mailbox.number}/*.why")
    assert why.read_text().startswith("bad.json: ")
    assert reason in why.read_text()
    raw = content if isinstance(content, bytes) else content.encode()
    assert why.with_suffix(".json").read_bytes() == raw


def test_a_reason_is_written_whatever_the_name_and_names_no_key(spool: Spool, mailbox: Mailbox, key: str) -> None:
    for name in (b"\xff.json", f"{key}.json".encode()):
        path = os.path.join(os.fsencode(spool.path("new", mailbox.number)), name)
        with open(path, "wb") as file:
            file.write(b"not json")
        os.utime(path, (time.time() - 60,) * 2)
    assert taken(mailbox) == []
    reasons = "".join(path.read_text() for path in Path(spool.path("dead")).glob(f"*/{mailbox.number}/*.why"))
    assert "\\udcff.json: not JSON" in reasons
    assert f"{number(key)}.json: not JSON" in reasons


def test_a_uuid_in_the_payload_is_taken_out_as_it_is_when_posted(spool: Spool, mailbox: Mailbox, key: str) -> None:
    bring(spool, mailbox, "page.json", f'{{"uuid":"{key}","message":"hi"}}')
    assert taken(mailbox) == [{"message": "hi"}]


def test_a_copy_of_an_expired_page_is_that_page(spool: Spool, mailbox: Mailbox) -> None:
    bring(spool, mailbox, "1795966550281088.expired.json", page_line('{"n":1}', now()))
    assert taken(mailbox) == [{"n": 1}]


def test_a_byte_order_mark_is_forgiven(spool: Spool, mailbox: Mailbox) -> None:
    bring(spool, mailbox, "windows.json", b'\xef\xbb\xbf{"a":1}')
    assert taken(mailbox) == [{"a": 1}]


def test_symlinks_pipes_and_folders_are_left_and_counted_and_hold_up_nobody(
    spool: Spool, mailbox: Mailbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"secret":1}')
    folder = Path(spool.path("new", mailbox.number))
    (folder / "link.json").symlink_to(secret)
    (folder / "1000000000000000.json").symlink_to(secret)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    bring(spool, mailbox, "good.json", '{"good":true}')
    assert taken(mailbox) == [{"good": True}]
    assert spool.unreadable == 4
    taken(mailbox)
    assert len(caplog.messages) == 4  # each is said once
    assert secret.exists()
    for path in ("link.json", "1000000000000000.json", "pipe.json"):
        (folder / path).unlink()
    taken(mailbox)
    assert spool.unreadable == 1


def test_two_who_take_the_same_file_make_one_page_of_it(spool: Spool, mailbox: Mailbox) -> None:
    other = Spool(spool.root, worker=1).mailbox(mailbox.number)
    for n in range(50):
        bring(spool, mailbox, f"{n}.json", f'{{"n":{n}}}')
    got = []
    for one in (mailbox, other) * 60:
        page = one.claim(60)
        got += [page.payload["n"]] if page else []
    assert sorted(got) == list(range(50))


def test_a_page_moved_in_wakes_the_reader(relay: Relay, key: str, tmp_path: Path) -> None:
    waiting = relay.start_waiting(key)
    (tmp_path / "page.json").write_text('{"from":"mv"}')
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert waiting.result(10).json()["from"] == "mv"


def test_who_only_looks_and_takes_a_file_in_rings_those_who_looked_meanwhile(spool: Spool, mailbox: Mailbox) -> None:
    switchboard = Switchboard()
    Janitor(spool, switchboard.ring, switchboard.waiting)
    taker = switchboard.enter(mailbox.number)
    bring(spool, mailbox, "page.json", "{}")
    taker.about_to_look()  # and another thread is about to take the file in, so it finds nothing
    mailbox.look()
    assert taker.rung


def test_a_page_copied_in_wakes_the_reader_when_it_is_whole(relay: Relay, key: str) -> None:
    waiting = relay.start_waiting(key)
    with open(relay.new(key) / "page.json", "w") as file:
        file.write('{"from":')
        file.flush()
        assert not waiting.done()
        file.write('"cp"}')
    assert waiting.result(10).json()["from"] == "cp"


def test_a_page_moved_in_is_found_without_watching(start_relay: Callable[..., Relay], key: str, tmp_path: Path) -> None:
    relay = start_relay(PAGERMCP_WATCH="off")
    assert relay.get("/healthz").json()["watching"] == "off"
    waiting = relay.start_waiting(key)
    (tmp_path / "page.json").write_text('{"from":"mv"}')
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert waiting.result(15).json()["from"] == "mv"


def test_a_mailbox_removed_while_somebody_waits_still_receives(relay: Relay, key: str, tmp_path: Path) -> None:
    waiting = relay.start_waiting(key)
    os.rmdir(relay.new(key))
    until(relay.new(key).is_dir)  # the reader makes it again
    (tmp_path / "page.json").write_text("{}")
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert waiting.result(15).status_code == 200


@as_root
def test_a_page_of_another_user_is_taken_and_becomes_ours(relay: Relay, key: str, tmp_path: Path) -> None:
    waiting = relay.start_waiting(key)
    (tmp_path / "page.json").write_text('{"from":"nobody"}')
    os.chown(tmp_path / "page.json", NOBODY, NOBODY)
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    assert waiting.result(10).json()["from"] == "nobody"
    archived = until(lambda: relay.archived(key))
    assert archived[0].stat().st_uid == os.geteuid()


@as_root
def test_a_page_file_of_another_user_with_the_name_of_a_page_keeps_its_payload(spool: Spool, mailbox: Mailbox) -> None:
    path = bring(spool, mailbox, "1795966550281088.json", page_line('{"n":1}', now()))
    os.chown(path, NOBODY, NOBODY)
    assert taken(mailbox) == []
    assert mailbox.changed()
    assert taken(mailbox) == [{"n": 1}]
    (leased,) = os.listdir(spool.path("leased", mailbox.number))
    assert os.stat(spool.path("leased", mailbox.number, leased)).st_uid == os.geteuid()


@as_root
def test_a_file_that_the_relay_may_not_read_is_left_and_counted_in_health(
    start_relay: Callable[..., Relay], key: str, shared_folder: Path, tmp_path: Path
) -> None:
    relay = start_relay(shared_folder / "spool", user=NOBODY)
    waiting = relay.start_waiting(key)
    (tmp_path / "page.json").write_text("{}")
    os.chmod(tmp_path / "page.json", 0o600)
    subprocess.run(["mv", tmp_path / "page.json", relay.new(key)], check=True)
    until(lambda: relay.get("/healthz").json()["unreadable_files"] == 1)
    assert not waiting.done()
    relay.notify(key)
    assert waiting.result(10).status_code == 200
    assert relay.log.read_text().count("page.json in new/ is left alone: Permission denied") == 1
