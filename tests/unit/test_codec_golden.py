"""What is in people's topics and state folders stays readable, and is written the same way."""

from __future__ import annotations

import pytest

from tests.golden.examples import EXAMPLES, FOLDER, Example


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
class TestGoldenFiles:
    """Each example against its file."""

    def test_today_s_code_writes_exactly_these_bytes(self, example: Example) -> None:
        assert example.as_text() == example.path.read_text(encoding="ascii")

    def test_today_s_code_reads_them(self, example: Example) -> None:
        assert example.read(example.on_file()) == example.meaning


def test_every_golden_file_has_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == {example.name for example in EXAMPLES}


def test_the_description_of_the_formats_points_at_every_golden_file() -> None:
    text = (FOLDER.parent.parent / "docs" / "formats.md").read_text(encoding="utf-8")
    assert [example.name for example in EXAMPLES if f"`{example.name}`" not in text] == []
