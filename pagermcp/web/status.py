"""How the relay is, for its operator: /status for people, /status.json, and /metrics. Only where a token is set.

The page itself tells nothing: it asks for the token, keeps it in its tab, and shows what /status.json says."""

import datetime
import hmac
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Blueprint, Response, current_app, request

import pagermcp
from pagermcp.measures import BOUNDS, DURATIONS, MEASURES, OUTCOMES, REFUSALS, WATCHING, Duration
from pagermcp.spool.census import Census, Count
from pagermcp.spool.page import now
from pagermcp.spool.whereabouts import STATES
from pagermcp.web.answers import NO_STORE, answer, when
from pagermcp.web.errors import Refused
from pagermcp.web.frame import framed
from pagermcp.web.services import services

if TYPE_CHECKING:
    from prometheus_client import Metric

_PATIENCE_SECONDS = 1.0

blueprint = Blueprint("status", __name__)


@blueprint.get("/status")
def status() -> Response:
    return framed("status.html")


@blueprint.get("/status.json")
def status_json() -> Response:
    """All figures of all workers."""
    _check_operator()
    relay, count, disk = services(), _census(), _disk()
    oldest = None
    if count.oldest:
        id, box = f"{int(count.oldest):016d}", f"{int(count.oldest_in):08x}"
        oldest = {"id": id, "mailbox": box, "age_seconds": _age(count)}
    counted = {
        "as_of": _when(count.as_of),
        "seconds": round(count.seconds, 3),
        "whole": bool(count.whole),
        "mailboxes": int(count.mailboxes),
        "rooms": int(count.rooms),
        "pages": {state: int(getattr(count, state)) for state in STATES},
        "oldest_waiting": oldest,
    }
    return answer(
        {
            "as_of": when(now()),
            "since": _when(MEASURES.since),
            "version": pagermcp.__version__,
            "build": relay.settings.build,
            "workers": relay.settings.workers,
            "counted": counted,
            "waiters": MEASURES.total("waiters"),
            "pages": {outcome: MEASURES.total(outcome) for outcome in OUTCOMES},
            "refusals": {code: MEASURES.total(code) for code in REFUSALS},
            "pages_per_minute": MEASURES.pages_per_minute(),
            "leases_run_out": MEASURES.total("lease_run_out"),
            "seconds": {name: _summary(name) for name in DURATIONS},
            "watching": [WATCHING[state] for state in _watching()],
            "watcher_restarts": MEASURES.total("watcher_restart"),
            "retention": relay.janitor.state,
            "disk": disk | {"kept_free_bytes": relay.settings.min_free_bytes},
        }
    )


@blueprint.get("/metrics")
def metrics() -> Response:
    """The same for Prometheus."""
    _check_operator()
    from prometheus_client import CollectorRegistry  # takes a tenth of a second, and not everybody asks
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector())
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(registry), 200, NO_STORE, content_type=content_type)


