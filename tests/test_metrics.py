"""GET /metrics: what Prometheus reads is right, of one worker and of several."""

import os
import re
import signal
from collections.abc import Callable

import pytest
from conftest import REPOSITORY, Relay, new_key, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from test_status import TOKEN, ask
from test_workers import Worker, pids

from pagermcp.measures import BOUNDS

Samples = dict[tuple[str, str], float]


def samples(relay: Relay) -> Samples:
    """Each sample's value by its name and the value of its label."""
    answer = ask(relay, "/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            assert len(sample.labels) <= 1
            at = sample.name, "".join(sample.labels.values())
            assert at not in found
            found[at] = sample.value
    return found


def total(relay: Relay, name: str, label: str = "") -> float:
    return samples(relay)[name, label]


def test_counts_are_right_after_known_traffic(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN)
    for _ in range(4):
        relay.notify(key, headers={"Idempotency-Key": "once"})
    relay.post(f"/mailboxes/{key}/consume")
    waiting = relay.start_waiting(key)
    until(lambda: total(relay, "pagermcp_waiters") == 1)
    relay.notify(key, headers={"Pager-Replace": "a"})
    waiting.result(10)
    for _ in range(2):
        relay.notify(key, headers={"Pager-Replace": "b"})
    relay.lease(key, "lease=0.1&timeout=0")
    until(lambda: total(relay, "pagermcp_leases_run_out_total") == 1)
    relay.notify(new_key(), headers={"Pager-Expires": "0.1s"})
    until(lambda: total(relay, "pagermcp_pages_total", "expired") == 1)
    got = samples(relay)
    assert {label: value for (name, label), value in got.items() if name == "pagermcp_pages_total"} == {
        "accepted": 5,
        "duplicate": 3,
        "refused": 0,
        "acknowledged": 2,
        "expired": 1,
        "replaced": 1,
        "cleared": 0,
        "dead": 0,
    }
    assert got["pagermcp_waiters", ""] == 0
    assert got["pagermcp_watching", "0"] == 0
    for name in ("fsync", "wake", "janitor"):
        buckets = [got[f"pagermcp_{name}_seconds_bucket", le] for le in (*map(str, map(float, BOUNDS)), "+Inf")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == got[f"pagermcp_{name}_seconds_count", ""] > 0
        assert got[f"pagermcp_{name}_seconds_sum", ""] > 0
    assert got["pagermcp_wake_seconds_count", ""] == 1
    assert got["pagermcp_disk_free_bytes", ""] > 0


def test_what_is_counted_in_the_spool_follows(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN)
    samples(relay)
    relay.notify(key)
    until(lambda: total(relay, "pagermcp_spool_pages", "waiting") == 1, 30)
    assert total(relay, "pagermcp_mailboxes") == 1
    age = total(relay, "pagermcp_oldest_waiting_page_age_seconds")
    assert 0 < age < total(relay, "pagermcp_oldest_waiting_page_age_seconds")


def test_who_reads_openmetrics_gets_it(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0"}
    answer = relay.get("/metrics", headers=headers)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert len(list(openmetrics(answer.text))) > 10


def test_workers_are_merged_and_one_that_is_killed_takes_no_counts_with_it(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_WORKERS=2)
    for worker in (0, 1):
        session = Worker(relay, worker)
        for _ in range(5):
            session.notify(new_key())
    before = total(relay, "pagermcp_pages_total", "accepted")
    waiting = [relay.start_waiting(new_key()) for _ in range(12)]
    until(lambda: total(relay, "pagermcp_waiters") == len(waiting))
    assert before == 10
    assert total(relay, "pagermcp_workers") == 2
    os.kill(pids(relay)[1], signal.SIGKILL)
    again = Worker(relay, 1)
    left = sum(not one.done() for one in waiting)
    until(lambda: total(relay, "pagermcp_waiters") == sum(not one.done() for one in waiting) <= left)
    for _ in range(10):  # whichever worker answers
        assert total(relay, "pagermcp_pages_total", "accepted") == 10
    again.notify(new_key())
    for _ in range(10):
        assert total(relay, "pagermcp_pages_total", "accepted") == 11


@pytest.mark.parametrize("watch", ["auto", "off"])
def test_each_worker_says_how_it_watches(start_relay: Callable[..., Relay], watch: str) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_WORKERS=2, PAGERMCP_WATCH=watch)
    state = {"auto": 0, "off": 2}[watch]
    until(lambda: [total(relay, "pagermcp_watching", worker) for worker in ("0", "1")] == [state, state])


def test_the_protocol_names_every_metric(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN)
    until(lambda: ("pagermcp_mailboxes", "") in samples(relay))
    text = (REPOSITORY / "docs" / "protocol.md").read_text().partition("### GET /metrics")[2]
    named = set(re.findall(r"`(pagermcp_[a-z_]+)(?:\{[a-z]+\})?`", text))
    assert named == {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in samples(relay)}
