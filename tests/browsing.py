"""The site in a real browser: fixtures, which conftest.py gives to all tests, and what to look at in a page."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import REPOSITORY, missing, require
from filelock import FileLock

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 900}
PLAIN = "pager.test"  # this machine by a name that is not localhost: over http there it is no secure context
AXE = "4.10.3"

_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`the policy blocked ${event.blockedURI || "something in line"}: ${event.violatedDirective}`));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # here, since most tests need none

    chromium = require("chromium", "chromium")
    arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {PLAIN} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser of its own for each test, as wide as a phone. The test fails when a page of it has a fault, when its
    Content-Security-Policy blocks something, or when it writes an error to its console."""
    context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    context.add_init_script(_REPORT_VIOLATIONS)
    faults: list[str] = []
    context.on("weberror", lambda fault: faults.append(str(fault.error)))
    context.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    yield context
    context.close()
    answers = "Failed to load resource"  # the browser says so of each answer that is an error; the page shows it
    assert [fault for fault in faults if not fault.startswith(answers)] == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def hide(page: Page, hidden: bool = True) -> None:
    """Have the page believe that another tab is in front of it (a headless browser shows all of its tabs)."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def axe(page: Page) -> None:
    """Fail when axe-core finds a serious or critical violation in the page as it is now."""
    session = page.context.new_cdp_session(page)  # not bound by the page's policy
    session.send("Runtime.evaluate", {"expression": _axe_source()})
    options = {"expression": "axe.run().then(JSON.stringify)", "awaitPromise": True, "returnByValue": True}
    found: dict[str, Any] = json.loads(session.send("Runtime.evaluate", options)["result"]["value"])
    session.detach()
    assert found["passes"]
    assert [
        f"{fault['id']} ({fault['impact']}): {node['html']}: {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ] == []


def fits(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def shoot(page: Page, name: str, sizes: Sequence[Any] = (PHONE, DESKTOP), full_page: bool = True) -> None:
    """Screenshots into PAGERMCP_SHOTS, for whoever wants to look; nothing without it. The window is as before then."""
    folder = os.environ.get("PAGERMCP_SHOTS")
    if not folder:
        return
    before = page.viewport_size
    for size in sizes:
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=Path(folder) / f"{name}-{size['width']}-{scheme}.png", full_page=full_page)
    page.emulate_media(color_scheme="light")
    if before:
        page.set_viewport_size(before)


def _axe_source() -> str:
    """axe-core from npm: fetched where PAGERMCP_STRICT is set, once; elsewhere the test is skipped without it."""
    folder = REPOSITORY / ".cache"
    file = folder / f"axe-core-{AXE}.min.js"
    folder.mkdir(exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            if not os.environ.get("PAGERMCP_STRICT"):
                missing("axe-core is not there; it is fetched where PAGERMCP_STRICT is set")
            command = [require("npm", "npm"), "pack", "--silent", f"axe-core@{AXE}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                missing(f"axe-core {AXE} can't be fetched: {done.stderr[-500:]}")
            packed = folder / f"axe-core-{AXE}.tgz"
            with tarfile.open(packed) as archive:
                source = archive.extractfile("package/axe.min.js")
                assert source is not None
                file.write_bytes(source.read())
            packed.unlink()
    return file.read_text()
