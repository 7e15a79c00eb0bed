"""Rooms: POST and GET /api/messages, clearing, agents, keyed rooms and the open one."""

import concurrent.futures
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import REPOSITORY, Relay, new_key, number, until

from pagermcp.spool import Janitor, Spool
from pagermcp.spool.room import MAX_ACTIVE, MAX_AGENTS, OPEN_ROOM, Room


class Talk:
    """One room at a relay, as an agent sees it: by its key, or the open one."""

    def __init__(self, relay: Relay, key: str | None = None, **headers: str) -> None:
        self.relay, self.key = relay, key
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.headers |= {name.replace("_", "-"): value for name, value in headers.items()}

    def get(self, path: str, **query: Any) -> requests.Response:
        names = {name.rstrip("_"): value for name, value in query.items()}
        return requests.get(f"{self.relay.url}/api/{path}", names, headers=self.headers, timeout=90)

    def post(self, path: str, value: Any) -> requests.Response:
        return requests.post(f"{self.relay.url}/api/{path}", json=value, headers=self.headers, timeout=30)

    def say(self, sender: str, body: str, to: str | None = None) -> Any:
        answer = self.post("messages", {"from": sender, "body": body, **({"to": to} if to else {})})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def heard(self, **query: Any) -> list[Any]:
        answer = self.get("messages", **query)
        assert answer.status_code == 200, answer.text
        messages: list[Any] = answer.json()["messages"]
        return messages

    def bodies(self, **query: Any) -> list[str]:
        return [message["body"] for message in self.heard(**query)]


@pytest.fixture(scope="module")
def open_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("open")
    relay = Relay(folder / "spool", folder / "log", PAGERMCP_ROOM="open")
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


@pytest.fixture
def talk(open_relay: Relay, key: str) -> Talk:
    return Talk(open_relay, key)


# Messages


def test_a_message_is_answered_with_what_everybody_will_see(talk: Talk) -> None:
    message = talk.say("desktop", "hello")
    assert message == {**message, "from": "desktop", "to": None, "body": "hello"}
    assert isinstance(message["id"], int)
    assert datetime.datetime.fromisoformat(message["created_at"]).tzinfo
    assert talk.heard() == [message]


def test_it_is_a_page_in_the_spool_that_cat_shows(talk: Talk) -> None:
    message = talk.say("desktop", "hello", "vps")
    page = json.loads((talk.relay.spool / "new" / number(str(talk.key)) / f"{message['id']}.json").read_text())
    assert page["payload"] == {"from": "desktop", "to": "vps", "body": "hello"}


def test_an_inbox_has_what_is_for_its_owner_or_for_all_and_not_its_own(talk: Talk) -> None:
    talk.say("desktop", "to all")
    talk.say("desktop", "to the vps", "VPS")
    talk.say("desktop", "to another", "laptop")
    talk.say("Vps", "its own")
    talk.say("laptop", "from another")
    assert talk.bodies(for_="vps") == ["to all", "to the vps", "from another"]
    assert talk.bodies(for_="VPS") == talk.bodies(for_="vps")
    assert len(talk.bodies()) == 5


def test_since_gives_the_oldest_after_it_and_is_only_compared(talk: Talk) -> None:
    ids = [talk.say("a", str(n))["id"] for n in range(5)]
    assert talk.bodies(for_="b", since=ids[1], limit=2) == ["2", "3"]
    assert talk.bodies(for_="b", since=ids[1] + 1) == ["2", "3", "4"]
    assert talk.bodies(for_="b", since=0, limit=1) == ["0"]
    assert talk.bodies(for_="b", limit=2) == ["3", "4"]
    assert talk.bodies(since=ids[-1]) == []


def test_without_a_limit_an_inbox_has_twenty_and_the_log_everything(talk: Talk) -> None:
    for n in range(25):
        talk.say("a", str(n))
    assert len(talk.bodies(for_="b")) == 20
    assert len(talk.bodies(for_="b", since=0)) == 20
    assert len(talk.bodies()) == 25


