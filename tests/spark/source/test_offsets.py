"""What a micro-batch admits, how its position is kept, and the options of the source."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import SettingsInvalid
from sidecar.spark.source.offsets import Limits, Position, admitted, decode_position, encode_position
from sidecar.spark.source.options import DEFAULTS, limits_of

OFFSETS = st.dictionaries(st.integers(0, 40), st.integers(0, 2**40), max_size=8)


def never(_number: int, _offset: int, _end: int) -> float:
    raise AssertionError("few records are not estimated")


@given(OFFSETS, st.integers(0, 2**45))
def test_a_position_is_read_as_it_was_written_and_equal_ones_are_equal_text(offsets: dict[int, int], now: int) -> None:
    kept = json.dumps(encode_position(Position(offsets, now)))
    assert decode_position(json.loads(kept)) == Position(offsets, now)
    again = json.dumps(encode_position(decode_position(json.loads(kept))))
    turned = json.dumps(encode_position(Position(dict(reversed(offsets.items())), now)))
    assert kept == again == turned


def test_what_is_within_the_limits_is_read_to_the_end() -> None:
    assert admitted({0: 5}, {0: 9, 1: 3}, Limits(100, 10**9), never) == {0: 9, 1: 3}


def test_each_partition_has_the_same_part_of_its_backlog_and_none_is_left_out() -> None:
    ends = {0: 1_000_005, 1: 100_000, 2: 1, 3: 0}
    found = admitted({0: 5}, ends, Limits(110_000, 10**12), lambda *_: 100.0)
    assert found == {0: 100_005, 1: 10_000, 2: 1, 3: 0}


def test_few_records_that_are_large_are_limited_by_their_bytes() -> None:
    found = admitted({0: 0, 1: 0}, {0: 1_000, 1: 1_000}, Limits(100_000, 64 * 1024 * 1024), lambda *_: 1024 * 1024.0)
    assert found == {0: 32, 1: 32}


@given(OFFSETS, OFFSETS, st.integers(1, 10**6), st.integers(1, 10**9), st.floats(1, 10**6))
def test_every_partition_with_records_moves_on_and_none_beyond_its_end(
    starts: dict[int, int], ahead: dict[int, int], records: int, size: int, each: float
) -> None:
    ends = {number: starts.get(number, 0) + count for number, count in ahead.items()}
    found = admitted(starts, ends, Limits(records, size), lambda *_: each)
    assert found.keys() == ends.keys()
    for number, end in found.items():
        assert starts.get(number, 0) + min(1, ahead[number]) <= end <= ends[number]


def test_the_options_of_the_source_are_its_limits() -> None:
    assert limits_of({}) == DEFAULTS
    assert limits_of({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "7"}) == Limits(5, 7)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("maxOffsetsPerTrigger", "many", "maxOffsetsPerTrigger=many: allowed is a number from 1 on"),
        ("maxBytesPerTrigger", "0", "maxBytesPerTrigger=0: allowed is a number from 1 on"),
        ("kafka.ssl.keystore.type", "PEM", "set a property of its client as CLIENT_"),
        ("minPartitions", "8", "minPartitions: is unknown: allowed are maxOffsetsPerTrigger and maxBytesPerTrigger"),
    ],
)
def test_another_option_is_refused_with_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        limits_of({name: value})
