"""kill -9 at random moments, under load: what was accepted is there afterwards, once."""

import collections
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import Relay, new_key, number

POSTERS, READERS = 8, 4


class Load:
    """Clients that post and read until the relay goes, and what they were told meanwhile."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys = [new_key() for _ in range(3)]
        self.accepted: dict[str, int] = {}  # number/id, since an id is only that of one mailbox: n
        self.acknowledged: set[str] = set()
        self.came_after_their_end: list[str] = []
        self.unanswered: collections.deque[int] = collections.deque()  # sent with an idempotency key
        self.faults: list[str] = []
        self._n = 0
        self._lock = threading.Lock()

    def run(self, relay: Relay, seconds: float) -> None:
        """Load the relay, kill it after so many seconds, and return when all clients have noticed."""
        clients = [threading.Thread(target=self._until_it_goes, args=[self.post, relay, n]) for n in range(POSTERS)]
        clients += [threading.Thread(target=self._until_it_goes, args=[self.read, relay, n]) for n in range(READERS)]
        for client in clients:
            client.start()
        threading.Event().wait(seconds)
        relay.stop(signal.SIGKILL)
        for client in clients:
            client.join(30)

    def _until_it_goes(self, act: Callable[[requests.Session, str, int], None], relay: Relay, n: int) -> None:
        with requests.Session() as session:
            try:
                while True:
                    act(session, relay.url, n)
            except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):  # the latter: an answer cut
                return

    def post(self, session: requests.Session, url: str, client: int) -> None:
        with self._lock:
            self._n += 1
            n = self._n
            key = self.random.choice(self.keys)
        options: dict[str, str] = {}
        if client == 0:
            with self._lock:
                n = self.unanswered.popleft() if self.unanswered else n
                key = self.keys[0]
            options = {"Idempotency-Key": f"key-{n}"}
        elif client == 1:
            options = {"Pager-Delay": "0.2"}
        elif client == 2:
            options = {"Pager-Run": f"run-{n // 50}", **({"Pager-Expect": "1h"} if n % 3 else {})}
        try:
            headers = {"Authorization": f"Bearer {number(key)}", **options}
            answer = session.post(f"{url}/notify", json={"n": n}, headers=headers, timeout=30)
        except requests.RequestException:
            if client == 0:
                self.unanswered.append(n)
            raise
        if answer.status_code == 202:
            self.accepted[f"{number(key)}/{answer.json()['id']}"] = n
        else:
            self.faults.append(answer.text)

    def read(self, session: requests.Session, url: str, client: int) -> None:
        key = self.keys[client % len(self.keys)]
        box = number(key)
        session.headers["Authorization"] = f"Bearer {key}"
        answer = session.get(f"{url}/wait?timeout=0.2&max=5&lease={self.random.choice([1, 60])}", timeout=30)
        pages = answer.json()["pages"]
        came = [f"{box}/{page['id']}" for page in pages]
        self.came_after_their_end += [page for page in came if page in self.acknowledged]
        handles = [page["handle"] for page in pages]
        if not handles:
            return
        call = self.random.choice(["ack", "ack", "ack", "release", "extend", None])  # None: until the lease runs out
        if call:
            done = session.post(f"{url}/{call}", json={"ids": handles}, timeout=30)
            if done.status_code not in (200, 409):
                self.faults.append(done.text)
            if call == "ack":
                self.acknowledged |= {f"{box}/{handle[:16]}" for handle in done.json()["acknowledged"]}


def places(spool: Path) -> dict[str, list[Path]]:
    """All pages on the disk, by number and id."""
    found: dict[str, list[Path]] = collections.defaultdict(list)
    for pattern in ("new/*/*.json", "leased/*/*.json", "archive/*/*/*.json", "dead/*/*/*.json", "scheduled/*.json"):
        for path in spool.glob(pattern):
            box = path.name[17:53] if path.parent.name == "scheduled" else path.parent.name
            found[f"{box}/{path.name.rpartition('-')[2][:16]}"].append(path)
    return found


@pytest.mark.timeout(3600)
def test_every_accepted_page_is_found_once_after_every_kill(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = random.randrange(1 << 32)
    load = Load(seed)
    spool = tmp_path / "spool"
    for round in range(request.config.getoption("--kills")):
        relay = Relay(spool, tmp_path / "log", MAX_MESSAGES_PER_MAILBOX=1_000_000)
        load.run(relay, load.random.uniform(0.05, 0.6))
        found = places(spool)
        wrong = {id: found.get(id, []) for id in load.accepted if len(found.get(id, [])) != 1}
        assert not wrong, f"round {round}, seed {seed}: {wrong}"
    assert load.faults == []
    assert load.came_after_their_end == []
    assert len(load.accepted) > 100
    assert len(load.acknowledged) > 10
    assert "Traceback" not in (tmp_path / "log").read_text()

    relay = Relay(spool, tmp_path / "log", MAX_MESSAGES_PER_MAILBOX=1_000_000)
    while load.unanswered:  # whoever got no answer asks again
        with requests.Session() as session:
            load.post(session, relay.url, 0)
    _drain(relay, load)
    assert relay.stop() == 0
    contents: dict[int, list[str]] = collections.defaultdict(list)
    for id, paths in places(spool).items():
        (path,) = paths
        payload: dict[str, Any] = json.loads(path.read_text())["payload"]
        if "n" in payload:
            contents[payload["n"]].append(id)
    assert all(load.accepted[id] == n for n, ids in contents.items() for id in ids if id in load.accepted)
    doubled = {n: ids for n, ids in contents.items() if len(ids) > 1}
    assert not doubled, f"seed {seed}: one page became two: {doubled}"


def _drain(relay: Relay, load: Load) -> None:
    """Read all that waits, and acknowledge it; what was acknowledged before must not be among it."""
    deadline = time.monotonic() + 60
    for key in load.keys:
        while pages := relay.lease(key, "timeout=0&max=100&lease=60"):
            assert time.monotonic() < deadline
            assert not {f"{number(key)}/{page['id']}" for page in pages} & load.acknowledged
            relay.with_key(key, "POST", "/ack", json={"ids": [page["handle"] for page in pages]})