def test_a_wait_ends_with_the_first_message_that_is_for_its_reader(talk: Talk) -> None:
    first = talk.say("a", "first")["id"]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(talk.bodies, for_=name, since=first, wait=30) for name in ("b", "b", "c")]
        until(lambda: [agent["listening"] for agent in talk.get("agents").json()["agents"]].count(True) == 2)
        talk.say("a", "for c", "c")
        assert waiting[2].result(2) == ["for c"]
        assert not waiting[0].done()
        talk.say("a", "for all")
        assert [one.result(2) for one in waiting[:2]] == [["for all"]] * 2


def test_a_wait_without_a_message_ends_with_an_empty_list(talk: Talk) -> None:
    began = time.monotonic()
    assert talk.bodies(for_="b", since=0, wait=1) == []
    assert 0.9 < time.monotonic() - began < 5


def test_a_wait_is_at_most_a_minute(talk: Talk) -> None:
    talk.say("a", "x")
    assert talk.bodies(for_="b", wait=86400) == ["x"]  # not refused; that it ends is seen in test_long_waits' way


def test_a_message_that_a_shell_moves_in_is_heard(talk: Talk, tmp_path: Path) -> None:
    last = talk.say("a", "x")["id"]
    page = talk.relay.spool / "tmp" / "message"
    page.write_text('{"from":"cron","body":"from a shell"}')
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(talk.heard, for_="b", since=last, wait=30)
        page.rename(talk.relay.spool / "new" / number(str(talk.key)) / "message.json")
        assert [message["body"] for message in waiting.result(10)] == ["from a shell"]


@pytest.mark.parametrize(
    "said",
    [{"body": "x"}, {"from": "", "body": "x"}, {"from": "a b", "body": "x"}, {"from": "a" * 65, "body": "x"}]
    + [{"from": 5, "body": "x"}, {"from": "é", "body": "x"}, {"from": "a/../b", "body": "x"}]
    + [{"from": "relay", "body": "x"}, {"from": "Relay", "body": "x"}, {"from": "a", "body": ""}, {"from": "a"}]
    + [{"from": "a", "body": 5}, {"from": "a", "to": "", "body": "x"}, {"from": "a", "to": ["b"], "body": "x"}],
)
def test_a_message_that_makes_no_sense_is_refused(talk: Talk, said: Any) -> None:
    answer = talk.post("messages", said)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")
    assert talk.heard() == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(talk: Talk, body: bytes) -> None:
    for path in ("messages", "agents"):
        answer = requests.post(f"{talk.relay.url}/api/{path}", body, headers=talk.headers, timeout=10)
        assert (answer.status_code, answer.json()["error"]["code"]) in ((400, "bad_json"), (400, "not_utf8"))


@pytest.mark.parametrize("query", [{"since": "x"}, {"since": -1}, {"wait": -1}, {"wait": "x"}, {"limit": 0}])
def test_a_query_that_makes_no_sense_is_refused(talk: Talk, query: dict[str, Any]) -> None:
    assert talk.get("messages", **query).json()["error"]["code"] == "bad_parameter"
    for other in ({"for_": "a b"}, {"for_": "relay"}, {"format": "xml"}):
        assert talk.get("messages", **other).json()["error"]["code"] == "bad_parameter"


def test_a_text_of_any_kind_comes_back_as_it_was_up_to_the_limit(talk: Talk) -> None:
    texts = ["<script>alert(1)</script>", "a\nb\r\n\t\"'\\$`", "😀\u202e\u0000\ud800", "x" * 65536, "\x01" * 65536]
    for text in texts:
        talk.say("a", text)
    assert talk.bodies() == texts
    answer = talk.post("messages", {"from": "a", "body": "é" * 32769})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


# Clearing and age


