"""The dead-man's switch: Pager-Run and Pager-Expect. A run that does not report in time is paged as lost."""

import datetime
import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import Relay, new_key, number, until

from pagermcp import files
from pagermcp.spool import Janitor, Options, Spool, send


def report(
    relay: Relay, address: str, run: str | bytes = "run-1", expect: str | None = None, body: Any = b"", **headers: str
) -> requests.Response:
    options = {"Pager-Run": run, **({"Pager-Expect": expect} if expect else {}), **headers}
    data = json.dumps(body) if isinstance(body, dict) else body
    answer = relay.notify(address, data, headers=options)
    assert answer.status_code == 202, answer.text
    return answer


def scheduled(relay: Relay, key: str) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = relay.with_key(key, "GET", "/pages?state=scheduled").json()["pages"]
    return pages


def seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def test_a_run_that_does_not_report_again_is_paged_as_lost_with_its_last_report(relay: Relay, key: str) -> None:
    answer = report(relay, number(key), "backup-7f", "1", {"JOB_ID": "backup", "message": "began"}).json()
    assert 0 < seconds(answer["expected_at"]) - time.time() < 1.1
    assert relay.lease(key, "lease=60")[0]["payload"]["message"] == "began"  # the report itself is a page as well
    (page,) = relay.lease(key, "lease=60&timeout=20")
    message = page["payload"].pop("message")
    assert page["payload"] == {
        "status": "lost",
        "run": "backup-7f",
        "last": {"JOB_ID": "backup", "message": "began"},
    }
    assert message.startswith("no report within 1 s: it was due at 20")
    assert page["due_at"] == answer["expected_at"]
    assert page["age_seconds"] == 0
    assert relay.lease(key, "timeout=2") == []  # once


def test_the_seeds_clients_read_it_flat(relay: Relay, key: str) -> None:
    report(relay, key, "r", "0.5")
    page = relay.get(f"/mailboxes/{key}/wait").json()
    assert (page["status"], page["run"], page["last"]) == ("lost", "r", None)


def test_an_empty_report_sets_the_switch_and_delivers_nothing(relay: Relay, key: str) -> None:
    answer = report(relay, key, expect="1h").json()
    assert (answer["id"], answer["queued"]) == (None, 0)
    (page,) = scheduled(relay, key)
    assert page["payload"]["status"] == "lost"
    assert relay.lease(key) == []


def test_another_report_with_expect_extends_it(relay: Relay, key: str) -> None:
    report(relay, key, expect="1", body={"n": 1})
    answer = report(relay, key, expect="2.5", body={"n": 2}).json()
    (page,) = scheduled(relay, key)
    assert page["due_at"] == answer["expected_at"]
    assert [page["payload"] for page in relay.lease(key, "max=9&lease=60")] == [{"n": 1}, {"n": 2}]
    assert relay.lease(key, "timeout=1.5") == []
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert page["payload"]["last"] == {"n": 2}


def test_an_empty_extension_keeps_the_last_report_that_said_something(relay: Relay, key: str) -> None:
    report(relay, key, expect="1h", body={"step": 1})
    report(relay, key, expect="1h")
    report(relay, key, expect="0.5")
    assert relay.lease(key, "lease=60")[0]["payload"] == {"step": 1}
    assert relay.lease(key, "lease=60&timeout=20")[0]["payload"]["last"] == {"step": 1}


@pytest.mark.parametrize("body", [b"", b"done"])
def test_a_report_without_expect_ends_it(relay: Relay, key: str, body: bytes) -> None:
    report(relay, key, expect="1")
    report(relay, key, body=body)
    assert scheduled(relay, key) == []
    pages = relay.lease(key, "max=9&timeout=0&lease=60")
    assert [page["payload"] for page in pages] == [{"message": text} for text in [body.decode()] if text]
    assert all("recovered" not in page for page in pages)
    assert relay.lease(key, "timeout=2") == []
    assert list((relay.spool / "runs").glob(f"{number(key)}/*")) == []


