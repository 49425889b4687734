"""Records that wait for ingest: in order, in bounded memory, and never lost."""

from __future__ import annotations

import random

import pytest

from sidecar.errors import RecordCorrupt
from sidecar.model import Record
from sidecar.spark.state.entries import INDEX, WAITING, chunk_state_key
from sidecar.spark.state.waiting import Waiting
from sidecar.spark.stream.wire import Chunk, encode_chunk
from tests.spark.state.dict_state import DictState

LIMIT = 1_000


def chunk(first: int, count: int = 2, size: int = 200) -> bytes:
    return encode_chunk(Chunk([], [Record(0, first + at, 0, None, b"v" * size, []) for at in range(count)]))


def offsets(state: DictState, *chunks: bytes, leave: int = 0) -> list[int]:
    """Take once, and give so many back."""
    waiting = Waiting(state, LIMIT)
    waiting.add(chunks)
    taken = list(waiting.take())
    waiting.put_back(taken[len(taken) - leave :])
    waiting.save()
    return [each.offset for each in taken[: len(taken) - leave]]


def test_all_comes_out_in_the_order_of_offsets_in_bounded_parts() -> None:
    state = DictState()
    chunks = [chunk(first) for first in range(0, 40, 2)]
    random.Random(5).shuffle(chunks)
    parts = [offsets(state, *chunks)]
    while WAITING.decode(state.entries[INDEX]).refs:
        parts.append(offsets(state, leave=1 if len(parts) == 1 else 0))
    assert [offset for part in parts for offset in part] == list(range(40))
    assert max(map(len, parts)) <= 6
    assert state.entries.keys() == {INDEX}


def test_little_that_is_taken_at_once_costs_no_entry() -> None:
    state = DictState()
    assert offsets(state, chunk(2), chunk(0)) == [0, 1, 2, 3]
    assert state.entries == {}


def test_one_chunk_that_is_larger_than_the_bound_is_taken_alone() -> None:
    state = DictState()
    assert offsets(state, chunk(1, 1, 5_000), chunk(0, 1)) == [0, 1]
    assert offsets(state, chunk(3, 1, 5_000), chunk(2, 1, 5_000)) == [2]
    assert offsets(state) == [3]


def test_what_was_taken_and_not_dealt_with_waits_on() -> None:
    state = DictState()
    offsets(state, *(chunk(first) for first in range(0, 12, 2)))
    left = len(WAITING.decode(state.entries[INDEX]).refs)
    assert left
    waiting = Waiting(state, LIMIT)
    waiting.add([chunk(12)])
    assert list(waiting.take())
    waiting.save_all()
    parts = [offsets(state) for _ in range(4)]
    assert [offset for part in parts for offset in part][-2:] == [12, 13]
    assert len([offset for part in parts for offset in part]) == 2 * left + 2


def test_a_chunk_that_does_not_decode_stops_the_partition() -> None:
    state = DictState()
    offsets(state, *(chunk(first) for first in range(0, 12, 2)))
    state.entries[chunk_state_key(WAITING.decode(state.entries[INDEX]).refs[0].number)] = b"\0" * 9
    with pytest.raises(RecordCorrupt):
        offsets(state)
