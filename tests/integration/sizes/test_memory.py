"""Any messages of a sender take a bounded part of memory, whatever their size as Python objects."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc"),
]

RECORDS: Final = int(os.environ.get("SIDECAR_TEST_HOSTILE_RECORDS", "80"))
HEADERS: Final = 99_000
PEAK_MB_MAX: Final = 700
DEADLINE_S: Final = 20 + 2.0 * RECORDS


def _peak_mb(sidecar: Sidecar) -> float:
    status = Path(f"/proc/{sidecar.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _send(stage: Stage) -> None:
    """Send records that wait, that are overdue when they come, and that go to the DLQ, in turns."""
    many: list[tuple[str, bytes | None]] = [("h", b"v")] * HEADERS
    producer = Producer({"bootstrap.servers": stage.bootstrap, "message.max.bytes": 5_000_000, "linger.ms": 0})
    for number in range(RECORDS):
        ours: list[tuple[str, bytes | None]] = [
            ("retry-origin-topic", stage.origin.encode()),
            ("retry-delay-ms", b"4000" if number % 4 == 0 else b"0"),
        ]
        if number % 4 == 1:
            ours = [("retry-delay-ms", b"0")]
        producer.produce(stage.input_topic, b"v", b"%d" % number, headers=[*ours, *many])
        assert producer.flush(30) == 0


def _await_all(stage: Stage) -> dict[str, list[int]]:
    """Return the keys that came to origin and DLQ, one record in memory at a time."""
    found: dict[str, list[int]] = {stage.origin: [], stage.dlq_topic: []}
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "group.id": "reads-what-came",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 1_024,
        }
    )
    consumer.subscribe([stage.origin, stage.dlq_topic])

    def all_came() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            headers = message.headers() or []
            assert sum(header == ("h", b"v") for header in headers) == HEADERS
            found[message.topic() or ""].append(int(message.key() or 0))
        return sum(map(len, found.values())) == RECORDS

    try:
        eventually(all_came, DEADLINE_S, "all are on the origin and the DLQ")
    finally:
        consumer.close()
    return found


def test_very_many_headers_are_held_and_fired_in_a_few_hundred_megabytes(stage: Stage, sidecars: Sidecars) -> None:
    _send(stage)
    one = sidecars.start("one", stage)
    found = _await_all(stage)
    print(f"the peak was {_peak_mb(one):.0f} MB")
    assert sorted(found[stage.dlq_topic]) == list(range(1, RECORDS, 4))
    assert sorted(found[stage.origin]) == [number for number in range(RECORDS) if number % 4 != 1]
    assert _peak_mb(one) < PEAK_MB_MAX