def test_overlapping_runs_of_one_job_do_not_hide_each_other(relay: Relay, key: str) -> None:
    report(relay, key, "night-1", "1.5", {"JOB_ID": "backup"})
    report(relay, key, "night-2", "1.5", {"JOB_ID": "backup"})
    report(relay, key, "night-2", body={"JOB_ID": "backup", "status": "success"})
    assert len(relay.lease(key, "max=9&lease=60")) == 3
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert (page["payload"]["status"], page["payload"]["run"]) == ("lost", "night-1")


def test_runs_of_different_mailboxes_have_nothing_to_do_with_each_other(relay: Relay, key: str) -> None:
    other = new_key()
    report(relay, key, "same", "1h")
    report(relay, other, "same")
    assert len(scheduled(relay, key)) == 1


def test_a_late_report_is_delivered_marked_recovered(relay: Relay, key: str) -> None:
    report(relay, key, expect="0.5")
    assert relay.lease(key, "timeout=20&lease=60")[0]["payload"]["status"] == "lost"
    report(relay, key, body={"message": "done at last"})
    (page,) = relay.lease(key, "lease=60")
    assert page["payload"] == {"message": "done at last"}  # what the sender sent
    assert page["recovered"] is True
    assert page["late_seconds"] in (0, 1, 2)
    report(relay, key, body={"message": "again"})
    assert "recovered" not in relay.lease(key, "lease=60")[0]  # once


def test_a_late_report_with_expect_is_recovered_and_sets_the_switch_anew(relay: Relay, key: str) -> None:
    report(relay, key, expect="0.5")
    relay.lease(key, "timeout=20&lease=60")
    report(relay, key, expect="1", body={"message": "still there"})
    assert relay.lease(key, "lease=60")[0]["recovered"] is True
    assert relay.lease(key, "timeout=20&lease=60")[0]["payload"]["status"] == "lost"


def test_a_late_report_with_nothing_to_say_is_told_by_the_relay(relay: Relay, key: str) -> None:
    report(relay, key, "r", expect="0.5")
    relay.lease(key, "timeout=20&lease=60")
    assert report(relay, key, "r").json()["id"]
    (page,) = relay.lease(key, "lease=60")
    assert (page["payload"]["status"], page["payload"]["run"]) == ("recovered", "r")
    assert "after it was given up" in page["payload"]["message"]


