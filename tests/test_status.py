"""GET /status.json, and the page /status in a real browser."""

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from browsing import DESKTOP, PHONE, axe, fits, hide, shoot
from conftest import REPOSITORY, Relay, new_key, until
from playwright.sync_api import Page, expect
from test_serve import run

from pagermcp.measures import MINUTES, SLOTS, WATCHING, Measures
from pagermcp.settings import InvalidSetting, Settings
from pagermcp.spool import Spool
from pagermcp.spool.census import Census
from pagermcp.spool.page import WORKERS

TOKEN = "operators-only-0123456789"
PATHS = ("/status", "/status.json", "/metrics")


@pytest.fixture
def relay(start_relay: Callable[..., Relay]) -> Relay:
    return start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN)


def ask(relay: Relay, path: str = "/status.json", token: str = TOKEN) -> requests.Response:
    return relay.get(path, headers={"Authorization": f"Bearer {token}"})


def figures(relay: Relay) -> dict[str, Any]:
    """Those of now: what is counted by looking at the spool is fresh for a while."""
    began = datetime.datetime.now(datetime.UTC)

    def fresh() -> Any:
        said = ask(relay).json()
        counted_at = said["counted"]["as_of"]
        return said if counted_at and datetime.datetime.fromisoformat(counted_at) > began else None

    said: dict[str, Any] = until(fresh, 30)
    return said


# Who may see it


