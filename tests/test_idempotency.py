"""Idempotency-Key: however often and wherever it is sent, there is one page."""

import concurrent.futures
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import REPOSITORY, Relay, new_key, number, until

from pagermcp import files
from pagermcp.spool import Janitor, KeyReused, Mailbox, MailboxFull, Options, Sent, Spool, send
from pagermcp.spool.notes import hash_of
from pagermcp.spool.whereabouts import find


def post(relay: Relay, address: str, idempotency_key: str, body: str = "hello", **headers: str) -> requests.Response:
    return relay.notify(address, body, headers={"Idempotency-Key": idempotency_key, **headers})


def once(spool: Spool, box: str, payload: str = '{"n":1}', **options: object) -> Sent:
    return send(spool, spool.mailbox(box), payload, Options(idempotency_key="k", **options))  # type: ignore[arg-type]


def test_the_same_key_and_body_answer_with_the_first_id_and_bring_no_second_page(relay: Relay, key: str) -> None:
    first = post(relay, key, "a")
    again = post(relay, key, "a")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == {**first.json(), "duplicate": True}
    assert len(list(relay.new(key).iterdir())) == 1
    assert post(relay, key, "b").json()["id"] != first.json()["id"]


def test_the_same_key_with_another_body_is_refused(relay: Relay, key: str) -> None:
    post(relay, key, "a")
    answer = post(relay, key, "a", "something else")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "key_reused")
    assert len(list(relay.new(key).iterdir())) == 1


def test_keys_of_different_mailboxes_have_nothing_to_do_with_each_other(relay: Relay, key: str) -> None:
    assert post(relay, key, "a").json()["id"] != post(relay, new_key(), "a", "something else").json()["id"]


def test_a_page_that_was_read_long_ago_does_not_come_again(relay: Relay, key: str) -> None:
    id = post(relay, number(key), "a").json()["id"]
    relay.lease(key, "lease=60")
    relay.with_key(key, "POST", "/ack", json={"ids": [id]})
    assert post(relay, number(key), "a").json()["id"] == id
    assert relay.lease(key) == []


