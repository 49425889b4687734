"""Records in users' topics and state folders stay readable, and are written the same way."""

from __future__ import annotations

import pytest

from tests.golden.examples import EXAMPLES, FOLDER, Example


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_today_s_code_writes_exactly_these_bytes(example: Example) -> None:
    assert example.as_text() == example.path.read_text(encoding="ascii")


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_today_s_code_reads_what_is_there(example: Example) -> None:
    on_file = bytes.fromhex(example.path.read_text(encoding="ascii"))
    assert example.read(on_file) == example.meaning


def test_every_golden_file_has_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == {example.name for example in EXAMPLES}


def test_the_description_of_the_formats_points_at_every_golden_file() -> None:
    text = (FOLDER.parent.parent / "docs" / "reference/formats.md").read_text(encoding="utf-8")
    assert [example.name for example in EXAMPLES if f"`{example.name}`" not in text] == []
