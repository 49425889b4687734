"""Bounded looks at the DLQ: whatever a look could not read, the following ones cover, each offset once."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.contract.dead_letter import DeadLetter
from sidecar.dlq.discards import Discard
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, OffsetRange
from sidecar.dlq.scan import RECORDS_MAX, Look, Named, ScanPosition, newest, scan

LOOKS_MAX = 1_000
LIMIT = 7


def letter(partition: int, offset: int, died_ms: int = 0) -> DlqRecord:
    reason = "fatal" if offset % 3 else "bad-header"
    return DlqRecord(partition, offset, died_ms, None, None, None, DeadLetter([("retry-dlq-reason", reason.encode())]))


class Log:
    """Partitions with a record at each offset but some markers, and looks that break off."""

    def __init__(self, lengths: list[int], breaks_off: Random | None = None) -> None:
        self.whole = {number: OffsetRange(2, 2, 2 + length, 2 + length) for number, length in enumerate(lengths)}
        self.records = {
            (number, offset)
            for number, offsets in self.whole.items()
            for offset in range(offsets.start, offsets.end)
            if offset % 7
        }
        self._breaks_off = breaks_off

    def __call__(self, window: Mapping[int, OffsetRange]) -> Look:
        assert sum(offsets.end - offsets.start for offsets in window.values()) <= max(RECORDS_MAX, len(window))
        records: dict[int, list[DlqRecord]] = {}
        covered = set()
        for number, (_, start, end, _) in window.items():
            stop = end
            # At least one partition is read completely, or a part of a window that has more than one record.
            if self._breaks_off is not None and end - start > 1:
                stop = self._breaks_off.randint(start + 1, end)
            found = [
                letter(number, each, died_ms=1_000 * each)
                for each in range(start, stop)
                if (number, each) in self.records
            ]
            if found:
                records[number] = found
            if stop == end:
                covered.add(number)
        return Look(records, frozenset(covered))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=4), st.integers(1, 60), st.integers(0, 99), st.booleans())
def test_following_the_cursor_covers_each_record_once(lengths: list[int], window: int, seed: int, listed: bool) -> None:
    log = Log(lengths, Random(seed))
    met: list[tuple[int, int]] = []
    position: ScanPosition | None = ScanPosition(window, {number: each.end for number, each in log.whole.items()})
    for _ in range(LOOKS_MAX):
        found = scan(log.whole, DeadLetterFilter(), position, log)
        if listed:
            page, position = newest(found, LIMIT)
            assert len(page) <= LIMIT
            met += [(each.partition, each.offset) for each in page]
        else:
            met += [(number, each.offset) for number, records in found.matching.items() for each in records]
            position = found.position
        assert found.unread(position) <= sum(lengths) - len(met)
        if position is None:
            break
        position = ScanPosition.from_cursor(position.to_cursor())
    assert position is None, "the end is reached"
    assert sorted(met) == sorted(log.records)


def test_a_page_has_the_newest_first_over_all_partitions_and_only_what_matches() -> None:
    log = Log([30, 40])
    page, position = newest(scan(log.whole, DeadLetterFilter(("bad-header",)), None, log), 4)
    assert [(each.partition, each.offset) for each in page] == [(1, 39), (1, 36), (1, 33), (0, 30)]
    assert position is not None
    page, _ = newest(scan(log.whole, DeadLetterFilter(("bad-header",)), position, log), 2)
    assert [(each.partition, each.offset) for each in page] == [(1, 30), (0, 27)]


def test_what_is_discarded_is_left_out_of_a_page_and_counts_as_read() -> None:
    log = Log([30, 40])
    discards = {(1, 36): Discard("alice", "a test", 0, 36_000), (1, 33): Discard("alice", "of another log", 0, 1)}
    found = scan(log.whole, DeadLetterFilter(("bad-header",)), None, log, discards)
    page, _ = newest(found, 3)
    assert [(each.partition, each.offset) for each in page] == [(1, 39), (1, 33), (0, 30)]
    assert found.read == scan(log.whole, DeadLetterFilter(("bad-header",)), None, log).read


def test_an_empty_dlq_has_nothing_left_to_look_at() -> None:
    found = scan({0: OffsetRange(5, 5, 5, 5)}, DeadLetterFilter(), None, Log([]))
    assert (found.read, found.position, found.unread(None)) == (0, None, 0)


def test_a_cursor_of_records_that_were_deleted_ends() -> None:
    found = scan({0: OffsetRange(50, 50, 90, 90)}, DeadLetterFilter(), ScanPosition(10, {0: 40, 7: 3}), Log([]))
    assert found.position is None


@given(st.integers(1, RECORDS_MAX), st.dictionaries(st.integers(0, 2**31), st.integers(0, 2**63), min_size=1))
def test_a_cursor_is_the_text_of_a_position(window: int, ends: dict[int, int]) -> None:
    position = ScanPosition(window, ends)
    assert ScanPosition.from_cursor(position.to_cursor()) == position


@pytest.mark.parametrize("text", ["A", "AA", "AAA", "AAAA", "AAEA", "E4g", "!!!!", "AAAAAAAAAAAAAAAAAAA"])
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match="not one that a page returned"):
        ScanPosition.from_cursor(text)


@pytest.mark.parametrize(
    ("named", "found"),
    [(Named(), True), (Named("k", "order-17"), True), (Named("k2"), False), (Named(None, "order"), False)],
)
def test_one_message_is_found_by_its_key_and_its_id(named: Named, found: bool) -> None:
    dead_letter = DeadLetter([("retry-dlq-reason", b"fatal"), ("retry-id", b"order-17")])
    record = DlqRecord(0, 5, 1, b"k", None, None, dead_letter)
    scanned = scan(
        {0: OffsetRange(5, 5, 6, 6)},
        DeadLetterFilter(),
        None,
        lambda window: Look({0: [record]}, frozenset(window)),
        named=named,
    )
    assert scanned.matching == {0: [record] if found else []}
    assert scanned.read == 1
