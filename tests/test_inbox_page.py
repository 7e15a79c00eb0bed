"""GET /inbox, in a real browser."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from browsing import DESKTOP, PLAIN, axe, fits, hide, shoot
from conftest import Relay, number, until
from playwright.sync_api import Locator, Page, Request, expect

SOON = 2000  # ms
LOOKED = 10000  # ms; what nobody rings about is seen at the next look, a second later

NASTY = {
    "JOB_ID": "<b>x</b>\u202egpj.exe",
    "status": '"><img src=x onerror="document.title=1">',
    "message": "<script>document.title=2</script></li>&lt;b&gt;\u2066\u202e" + "w" * 20000 + "\n" * 3000,
    "<i>field</i>" * 50: "javascript:alert(1)",
    "deep": json.loads("[" * 90 + "]" * 90),
    "wide": ["x" * 300] * 50,
    "id": 12345678901234567890,
    "exact": 1.10,
    "nothing": None,
    "__proto__": {"state": "dead"},
    "constructor": "x",
    "line\nbreak\x00": "\x1b[31m",
    **{f"field {n}": n for n in range(60)},
}


@pytest.fixture
def relay(start_relay: Callable[..., Relay]) -> Relay:
    return start_relay()


def enter(page: Page, relay: Relay, key: str) -> None:
    """Open the inbox, as somebody who has the key."""
    page.goto(f"{relay.url}/inbox")
    page.fill("#key-text", key)
    page.press("#key-text", "Enter")
    expect(page.locator("#number")).to_have_text(number(key))
    expect(page.locator("#link")).to_have_text("live")


def cards(page: Page) -> Locator:
    return page.locator("#pages > li")


def card(page: Page, id: str) -> Locator:
    return page.locator(f"#pages > li[data-id='{id}']")


def view(page: Page, name: str) -> None:
    page.click(f"#views [data-view='{name}']")


def state_of(page: Page, id: str) -> Locator:
    return card(page, id).locator(".state.end")


def change(page: Page, relay: Relay, **constants: int) -> None:
    """Open the inbox with other values for these constants of its script."""
    source = relay.get("/static/inbox.js").text
    for name, value in constants.items():
        source, times = re.subn(f"const {name} = [0-9]+", f"const {name} = {value}", source)
        assert times == 1
    page.route("**/inbox.js", lambda route: route.fulfill(body=source, content_type="text/javascript"))


def dead(relay: Relay, key: str) -> str:
    id: str = relay.notify(key, json={"JOB_ID": "poison", "status": "failed"}).json()["id"]
    for attempt in range(1, 6):
        relay.lease(key)
        handle = id if attempt == 1 else f"{id}.{attempt}"
        relay.with_key(key, "POST", "/release", json={"ids": [handle]})
    return id


def archive(relay: Relay, key: str, count: int, payload: Callable[[int], Any]) -> list[str]:
    """Put so many pages into the archive of today; their ids."""
    relay.with_key(key, "GET", "/wait?timeout=0")
    first = time.time_ns() // 1000 - count * 16000
    ids = [f"{(first + n * 16000) // 16 * 16:016d}" for n in range(count)]
    folder = relay.spool / "archive" / time.strftime("%Y-%m-%d", time.gmtime()) / number(key)
    folder.mkdir(parents=True)
    for n, id in enumerate(ids):
        content = {"created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "payload": payload(n)}
        (folder / f"{id}.json").write_text(json.dumps(content) + "\n")
    return ids


# Live


def test_a_page_that_curl_sends_appears_within_two_seconds_while_an_agent_gets_those_it_waits_for(
    relay: Relay, page: Page, key: str
) -> None:
    enter(page, relay, key)
    expect(page.locator("#none")).to_contain_text(f"{relay.url}/to/{number(key)}")
    expect(page.locator("#waiters")).to_have_text("Nobody waits for pages now")
    command = ["curl", "-sf", "-d", "build done", f"{relay.url}/to/{number(key)}"]
    sent = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert sent["waiters"] == 0
    expect(card(page, sent["id"])).to_contain_text("build done", timeout=SOON)
    expect(state_of(page, sent["id"])).to_have_text("waiting")
    assert relay.start_waiting(key).result(5).json()["id"] == sent["id"]
    expect(state_of(page, sent["id"])).to_have_text("archived", timeout=LOOKED)
    waiting = relay.start_waiting(key)
    expect(page.locator("#waiters")).to_have_text("One reader waits for pages", timeout=LOOKED)
    second = relay.notify(key, "second").json()
    assert second["waiters"] == 1
    assert waiting.result(5).json()["id"] == second["id"]
    expect(card(page, second["id"])).to_contain_text("second", timeout=SOON)
    ids = cards(page).evaluate_all("items => items.map((item) => item.dataset.id)")
    assert ids == [second["id"], sent["id"]]


def test_title_and_icon_count_what_waits(relay: Relay, page: Page, key: str) -> None:
    enter(page, relay, key)
    icon = page.locator("link[rel='icon']")
    expect(icon).to_have_attribute("href", "static/icon.svg")
    for n in range(2):
        relay.notify(key, str(n))
    expect(page).to_have_title("(2) Inbox · PagerMCP", timeout=LOOKED)
    expect(icon).to_have_attribute("href", re.compile("data:image/svg.*%3E2%3C"))
    expect(page.locator("#views [data-view='waiting']")).to_have_text("Waiting 2")
    relay.lease(key, "lease=60&max=2")
    expect(page).to_have_title("Inbox · PagerMCP", timeout=LOOKED)
    expect(icon).to_have_attribute("href", "static/icon.svg")


def test_each_state_shows_what_there_is_to_say_of_it(relay: Relay, page: Page, key: str) -> None:
    gone = dead(relay, key)
    relay.notify(key, "", headers={"Pager-Run": "nightly", "Pager-Expect": "30m"})
    scheduled = relay.notify(key, json={"status": "warning"}, headers={"Pager-Delay": "2h"}).json()["id"]
    sent = [{"JOB_ID": f"job {n}", "status": "success", "message": f"m {n}", "n": {"a": n}} for n in range(3)]
    archived, leased, waiting = (relay.notify(key, json=payload).json()["id"] for payload in sent)
    relay.lease(key, "lease=0")
    relay.lease(key, "lease=60&max=2")
    relay.with_key(key, "POST", "/release", json={"ids": [leased]})
    relay.lease(key, "lease=600")
    relay.with_key(key, "POST", "/release", json={"ids": [waiting]})
    enter(page, relay, key)
    view(page, "leased")
    expect(cards(page)).to_have_count(1)
    expect(card(page, leased)).to_contain_text("attempt 2")
    expect(card(page, leased)).to_contain_text("lease ends in 9 min.")
    view(page, "scheduled")
    expect(cards(page)).to_have_count(2)
    expect(card(page, scheduled)).to_contain_text("due in 1 hr.")
    expect(card(page, scheduled).locator(".state").first).to_have_text("warning")
    expect(page.locator("#pages")).to_contain_text("unless it reports, an alarm in 29 min.")
    view(page, "dead")
    expect(cards(page)).to_have_count(1)
    expect(card(page, gone)).to_contain_text("handed out 5 times and never acknowledged")
    expect(card(page, gone)).to_contain_text("attempt 5")
    view(page, "archived")
    expect(card(page, archived)).to_contain_text("acknowledged ")
    expect(card(page, archived).locator(".good.state").first).to_have_text("success")
    expect(card(page, archived).locator("dd")).to_have_text('{"a":0}')
    expect(card(page, archived).locator(".message")).to_have_text("m 0")
    view(page, "waiting")
    expect(cards(page)).to_have_count(1)
    expect(card(page, waiting)).to_contain_text("attempt 2")
    view(page, "any")
    expect(cards(page)).to_have_count(6)
    expect(page.locator("#views")).to_contain_text("Dead 1")
    shoot(page, "inbox")
    axe(page)


def test_an_old_page_that_waits_is_marked_stale(relay: Relay, page: Page, key: str) -> None:
    fresh, old, ended = (relay.notify(key, name).json()["id"] for name in ("fresh", "old", "ended"))
    relay.with_key(key, "POST", "/ack", json={"ids": [ended], "waiting": True})
    for path in (relay.new(key) / f"{old}.json", relay.archived(key)[0]):
        path.write_text(path.read_text().replace('"created_at":"20', '"created_at":"19'))
    enter(page, relay, key)
    expect(card(page, old).locator(".stale")).to_be_visible()
    expect(card(page, fresh).locator(".stale")).to_be_hidden()
    expect(card(page, ended).locator(".stale")).to_be_hidden()  # it is not to be read any more
    expect(card(page, old)).to_contain_text("days ago")


# Doing something


def test_a_page_can_be_acknowledged_and_sent_again(relay: Relay, page: Page, key: str) -> None:
    id = relay.notify(key, json={"JOB_ID": "a"}).json()["id"]
    enter(page, relay, key)
    card(page, id).get_by_role("button", name="Acknowledge a").click()
    expect(state_of(page, id)).to_have_text("archived")
    expect(page.locator("#said")).to_have_text("Acknowledged.")
    expect(card(page, id)).to_be_focused()  # whoever uses keys stays where he was
    assert relay.state(key, id) == "acknowledged"
    card(page, id).get_by_role("button", name="Replay a").click()
    expect(cards(page)).to_have_count(2)
    copy = cards(page).first
    expect(copy).to_contain_text(f"a copy of {id}")
    relay.lease(key, "lease=60")
    expect(copy.locator(".state.end")).to_have_text("leased", timeout=LOOKED)
    copy.get_by_role("button", name="Acknowledge").click()
    expect(copy.locator(".state.end")).to_have_text("archived")


def test_a_page_that_has_moved_on_meanwhile_is_shown_as_it_is_with_the_reason(
    relay: Relay, page: Page, key: str
) -> None:
    id = relay.notify(key).json()["id"]
    enter(page, relay, key)
    button = card(page, id).get_by_role("button", name="Acknowledge")

    def lose(route: Any) -> None:
        relay.lease(key, "lease=60")
        relay.with_key(key, "POST", "/release", json={"ids": [id], "delay": 3600})
        route.continue_()

    page.route("**/ack", lose)
    button.click()
    expect(page.locator("#said")).to_contain_text("is scheduled as")
    expect(state_of(page, id)).to_have_text("scheduled")


def test_a_page_that_is_too_old_for_the_latest_portion_is_followed_when_something_is_done_with_it(
    relay: Relay, page: Page, key: str
) -> None:
    change(page, relay, MOST=2, PORTION=2)
    id = relay.notify(key, json={"JOB_ID": "first"}).json()["id"]
    enter(page, relay, key)
    for count in (2, 3, 4):
        relay.notify(key)
        expect(cards(page)).to_have_count(count)
    card(page, id).get_by_role("button", name="Acknowledge").click()
    expect(state_of(page, id)).to_have_text("archived")


def test_a_relay_that_does_not_answer_is_said_to_be_one(relay: Relay, page: Page, key: str) -> None:
    change(page, relay, PATIENCE_MS=500)
    page.route("**/mailbox?wait=*", lambda route: None)
    enter(page, relay, key)
    expect(page.locator("#trouble")).to_have_text("The relay does not answer. Trying again.")


def test_a_test_page_can_be_sent_and_says_whether_somebody_waited(relay: Relay, page: Page, key: str) -> None:
    enter(page, relay, key)
    page.click("#test")
    expect(page.locator("#said")).to_have_text("Sent. Nobody waits for pages now, so it stays here.")
    expect(cards(page)).to_have_count(1)
    expect(cards(page)).to_contain_text("A test page from the inbox")
    relay.lease(key, "lease=0")
    waiting = relay.start_waiting(key)
    until(lambda: relay.has_reader(key))
    page.click("#test")
    expect(page.locator("#said")).to_have_text("Sent. Somebody waited for it.")
    assert waiting.result(5).json()["JOB_ID"] == "test"


def test_what_is_open_and_focused_stays_so_while_pages_come(relay: Relay, page: Page, key: str) -> None:
    id = relay.notify(key, "first").json()["id"]
    enter(page, relay, key)
    card(page, id).locator("summary").press("Enter")
    expect(card(page, id).locator("figure")).to_be_visible()
    relay.notify(key, "second")
    expect(cards(page)).to_have_count(2, timeout=LOOKED)
    expect(card(page, id).locator("summary")).to_be_focused()
    relay.lease(key, "lease=60")
    expect(state_of(page, id)).to_have_text("leased", timeout=LOOKED)
    expect(card(page, id).locator("figure")).to_be_visible()
    expect(page.locator("#live")).to_have_text("New page: second")


def test_the_filter_looks_in_all_fields(relay: Relay, page: Page, key: str) -> None:
    for n in range(5):
        relay.notify(key, json={"JOB_ID": f"job {n}", "deep": [{"branch": f"Feature-{n}"}]})
    enter(page, relay, key)
    page.fill("#filter", "feature-3")
    expect(cards(page)).to_have_count(1)
    expect(cards(page)).to_contain_text("job 3")
    expect(page.locator("#found")).to_have_text("1 of 5")
    relay.notify(key, json={"branch": "feature-33"})
    expect(cards(page)).to_have_count(2, timeout=LOOKED)
    page.fill("#filter", "nothing has this")
    expect(page.locator("#none-text")).to_have_text("No page has this in it.")
    page.fill("#filter", "")
    expect(cards(page)).to_have_count(6)


# Text from others


def test_what_others_send_stays_text_and_breaks_no_layout(relay: Relay, page: Page, key: str) -> None:
    evil = relay.notify(key, json=NASTY)
    assert evil.status_code == 202, evil.text
    relay.notify(key, "\u202e" + "x" * 60000)
    relay.notify(key, json={})
    (relay.new(key) / "broken.json").write_text('"\u202e<b>no page</b>')
    relay.lease(key, "lease=60&max=9")
    until(lambda: listed(relay, key, "dead"))
    enter(page, relay, key)
    expect(cards(page)).to_have_count(4)
    item = card(page, evil.json()["id"])
    expect(item.locator("h2")).to_have_text("<b>x</b>\\u202egpj.exe")
    item.locator("summary").click()
    expect(item.locator("figure code")).to_contain_text("12345678901234567890")
    expect(item.locator("figure code")).to_contain_text('"exact": 1.1')
    raw = json.loads(item.locator("figure code").inner_text())
    assert raw["payload"] == NASTY
    assert page.locator("#pages :is(img, script, b, i, a)").count() == 0
    expect(page).to_have_title("Inbox · PagerMCP")
    assert "\u202e" not in page.locator("#pages").inner_text()
    for size in ({"width": 320, "height": 600}, {"width": 390, "height": 800}, DESKTOP):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        assert fits(page)
        assert item.bounding_box()["height"] < 6000  # type: ignore[index]
    shoot(page, "inbox-nasty", full_page=True)
    axe(page)


def test_the_policy_is_wider_only_for_the_icon(relay: Relay) -> None:
    policy, of_others = (relay.get(path).headers["Content-Security-Policy"] for path in ("/inbox", "/chat"))
    assert policy == of_others.replace("img-src 'self'", "img-src 'self' data:") != of_others
    assert "unsafe" not in policy


# The key


def test_the_key_is_in_no_url_title_or_log_and_only_this_tab_keeps_it_until_it_is_forgotten(
    relay: Relay, page: Page, key: str
) -> None:
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    relay.notify(key)
    enter(page, relay, key)
    page.click("#test")
    expect(cards(page)).to_have_count(2)
    assert asked
    assert not [request.url for request in asked if key[9:] in request.url]
    assert key not in page.title()
    assert key not in page.content()
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    page.reload()
    expect(cards(page)).to_have_count(2)
    assert page.input_value("#key-text") == ""
    page.click("#forget")
    expect(page.locator("#key-text")).to_be_focused()
    expect(cards(page)).to_have_count(0)
    assert key not in page.evaluate("JSON.stringify(sessionStorage)")
    expect(page).to_have_title("Inbox · PagerMCP")
    page.reload()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#box")).to_be_hidden()
    shoot(page, "inbox-key")
    axe(page)
    assert key[9:] not in relay.log.read_text()


def test_what_is_no_key_is_said_clearly_and_can_be_mended(relay: Relay, page: Page, key: str) -> None:
    page.goto(f"{relay.url}/inbox")
    for wrong, why in [
        (number(key), "This is a number: it only sends."),
        (key[:-1], "This is no key."),
        ("schlüssel", "This is no key."),
        ("a b", "This is no key."),
    ]:
        page.fill("#key-text", wrong)
        page.press("#key-text", "Enter")
        expect(page.locator("#key-error")).to_contain_text(why)
        expect(page.locator("#box")).to_be_hidden()
    assert page.evaluate("sessionStorage.length") == 0
    shoot(page, "inbox-wrong")
    page.fill("#key-text", f"  {key} ")
    page.press("#key-text", "Enter")
    expect(page.locator("#number")).to_have_text(number(key))
    expect(page.locator("#key")).to_be_hidden()


def test_it_goes_on_after_the_relay_was_away(start_relay: Callable[..., Relay], page: Page, key: str) -> None:
    relay = start_relay()
    relay.notify(key, "before")
    enter(page, relay, key)
    relay.stop()
    expect(page.locator("#trouble")).to_contain_text("Trying again.")
    expect(page.locator("#link")).to_have_text("not live")
    view(page, "waiting")
    expect(page.locator("#said")).to_contain_text("can't be reached")
    shoot(page, "inbox-away")
    again = start_relay(PORT=relay.port)
    again.notify(key, "after")
    expect(cards(page)).to_have_count(2, timeout=30000)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("#link")).to_have_text("live")


def test_a_hidden_tab_keeps_no_request_waiting_and_is_up_to_date_as_soon_as_it_is_shown(
    relay: Relay, page: Page, key: str
) -> None:
    relay.notify(key, "before")
    with page.expect_request("**/mailbox?wait=*"):
        enter(page, relay, key)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with (
        page.expect_event("requestfailed", lambda request: "mailbox?wait=" in request.url),
        page.expect_response("**/mailbox"),
    ):
        hide(page)
    relay.notify(key, "meanwhile")
    page.wait_for_timeout(3000)
    assert asked == [f"{relay.url}/mailbox"]
    expect(page.locator("#trouble")).to_be_hidden()
    expect(cards(page)).to_have_count(1)
    with page.expect_request("**/mailbox?wait=*"):
        hide(page, False)
        expect(cards(page)).to_have_count(2, timeout=SOON)
    hide(page)
    relay.notify(key, "again")
    expect(page).to_have_title("(3) Inbox · PagerMCP", timeout=15000)  # in the row of tabs it is seen all the same


def test_no_page_is_left_out_when_more_have_come_meanwhile_than_are_got_at_once(
    relay: Relay, page: Page, key: str
) -> None:
    first = archive(relay, key, 120, lambda n: {"message": f"before {n}"})
    enter(page, relay, key)
    expect(cards(page)).to_have_count(50)
    page.context.set_offline(True)
    expect(page.locator("#link")).to_have_text("not live", timeout=LOOKED)
    folder = next((relay.spool / "archive").iterdir()) / number(key)
    content = (folder / f"{first[0]}.json").read_text()
    for n in range(250):  # between those and the one that comes now
        (folder / f"{int(first[-1]) + 16 * (n + 1):016d}.json").write_text(content)
    last = relay.notify(key, "the last one").json()["id"]
    page.context.set_offline(False)
    expect(card(page, last)).to_be_visible(timeout=LOOKED)
    while page.locator("#more").is_visible():
        page.locator("#more").scroll_into_view_if_needed()
        page.wait_for_timeout(100)
    ids = cards(page).evaluate_all("items => items.map((item) => item.dataset.id)")
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 371


def test_the_longer_the_relay_takes_to_show_pages_the_less_often_it_is_asked(
    relay: Relay, page: Page, key: str
) -> None:
    page.add_init_script("""
        const plain = fetch;
        window.asked = [];
        window.fetch = async (path, options) => {
          if (!path.startsWith("pages?")) return plain(path, options);
          asked.push(performance.now());
          await new Promise((resolve) => setTimeout(resolve, 500));
          return plain(path, options);
        };
    """)
    enter(page, relay, key)
    for _ in range(100):  # fewer than a mailbox holds
        relay.notify(key)
        page.wait_for_timeout(100)
        if page.evaluate("asked.length") == 3:
            break
    first, second, third = page.evaluate("asked")
    assert min(second - first, third - second) > 5 * 500


def test_one_list_that_took_long_keeps_new_pages_away_no_longer_than_a_relay_that_was_gone(
    relay: Relay, page: Page, key: str
) -> None:
    change(page, relay, LONGEST_PAUSE_MS=500)
    page.add_init_script("""
        const plain = fetch;
        let first = true;
        window.fetch = async (path, options) => {
          if (first && path.startsWith("pages?")) {
            first = false;
            await new Promise((resolve) => setTimeout(resolve, 3000));
          }
          return plain(path, options);
        };
    """)
    enter(page, relay, key)
    relay.notify(key)
    expect(cards(page)).to_have_count(1)  # within 5 s, and not 12


def test_it_works_over_plain_http_by_another_name_than_localhost(relay: Relay, page: Page, key: str) -> None:
    relay.url = relay.url.replace("127.0.0.1", PLAIN)
    page.goto(f"{relay.url}/inbox")
    assert not page.evaluate("isSecureContext")
    page.fill("#key-text", key)
    page.press("#key-text", "Enter")
    page.click("#test")
    expect(cards(page)).to_have_count(1)
    cards(page).get_by_role("button", name="Acknowledge").click()
    expect(cards(page).locator(".state.end")).to_have_text("archived")
    page.get_by_role("button", name="Copy the number").click()
    expect(page.locator("#live")).to_have_text("Copied: the number")


# Many


def test_five_thousand_archived_pages_are_quick(relay: Relay, page: Page, key: str) -> None:
    archive(relay, key, 5000, lambda n: {"JOB_ID": f"job {n:04d}", "status": "success", "message": f"part {n} is done"})
    enter(page, relay, key)
    began = time.monotonic()
    view(page, "archived")
    expect(cards(page).first).to_contain_text("job 4999")
    drawn = time.monotonic() - began
    expect(page.locator("#views")).to_contain_text("Archived 5,000")
    began = time.monotonic()
    page.fill("#filter", "job 4950")
    expect(cards(page)).to_have_count(1)
    filtered = time.monotonic() - began
    page.fill("#filter", "job 0007")
    expect(cards(page)).to_contain_text("job 0007", timeout=20000)
    expect(page.locator("#found")).to_have_text("1 of 5,000")
    began = time.monotonic()
    page.fill("#filter", "part 2500 ")
    expect(cards(page)).to_contain_text("job 2500")
    refiltered = time.monotonic() - began
    page.fill("#filter", "")
    expect(cards(page).first).to_contain_text("job 4999")
    assert cards(page).count() <= 200
    page.keyboard.press("End")
    until(lambda: page.evaluate("scrollTo(0, document.body.scrollHeight)") or cards(page).count() > 200)
    assert max(drawn, filtered, refiltered) < 5  # 0.2 s each where nothing else runs


def listed(relay: Relay, key: str, state: str) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = relay.with_key(key, "GET", f"/pages?state={state}").json()["pages"]
    return pages
