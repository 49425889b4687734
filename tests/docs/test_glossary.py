"""Words that the glossary has replaced stay out of code and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import DOCS, PAGES, ROOT

GLOSSARY = DOCS / "reference/glossary.md"
ROW = re.compile(r"^\| \*\*.*\|([^|]+)\|$", re.MULTILINE)
"""A row of the glossary; its last column is what the term replaces."""
MODULES = sorted((ROOT / "sidecar").rglob("*.py"))


def replaced() -> tuple[set[str], set[str]]:
    """Return the names that code does not have, and the words that are used nowhere."""
    names, words = set[str](), set[str]()
    for cell in ROW.findall(GLOSSARY.read_text(encoding="utf-8")):
        names.update(re.findall(r"`([^`]+)`", cell))
        rest = re.sub(r"`[^`]+`|\([^)]*\)", "", cell)
        words.update(word for each in rest.split(",") if (word := each.strip()))
    return names, words


NAMES, WORDS = replaced()


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines or uses."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


def spelled(identifier: str) -> str:
    """Return the words of an identifier in lower case, with a blank around each."""
    return " {} ".format(" ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)).lower())


def test_the_glossary_names_what_its_terms_replace() -> None:
    assert {"Held", "Reset"} <= NAMES
    assert {"obstacle", "let go"} <= WORDS
    assert spelled("_part_withTWINObstacle2") == " part with twin obstacle "


def test_no_identifier_is_a_word_that_was_replaced() -> None:
    for module in MODULES:
        found = set(identifiers(ast.parse(module.read_text(encoding="utf-8"))))
        wrong = (found & NAMES) | {name for name in found for word in WORDS if f" {word} " in spelled(name)}
        assert not wrong, module


def test_no_page_uses_a_word_that_was_replaced() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        wrong = {word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
        assert page == GLOSSARY or not wrong, page
