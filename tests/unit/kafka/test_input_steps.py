"""The input consumer doubles the number of records that it takes at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.kafka import input as module
from sidecar.kafka.input import STEP_RECORDS_MIN, InputConsumer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records the client library was asked for; it has always as many."""
    numbers: list[int] = []

    def consume(number: int, timeout_s: float) -> list[object]:
        numbers.append(number)
        return [object()] * number

    monkeypatch.setattr(module, "made", lambda *_: Mock(consume=consume))
    monkeypatch.setattr(module, "_READ", lambda *_: SimpleNamespace(most_headers=0))
    return numbers


def poll(consumer: Any, limit: int) -> None:
    list(consumer.poll(limit, 0))


def test_a_poll_for_one_record_does_not_make_the_next_steps_short(asked: list[int]) -> None:
    consumer = InputConsumer({}, "retry", Mock(), Mock())
    poll(consumer, 500)
    assert asked == [STEP_RECORDS_MIN, 32, 64, 128, 256, 4], "each twice the one before, up to the limit"
    poll(consumer, 1)
    asked.clear()
    poll(consumer, 500)
    assert asked == [500]
