"""Messages of a writer while no broker answers; real brokers test the writing elsewhere."""

from __future__ import annotations

import pytest

from sidecar.errors import KafkaFailed
from sidecar.kafka.writer import Writer, Written

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 50, "linger.ms": 0}


def test_a_record_that_is_not_written_in_time_is_reported_with_the_reason() -> None:
    writer = Writer(NOWHERE)
    reports: list[Written | KafkaFailed] = []
    writer.write("topic", b"key", None, report=reports.append)
    assert writer.flush(60) == 0
    (report,) = reports
    assert isinstance(report, KafkaFailed)
    assert report.code == "_MSG_TIMED_OUT"


def test_a_record_that_the_library_does_not_take_is_an_error_at_once() -> None:
    writer = Writer({**NOWHERE, "message.max.bytes": 1_000})
    with pytest.raises(KafkaFailed) as caught:
        writer.write("topic", None, b"v" * 2_000)
    assert caught.value.code == "MSG_SIZE_TOO_LARGE"


def test_a_full_queue_is_no_failure_of_the_record() -> None:
    writer = Writer({**NOWHERE, "message.timeout.ms": 5_000, "queue.buffering.max.messages": 1})
    writer.write("topic", None, b"1", partition=0, headers=(("a", b"1"), ("a", None)))
    with pytest.raises(BufferError):
        writer.write("topic", None, b"2", partition=0)


def test_without_a_broker_nothing_is_known_of_a_topic() -> None:
    with pytest.raises(KafkaFailed) as caught:
        Writer(NOWHERE).partition_count("topic", 0.1)
    assert caught.value.away
