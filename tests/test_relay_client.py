"""`from pagermcp.client import Relay`: the Python interface."""

import socket
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Client, Relay, new_key, number
from middle import Proxy, cut, somebody

import pagermcp
import pagermcp.client as api
from pagermcp.client.relay import backoff


@pytest.fixture
def mine(relay: Relay, key: str) -> api.Relay:
    return api.Relay(key, relay.url)


def test_a_page_goes_all_the_way(relay: Relay, mine: api.Relay, key: str) -> None:
    sent = mine.send({"status": "success", "n": 1})
    assert (sent.number, sent.waiters, sent.queued, sent.duplicate) == (number(key), 0, 1, False)
    (page,) = mine.wait(timeout=0, lease=30)
    assert (page.id, page.handle, page.attempt, page.stale) == (sent.id, sent.id, 1, False)
    assert page.payload == {"status": "success", "n": 1}
    assert page.created_at is not None
    assert page.lease_expires_at is not None
    assert abs((page.created_at - datetime.now(UTC)).total_seconds()) < 5
    assert 25 < (page.lease_expires_at - datetime.now(UTC)).total_seconds() <= 31
    mine.extend(page, lease=600)
    mine.release(page)
    (page,) = mine.wait(timeout=5)
    assert page.handle == f"{sent.id}.2"
    mine.ack(page)
    assert mine.receipt(page)["outcome"] == "acknowledged"
    (copy,) = mine.replay(page)
    assert [page.id for page in mine.pages()] == [copy]
    assert [page.id for page in mine.pages("archived")] == [sent.id]
    assert mine.wait(timeout=0.1, ack=[]) != []
    assert mine.version() == pagermcp.__version__
    assert mine.health()["status"] == "ok"


def test_a_wait_acknowledges_first_and_ends_in_time(mine: api.Relay) -> None:
    mine.send("one")
    (page,) = mine.wait(timeout=0)
    began = time.monotonic()
    assert mine.wait(timeout=0.5, ack=[page]) == []
    assert 0.4 < time.monotonic() - began < 5
    assert mine.receipt(page)["state"] == "archived"


def test_pages_are_listened_to_as_they_come(mine: api.Relay) -> None:
    heard = []

    def listen() -> None:
        for page in mine.listen():
            mine.ack(page)
            heard.append(page.payload["message"])
            if len(heard) == 3:
                return

    listening = threading.Thread(target=listen)
    listening.start()
    for message in ("a", "b", "c"):
        mine.send(message)
    listening.join(20)
    assert heard == ["a", "b", "c"]


def test_what_the_relay_refuses_says_why(relay: Relay, mine: api.Relay, key: str) -> None:
    with pytest.raises(api.Refused, match="a number only sends; read with the mailbox's key") as raised:
        api.Relay(number(key), relay.url).wait(timeout=0)
    assert (raised.value.status, raised.value.code, raised.value.for_now) == (403, "number_cannot_read", False)
    with pytest.raises(api.Refused) as raised:
        mine.ack("1234567890123456")
    assert raised.value.answer["refused"] == [{"id": "1234567890123456", "state": None}]


def test_a_relay_that_is_not_there_is_unreachable(key: str) -> None:
    with pytest.raises(api.Unreachable, match="Connection refused"):
        api.Relay(key, "http://127.0.0.1:9").send("x")
    with pytest.raises(api.Unreachable, match=r"Name or service|not known|resolution|No address"):
        api.Relay(key, "http://no-such-host.invalid").version()


