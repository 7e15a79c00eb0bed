"""The wall clock is set, forth or back, under a running relay: nothing is early, late, out of order, or lost by it.

The relay's own clock is moved, as seen by its Python; the kernel's goes on, as do the times of files."""

import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Relay, new_key, number, until

MOVABLE_CLOCK = """
import os, time

def moved(real, unit):
    def now():
        with open(os.environ["CLOCK"]) as clock:
            return real() + type(real())(float(clock.read()) * unit)
    return now

time.time, time.time_ns = moved(time.time, 1), moved(time.time_ns, 1_000_000_000)
"""
HOUR, TEN_YEARS = 3600, 3650 * 86400


class Clock:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: float) -> None:
        """So far off the true time."""
        self.path.with_suffix(".new").write_text(str(seconds))
        self.path.with_suffix(".new").rename(self.path)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def relay(start_relay: Callable[..., Relay], clock: Clock) -> Relay:
    return start_relay(prelude=MOVABLE_CLOCK, CLOCK=clock.path)


steps = pytest.mark.parametrize("step", [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS], ids=["+1h", "-1h", "+10y", "-10y"])


def test_ids_rise_whatever_the_clock_does(relay: Relay, clock: Clock, key: str) -> None:
    ids = []
    for step in (0, HOUR, 0, -HOUR, TEN_YEARS, 0, -TEN_YEARS, 0):
        clock.set(step)
        ids += [relay.notify(key).json()["id"] for _ in range(3)]
    assert ids == sorted(set(ids))
    assert [page["id"] for page in relay.lease(key, "max=100&lease=60")] == ids


@steps
def test_waits_last_as_long_as_asked(relay: Relay, clock: Clock, key: str, step: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        waiting = thread.submit(relay.lease, key, "timeout=2")
        until(lambda: relay.new(key).is_dir())
        clock.set(step)
        assert waiting.result(10) == []
    assert 1.9 < time.monotonic() - began < 2.5


@steps
def test_nothing_expires_early_and_nothing_looks_older_than_it_is(
    relay: Relay, clock: Clock, key: str, step: float
) -> None:
    ids = [relay.notify(key, "before", headers={"Pager-Expires": "5m"}).json()["id"]]
    clock.set(step)
    ids.append(relay.notify(key, "after", headers={"Pager-Expires": "5m"}).json()["id"])
    pages = relay.with_key(key, "GET", "/pages").json()["pages"]
    assert [(page["id"], page["age_seconds"] < 10, page["stale"]) for page in pages] == [
        (id, True, False) for id in ids
    ]
    for id in ids:
        assert relay.get(f"/mailboxes/{key}/wait?max_age_seconds=60").json()["id"] == id
        assert until(lambda id=id: relay.receipt(key, id).get("outcome")) == "acknowledged"


@steps
def test_pages_expire_when_they_should(relay: Relay, clock: Clock, key: str, step: float) -> None:
    waiting, leased = (relay.notify(key, headers={"Pager-Expires": "2"}).json()["id"] for _ in range(2))
    clock.set(step)
    relay.lease(key, "lease=60")
    relay.with_key(key, "POST", "/release", json={"ids": [waiting]})
    assert relay.receipt(key, leased)["state"] == relay.receipt(key, waiting)["state"] == "waiting"
    until(lambda: relay.receipt(key, leased).get("outcome") == "expired", 4)
    assert relay.lease(key) == []
    assert relay.receipt(key, waiting)["outcome"] == "expired"


@steps
def test_leases_hold_and_run_out_as_promised(relay: Relay, clock: Clock, key: str, step: float) -> None:
    holds, runs_out = (relay.notify(key, name).json()["id"] for name in ("holds", "runs out"))
    relay.lease(key, "lease=60")
    relay.lease(key, "lease=2")
    clock.set(step)
    began = time.monotonic()
    (page,) = relay.lease(key, "timeout=20&lease=60")
    assert 1 < time.monotonic() - began < 3
    assert page["handle"] == f"{runs_out}.2"
    answer = relay.with_key(key, "POST", "/extend", json={"ids": [holds], "lease": 60})
    assert answer.status_code == 200
    assert relay.lease(key, "timeout=2.5") == []
    assert relay.with_key(key, "POST", "/ack", json={"ids": [holds]}).status_code == 200


@steps
def test_delayed_pages_and_switches_come_when_they_should(relay: Relay, clock: Clock, key: str, step: float) -> None:
    relay.notify(key, "delayed", headers={"Pager-Delay": "1.5"})
    relay.notify(key, "", headers={"Pager-Run": "r", "Pager-Expect": "1.5"})
    later = relay.notify(key, "later", headers={"Pager-Delay": "30s"}).json()["id"]
    clock.set(step)
    began = time.monotonic()
    pages = relay.lease(key, "timeout=20&lease=60") + relay.lease(key, "timeout=20&lease=60")
    assert 1 < time.monotonic() - began < 2.5
    assert {page["payload"]["message"].partition(":")[0] for page in pages} == {"delayed", "no report within 1.5 s"}
    assert all(page["age_seconds"] < 10 for page in pages)
    assert relay.receipt(key, later)["state"] == "scheduled"


@steps
def test_an_idempotency_key_stays_known(relay: Relay, clock: Clock, key: str, step: float) -> None:
    first = relay.notify(key, headers={"Idempotency-Key": "a"}).json()["id"]
    clock.set(step)
    assert relay.notify(key, headers={"Idempotency-Key": "a"}).json()["id"] == first


@steps
def test_a_relay_that_starts_with_another_clock_loses_nothing(
    start_relay: Callable[..., Relay], clock: Clock, key: str, step: float
) -> None:
    relay = start_relay(prelude=MOVABLE_CLOCK, CLOCK=clock.path)
    archived = relay.notify(other := new_key()).json()["id"]
    relay.post(f"/mailboxes/{other}/consume")
    waiting = relay.notify(key).json()["id"]
    scheduled = relay.notify(key, headers={"Pager-Delay": "20s"}).json()["id"]
    relay.stop()
    clock.set(step)
    relay = start_relay(prelude=MOVABLE_CLOCK, CLOCK=clock.path)
    assert relay.lease(key, "timeout=5&lease=60")[0]["id"] in (waiting, scheduled)
    assert relay.receipt(key, waiting)["state"] in ("waiting", "leased")
    assert relay.receipt(key, scheduled)["state"] == "waiting" if step > 0 else "scheduled"
    assert relay.receipt(number(other), archived)["state"] == "archived"
    assert relay.notify(key).json()["id"] > scheduled
    assert relay.notify(other).json()["id"] > archived