def test_it_survives_a_restart(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    id = post(relay, key, "a").json()["id"]
    relay.stop()
    relay = start_relay()
    assert post(relay, key, "a").json()["id"] == id
    assert len(list(relay.new(key).iterdir())) == 1


def test_a_full_mailbox_still_answers_who_asks_again(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1)
    id = post(relay, key, "a").json()["id"]
    assert post(relay, key, "b").status_code == 429
    assert post(relay, key, "a").json()["id"] == id
    assert relay.get(f"/mailboxes/{key}/wait").status_code == 200
    until(lambda: relay.state(key, id) == "acknowledged")  # just after its reader has it
    assert post(relay, key, "b", "another body, since nothing was delivered").status_code == 202


def test_after_24_hours_a_key_is_new(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    box = number(new_key())
    first = once(spool, box)
    wall, passed = time.time, time.monotonic
    for hours, same in ((23.9, True), (24.1, False)):
        monkeypatch.setattr(time, "time", lambda hours=hours: wall() + hours * 3600)
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: passed() + hours * 3600)
        assert (once(spool, box).id == first.id) is same


def test_many_at_once_in_two_processes_bring_one_page(tmp_path: Path) -> None:
    root, box = str(tmp_path / "spool"), number(new_key())
    Spool(root)
    script = (
        "import sys, threading\n"
        "from pagermcp.spool import Options, Spool, send\n"
        "root, box, worker = sys.argv[1:]\n"
        "spool = Spool(root, worker=int(worker)); mailbox = spool.mailbox(box)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "ids = []\n"
        "def go():\n"
        "    for n in '0123456789':\n"
        "        ids.append(send(spool, mailbox, '{\"n\":%s}' % n, Options(idempotency_key=n)).id)\n"
        "threads = [threading.Thread(target=go) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(*ids)"
    )
    command = [sys.executable, "-c", script, root, box]
    processes = [
        subprocess.Popen([*command, worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        for worker in "01"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ids = [id for process in processes for id in process.communicate(timeout=60)[0].split()]
    assert len(ids) == 160
    waiting = os.listdir(f"{root}/new/{box}")
    assert {f"{id}.json" for id in ids} == set(waiting)
    assert len(waiting) == 10


def test_many_at_once_at_one_relay_bring_one_page(relay: Relay, key: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: post(relay, key, "a"), range(32)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(list(relay.new(key).iterdir())) == 1


def test_a_key_that_was_left_pending_before_the_page_was_delivered_delivers_it(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    mailbox = spool.mailbox(box)
    with monkeypatch.context() as patch:
        patch.setattr(type(mailbox), "delivering", _killed)
        with pytest.raises(KeyboardInterrupt):
            once(spool, box)
    (pending,) = os.listdir(spool.path("keys", box))
    assert pending.endswith(".pending")
    sent = once(spool, box)
    assert not sent.duplicate
    assert once(spool, box) == Sent(sent.id, duplicate=True)
    assert mailbox.queued() == 1


def test_what_is_done_for_a_page_after_its_delivery_may_fail_and_it_still_is_one_page(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    spool.mailbox(box).deliver("{}", replace=hash_of("r"))
    with monkeypatch.context() as patch:
        patch.setattr(Mailbox, "replace", _fails)
        sent = once(spool, box, replace="r")
    assert once(spool, box, replace="r") == Sent(sent.id, duplicate=True)
    assert spool.mailbox(box).queued() == 2


def test_a_key_that_is_sent_again_after_a_crash_replaces_no_page_that_came_meanwhile(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = number(new_key())
    with monkeypatch.context() as patch:
        patch.setattr("pagermcp.files.replace", _killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            once(spool, box, replace="r")
    newer = send(spool, spool.mailbox(box), "{}", Options(replace="r")).id
    once(spool, box, replace="r")
    assert [page.id for page in spool.mailbox(box).waiting()] == [newer]


@pytest.mark.parametrize("then", ["waits", "is leased", "is archived"])
def test_a_key_that_was_left_pending_after_the_page_was_delivered_delivers_no_second_one(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    box = number(new_key())
    with monkeypatch.context() as patch:
        patch.setattr("pagermcp.files.replace", _killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            once(spool, box)
    mailbox = spool.mailbox(box)
    if then != "waits":
        page = mailbox.claim(60)
        assert page is not None
        if then == "is archived":
            mailbox.acknowledge(page.name)
    size = mailbox.size()
    sent = once(spool, box)
    assert sent.id is not None
    assert find(spool, box, sent.id)
    assert mailbox.size() == size
    assert once(spool, box).duplicate


def _killed(*arguments: object, **more: object) -> None:
    raise KeyboardInterrupt


def _fails(*arguments: object) -> None:
    raise OSError(errno.EIO, "input/output error")


def _killed_at_the_end(source: str, target: str) -> None:
    if source.endswith(".pending"):
        raise KeyboardInterrupt
    os.rename(source, target)


def test_what_could_not_be_delivered_leaves_its_key_free(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), max_messages=1)
    box = number(new_key())
    spool.mailbox(box).deliver("{}")
    with pytest.raises(MailboxFull):
        once(spool, box)
    assert os.listdir(spool.path("keys", box)) == []
    spool.mailbox(box).claim(60)
    with pytest.raises(MailboxFull):
        once(spool, box, '{"n":2}')


def test_another_body_for_a_pending_key_is_refused_too(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    box = number(new_key())
    with monkeypatch.context() as patch:
        patch.setattr(type(spool.mailbox(box)), "delivering", _killed)
        with pytest.raises(KeyboardInterrupt):
            once(spool, box)
    with pytest.raises(KeyReused):
        once(spool, box, '{"n":2}')


def test_old_keys_are_removed(spool: Spool, tmp_path: Path) -> None:
    old, young = number(new_key()), number(new_key())
    once(spool, old)
    once(spool, young)
    (path,) = Path(spool.path("keys", old)).iterdir()
    os.utime(path, (time.time() - 86400 - 60,) * 2)
    janitor = Janitor(spool, lambda number: None, lambda number: 0)
    janitor.tidy()
    janitor._lock.release()
    assert [name for name in os.listdir(spool.path("keys")) if not name.startswith(".")] == [young]


@pytest.mark.parametrize("options", [Options(idempotency_key="k"), Options(run="r", expect=60)])
def test_a_folder_that_the_janitor_removes_just_then_is_made_again(
    spool: Spool, key: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_over = files.write_over
    removed = []

    def late(path: str, *rest: Any) -> None:
        if not removed:
            removed.append(os.path.dirname(path))
            os.rmdir(removed[0])
        write_over(path, *rest)

    monkeypatch.setattr("pagermcp.files.write_over", late)
    mailbox = spool.mailbox(number(key))
    assert send(spool, mailbox, '{"message": "hi"}', options).id
    assert os.listdir(removed[0])
    assert os.listdir(spool.path("tmp")) == []