def test_a_relay_that_is_silent_is_given_up(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(api.Unreachable, match="no answer in time"):
            api.Relay(key, url).request("GET", "/version", None, read=0.3)


@pytest.mark.parametrize(("call", "tries"), [("send", 3), ("ack", 3), ("pages", 3), ("replay", 1), ("release", 1)])
def test_only_what_can_not_double_a_page_is_tried_again(relay: Relay, key: str, call: str, tries: int) -> None:
    with Proxy(relay.port, cut) as proxy:
        mine = api.Relay(key, proxy.url)
        with pytest.raises(api.Unreachable):
            getattr(mine, call)(*([] if call == "pages" else ["1234567890123456"]))
        assert proxy.connections == tries


def test_without_arguments_the_environment_and_the_session_file_say_where(
    relay: Relay, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(client.folder)
    monkeypatch.setenv("PAGER_URL", relay.url)
    mine = api.Relay()
    assert mine.send("x").number == mine.number == client.number
    (client.folder / ".pager_session").unlink()
    other = new_key()
    assert api.Relay().send("x", to=number(other)).number == number(other)
    with pytest.raises(api.NoSession, match="pagermcp number"):
        api.Relay().send("x")


@pytest.mark.parametrize("url", ["", "host", "ftp://host", "http://", "http://u:p@host", "http://host:99999"])
def test_a_url_that_can_be_none_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER_URL", url or " ")
    with pytest.raises(api.BadCall):
        api.Relay(new_key())


def test_trouble_that_passes_is_told_and_tried_again(relay: Relay, key: str) -> None:
    troubles: list[str] = []
    answers: list[bytes] = []

    def first_cut(data: bytes) -> bytes:
        answers.append(data)
        return cut(data) if len(answers) < 3 else data

    with Proxy(relay.port, first_cut) as proxy:
        mine = api.Relay(key, proxy.url)
        api.Relay(key, relay.url).send("x")
        pages = mine.wait(timeout=20, lease=1, on_trouble=lambda error, pause: troubles.append(str(error)))
    assert [page.payload["message"] for page in pages] == ["x"]
    assert len(troubles) == 2


def test_what_does_not_pass_is_raised_at_once_however_patient(key: str) -> None:
    no = {"error": {"code": "unauthorized", "message": "no", "hint": "x"}}
    with somebody(401, no) as url, pytest.raises(api.Refused):
        api.Relay(key, url).wait(timeout=None, on_trouble=lambda error, pause: None)


def test_pauses_grow_are_by_chance_and_heed_the_relay() -> None:
    for failures, most in ((0, 0.5), (1, 1), (3, 4), (100, 10)):
        pauses = [backoff(failures) for _ in range(50)]
        assert max(pauses) <= most
        assert min(pauses) >= most / 2
        assert len(set(pauses)) > 40
    assert backoff(0, 7.0) >= 7


def test_one_relay_serves_many_threads(relay: Relay, mine: api.Relay) -> None:
    def send(index: int) -> None:
        for _ in range(10):
            mine.send(f"{index}")

    threads = [threading.Thread(target=send, args=[index]) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = mine.wait(timeout=0, max=100)
    assert len(pages) == 60
    assert len({page.id for page in pages}) == 60


def test_what_is_cut_after_a_while_is_connected_again_without_a_word(
    relay: Relay, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagermcp.client.relay._CUT_SECONDS", 0.3)
    troubles: list[str] = []
    with Proxy(relay.port) as proxy:
        mine = api.Relay(key, proxy.url)
        cutting = threading.Timer(0.6, proxy.cut)
        paging = threading.Timer(2, lambda: api.Relay(key, relay.url).send("x"))
        for timer in (cutting, paging):
            timer.start()
        pages = mine.wait(timeout=20, on_trouble=lambda error, pause: troubles.append(str(error)))
        for timer in (cutting, paging):
            timer.join()
    assert [page.payload["message"] for page in pages] == ["x"]
    assert troubles == []


def test_behind_what_cuts_waits_are_shorter_and_later_longer_again(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagermcp.client.relay._CUT_SECONDS", 0.0)
    now = [0.0]
    asked: list[float] = []

    class Cutting(api.Relay):
        def _pages(self, path: str, **options: Any) -> list[api.Page]:
            wanted = float(options["params"]["timeout"])
            asked.append(wanted)
            now[0] += min(wanted, 8)
            if len(asked) == 9:
                return [api.Page.read({"id": "1795981500901952", "handle": "1795981500901952"})]
            if wanted > 8:
                raise api.Unreachable("cut", cut=True)
            return []

    monkeypatch.setattr("pagermcp.client.relay.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: None))
    Cutting(key, "http://127.0.0.1:9").wait(timeout=None, on_trouble=lambda error, pause: None)
    assert [round(one, 1) for one in asked] == [50, 0, 7.4, 14.8, 0, 7.4, 14.8, 0, 7.4]


def test_times_and_texts_that_make_no_sense_are_bad_calls(mine: api.Relay) -> None:
    assert mine.wait(timeout=-20) == []
    with pytest.raises(api.BadCall, match="surrogate"):
        mine.send("\ud800")
    mine.send({"half": "\ud800"})
    assert mine.wait(timeout=0)[0].payload == {"half": "\ud800"}
    with pytest.raises(api.BadCall, match="no page's id"):
        mine.ack(5)  # type: ignore[arg-type]
    with pytest.raises(api.InvalidAddress):
        api.Relay("no key", mine.url).send("x")


def test_a_relay_can_ask_for_patience_but_not_for_ever(key: str) -> None:
    full = {"error": {"code": "mailbox_full", "message": "full", "hint": "wait"}}
    for header, seconds in (("7", 7.0), ("86400", 300.0), ("9" * 25, None), ("Tue, 1 Jan", None)):
        with somebody(429, full, Retry_After=header) as url, pytest.raises(api.Refused) as raised:
            api.Relay(key, url, tries=1).send("x")
        assert raised.value.retry_after == seconds


def test_a_relay_that_hangs_is_trouble_and_not_a_cut(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagermcp.client.relay._LATE_SECONDS", 0.3)
    monkeypatch.setattr("pagermcp.client.relay._CUT_SECONDS", 0.1)
    monkeypatch.setattr("pagermcp.client.relay._POLL_SECONDS", 0.2)
    troubles: list[str] = []

    class EnoughError(Exception):
        pass

    def trouble(error: api.RelayError, pause: float) -> None:
        troubles.append(str(error))
        if len(troubles) == 2:
            raise EnoughError

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EnoughError):
            api.Relay(key, url).wait(timeout=None, on_trouble=trouble)
    assert troubles == [f"{url} does not answer: no answer in time"] * 2