def test_a_switch_survives_a_restart(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    report(relay, key, "ends", "1h")
    report(relay, key, "hangs", "3", {"message": "began"})
    relay.stop()
    relay = start_relay()
    report(relay, key, "ends")
    assert relay.lease(key, "lease=60")[0]["payload"] == {"message": "began"}
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert (page["payload"]["run"], page["payload"]["last"]) == ("hangs", {"message": "began"})
    assert "late" not in page["payload"]["message"]
    relay.stop()
    relay = start_relay()
    report(relay, key, "hangs", body=b"back")
    assert relay.lease(key, "lease=60")[0]["recovered"] is True


def test_a_relay_that_was_down_at_the_due_time_pages_when_it_is_back_and_says_how_late(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay()
    report(relay, key, "r", "0.5", {"message": "began"})
    relay.stop()
    two_hours_ago(Spool(str(relay.spool)), number(key))
    relay = start_relay()
    pages = relay.lease(key, "timeout=20&lease=60&max=1") + relay.lease(key, "timeout=20&lease=60&max=1")
    page = next(page for page in pages if page["payload"].get("status") == "lost")
    assert "the relay did not run then, and says so 2 h late" in page["payload"]["message"]
    assert 7200 <= page["payload"]["late_seconds"] < 7260
    assert page["payload"]["last"] == {"message": "began"}
    assert 7200 <= page["age_seconds"] < 7260
    assert page["stale"] is True
    assert relay.lease(key) == []


def two_hours_ago(spool: Spool, box: str) -> None:
    """Let what is scheduled have been due two hours ago."""
    (due,) = spool.schedule.of(box)
    earlier = due._replace(micros=due.micros - 7_201_000_000)
    os.rename(spool.path("scheduled", due.file), spool.path("scheduled", earlier.file))
    for path in [*Path(spool.path("runs", box)).iterdir(), Path(spool.path("scheduled", earlier.file))]:
        text = path.read_text().replace(due.file, earlier.file)
        page = json.loads(text)
        if "due_at" in page:
            page["due_at"] = earlier.at.isoformat()
        path.write_text(json.dumps(page))


def test_a_mailbox_that_is_full_takes_no_switch_but_the_end_of_one(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=2)
    report(relay, key, expect="1h", body=b"began")
    refused = relay.notify(key, b"", headers={"Pager-Run": "r2", "Pager-Expect": "1h"})
    assert refused.status_code == 429
    assert len(scheduled(relay, key)) == 1
    report(relay, key, expect="1h")  # it has its place already
    assert relay.notify(key, "x", headers={"Pager-Run": "run-1", "Pager-Expect": "1h"}).status_code == 429
    report(relay, key, body=b"done")
    assert [page["payload"]["message"] for page in relay.lease(key, "max=9&lease=60")] == ["began", "done"]


def test_an_idempotent_report_that_comes_twice_counts_once(relay: Relay, key: str) -> None:
    report(relay, key, expect="1h", body=b"began", **{"Idempotency-Key": "a"})
    report(relay, key, body=b"done", **{"Idempotency-Key": "b"})
    again = report(relay, key, expect="1h", body=b"began", **{"Idempotency-Key": "a"}).json()
    assert again["duplicate"] is True
    assert scheduled(relay, key) == []  # a switch set by a retry of the past would raise a false alarm
    assert len(relay.lease(key, "max=9&lease=60")) == 2


def test_what_a_crash_left_of_a_switch_that_was_not_accepted_is_of_no_account(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    box.schedule('{"status":"lost"}', 0, run="0" * 64)
    assert spool.come_due() == set()
    assert (box.queued(), box.size()) == (0, 0)


def test_a_switch_whose_old_file_a_crash_left_fires_at_the_new_time_alone(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    send(spool, box, "{}", Options(run="r", expect=0.01), empty=True)
    (old,) = spool.schedule.of(box.number)
    os.link(spool.path("scheduled", old.file), spool.path("tmp", "saved"))
    send(spool, box, "{}", Options(run="r", expect=3600), empty=True)
    os.rename(spool.path("tmp", "saved"), spool.path("scheduled", old.file))
    again = Spool(spool.root)
    until(lambda: time.time() > old.micros / 1e6)
    assert again.come_due() == set()
    assert len(os.listdir(again.path("scheduled"))) == 1
    assert again.mailbox(box.number).queued() == 0


def test_a_record_that_nobody_can_read_does_not_end_the_switch(spool: Spool) -> None:
    box = spool.mailbox(number(new_key()))
    send(spool, box, "{}", Options(run="r", expect=0.01), empty=True)
    (record,) = Path(spool.path("runs", box.number)).iterdir()
    record.write_text("")
    until(lambda: spool.schedule.of(box.number)[0].micros / 1e6 < time.time())
    assert spool.come_due() == set()
    assert spool.schedule.count(box.number) == 1  # it is tried again, and said in the log
    assert len(spool.agenda) == 1


def test_runs_that_were_given_up_long_ago_are_forgotten(spool: Spool) -> None:
    old, still_awaited, young = (spool.mailbox(number(new_key())) for _ in range(3))
    for box in (old, still_awaited, young):
        send(spool, box, "{}", Options(run="r", expect=3600 if box is still_awaited else 0.01), empty=True)
        if box is not young:
            (record,) = Path(spool.path("runs", box.number)).iterdir()
            os.utime(record, (time.time() - 61 * 86400,) * 2)
    until(lambda: spool.come_due() or (old.queued() and young.queued()))
    janitor = Janitor(spool, lambda number: None, lambda number: 0)
    janitor.tidy()
    janitor._lock.release()
    assert set(os.listdir(spool.path("runs"))) == {still_awaited.number, young.number}


def test_a_lost_page_that_is_given_back_for_later_comes_back(relay: Relay, key: str) -> None:
    report(relay, key, expect="0.3")
    (page,) = relay.lease(key, "timeout=20&lease=60")
    answer = relay.with_key(key, "POST", "/release", json={"ids": [page["handle"]], "delay": 0.3})
    assert answer.status_code == 200
    (again,) = relay.lease(key, "timeout=20&lease=60")
    assert (again["id"], again["attempt"], again["payload"]) == (page["id"], 2, page["payload"])


def test_a_report_that_is_refused_sets_no_switch(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1)
    refused = relay.notify(key, "began", headers={"Pager-Run": "r", "Pager-Expect": "0.3"})
    assert refused.status_code == 429
    assert relay.lease(key, "timeout=1.5") == []


def test_a_report_for_which_there_is_a_place_is_not_refused(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=3)
    report(relay, key, expect="1h")
    relay.notify(key, "another")
    report(relay, key, expect="1h", body=b"still there")  # one more page, and its switch instead of the old one
    assert relay.notify(key, "x").status_code == 429


def test_that_a_run_recovered_is_not_forgotten_when_its_report_is_refused(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=2)
    report(relay, key, expect="0.3")
    lost = relay.lease(key, "timeout=20&lease=60")[0]["handle"]
    relay.notify(key, "another")
    options = {"Pager-Run": "run-1", "Pager-Expect": "1h"}
    assert relay.notify(key, "still there", headers=options).status_code == 429
    relay.with_key(key, "POST", "/ack", json={"ids": [lost, *(page["handle"] for page in relay.lease(key))]})
    report(relay, key, expect="1h", body=b"still there")
    assert relay.lease(key, "lease=60")[0]["recovered"] is True


def test_a_run_is_the_same_in_a_header_and_in_the_query(relay: Relay, key: str) -> None:
    report(relay, key, "nächtlich".encode(), "1")
    answer = relay.post(f"/to/{number(key)}", "done", params={"run": "nächtlich"})
    assert answer.status_code == 202
    assert scheduled(relay, key) == []


def failing(monkeypatch: pytest.MonkeyPatch, function: str, times: int = 1) -> None:
    """Let a function of the file layer fail, from its nth call on."""
    real, calls = getattr(files, function), []

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) >= times:
            raise OSError(errno.EIO, "input/output error")
        return real(*arguments)

    monkeypatch.setattr(files, function, fail)


@pytest.mark.parametrize(("function", "times"), [("Draft", 1), ("write", 1), ("replace", 1), ("directory_synced", 2)])
def test_an_extension_that_fails_at_any_step_leaves_one_switch_in_force(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, function: str, times: int
) -> None:
    box = spool.mailbox(number(new_key()))
    send(spool, box, "{}", Options(run="r", expect=0.2), empty=True)
    with monkeypatch.context() as patch:
        failing(patch, function, times)
        with pytest.raises(OSError, match="input/output"):
            send(spool, box, "{}", Options(run="r", expect=0.4), empty=True)
    until(lambda: spool.come_due())
    assert [page.payload["status"] for page in box.waiting()] == ["lost"]
    until(lambda: spool.schedule.count(box.number) == 0 or spool.come_due())
    assert box.size() == 1


def test_a_run_is_paged_as_lost_also_when_there_is_no_room_to_say_how_late(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = spool.mailbox(number(new_key()))
    send(spool, box, "{}", Options(run="r", expect=0.01), empty=True)
    two_hours_ago(spool, box.number)
    again = Spool(spool.root)
    failing(monkeypatch, "write")
    until(lambda: again.come_due())
    assert [page.payload["status"] for page in again.mailbox(box.number).waiting()] == ["lost"]
