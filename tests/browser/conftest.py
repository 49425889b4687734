"""A real browser, and pages that tell the test whatever goes wrong in them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, ViewportSize, expect, sync_playwright

from tests.waiting import eventually

PICTURES: Final = Path(__file__).parents[2] / ".artifacts" / "screenshots"
REQUIRED: Final = "SIDECAR_REQUIRE_BROWSER"
WAIT_MS: Final = 30_000
DESK: Final[ViewportSize] = {"width": 1280, "height": 900}
PHONE: Final[ViewportSize] = {"width": 360, "height": 760}

Scheme = Literal["light", "dark"]
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Of one module: while it is open no other event loop can run in this thread."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        text = "no Chromium for this test: install one (apt-get install chromium)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open the dashboard at an address; nothing else can be reached, and errors of any page fail the test."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_page(url: str, *, phone: bool = False, scheme: Scheme = "light", go: bool = True, **options: Any) -> Page:
        context = browser.new_context(
            viewport=PHONE if phone else DESK,
            color_scheme=scheme,
            timezone_id="Europe/Berlin",
            locale="en-GB",
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()

        def fence(route: Route, request: Request) -> None:
            if urlsplit(request.url).netloc == urlsplit(url).netloc:
                route.continue_()
            else:
                wrong.append(f"asks {request.url}")
                route.abort()

        context.route(re.compile(".*"), fence)
        page.on("pageerror", lambda error: wrong.append(f"throws {error}"))
        page.on("console", lambda message: wrong.append(message.text) if _is_wrong(message.text) else None)
        if go:
            load(page, url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def load(page: Page, url: str) -> None:
    """Open an address, again while its server has no time for it; the page does that with its files."""

    def loaded() -> bool:
        answer = page.goto(url)
        return answer is not None and answer.status != 503

    eventually(loaded, 3 * WAIT_MS / 1000, f"{url} is loaded")


def _is_wrong(text: str) -> bool:
    """Tell whether a line of the console speaks of a breach of the page's own policy."""
    return any(word in text for word in ("Content Security Policy", "Content-Security-Policy", "TrustedHTML"))


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Keep a picture of a page for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    return keep


def faults(page: Page) -> list[str]:
    """Return what axe-core finds against the rules of WCAG 2.2 A and AA and its best practices."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['help']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


def overflow(page: Page) -> int:
    """Return how many pixels the page is wider than the window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider
