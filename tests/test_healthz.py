"""GET /healthz: can a page be written right now?"""

import concurrent.futures
from collections.abc import Callable
from pathlib import Path

from conftest import Relay, until


def test_a_relay_that_can_write_is_well_and_watching(relay: Relay) -> None:
    answer = relay.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "watching": "ok", "unreadable_files": 0}
    assert list((relay.spool / "tmp").iterdir()) == []


def test_a_relay_that_cannot_write_is_ill_until_it_can_again(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay()
    (tmp_path / "spool" / "tmp").rename(tmp_path / "spool" / "away")
    ill = until(lambda: [answer for answer in [relay.get("/healthz")] if answer.status_code == 503])[0]
    assert ill.json()["error"]["code"] == "disk_error"
    assert "No such file or directory" in ill.json()["error"]["message"]
    assert ill.json()["watching"] == "ok"
    assert "Retry-After" in ill.headers
    (tmp_path / "spool" / "away").rename(tmp_path / "spool" / "tmp")
    until(lambda: relay.get("/healthz").status_code == 200)


def test_many_who_ask_share_one_look_at_the_disk(relay: Relay) -> None:
    before = (relay.spool / "tmp").stat().st_mtime_ns
    until(lambda: relay.get("/healthz").status_code == 200 and (relay.spool / "tmp").stat().st_mtime_ns != before)
    looked = (relay.spool / "tmp").stat().st_mtime_ns
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert {answer.status_code for answer in threads.map(lambda _: relay.get("/healthz"), range(40))} == {200}