def test_without_a_token_there_is_nothing(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay()
    for path in PATHS:
        answer = ask(relay, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert 'href="status"' not in relay.get("/").text


@pytest.mark.parametrize("path", PATHS[1:])
def test_who_has_another_token_or_none_gets_401(relay: Relay, path: str) -> None:
    for header in ("", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xff"):
        answer = relay.get(path, headers={"Authorization": header.encode("latin-1")} if header else {})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "unauthorized"
        assert "counted" not in answer.text
    assert relay.get(f"{path}?token={TOKEN}").status_code == 401
    assert ask(relay, path).status_code == 200
    assert relay.get(path, headers={"Authorization": f"bearer  {TOKEN} "}).status_code == 200


def test_the_token_may_be_in_a_file(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN_FILE=tmp_path / "token", PAGERMCP_WORKERS=2)
    assert ask(relay).json()["watching"] == ["ok", "ok"]
    assert TOKEN.encode() not in Path(f"/proc/{relay.process.pid}/environ").read_bytes()


@pytest.mark.parametrize(
    "value", ["short", "with a space in it", "x" * 257, "comma,comma,comma", "ümläut-ümläut-ümläut"]
)
def test_a_token_that_can_be_none_is_one_line_that_does_not_show_it(value: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(value)
    for settings in ({"PAGERMCP_OPERATOR_TOKEN": value}, {"PAGERMCP_OPERATOR_TOKEN_FILE": str(tmp_path / "token")}):
        with pytest.raises(InvalidSetting, match=r"^PAGERMCP_OPERATOR_TOKEN: must be 16 to 256 letters.*$") as refused:
            Settings.read(settings)
        assert value not in str(refused.value)


def test_a_file_that_has_no_token_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" * 20)
    (tmp_path / "empty").touch()
    for path in (tmp_path / "binary", tmp_path / "empty", tmp_path / "nowhere", tmp_path):
        failed = run("serve", PAGERMCP_OPERATOR_TOKEN_FILE=path)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
        assert failed.stderr.startswith("Error: PAGERMCP_OPERATOR_TOKEN")
    both = run("serve", PAGERMCP_OPERATOR_TOKEN=TOKEN, PAGERMCP_OPERATOR_TOKEN_FILE=tmp_path)
    assert both.stderr == "Error: PAGERMCP_OPERATOR_TOKEN and PAGERMCP_OPERATOR_TOKEN_FILE: set one of them\n"


def test_the_token_is_shown_nowhere(relay: Relay) -> None:
    assert TOKEN not in repr(Settings.read({"PAGERMCP_OPERATOR_TOKEN": TOKEN}))
    assert "--operator-token " not in run("serve", "--help").stdout
    answers = [ask(relay, path).text for path in (*PATHS, "/", "/healthz", "/nothing")]
    answers += [relay.notify(TOKEN).text, relay.get(f"/mailboxes/{TOKEN}/messages").text]
    assert relay.stop() == 0
    assert TOKEN not in "".join([*answers, relay.log.read_text(), relay.greeting])


# What it says


def test_it_tells_what_there_is_and_what_has_happened(relay: Relay) -> None:
    key, other = new_key(), new_key()
    for _ in range(3):
        oldest = relay.notify(other).json()["id"]
    relay.notify(key)
    relay.post(f"/mailboxes/{key}/consume")
    relay.notify(key, headers={"Pager-Delay": "1h"})
    once = [relay.notify(key, headers={"Idempotency-Key": "x"}).json()["id"] for _ in range(2)]
    assert once[0] == once[1]
    assert len(relay.lease(key)) == 1
    (relay.new(other) / "broken.json").write_text("not json")
    relay.get(f"/mailboxes/{other}/messages")
    until(lambda: relay.get(f"/mailboxes/{other}/messages") and list(relay.spool.glob("dead/*/*/*.why")))
    waiting = relay.start_waiting(new_key())
    until(lambda: ask(relay).json()["waiters"] == 1)
    said = figures(relay)
    assert said["counted"]["mailboxes"] == 3
    assert said["counted"]["pages"] == {"waiting": 3, "leased": 1, "scheduled": 1, "archived": 1, "dead": 1}
    first = min(path.stem for path in relay.new(other).iterdir())
    assert said["counted"]["oldest_waiting"].pop("age_seconds") > 0
    assert said["counted"]["oldest_waiting"] == {"id": first, "mailbox": other[:8]}
    assert oldest > first
    assert said["pages"] == {
        "accepted": 5,
        "duplicate": 1,
        "refused": 0,
        "acknowledged": 1,
        "expired": 0,
        "replaced": 0,
        "cleared": 0,
        "dead": 1,
    }
    assert sum(said["pages_per_minute"]) == 5
    assert said["seconds"]["fsync"]["count"] >= 10
    assert (said["watching"], said["retention"], said["workers"]) == (["ok"], "ok", 1)
    assert said["disk"]["size_bytes"] > said["disk"]["free_bytes"] > said["disk"]["kept_free_bytes"]
    assert not waiting.done()


def test_a_page_that_waits_for_its_reader_is_not_called_late_and_one_for_which_he_waits_is_measured(
    relay: Relay, key: str
) -> None:
    relay.notify(key)
    relay.get(f"/mailboxes/{key}/wait")
    assert ask(relay).json()["seconds"]["wake"] == {"count": 0, "mean": None, "p50": None, "p99": None}
    waiting = relay.start_waiting(key)
    until(lambda: relay.has_reader(key))
    relay.notify(key)
    waiting.result(10)
    wake = until(lambda: [got for got in [ask(relay).json()["seconds"]["wake"]] if got["count"]])[0]
    assert wake["count"] == 1
    assert 0 < wake["mean"] < 10


def test_a_lease_that_runs_out_and_a_refused_page_are_counted(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(PAGERMCP_OPERATOR_TOKEN=TOKEN, MAX_MESSAGES_PER_MAILBOX=1)
    relay.notify(key)
    assert relay.notify(key).status_code == 429
    relay.lease(key, "lease=0.1&timeout=0")
    said = until(lambda: [got for got in [ask(relay).json()] if got["leases_run_out"]])[0]
    assert (said["leases_run_out"], said["pages"]["refused"], said["pages"]["accepted"]) == (1, 1, 1)


def test_many_mailboxes_are_counted_by_the_way_and_pages_of_days_that_are_over_once(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    for _ in range(300):
        spool.mailbox(str(uuid.uuid4())).deliver("{}")
    for day in ("2026-01-01", "2026-01-02"):
        folder = Path(spool.path("archive", day, str(uuid.uuid4())))
        folder.mkdir(parents=True)
        (folder / "1795966550281088.expired.json").touch()
        (folder / "1795966550281088.why").touch()
    census = Census(spool)
    count = census.take()
    assert (count.whole, count.mailboxes, count.waiting, count.archived) == (True, 300, 300, 2)
    (folder / "1795966550281089.json").touch()  # unseen, since it is not in the folder of the day itself
    assert census.take().archived == 2
    Path(spool.path("archive", "2026-01-01")).rename(tmp_path / "away")
    assert census.take().archived == 1


def test_when_the_time_is_over_a_census_says_that_there_may_be_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(tmp_path / "spool"))
    for _ in range(20):
        spool.mailbox(str(uuid.uuid4())).deliver("{}")
    monkeypatch.setattr("pagermcp.spool.census._LONGEST_SECONDS", 0)
    monkeypatch.setattr("pagermcp.spool.census._WORK_SECONDS", 0)
    count = Census(spool).take()
    assert not count.whole
    assert 0 < count.mailboxes < 20


def test_pages_per_minute_forgets_what_is_older_than_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Measures()
    now = 1_000_000.0
    monkeypatch.setattr("pagermcp.measures.time.monotonic", lambda: now)
    measures.page_came()
    now += 60
    measures.page_came()
    measures.page_came()
    assert measures.pages_per_minute()[-3:] == [0, 1, 2]
    now += 60 * (MINUTES - 1)
    assert measures.pages_per_minute() == [2] + [0] * (MINUTES - 1)
    measures.page_came()
    now += 60
    assert measures.pages_per_minute()[-2:] == [1, 0]
    assert sum(measures.pages_per_minute()) == 1
    assert measures.total("accepted") == 4


def test_there_is_a_slot_for_each_worker_and_a_number_for_each_state_of_watching() -> None:
    assert SLOTS >= WORKERS
    assert WATCHING == ("ok", "degraded", "off")


def test_the_protocol_shows_every_field(relay: Relay) -> None:
    text = (REPOSITORY / "docs" / "protocol.md").read_text()
    (shown,) = re.findall(r"### GET /status\.json\n.*?```json\n(.*?)```", text, re.DOTALL)
    relay.notify(new_key())

    def fields(value: Any) -> Any:
        return {name: fields(inner) for name, inner in value.items()} if isinstance(value, dict) else None

    said = figures(relay)
    assert fields(json.loads(shown)) == fields(said)
    assert len(said["pages_per_minute"]) == MINUTES


# The page


@pytest.fixture
def open_page(relay: Relay, page: Page) -> Iterator[Page]:
    page.goto(f"{relay.url}/status")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    expect(page.locator("#figures")).to_be_visible()
    yield page
    assert TOKEN not in page.url


def cell(page: Page, name: str) -> str:
    return page.locator(f"tr:has(th:text-is('{name}')) td").first.inner_text()


def test_the_page_has_no_figures_without_the_token(relay: Relay, page: Page) -> None:
    answer = relay.get("/status")
    assert answer.headers["Cache-Control"] == "no-store"
    assert 'href="status"' in answer.text
    page.goto(f"{relay.url}/status")
    expect(page.locator("#ask")).to_be_visible()
    expect(page.locator("#figures")).to_be_hidden()
    shoot(page, "status-token")
    axe(page)
    page.fill("#token", "not the token at all")
    page.press("#token", "Enter")
    expect(page.locator("#trouble")).to_contain_text("for the relay's operator")
    expect(page.locator("#figures")).to_be_hidden()
    assert page.evaluate("JSON.stringify({...sessionStorage})") == "{}"


def test_what_no_header_can_hold_is_no_token_and_another_can_be_given(relay: Relay, page: Page) -> None:
    page.goto(f"{relay.url}/status")
    page.fill("#token", f"{TOKEN}\u2026")  # as copied from a terminal that cuts its lines
    page.press("#token", "Enter")
    expect(page.locator("#trouble")).to_contain_text("copy it again")
    assert page.evaluate("JSON.stringify({...sessionStorage})") == "{}"
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    expect(page.locator("#figures")).to_be_visible()


def test_the_page_shows_figures_that_follow(relay: Relay, open_page: Page, key: str) -> None:
    assert cell(open_page, "Waiters") == "0"
    for _ in range(3):
        relay.notify(key)
    waiting = relay.start_waiting(new_key())
    row = open_page.locator("tr:has(th:text-is('Waiters')) td")
    expect(row).to_have_text("1", timeout=20000)
    expect(open_page.locator("tr:has(th:text-is('Pages waiting')) td")).to_have_text("3", timeout=20000)
    assert cell(open_page, "Pages accepted") == "3"
    expect(open_page.locator("#rate-said")).to_contain_text("3 in the last hour")
    assert open_page.locator("#plot rect").count() == MINUTES
    open_page.reload()
    expect(row).to_have_text("1")
    open_page.click("#forget")
    expect(open_page.locator("#ask")).to_be_visible()
    expect(open_page.locator("#figures")).to_be_hidden()
    open_page.reload()
    expect(open_page.locator("#ask")).to_be_visible()
    assert not waiting.done()


def test_a_hidden_tab_asks_for_nothing_until_it_is_shown(relay: Relay, open_page: Page, key: str) -> None:
    hide(open_page)
    relay.notify(key)
    asked: list[str] = []
    open_page.on("request", lambda request: asked.append(request.url))
    open_page.wait_for_timeout(6000)  # longer than between two looks
    assert asked == []
    hide(open_page, False)
    expect(open_page.locator("#rate-said")).to_contain_text("1 in the last hour", timeout=2000)


def test_the_page_is_accessible_and_fits(relay: Relay, open_page: Page) -> None:
    for _ in range(7):
        relay.notify(new_key())
    open_page.reload()
    expect(open_page.locator("#rate-said")).to_contain_text("7 in the last hour", timeout=20000)
    open_page.click("summary")
    for size in (PHONE, DESKTOP):
        open_page.set_viewport_size(size)  # type: ignore[arg-type]
        assert fits(open_page)
        for scheme in ("light", "dark"):
            open_page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            axe(open_page)
    open_page.click("summary")
    shoot(open_page, "status")
