"""Takes the pictures of docs/images: `python -m tests.browser`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import ViewportSize, expect, sync_playwright

from sidecar.clock import SystemClock
from tests.browser.staged import Detailed, a_busy_evening, serving, some_messages

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
SIZE: Final[ViewportSize] = {"width": 1240, "height": 924}
PICTURES: Final[dict[str, Literal["light", "dark"]]] = {"dashboard": "light", "dashboard-dark": "dark"}
AHEAD_MS: Final = 2_500
"""The figures are of the moment at which the page asks for them next."""


def main() -> None:
    """Take one picture by day and one by night."""
    clock = SystemClock()
    source = a_busy_evening(clock.wall_ms())
    held = Detailed(some_messages(clock.wall_ms() + 10_000), own=frozenset(range(8)))
    with serving(source, held) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, scheme in PICTURES.items():
            page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
            page.goto(url)
            expect(page.locator("#messages tbody tr").first).to_be_visible()
            source.shown = a_busy_evening(clock.wall_ms() + AHEAD_MS).shown
            with page.expect_response("**/activity"):
                pass
            expect(page.locator("#next")).to_contain_text("in ")
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
