"""Reading the DLQ: what comes in small parts is returned together, up to a bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sidecar.dlq import reader
from sidecar.dlq.reader import KafkaDeadLetterReader, OffsetRange
from sidecar.model import Record
from sidecar.settings import Settings


class Trickle:
    """Implements `LogReader`: each read has at most seven records."""

    error = ""

    def __init__(self, _config: Mapping[str, Any], _topic: str) -> None:
        self.waits: list[float] = []
        self.limits: list[int] = []
        self._next = 0

    def start(self, offsets: Mapping[int, int]) -> None:
        (self._next,) = offsets.values()

    def read(self, limit: int, timeout_s: float) -> Iterator[Record]:
        self.waits.append(timeout_s)
        self.limits.append(limit)
        for _ in range(min(limit, 7)):
            yield Record(0, self._next, 0, b"key", b"value" * 20_000, [])
            self._next += 1

    def stop(self, _partition: int) -> None: ...

    def close(self) -> None: ...


def test_records_that_come_in_small_parts_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LogReader", Trickle)
    dead_letters = KafkaDeadLetterReader(Settings(), {0: OffsetRange(0, 0, 190, 190)}, "group", [])
    log: Any = dead_letters._log
    assert [each.offset for each in dead_letters.read()] == list(range(100))
    assert log.waits == [reader.READ_S] + [reader.MORE_S] * 14
    # 100 KB each: the next ones are as many as have 4 MiB.
    assert [each.offset for each in dead_letters.read()] == list(range(100, 141))
    assert max(log.limits) == 100
    assert len(dead_letters.read()) == 41
    assert len(dead_letters.read()) == 8
    assert dead_letters.done
