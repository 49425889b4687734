"""What waits to be taken in: in order, in bounded memory, and never gone."""

from __future__ import annotations

import random

import pytest

from sidecar.errors import RecordCorrupt
from sidecar.model import Record
from sidecar.spark.state.entries import INDEX, WAITING, piece_cell
from sidecar.spark.stream.wire import Chunk, encode_chunk
from sidecar.spark.waiting import Waiting
from tests.spark.dict_state import DictCells

LIMIT = 1_000


def chunk(first: int, count: int = 2, size: int = 200) -> bytes:
    return encode_chunk(Chunk([], [Record(0, first + at, 0, None, b"v" * size, []) for at in range(count)]))


def offsets(cells: DictCells, *chunks: bytes, leave: int = 0) -> list[int]:
    """Take once, and give so many back."""
    waiting = Waiting(cells, LIMIT)
    waiting.add(chunks)
    taken = list(waiting.take())
    waiting.give_back(taken[len(taken) - leave :])
    waiting.save()
    return [each.offset for each in taken[: len(taken) - leave]]


def test_all_comes_out_in_the_order_of_offsets_in_bounded_parts() -> None:
    cells = DictCells()
    chunks = [chunk(first) for first in range(0, 40, 2)]
    random.Random(5).shuffle(chunks)
    parts = [offsets(cells, *chunks)]
    while WAITING.decode(cells.cells[INDEX]).pieces:
        parts.append(offsets(cells, leave=1 if len(parts) == 1 else 0))
    assert [offset for part in parts for offset in part] == list(range(40))
    assert max(map(len, parts)) <= 6
    assert cells.cells.keys() == {INDEX}


def test_little_that_is_taken_at_once_costs_no_cell() -> None:
    cells = DictCells()
    assert offsets(cells, chunk(2), chunk(0)) == [0, 1, 2, 3]
    assert cells.cells == {}


def test_one_chunk_that_is_larger_than_the_bound_is_taken_alone() -> None:
    cells = DictCells()
    assert offsets(cells, chunk(1, 1, 5_000), chunk(0, 1)) == [0, 1]
    assert offsets(cells, chunk(3, 1, 5_000), chunk(2, 1, 5_000)) == [2]
    assert offsets(cells) == [3]


def test_what_was_taken_and_not_dealt_with_waits_on() -> None:
    cells = DictCells()
    offsets(cells, *(chunk(first) for first in range(0, 12, 2)))
    left = len(WAITING.decode(cells.cells[INDEX]).pieces)
    assert left
    waiting = Waiting(cells, LIMIT)
    waiting.add([chunk(12)])
    assert list(waiting.take())
    waiting.save_all()
    parts = [offsets(cells) for _ in range(4)]
    assert [offset for part in parts for offset in part][-2:] == [12, 13]
    assert len([offset for part in parts for offset in part]) == 2 * left + 2


def test_a_chunk_that_does_not_decode_stops_the_partition() -> None:
    cells = DictCells()
    offsets(cells, *(chunk(first) for first in range(0, 12, 2)))
    cells.cells[piece_cell(WAITING.decode(cells.cells[INDEX]).pieces[0].number)] = b"\0" * 9
    with pytest.raises(RecordCorrupt):
        offsets(cells)