class _Collector:
    """What prometheus-client asks for the figures."""

    def describe(self) -> "Iterable[Metric]":
        return ()

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        count, disk = _census(), _disk()

        def gauge(name: str, what: str, value: float | None) -> "Iterable[Metric]":
            if value is not None:
                yield GaugeMetricFamily(f"pagermcp_{name}", what, value)

        pages = CounterMetricFamily("pagermcp_pages", "What has become of pages.", labels=["outcome"])
        for outcome in OUTCOMES:
            pages.add_metric([outcome], MEASURES.total(outcome))
        yield pages
        refusals = CounterMetricFamily("pagermcp_refusals", "Met a limit.", labels=["code"])
        for code in REFUSALS:
            refusals.add_metric([code], MEASURES.total(code))
        yield refusals
        runs_out, restarts = MEASURES.total("lease_run_out"), MEASURES.total("watcher_restart")
        yield CounterMetricFamily("pagermcp_leases_run_out", "Leases that ran out.", runs_out)
        yield CounterMetricFamily("pagermcp_watcher_restarts", "Watching had ended and began anew.", restarts)
        for name, what in (
            ("fsync", "Making a file or a folder durable, two for each page."),
            ("wake", "From the link of a page whose reader waited until the system had the answer."),
            ("janitor", "A pass of the janitor."),
        ):
            counts, seconds = MEASURES.durations(name)  # type: ignore[arg-type]
            until = [sum(counts[: place + 1]) for place in range(len(counts))]
            buckets = [*zip(map(str, map(float, BOUNDS)), until, strict=False), ("+Inf", until[-1])]
            yield HistogramMetricFamily(f"pagermcp_{name}_seconds", what, buckets=buckets, sum_value=seconds)
        yield from gauge("waiters", "Requests that wait, also those that only look.", MEASURES.total("waiters"))
        yield from gauge("workers", "Processes that serve.", services().settings.workers)
        watching = GaugeMetricFamily("pagermcp_watching", "0 ok, 1 degraded, 2 off.", labels=["worker"])
        for worker, watched in enumerate(_watching()):
            watching.add_metric([str(worker)], watched)
        yield watching
        for name, value in disk.items():
            yield from gauge(f"disk_{name}", "Of the spool's disk.", value)
        if not count.as_of:
            return
        yield from gauge("census_timestamp_seconds", "When what follows was counted.", count.as_of)
        yield from gauge("census_whole", "0: not all could be counted in time.", count.whole)
        yield from gauge("mailboxes", "Mailboxes there are.", count.mailboxes)
        yield from gauge("oldest_waiting_page_age_seconds", "0 when none waits.", _age(count))
        states = GaugeMetricFamily("pagermcp_spool_pages", "Pages there are, by state.", labels=["state"])
        for state in STATES:
            states.add_metric([state], getattr(count, state))
        yield states


def _check_operator() -> None:
    """Raises Refused."""
    scheme, _, token = request.environ.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
    ours = services().settings.operator_token.encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(errors="replace"), ours):
        hint = "send -H 'Authorization: Bearer <what PAGERMCP_OPERATOR_TOKEN says>'"
        raise Refused(401, "unauthorized", "this is for the relay's operator", hint)


def _census() -> Count:
    census: Census = current_app.extensions["pagermcp.census"]
    return census.latest(_PATIENCE_SECONDS)


def _when(seconds: float) -> str | None:
    return when(datetime.datetime.fromtimestamp(seconds, datetime.UTC)) if seconds else None


def _age(count: Count) -> float:
    """Of the oldest waiting page, in seconds."""
    return round(max(0.0, time.time() - count.oldest / 1e6), 3) if count.oldest else 0


def _watching() -> list[int]:
    """An index of WATCHING for each worker; of the others as they were two seconds ago at most."""
    relay = services()
    MEASURES.put("watching", WATCHING.index(relay.watcher.state))
    return MEASURES.each("watching", relay.settings.workers)


def _disk() -> dict[str, int | None]:
    disk = os.statvfs(services().spool.root)
    sizes = {"free_bytes": disk.f_bavail * disk.f_frsize, "size_bytes": disk.f_blocks * disk.f_frsize}
    return {**sizes, "free_inodes": disk.f_favail if disk.f_files else None}  # btrfs counts none


def _summary(name: Duration) -> dict[str, float | None]:
    """How many, their mean, and what half and 99 of 100 do not exceed, as far as the buckets tell."""
    counts, seconds = MEASURES.durations(name)
    total = sum(counts)

    def bound(share: float) -> float | None:
        until = 0
        for limit, count in zip(BOUNDS, counts, strict=False):
            until += count
            if until >= share * total:
                return limit
        return None

    if not total:
        return {"count": 0, "mean": None, "p50": None, "p99": None}
    return {"count": total, "mean": round(seconds / total, 6), "p50": bound(0.5), "p99": bound(0.99)}
