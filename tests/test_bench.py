"""`./dev bench`: its arithmetic, what it says of a relay that can't do a thing, and small runs of all of it."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, clean_environment, until

from bench import report, steps
from bench.__main__ import chosen, measure, medians, uneven
from bench.servers import NOTHING, VARIANTS, Variant

TINY = dataclasses.replace(steps.QUICK, seconds=0.2, waiters=(5,), idle_at=(), rounds=2, mailboxes=5)


def start_bench(folder: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench", "--folder", folder / "disk", "--png", folder / "bench.png", *options]
    out = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, env=clean_environment(), stdout=out, stderr=out, text=True)


@pytest.mark.parametrize(
    ("times", "p50", "p99"),
    [([7], 7, 7), ([2, 1], 1, 2), (range(1, 101), 50, 99), (range(1, 1001), 500, 990), ([3, 1, 2], 2, 3)],
)
def test_p50_and_p99_are_times_that_were_measured(times: list[float], p50: float, p99: float) -> None:
    assert (steps.percentile(list(times), 0.5), steps.percentile(list(times), 0.99)) == (p50, p99)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (42.04, "42.0"), (1288.4, "1,288"), (99999, "99,999")],
)
def test_numbers_have_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_the_table_divides_the_second_relay_by_the_first() -> None:
    rows: list[report.Row] = [
        ("posts/s", {"old": 1000.0, "new": 2500.0, "nothing": 90000.0}),
        ("wake p99 ms", {"old": 20.0, "new": None}),
    ]
    assert report.table(rows, ["old", "new", "nothing"]).splitlines() == [
        "|             |   old |   new | nothing | new ÷ old |",
        "| ----------- | ----: | ----: | ------: | --------: |",
        "| posts/s     | 1,000 | 2,500 |  90,000 |      2.50 |",
        "| wake p99 ms |  20.0 |     - |       - |         - |",
    ]
    assert report.chart(rows, ["old", "new"], width=10).splitlines() == [
        "posts/s",
        "  old ████ 1,000",
        "  new ██████████ 2,500",
        "wake p99 ms",
        "  old ██████████ 20.0",
        "  new ▏ -",
    ]


def test_a_relay_that_could_not_in_one_round_can_not() -> None:
    assert medians({"old": [1.0, 5.0, 2.0], "new": [1.0, None, 2.0]}) == {"old": 2.0, "new": None}


def test_relays_that_had_another_disk_are_not_to_be_compared() -> None:
    step = steps.steps(TINY)[0]
    assert uneven(step, {"old": 1000, "new": 1900}) == []
    told = "posts: do not compare, the disk changed: 7,000 before old, 450 before new (fsyncs/s)"
    assert uneven(step, {"old": 7000, "new": 450}) == [told]


def test_a_name_that_is_neither_a_step_nor_a_relay_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"there is no post: --only takes posts, asleep, wake-1, .*reference, relay"):
        chosen(steps.steps(steps.FULL), list(VARIANTS), ["posts", "post"])


REFUSES = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b'{"error": {"code": "too_many_connections"}}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        threading.Event().wait(30)  # the refusal comes first
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"refuses on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (REFUSES, "a wait was refused: 503 too_many_connections"),
        ("raise SystemExit('no room')", "it did not start: no room"),
    ],
)
def test_what_a_relay_can_not_do_is_a_dash_and_a_line_that_says_why(tmp_path: Path, script: str, why: str) -> None:
    values: dict[str, dict[str, list[float | None]]] = {}
    notes: list[str] = []
    step = next(step for step in steps.steps(TINY) if step.name == "wake-5")
    measure(step, Variant("small", lambda folder: [sys.executable, "-c", script]), tmp_path, values, notes)
    assert list(values) == list(step.figures)
    assert all(value == {"small": [None]} for value in values.values())
    assert notes == [f"wake-5, small: - : {why}"]


def test_a_relay_that_loses_what_it_accepted_has_no_rate(tmp_path: Path) -> None:
    loses = dataclasses.replace(NOTHING, count=lambda folder: 0)
    with pytest.raises(steps.Cannot, match=r"accepted pages were not on disk after kill -9"):
        steps.posts(loses, tmp_path, TINY)


def test_a_quick_run_measures_every_relay_and_leaves_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("aiohttp") is None:
        pytest.skip("aiohttp is not installed, which the reference needs: pip install -e '.[bench]'")
    with start_bench(tmp_path, "--quick", "--only", "posts", "--only", "wake-20", f"--json={tmp_path / 'f'}") as run:
        out, progress = run.communicate(timeout=100)
    assert run.returncode == 0, progress
    told = json.loads((tmp_path / "f").read_text())
    assert told["figures"]["durable posts/s"].keys() == {
        "reference",
        "relay",
        "workers-2",
        "threads",
        "reference-wal",
        "nothing",
    }
    for figure, values in told["figures"].items():
        assert all(value is not None for value in values.values()) or "idle" in figure, (figure, progress)
    posts = told["figures"]["durable posts/s"]
    assert posts["nothing"] > max(posts["relay"], posts["reference"])
    assert "| durable posts/s" in out
    assert "wake-20: relay … (disk: " in progress
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_reader_asleep_is_woken_by_both_ways_and_a_full_spool_starts(tmp_path: Path) -> None:
    relay = next(variant for variant in VARIANTS if variant.name == "relay")
    for name, measured in (("asleep", steps.asleep), ("start", steps.start_up)):
        (tmp_path / name).mkdir()
        values, notes = measured(relay, tmp_path / name, TINY)
        assert all(value is None or value > 0 for value in values)
        assert None not in values
        assert notes == []


def test_a_run_that_is_ended_ends_its_relay(tmp_path: Path) -> None:
    with start_bench(tmp_path, "--only", "wake-1", "--only", "nothing") as run:
        pid = until(lambda: serving(run.pid))
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    assert run.returncode == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list((tmp_path / "disk").iterdir()) == []


def serving(bench: int) -> int | None:
    """The relay that does nothing, once it has connections."""
    for child in map(int, Path(f"/proc/{bench}/task/{bench}/children").read_text().split()):
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"nothing.py" in told and len(os.listdir(f"/proc/{child}/fd")) > 6:
                return child
    return None
