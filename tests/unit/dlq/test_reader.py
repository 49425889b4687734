"""Reading the DLQ: what comes in small parts is returned together, up to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sidecar.dlq import reader
from sidecar.dlq.reader import KafkaDeadLetterReader, OffsetRange
from sidecar.kafka.log_reader import End, Unread
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

    def read_many(self, limit: int, timeout_s: float) -> tuple[list[Record], list[End | Unread]]:
        self.waits.append(timeout_s)
        self.limits.append(limit)
        first, self._next = self._next, self._next + min(limit, 7)
        return [Record(0, each, 0, b"key", b"value" * 20_000, []) for each in range(first, self._next)], []

    def stop(self, _partition: int) -> None: ...

    def close(self) -> None: ...


def test_records_that_come_in_small_parts_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LogReader", Trickle)
    dead_letters = KafkaDeadLetterReader(Settings(), {0: OffsetRange(0, 0, 190, 190)}, "group", [])
    log: Any = dead_letters._log
    assert [each.offset for each in dead_letters.read()] == list(range(100))
    assert log.waits == [reader.READ_S] + [reader.MORE_S] * 14
    # 100 KB each: the next ones are as many as have 8 MiB.
    assert [each.offset for each in dead_letters.read()] == list(range(100, 183))
    assert max(log.limits) == 100
    assert len(dead_letters.read()) == 7
    assert dead_letters.done
