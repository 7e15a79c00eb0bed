"""GET /chat, in a real browser."""

from collections.abc import Callable

import pytest
from browsing import PLAIN, axe, fits, hide, shoot
from conftest import Relay, new_key, until
from playwright.sync_api import Page, expect
from test_rooms import Talk


@pytest.fixture
def relay(start_relay: Callable[..., Relay]) -> Relay:
    return start_relay(PAGERMCP_ROOM="open", HOST="0.0.0.0")


def test_the_log_is_live_and_the_user_can_answer(relay: Relay, page: Page) -> None:
    talk = Talk(relay)
    talk.say("desktop", "before")
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#log li")).to_have_count(1)
    talk.say("vps", "while it is open", "user")
    expect(page.locator("#log li").nth(1)).to_contain_text("while it is open", timeout=2000)
    expect(page.locator("#log li").nth(1)).to_contain_text("to user")
    page.fill("#body", "an answer")
    page.fill("#to", "vps")
    page.press("#body", "Enter")
    expect(page.locator("#log li.mine")).to_contain_text("an answer")
    assert talk.heard(for_="vps")[-1] == {**talk.heard()[-1], "from": "user", "to": "vps", "body": "an answer"}
    shoot(page, "chat", full_page=False)


def test_text_from_others_stays_text(relay: Relay, page: Page) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script></li>&lt;b&gt; \u202eabc'
    Talk(relay).say("a", evil)
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#log .body")).to_have_text(evil)
    assert page.locator("#log img, #log script").count() == 0
    assert page.title() == "Room · PagerMCP"


def test_who_is_there_is_shown(relay: Relay, page: Page) -> None:
    Talk(relay).post("agents", {"name": "desktop"})
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#agents")).to_contain_text("desktop (seen")


def test_clearing_takes_two_clicks_and_the_archive_has_it_then(relay: Relay, page: Page) -> None:
    talk = Talk(relay)
    talk.say("a", "one")
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#log li")).to_have_count(1)
    page.evaluate("const clear = document.getElementById('clear'); clear.click(); clear.click()")  # a double click
    expect(page.locator("#clear")).to_have_text("Really clear?")
    assert len(talk.heard()) == 1
    page.wait_for_timeout(600)
    page.click("#clear")
    expect(page.locator("#log li")).to_have_count(0)
    assert talk.heard() == []
    page.click("#view")
    expect(page.locator("#log .body")).to_have_text("one")
    expect(page.locator("#say")).to_be_hidden()
    page.click("#view")
    talk.say("a", "two")
    expect(page.locator("#log .body")).to_have_text("two")


def test_going_to_the_archive_and_back_again_and_again_leaves_no_request_waiting(relay: Relay, page: Page) -> None:
    page.goto(f"{relay.url}/chat")
    for _ in range(7):  # a browser has six connections
        page.click("#view")
        expect(page.locator("#state")).to_have_text("The archive")
        with page.expect_request("**/messages?since=*"):
            page.click("#view")
    page.fill("#body", "goes through")
    page.press("#body", "Enter")
    expect(page.locator("#log .body")).to_have_text("goes through")


def test_what_others_clear_goes_from_the_page(relay: Relay, page: Page) -> None:
    talk = Talk(relay)
    talk.say("a", "one")
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#log li")).to_have_count(1)
    talk.post("messages/clear", {})
    expect(page.locator("#log li")).to_have_count(0, timeout=10000)


def test_it_goes_on_after_the_relay_was_away(start_relay: Callable[..., Relay], page: Page) -> None:
    relay = start_relay(PAGERMCP_ROOM="open")
    page.goto(f"{relay.url}/chat")
    Talk(relay).say("a", "before")
    expect(page.locator("#log li")).to_have_count(1)
    relay.stop()
    expect(page.locator("#state")).not_to_be_empty()
    again = start_relay(PAGERMCP_ROOM="open", PORT=relay.port)
    Talk(again).say("a", "after")
    expect(page.locator("#log li")).to_have_count(2, timeout=20000)


def test_a_hidden_tab_keeps_no_request_waiting_and_is_up_to_date_as_soon_as_it_is_shown(
    relay: Relay, page: Page
) -> None:
    who_is_there = page.expect_response("**/api/messages?since=0&limit=1")
    with page.expect_request("**/api/messages?*wait=50"), who_is_there:
        page.goto(f"{relay.url}/chat")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with (
        page.expect_event("requestfailed", lambda request: request.url.endswith("wait=50")),
        page.expect_response("**/api/messages?*wait=0"),
    ):
        hide(page)
    Talk(relay).say("a", "meanwhile")
    page.wait_for_timeout(6000)  # longer than between two looks at who is there
    assert [url for url in asked if "/api/" in url] == [f"{relay.url}/api/messages?since=0&wait=0"]
    with page.expect_request("**/api/messages?*wait=50"):
        hide(page, False)
        expect(page.locator("#log li")).to_have_count(1, timeout=2000)
    assert page.locator("#state").inner_text() == ""


def test_a_keyed_room_asks_for_its_key_and_keeps_it_out_of_the_url(
    start_relay: Callable[..., Relay], page: Page, key: str
) -> None:
    relay = start_relay()
    Talk(relay, key).say("a", "secret")
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#key")).to_be_visible()
    page.fill("#key-text", new_key()[:-1])
    page.press("#key-text", "Enter")
    expect(page.locator("#state")).to_contain_text("not a UUID")
    page.fill("#key-text", key)
    page.press("#key-text", "Enter")
    expect(page.locator("#log .body")).to_have_text("secret")
    expect(page.locator("#key")).to_be_hidden()
    assert key not in page.url
    page.reload()
    expect(page.locator("#log .body")).to_have_text("secret")
    assert key not in relay.log.read_text()


def test_a_keyed_room_works_over_plain_http_with_the_keyboard_alone(
    start_relay: Callable[..., Relay], page: Page, key: str
) -> None:
    relay = start_relay()
    page.goto(f"http://{PLAIN}:{relay.port}/chat")
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#state")).to_have_text("There is no open room here. Enter the key of one.")
    expect(page.locator("#say")).to_be_hidden()
    axe(page)
    assert fits(page)
    shoot(page, "chat-key", full_page=False)
    page.get_by_label("The room's key").focus()
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    expect(page.locator("#key")).to_be_hidden()
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("hello")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send as user")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#log .body")).to_have_text("hello")
    assert Talk(relay, key).heard()[0]["body"] == "hello"


def test_the_start_page_has_the_line_that_installs_the_skill(relay: Relay, page: Page) -> None:
    page.goto(relay.url)
    expect(page.locator("main")).to_contain_text(f"curl -fsSL {relay.url}/install.sh | sh")
    page.click("main a[href='chat']")
    assert until(lambda: page.url.endswith("/chat"))


def test_it_is_accessible_and_fits_a_phone(relay: Relay, page: Page) -> None:
    Talk(relay).say("desktop", "a " + "long" * 100)
    page.goto(f"{relay.url}/chat")
    expect(page.locator("#log li")).to_have_count(1)
    assert fits(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        axe(page)
