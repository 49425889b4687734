"""The page of the invariants has each one that the program checks, with the module that checks it, and no other."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS
from tests.unit.invariants.in_code import invariants

PAGE = (DOCS / "explanation" / "invariants.md").read_text(encoding="utf-8")


def test_the_page_has_each_invariant_and_where_it_is_checked() -> None:
    section = PAGE.partition("## Checked in production")[2].partition("## Patterns")[0]
    rows = re.findall(r"^\| (.+?) \| `(sidecar/\S+)` \|$", section, flags=re.MULTILINE)
    assert sorted((module, text) for text, module in rows) == sorted(invariants())