def test_clearing_hides_what_is_there_and_keeps_it_in_the_archive(talk: Talk) -> None:
    last = [talk.say("a", str(n))["id"] for n in range(3)][-1]
    assert talk.post("messages/clear", {}).json() == {"cleared": 3}
    assert talk.heard() == talk.heard(for_="b", since=0) == []
    assert talk.bodies(archived=1) == ["0", "1", "2"]
    assert talk.bodies(archived=1, for_="a") == []
    after = talk.say("a", "after")
    assert after["id"] > last
    assert talk.bodies() == ["after"]
    assert talk.bodies(archived=1, limit=1) == ["2"]
    assert talk.bodies(archived=1, since=0, limit=1) == ["0"]
    assert talk.post("messages/clear", {}).json() == {"cleared": 1}


@pytest.fixture
def room(spool: Spool) -> Room:
    return spool.room(number(new_key()))


def tidy(spool: Spool, **days: float) -> None:
    janitor = Janitor(spool, lambda number: None, lambda number: 0, **days)
    janitor.tidy()
    janitor._lock.release()


def hours_later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    wall, passed = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall() + hours * 3600) * 1e9))
    monkeypatch.setattr(time, "monotonic", lambda: passed() + hours * 3600)


def test_a_message_is_active_for_a_day_and_then_in_the_archive_before_and_after_it_is_moved(
    spool: Spool, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = room.post("a", None, "old")
    with monkeypatch.context() as patch:
        hours_later(patch, 23.9)
        assert [message["body"] for message in room.messages(None, None)] == ["old"]
        young = room.post("a", None, "young")
    hours_later(monkeypatch, 24.1)
    for moved in (False, True):
        if moved:
            tidy(spool)
            assert os.listdir(spool.path("new", room.mailbox.number)) == [f"{young['id']}.json"]
        assert room.messages(None, None) == [young]
        assert room.archived(None, None, 10) == [old]


def test_what_was_cleared_is_moved_under_that_name(spool: Spool, room: Room) -> None:
    message = room.post("a", None, "x")
    room.clear()
    tidy(spool)
    (path,) = Path(spool.path("archive")).glob(f"*/{room.mailbox.number}/*")
    assert path.name == f"{message['id']}.cleared.json"
    assert room.archived(None, None, 10) == [message]


def test_a_rooms_archive_is_kept_when_that_of_mailboxes_is_deleted(spool: Spool, room: Room) -> None:
    message = room.post("a", None, "x")
    room.clear()
    room.tidy()
    mailbox = spool.mailbox(number(new_key()))
    mailbox.deliver("{}")
    page = mailbox.claim(60)
    assert page is not None
    mailbox.acknowledge(page.name)
    (today,) = spool.days()
    Path(spool.path("archive", today)).rename(spool.path("archive", "2001-01-01"))
    tidy(spool)
    assert os.listdir(spool.path("archive", "2001-01-01")) == [room.mailbox.number]
    assert room.archived(None, None, 10) == [message]


def test_a_week_old_room_without_a_message_is_still_a_room(spool: Spool, room: Room) -> None:
    room.post("a", None, "x")
    room.clear()
    room.tidy()
    os.utime(spool.path("new", room.mailbox.number), (0, 0))
    tidy(spool)
    assert spool.is_room(room.mailbox.number)
    assert room.post("a", None, "y")["body"] == "y"


def test_beyond_ten_thousand_the_oldest_are_archived_and_none_refused(spool: Spool, room: Room) -> None:
    room.make()
    first = write_log(spool, room, MAX_ACTIVE)
    room.post("a", None, "one more")
    assert len(room.messages(None, None, 2 * MAX_ACTIVE)) == MAX_ACTIVE
    assert [message["id"] for message in room.archived(None, None, 10)] == [first]


def write_log(spool: Spool, room: Room, count: int) -> int:
    """Put so many messages of the last minute into a room; the id of the first."""
    first = (time.time_ns() // 1000 - 60_000_000) // 16 * 16
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for n in range(count):
        path = Path(spool.path("new", room.mailbox.number, f"{first + 16 * n}.json"))
        path.write_text(f'{{"created_at":"{created}","payload":{{"from":"a{n % 7}","body":"{n}"}}}}\n')
    return first


def test_a_read_of_a_log_of_ten_thousand_costs_by_what_it_returns(spool: Spool, room: Room) -> None:
    room.make()
    write_log(spool, room, MAX_ACTIVE)
    room.messages("b", None, 20)  # the first one looks at all
    until(lambda: room.messages("b", None, 20) and room._seen > 0)
    began = time.perf_counter()
    for _ in range(100):
        assert len(room.messages("b", None, 20)) == 20
    a_read_of_twenty = (time.perf_counter() - began) / 100
    began = time.perf_counter()
    assert len(room.messages(None, None, MAX_ACTIVE)) == MAX_ACTIVE
    assert a_read_of_twenty < (time.perf_counter() - began) / 50


# Cursors


def test_every_reader_sees_every_message_for_it_once_and_in_order_across_a_restart_and_from_two_processes(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay(PAGERMCP_ROOM="open")
    talk = Talk(relay, key)
    talk.say("somebody", "makes the room")
    senders, messages, readers = 8, 500, 4
    from_a_second_process = subprocess.Popen(
        [sys.executable, "-c", SECOND_PROCESS, str(relay.spool), number(key), str(messages)], cwd=REPOSITORY
    )
    urls = {"now": relay.url}
    seen: dict[str, list[tuple[int, str, str]]] = {f"reader-{n}": [] for n in range(readers)}
    done = threading.Event()

    def retrying(act: Callable[[], requests.Response]) -> requests.Response:
        while True:
            try:
                answer = act()
                if answer.status_code < 500:
                    return answer
            except requests.RequestException:
                pass
            done.wait(0.05)

    def send(n: int) -> None:
        with requests.Session() as session:
            session.headers.update(talk.headers)
            for m in range(messages):
                said = {"from": f"sender-{n}", "body": str(m), **({"to": f"reader-{m % readers}"} if m % 2 else {})}
                retrying(lambda said=said: session.post(f"{urls['now']}/api/messages", json=said, timeout=30))

    def read(name: str) -> None:
        since = 0
        with requests.Session() as session:
            session.headers.update(talk.headers)
            while True:
                over = done.is_set()
                query = f"for={name}&since={since}&wait={0 if over else 1}&limit=100"
                url = f"/api/messages?{query}"
                answer = retrying(lambda url=url: session.get(urls["now"] + url, timeout=30))
                heard = answer.json()["messages"]
                seen[name] += [(message["id"], message["from"], message["body"]) for message in heard]
                since = heard[-1]["id"] if heard else since
                done.wait(0.05)  # it thinks about what it has read
                if over and not heard:
                    return

    with concurrent.futures.ThreadPoolExecutor(senders + readers) as threads:
        reading = [threads.submit(read, name) for name in seen]
        sending = [threads.submit(send, n) for n in range(senders)]
        until(lambda: max(map(len, seen.values())) > 200, 60)
        relay.stop()
        relay = start_relay(PAGERMCP_ROOM="open")
        urls["now"] = relay.url
        for one in sending:
            one.result(100)
        assert from_a_second_process.wait(100) == 0
        done.set()
        for one in reading:
            one.result(30)
    everything = {message["id"]: message for message in Talk(relay, key).heard(since=0)}
    assert len(everything) >= (senders + 1) * messages
    for name, heard in seen.items():
        ids = [id for id, _, _ in heard]
        assert ids == sorted(set(ids))
        assert ids == [id for id, message in everything.items() if message["to"] in (None, name)]


SECOND_PROCESS = """
import sys
from pagermcp.spool import Spool

root, number, count = sys.argv[1:]
room = Spool(root, worker=1).room(number)
for n in range(int(count)):
    room.post("second-process", None, str(n))
"""


# Agents


def test_whoever_names_itself_is_seen(talk: Talk) -> None:
    talk.say("Poster", "x")
    talk.heard(for_="reader")
    answer = talk.post("agents", {"name": "visitor", "machine": "visitor.lan"})
    assert answer.status_code == 201
    agents = talk.get("agents").json()["agents"]
    assert {agent["name"] for agent in agents} == {"Poster", "reader", "visitor"}
    assert {agent["machine"] for agent in agents} == {None, "visitor.lan"}
    assert all(agent["last_seen"].endswith("Z") and agent["listening"] is False for agent in agents)
    talk.say("POSTER", "again")
    assert talk.get("agents").json()["agents"][0]["name"] == "Poster"
    assert talk.post("agents", {"name": "visitor"}).json()["machine"] == "visitor.lan"


@pytest.mark.parametrize("said", [{}, {"name": "a b"}, {"name": "relay"}, {"name": "a", "machine": 5}])
def test_a_check_in_that_makes_no_sense_is_refused(talk: Talk, said: Any) -> None:
    answer = talk.post("agents", said)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_parameter")


def test_names_may_have_dots_in_front_and_are_no_paths(talk: Talk) -> None:
    for name in ("..", ".", "...", "_-._"):
        talk.say(name, "x")
    assert {agent["name"] for agent in talk.get("agents").json()["agents"]} == {"..", ".", "...", "_-._"}
    folder = talk.relay.spool / "rooms" / number(str(talk.key)) / "agents"
    assert len(os.listdir(folder)) == 4


def test_of_too_many_agents_the_one_not_seen_for_longest_is_forgotten(room: Room) -> None:
    room.make()
    for n in range(MAX_AGENTS):
        path = Path(room._folder, "agents", f"a{n}.json")
        path.write_text(f'{{"name":"a{n}","machine":null}}')
        os.utime(path, (n, n))
    room.saw("one-more")
    names = [agent.name for agent in room.agents()]
    assert len(names) == MAX_AGENTS
    assert names[0] == "one-more"
    assert "a0" not in names
    assert room.post("one-more", None, "x")


# Which room


def test_a_mailbox_with_pages_is_no_room_and_a_room_takes_no_pages(open_relay: Relay, key: str) -> None:
    open_relay.notify(key)
    for answer in (
        Talk(open_relay, key).post("messages", {"from": "a", "body": "x"}),
        Talk(open_relay, key).get("messages"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_a_room")
    room = new_key()
    Talk(open_relay, room).say("a", "x")
    answers = [
        open_relay.notify(room),
        open_relay.post(f"/to/{number(room)}", "x"),
        open_relay.get(f"/mailboxes/{room}/wait"),
        open_relay.post(f"/mailboxes/{room}/consume"),
        open_relay.with_key(room, "GET", "/wait"),
        open_relay.with_key(room, "POST", "/ack", json={"ids": ["1795966550281088"]}),
        open_relay.with_key(room, "POST", "/replay", json={"ids": ["1795966550281088"]}),
        open_relay.post(f"/to/{OPEN_ROOM}", "x") if (open_relay.spool / "rooms" / OPEN_ROOM).is_dir() else None,
    ]
    for answer in filter(None, answers):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "is_a_room")
        assert "POST /api/messages" in answer.json()["error"]["hint"]
    assert Talk(open_relay, room).bodies() == ["x"]


def test_rooms_do_not_hear_each_other(open_relay: Relay, talk: Talk) -> None:
    talk.say("a", "in one")
    other = Talk(open_relay, new_key())
    other.say("a", "in another")
    assert (talk.bodies(), other.bodies()) == (["in one"], ["in another"])


def test_the_open_room_needs_no_key_and_ignores_what_is_no_bearer(open_relay: Relay) -> None:
    Talk(open_relay).say("a", "x")
    assert "x" in Talk(open_relay, Authorization="Basic dXNlcjpwYXNz").bodies()
    assert "x" in Talk(open_relay, Authorization="Digest username=x").bodies()
    assert Talk(open_relay, new_key()).bodies() == []
    assert Talk(open_relay, Authorization="Bearer x").get("messages").status_code == 401


def test_without_an_open_room_a_key_is_needed(relay: Relay, key: str) -> None:
    for headers in ({}, {"Authorization": "Basic dXNlcjpwYXNz"}):
        for method, path in [("GET", "messages"), ("POST", "messages"), ("GET", "agents"), ("POST", "messages/clear")]:
            answer = requests.request(method, f"{relay.url}/api/{path}", headers=headers, json={}, timeout=10)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"]
    assert Talk(relay, key).say("a", "x")
    assert Talk(relay, number(key)).get("messages").status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://["])
def test_a_page_of_another_site_may_not_use_a_room(open_relay: Relay, key: str, origin: str) -> None:
    for talk in (Talk(open_relay, key, Origin=origin), Talk(open_relay, Origin=origin)):
        answer = talk.post("messages", {"from": "a", "body": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_site")
    assert Talk(open_relay, Origin=open_relay.url).get("messages").status_code == 200


def test_a_browser_that_says_it_comes_from_another_site_is_refused(open_relay: Relay) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert Talk(open_relay, Sec_Fetch_Site=site).get("messages").status_code == status


def test_the_open_room_cannot_be_made_a_mailbox(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_ROOM="open")
    for answer in (relay.post("/notify", json={"uuid": OPEN_ROOM, "m": 1}), relay.notify(OPEN_ROOM)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "is_a_room")
    assert Talk(relay).heard(for_="early") == []
    assert [agent["name"] for agent in Talk(relay).get("agents").json()["agents"]] == ["early"]


def test_a_wait_for_pages_takes_no_message_when_the_mailbox_becomes_a_room(open_relay: Relay, key: str) -> None:
    talk = Talk(open_relay, key)
    waiting = open_relay.start_waiting(key)
    until(lambda: (open_relay.spool / "read" / number(key)).exists())
    message = talk.say("a", "precious")
    assert waiting.result(10).status_code == 409
    assert talk.heard() == [message]


def test_two_clears_in_one_moment_both_count(room: Room) -> None:
    for n in range(50):
        room.post("a", None, f"{n}")
        room.clear()
        room.messages(None, None)
        room.post("a", None, f"{n} again")
        room.clear()
        assert room.messages(None, None) == []


def test_a_file_with_an_attempt_in_its_name_is_a_message_too(spool: Spool, room: Room) -> None:
    first, second = room.post("a", None, "first"), room.post("a", None, "second")
    folder = Path(spool.path("new", room.mailbox.number))
    (folder / f"{first['id']}.json").rename(folder / f"{first['id']}.2.json")
    assert room.messages(None, 0, 1) == [first]
    assert room.messages(None, first["id"], 1) == [second]
    room.clear()
    room.tidy()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "relay", ""])
def test_the_open_room_is_not_for_hosts_that_it_does_not_know(open_relay: Relay, host: str) -> None:
    answer = Talk(open_relay, Host=host).get("messages")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080", "192.168.1.7:8080"])
def test_the_open_room_is_for_this_machine_and_for_addresses(open_relay: Relay, host: str) -> None:
    assert Talk(open_relay, Host=host).get("messages").status_code == 200


def test_the_open_room_is_for_the_public_url_also_with_a_password_in_it(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_ROOM="open", PAGERMCP_PUBLIC_URL="https://user:secret@chat.example.org")
    site = {"Host": "chat.example.org", "Origin": "https://chat.example.org"}
    assert Talk(relay, **site).get("messages").status_code == 200
    assert Talk(relay, Host="other.example.org").get("messages").status_code == 403
