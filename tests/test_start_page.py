"""GET / in a real browser: from nothing to a mailbox that is paged by what the page shows."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from browsing import PLAIN, axe, fits, shoot
from conftest import REPOSITORY, Relay, clean_environment, number, require
from playwright.sync_api import Browser, Page, Route, expect

import pagermcp

SEND = ("by-curl", "by-path", "by-script", "by-client", "by-cron", "by-actions")
COPY = "figure:has(#by-curl) button"


@pytest.fixture
def start(relay: Relay, page: Page) -> Page:
    page.goto(relay.url)
    expect(page.locator("#health .state")).to_be_visible()
    return page


def mailbox(page: Page) -> str:
    """Get one by the button; its key."""
    page.click("#mint")
    expect(page.locator("#mailbox")).to_be_visible()
    return page.locator("#key").inner_text()


def example(page: Page, id: str) -> str:
    return page.locator(f"#{id}").text_content() or ""


def test_before_there_is_a_mailbox_the_examples_say_what_is_missing(start: Page, relay: Relay) -> None:
    for id in SEND:
        assert "YOUR-NUMBER" in example(start, id)
        assert relay.url in example(start, id)
    expect(start.locator("#blanks")).to_contain_text("YOUR-NUMBER becomes yours")


def test_the_button_shows_a_key_and_a_number_and_fills_the_examples_with_the_number_alone(
    start: Page, relay: Relay
) -> None:
    key = mailbox(start)
    assert start.locator("#number").inner_text() == number(key)
    assert example(start, "to") == f"{relay.url}/to/{number(key)}"
    assert relay.new(key).is_dir()
    for id in SEND:
        assert number(key) in example(start, id)
        assert relay.url in example(start, id)
    assert "YOUR-NUMBER" not in start.locator("main").inner_text()
    assert start.content().count(key) == 1  # where it is shown
    shoot(start, "start")


def test_the_key_is_kept_in_session_storage_and_nowhere_else(start: Page, relay: Relay) -> None:
    asked: list[str] = []
    start.on("request", lambda request: asked.append(f"{request.url} {request.headers} {request.post_data}"))
    key = mailbox(start)
    assert sorted(start.evaluate("Object.values(sessionStorage)")) == sorted([key, number(key)])
    start.reload()
    expect(start.locator("#key")).to_have_text(key)
    assert number(key) in example(start, "by-curl")
    start.click("#inbox")
    start.wait_for_url("**/inbox")
    assert start.evaluate("sessionStorage.getItem('pagermcp key')") == key
    assert start.evaluate("Object.keys(localStorage)") == []
    assert start.context.cookies() == []
    assert key not in start.title()
    assert asked
    assert not any(key in one for one in asked if "Bearer" not in one)  # the inbox asks with it in a header
    assert key not in relay.log.read_text()


def test_a_mailbox_that_is_forgotten_leaves_the_page_as_it_was(start: Page) -> None:
    key = mailbox(start)
    start.once("dialog", lambda dialog: dialog.dismiss())
    start.click("#forget")
    expect(start.locator("#key")).to_have_text(key)
    start.once("dialog", lambda dialog: dialog.accept())
    start.click("#forget")
    expect(start.locator("#mint")).to_be_focused()
    assert key not in start.content()
    assert "YOUR-NUMBER" in example(start, "by-curl")
    assert start.evaluate("sessionStorage.length") == 0
    assert mailbox(start) != key


@pytest.mark.parametrize(
    ("id", "payload"),
    [
        ("by-curl", {"message": "build done"}),
        ("by-path", {"message": "build done"}),
        ("by-script", {"JOB_ID": "build", "status": "success", "logs": "made\n"}),
        ("by-client", {"JOB_ID": "run", "status": "success", "logs": "made\n"}),
        ("by-cron", {"JOB_ID": "backup", "status": "success"}),
        ("by-actions", {"message": "me/it: success"}),
    ],
)
def test_an_example_pages_the_mailbox_as_it_stands_on_the_page(
    start: Page, relay: Relay, tmp_path: Path, id: str, payload: dict[str, str]
) -> None:
    require("curl", "curl")
    key = mailbox(start)
    command = example(start, id)
    (tmp_path / "Makefile").write_text("all:\n\t@echo made\n")
    (tmp_path / "backup.sh").write_text("#!/bin/sh\n")
    (tmp_path / "backup.sh").chmod(0o755)
    if id == "by-script":
        require("make", "make")
    if id == "by-cron":
        *settings, command = command.splitlines()
        assert command.startswith("30 3 * * * cd /srv/project && ")
        command = "\n".join([f"export {settings[1]}", command.partition(" && ")[2]])
    if id == "by-actions":
        command = " ".join(command.partition("run: >-\n")[2].split("\n")).replace("${{ job.status }}", "success")
    told = {"GITHUB_REPOSITORY": "me/it", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = clean_environment(HOME=tmp_path, PATH=path, **told)
    done = subprocess.run(
        ["sh", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (got,) = relay.lease(key)
    assert {name: got["payload"].get(name) for name in payload} == payload


def test_the_key_is_saved_and_a_page_awaited_as_the_page_shows(start: Page, relay: Relay, tmp_path: Path) -> None:
    require("curl", "curl")
    key = mailbox(start)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = clean_environment(HOME=tmp_path, PATH=path)

    def run(id: str, input: str = "") -> str:
        command = ["sh", "-ec", example(start, id)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, input=input, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("save-key", f"{key}\n")
    assert (tmp_path / ".pager_session").stat().st_mode & 0o777 == 0o600
    relay.notify(number(key), "first")
    assert json.loads(run("wait-curl"))["pages"][0]["payload"] == {"message": "first"}
    relay.notify(number(key), "second")
    assert json.loads(run("wait-client"))["payload"] == {"message": "second"}
    assert run("for-project").splitlines() == [number(key)]


@pytest.mark.parametrize("agent", ["opencode", "claude", "codex"])
def test_the_agents_line_is_the_one_of_the_readme(start: Page, agent: str) -> None:
    assert example(start, f"for-{agent}") == f"pagermcp install {agent}"
    assert (
        f"pagermcp install {agent}"
        in (REPOSITORY / "docs/agents.md").read_text() + (REPOSITORY / "README.md").read_text()
    )


def test_a_copy_button_copies_says_so_and_tells_a_screen_reader(start: Page) -> None:
    start.context.grant_permissions(["clipboard-read", "clipboard-write"])
    key = mailbox(start)
    button = start.locator(COPY)
    expect(button).to_have_accessible_name("Copy curl")
    button.click()
    expect(button).to_have_accessible_name("Copied curl")
    expect(start.locator("#live")).to_have_text("Copied: curl")
    assert start.evaluate("navigator.clipboard.readText()") == example(start, "by-curl")
    expect(button).to_have_accessible_name("Copy curl", timeout=10000)
    start.get_by_role("button", name="Copy the key").click()
    expect(start.locator("#live")).to_have_text("Copied: the key")
    assert start.evaluate("navigator.clipboard.readText()") == key
    assert start.locator("figure.code").count() == start.locator("figure.code > button.copy").count() > 9


def test_all_works_over_plain_http_where_there_is_no_secure_context(relay: Relay, page: Page) -> None:
    url = f"http://{PLAIN}:{relay.port}"
    page.goto(url)
    assert page.evaluate("[isSecureContext, typeof navigator.clipboard]") == [False, "undefined"]
    key = mailbox(page)
    assert example(page, "by-path") == f"curl -d 'build done' {url}/to/{number(key)}"
    button = page.locator(COPY)
    button.focus()
    button.press("Enter")
    expect(page.locator("#live")).to_have_text("Copied: curl")
    expect(button).to_be_focused()
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'paste'}))")
    page.focus("#paste")
    page.keyboard.press("ControlOrMeta+V")
    expect(page.locator("#paste")).to_have_value(example(page, "by-curl"))


def test_what_cannot_be_copied_is_selected_instead(relay: Relay, page: Page) -> None:
    page.goto(f"http://{PLAIN}:{relay.port}")
    page.evaluate("document.execCommand = () => false")
    page.click(COPY)
    expect(page.locator(COPY)).to_contain_text("Select it by hand")
    assert page.evaluate("String(getSelection())").strip() == example(page, "by-curl")


def test_a_browser_that_keeps_nothing_is_told_to_copy_the_key(relay: Relay, page: Page) -> None:
    page.add_init_script("Object.defineProperty(window, 'sessionStorage', {get() { throw new Error('no') }})")
    page.goto(relay.url)
    key = mailbox(page)
    expect(page.locator("#unkept")).to_be_visible()
    assert number(key) in example(page, "by-curl")


def test_what_the_relay_says_is_wrong_is_shown(start: Page) -> None:
    error = {"code": "disk_full", "message": "the disk is full", "hint": "make room"}
    start.route("**/mailboxes", lambda route: route.fulfill(status=507, json={"error": error}))
    start.click("#mint")
    expect(start.get_by_role("alert")).to_have_text("the disk is full (make room)")
    start.unroute("**/mailboxes")
    mailbox(start)


def test_the_relays_health_and_version_are_live(start_relay: Callable[..., Relay], page: Page) -> None:
    relay = start_relay(PAGERMCP_BUILD="abc123")
    page.clock.install()
    page.goto(relay.url)
    health = page.locator("#health")
    expect(health).to_contain_text("The relay is well")
    expect(health).to_contain_text(f"Version {pagermcp.__version__}, build abc123")
    state = {"status": "ok", "watching": "degraded", "retention": "paused"}
    page.route("**/healthz", lambda route: route.fulfill(json=state))
    page.clock.run_for(16000)
    expect(health.locator(".warn")).to_contain_text("slow to notice")
    expect(health).to_contain_text("Retention: paused")
    page.unroute("**/healthz")
    relay.stop()
    page.clock.run_for(16000)
    expect(health.locator(".bad")).to_have_text("The relay does not answer")


def test_without_javascript_the_page_explains_and_shows_curl(relay: Relay, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(relay.url)
    expect(page.locator("#mint")).to_be_hidden()
    expect(page.locator("noscript pre")).to_be_visible()
    expect(page.locator("noscript pre")).to_have_text(f"curl -X POST {relay.url}/mailboxes")
    assert example(page, "by-path") == f"curl -d 'build done' {relay.url}/to/YOUR-NUMBER"
    context.close()


def test_a_configured_url_is_in_the_examples_whatever_the_browser_called(
    start_relay: Callable[..., Relay], page: Page
) -> None:
    relay = start_relay(PAGERMCP_PUBLIC_URL="https://pager.example/relay/")
    page.goto(relay.url)
    key = mailbox(page)
    assert example(page, "by-path") == f"curl -d 'build done' https://pager.example/relay/to/{number(key)}"


def test_behind_a_proxy_the_examples_have_the_url_that_the_browser_called(relay: Relay, page: Page) -> None:
    def proxy(route: Route) -> None:
        path = route.request.url.removeprefix("https://proxy.example/relay")
        answer = requests.request(route.request.method, relay.url + path, timeout=30)
        route.fulfill(status=answer.status_code, headers=dict(answer.headers), body=answer.content)

    page.route("https://proxy.example/relay/**", proxy)
    page.goto("https://proxy.example/relay/")
    key = mailbox(page)
    expect(page.locator("#health")).to_contain_text("The relay is well")
    assert example(page, "by-path") == f"curl -d 'build done' https://proxy.example/relay/to/{number(key)}"
    assert relay.url not in (page.locator("#examples").text_content() or "")
    page.get_by_role("link", name="Chat").click()
    page.wait_for_url("https://proxy.example/relay/chat")


def test_the_keyboard_alone_will_do(start: Page) -> None:
    def tab_to(name: str) -> None:
        """Go on by the Tab key, as far as the control with this name."""
        passed: list[Any] = []
        while name not in passed:
            assert len(passed) < 30, passed
            start.keyboard.press("Tab")
            passed.append(start.evaluate("document.activeElement.textContent.trim()"))
            assert start.evaluate("document.activeElement.matches(':focus-visible')")

    tab_to("Skip to the content")
    expect(start.locator(".skip")).to_be_in_viewport()
    start.keyboard.press("Enter")
    tab_to("Get a mailbox")
    start.keyboard.press("Enter")
    expect(start.locator("#get")).to_be_focused()
    tab_to("Copy the key")
    start.keyboard.press("Space")
    expect(start.locator("#live")).to_have_text("Copied: the key")
    tab_to("Open the inbox")
    start.keyboard.press("Enter")
    start.wait_for_url("**/inbox")


def test_it_is_accessible_in_light_and_dark_and_fits_every_window(start: Page) -> None:
    for made in (False, True):
        if made:
            mailbox(start)
        for scheme in ("light", "dark"):
            start.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            axe(start)
        for width in (320, 390, 800, 1280):
            start.set_viewport_size({"width": width, "height": 800})
            assert fits(start), width
