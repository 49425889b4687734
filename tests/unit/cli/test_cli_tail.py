"""`retry-sidecar tail` shows deliveries as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.cli import tail
from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.log_reader import Unread
from sidecar.model import Record

DUE_MS = 1_767_254_400_000
DELIVERED = [
    ("retry-attempt", b"2"),
    ("retry-timer-id", b"1-5-9"),
    ("retry-was-due-ms", b"%d" % DUE_MS),
    ("null", None),
]
ITEMS: list[Record | Unread] = [
    Record(0, 11, DUE_MS, b"plain", b"v", None),
    Unread(None, KafkaFailed("a broker is down", away=True)),
    Record(0, 12, DUE_MS + 1_300, b"k\x1b", b"v", [*DELIVERED]),
    Record(1, 7, DUE_MS + 250, None, None, [("retry-timer-id", b"1-6-9"), ("retry-was-due-ms", b"never")]),
    Unread(1, KafkaFailed("no right to read", denied=True)),
]


class FakeReader:
    """Two partitions; the items come one by one."""

    started: Mapping[int, int] = {}

    def __init__(self, *_: object) -> None:
        self._left = list(ITEMS)

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def partition_count(self, _timeout_s: float) -> int:
        return 2

    def bounds(self, partition: int, _timeout_s: float) -> Bounds:
        return (Bounds(5, 20), Bounds(0, 3))[partition]

    def start(self, offsets: Mapping[int, int]) -> None:
        FakeReader.started = dict(offsets)

    def read(self, _limit: int, _timeout_s: float) -> Iterator[Record | Unread]:
        yield self._left.pop(0)


@pytest.fixture(autouse=True)
def _reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LogReader", FakeReader)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["tail", "orders", *arguments])


def test_a_delivery_is_a_line_with_lateness_attempt_and_ids_and_a_right_that_is_missing_ends_it() -> None:
    done = call()
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "2026-01-01 08:00:01.300 UTC  0-12  late=1.3 s  retry-attempt=2  retry-timer-id=1-5-9  key=k\\x1b",
        "2026-01-01 08:00:00.250 UTC  1-7  retry-timer-id=1-6-9",
    ]
    assert "topic orders: cannot be read: no right to read" in done.stderr


def test_json_has_all_headers_and_the_count_ends_it() -> None:
    done = call("--all", "--count", "2", "--json")
    assert done.exit_code == 0
    plain, delivered = (json.loads(line) for line in done.stdout.splitlines())
    assert (plain["offset"], plain["late_ms"], plain["headers"]) == (11, None, [])
    wanted: dict[str, Any] = {"partition": 0, "offset": 12, "timestamp_ms": DUE_MS + 1_300, "late_ms": 1_300}
    assert wanted.items() <= delivered.items()
    assert delivered["headers"][-1] == ["null", None]


@pytest.mark.parametrize(("last", "starts"), [("0", {0: 20, 1: 3}), ("10", {0: 10, 1: 0}), ("9999", {0: 5, 1: 0})])
def test_it_begins_so_many_records_before_the_end_and_never_before_the_start(last: str, starts: dict[int, int]) -> None:
    call("--last", last, "--count", "1")
    assert FakeReader.started == starts
