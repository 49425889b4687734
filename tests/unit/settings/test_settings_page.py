"""The reference page of the settings."""

from __future__ import annotations

from pathlib import Path

from sidecar.settings import reference_page

ROOT = Path(__file__).parents[3]


def test_the_reference_page_is_up_to_date() -> None:
    """`python -m sidecar.settings > docs/reference/settings.md` updates it."""
    assert (ROOT / "docs" / "reference/settings.md").read_text(encoding="utf-8") == reference_page()
