"""Counters are kept by adding, and are rows of which only the touched ones are written."""

from __future__ import annotations

import pytest

from sidecar.errors import InvariantViolated, RecordCorrupt
from sidecar.wheel.counts import Counts, CountsDelta


def delta(*changes: tuple[tuple[int, int], str, bool, int]) -> CountsDelta:
    made = CountsDelta()
    for change in changes:
        made.add(*change)
    return made


def test_timers_are_counted_per_slot_per_origin_and_deferred_per_origin() -> None:
    counts = Counts().plus(delta(((0, 5), "A", False, 2), ((1, 9), "A", True, 1), ((1, 9), "B", False, 4)))
    assert counts == Counts({(0, 5): 2, (1, 9): 5}, {"A": 3, "B": 4}, {"A": 1})
    assert counts.pending == 7


def test_what_falls_to_zero_is_dropped_and_its_row_deleted() -> None:
    before = Counts({(0, 5): 1}, {"A": 1}, {"A": 1})
    leaving = delta(((0, 5), "A", True, -1))
    after = before.plus(leaving)
    assert after == Counts()
    assert {value for _, value in after.rows(leaving)} == {None}


def test_adding_leaves_the_old_counters_as_they_were() -> None:
    before = Counts({(0, 5): 1}, {"A": 1})
    before.plus(delta(((0, 5), "A", False, 1)))
    assert before == Counts({(0, 5): 1}, {"A": 1})


def test_only_what_was_touched_is_written_and_it_loads_again() -> None:
    counts = Counts({(0, 5): 1, (2, 7): 3}, {"A": 4}).plus(delta(((2, 7), "ü", True, 2)))
    rows = dict(counts.rows(delta(((2, 7), "ü", True, 2))))
    loaded = Counts()
    for suffix, value in rows.items():
        loaded.load(suffix, value or b"")
    assert loaded == Counts({(2, 7): 5}, {"ü": 2}, {"ü": 2})


def test_a_counter_below_zero_is_a_bug() -> None:
    with pytest.raises(InvariantViolated, match="a counter fell below zero"):
        Counts().plus(delta(((0, 5), "A", False, -1)))


@pytest.mark.parametrize("row", [(b"X", bytes(8)), (b"S", bytes(8)), (b"OA", b""), (b"O\xff", bytes(8))])
def test_a_strange_row_is_corrupt(row: tuple[bytes, bytes]) -> None:
    with pytest.raises(RecordCorrupt):
        Counts().load(*row)


def test_counters_are_not_equal_to_anything_else() -> None:
    assert Counts() != {}
