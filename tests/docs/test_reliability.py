"""The table of faults names tests and acts of the simulation that exist, and leaves no row out."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import DOCS, ROOT
from tests.simulation.world import ACTS

PAGE = (DOCS / "explanation" / "reliability.md").read_text(encoding="utf-8")
FAULTS = 46


def rows() -> list[list[str]]:
    """Return the cells of each row that has a number."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_fault_has_one_row() -> None:
    assert sorted(int(cells[0]) for cells in rows()) == list(range(1, FAULTS + 1))


def test_every_row_says_what_happens_and_which_test_shows_it() -> None:
    for number, fault, happens, shown in rows():
        assert fault, number
        assert happens, number
        assert re.search(r"`test_\w+`", shown), f"row {number} names no test"


def test_every_test_that_is_named_exists() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("test_*.py"))
    there = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > FAULTS
    assert sorted(named - there) == []


def test_every_act_that_is_named_is_one_of_the_simulation() -> None:
    there = {act.run.__name__ for act in ACTS}
    named = set(re.findall(r"act `(\w+)`", PAGE))
    assert named
    assert sorted(named - there) == []
