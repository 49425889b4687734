"""The table of who is kept from what names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS

TESTS = Path(__file__).resolve().parents[1]


def test_each_row_names_tests_and_each_test_is_there() -> None:
    page = (DOCS / "how-to/security.md").read_text(encoding="utf-8")
    section = page.partition("## Who is kept from what\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    named = [set(re.findall(r"`(test_[a-z0-9_]+)`", row)) for row in rows]
    assert all(named), "a row without a test"
    there = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_[a-z0-9_]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set[str]().union(*named) <= there
