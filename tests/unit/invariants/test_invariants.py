"""Each invariant of the program fires when it is broken, and says what is broken and with which values."""

from __future__ import annotations

from collections import Counter

import pytest

from sidecar.errors import InvariantViolated
from tests.unit.invariants import of_plans, of_runtime
from tests.unit.invariants.in_code import invariants

IN_CODE = dict(each[::-1] for each in invariants())
BREAKS = {**of_plans.BREAKS, **of_runtime.BREAKS}


def test_each_invariant_has_a_text_of_its_own() -> None:
    texts = Counter(text for _, text in invariants())
    assert [text for text, count in texts.items() if count > 1] == []


def test_each_invariant_has_something_that_breaks_it() -> None:
    assert sorted(IN_CODE.keys() ^ BREAKS.keys()) == []


@pytest.mark.parametrize("text", sorted(BREAKS))
def test_an_invariant_that_is_broken_says_so(text: str) -> None:
    with pytest.raises(InvariantViolated) as broken:
        BREAKS[text]()
    said = str(broken.value)
    assert said.startswith(text)
    assert "=" in said or text in WITHOUT_VALUES, "it names the values"


WITHOUT_VALUES = {
    "two jobs at once",
    "no outcome to take",
    "changes that another store prepared",
    "a transaction has no producer",
    "a transaction begins before older producers are fenced",
    "a transaction begins while the one before is open or its outcome is unknown",
}
"""There is nothing to name."""
