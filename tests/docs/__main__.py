"""Writes the pages and pictures of the documentation that are made from code: `python -m tests.docs`."""

from __future__ import annotations

from tests.docs.http_reference import reference_page
from tests.docs.pages import DOCS
from tests.docs.wheel_picture import picture
from tests.spark import differences

MADE = {
    DOCS / "reference/http.md": reference_page,
    DOCS / "images" / "wheel.svg": picture,
    differences.PAGE: differences.page,
}

if __name__ == "__main__":
    for path, make in MADE.items():
        path.write_text(make(), encoding="utf-8")
