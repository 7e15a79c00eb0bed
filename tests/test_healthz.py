"""GET /healthz: can a page be written right now?"""

import concurrent.futures
from collections.abc import Callable
from pathlib import Path

from conftest import Relay, until

from pagermcp.spool import Spool
from pagermcp.web.health import Health


def test_a_relay_that_can_write_is_well_and_watching(relay: Relay) -> None:
    answer = relay.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "watching": "ok", "retention": "ok", "unreadable_files": 0}
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


def test_many_who_ask_share_one_look_at_the_disk(tmp_path: Path) -> None:
    class Counting(Spool):
        probes = 0

        def probe(self) -> None:
            self.probes += 1
            super().probe()

    spool = Counting(str(tmp_path / "spool"))
    health = Health(spool)
    before = spool.probes
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: health.problem(), range(50))) == {None}
    assert spool.probes == before + 1
