"""Each promise of the README and each row of the guarantees has a scene in `make test`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import DOCS, README, ROOT
from tests.rings import SCENES, Ring, may_hold, ring_of

GUARANTEES = DOCS / "explanation" / "guarantees.md"
BEYOND_THE_LIST = {"make demo", "Use it from an application"}
"""Promises that the README makes elsewhere than in its list."""


def section(page: str, heading: str) -> str:
    """Return the text under a heading."""
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def promises_of_the_readme() -> set[str]:
    page = README.read_text(encoding="utf-8")
    assert all(promise in page for promise in BEYOND_THE_LIST)
    return {*BEYOND_THE_LIST, *re.findall(r"^\d\. \*\*(.+?)\*\*", section(page, "Guarantees"), re.MULTILINE)}


def rows_of_the_guarantees() -> set[str]:
    page = GUARANTEES.read_text(encoding="utf-8")
    held = re.findall(r"^\| \*\*(.+?)\*\*", section(page, "What holds"), re.MULTILINE)
    too_large = re.findall(r"^\| (.+?) \|", section(page, "What is too large"), re.MULTILINE)[1:]
    return {*held, *too_large}


def test_each_promise_has_a_scene_and_no_scene_is_of_a_promise_that_is_gone() -> None:
    assert SCENES["README.md"].keys() == promises_of_the_readme()
    assert SCENES["docs/explanation/guarantees.md"].keys() == rows_of_the_guarantees()


def scenes() -> Iterator[str]:
    for promises in SCENES.values():
        for named in promises.values():
            assert named
            yield from named


@pytest.mark.parametrize("scene", sorted(set(scenes())))
def test_a_scene_is_a_test_that_needs_a_broker(scene: str) -> None:
    path, _, name = scene.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert "pytest.mark.broker" in source
    named = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    assert not name or name.partition("[")[0] in named
    assert ring_of(scene) is Ring.TEST
    assert may_hold(path, Ring.TEST)


def test_a_test_is_in_the_ring_of_its_folder_and_outermost_with_what_must_be_installed() -> None:
    assert ring_of("tests/unit/engine/test_any.py::test_it[1]") is Ring.FAST
    assert ring_of("tests/contract/test_any.py::test_it") is Ring.TEST
    assert ring_of("tests/deploy/test_any.py::test_it", {"tmp_path"}) is Ring.TEST
    assert ring_of("tests/deploy/test_any.py::test_it", {"helm"}) is Ring.ALL
    assert ring_of("tests/unit/test_any.py::test_it", {"bootstrap"}) is Ring.ALL
    assert ring_of("tests/simulation/test_any.py::test_it", {"slow"}) is Ring.ALL
    assert ring_of("tests/integration/faults/test_any.py::test_it") is Ring.ALL
    assert ring_of("tests/a_new_folder/test_any.py::test_it") is Ring.ALL
    assert not may_hold("tests/browser/", Ring.TEST)
    assert may_hold("tests/", Ring.FAST)
    assert not may_hold("tests/integration/", Ring.FAST)
