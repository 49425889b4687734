"""The table of who is kept from what has a row for each of both, and names tests that are there."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from tests.docs.pages import DOCS

TESTS = Path(__file__).resolve().parents[1]
WHO = ("stranger", "reader", "producer", "operator", "another team")
WHAT = ("stop", "read", "cancel", "fill", "impersonate")


def test_each_row_names_tests_and_each_test_is_there() -> None:
    page = (DOCS / "how-to/security.md").read_text(encoding="utf-8")
    section = page.partition("## Who is kept from what\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]
    assert [(who, what) for who, what, _, _ in cells] == list(product(WHO, WHAT))
    assert all(prevented for _, _, prevented, _ in cells)
    named = [set(re.findall(r"`(test_[a-z0-9_]+)`", tested)) for _, _, _, tested in cells]
    assert all(named), "a row without a test"
    there = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_[a-z0-9_]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set[str]().union(*named) <= there
