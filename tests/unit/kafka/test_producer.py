"""What the transactional producer makes of the library's errors, call by call."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.engine.ports import Outgoing
from sidecar.errors import TransactionFailed
from sidecar.kafka.errors import OF_THE_PRODUCER
from sidecar.kafka.producer import FEW, Refusal, TransactionalProducer
from tests.clocks import HandClock


class Library:
    """Stands in for the client library's producer: one of its calls fails."""

    fails_at: str
    error: KafkaError

    waiting = 0
    """Records that are not written yet."""

    def __init__(self, _config: object) -> None:
        self.calls: list[str] = []

    def __len__(self) -> int:
        return self.waiting

    def _call(self, name: str) -> int:
        self.calls.append(name)
        if self.fails_at == name:
            raise KafkaException(self.error)
        return 0

    def produce(self, topic: str, value: bytes, key: bytes, *_more: object, **named: object) -> None:
        self._call("produce")

    def list_topics(self, _topic: str, _timeout_s: float) -> None:
        self._call("list_topics")

    def init_transactions(self, _timeout_s: float) -> None:
        self._call("init_transactions")

    def begin_transaction(self) -> None:
        self._call("begin_transaction")

    def flush(self, _timeout_s: float) -> int:
        return self._call("flush")

    def send_offsets_to_transaction(self, _offsets: object, _membership: object, _timeout_s: float) -> None:
        self._call("send_offsets_to_transaction")

    def commit_transaction(self, _timeout_s: float) -> None:
        self._call("commit_transaction")

    def abort_transaction(self, _timeout_s: float) -> None:
        self._call("abort_transaction")


def begun(monkeypatch: pytest.MonkeyPatch, fails_at: str, error: KafkaError) -> TransactionalProducer:
    monkeypatch.setattr(Library, "fails_at", fails_at, raising=False)
    monkeypatch.setattr(Library, "error", error, raising=False)
    made = TransactionalProducer({"batch.size": 1_000}, HandClock(), Library)
    made.init(1.0)
    made.begin()
    return made


@pytest.mark.parametrize("call", ["flush", "commit_transaction"])
def test_a_fence_that_shows_anywhere_in_a_commit_fails_the_transaction(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fence = KafkaError(KafkaError._FENCED, "a newer producer has this id", fatal=True)
    with pytest.raises(TransactionFailed, match=call) as failed:
        begun(monkeypatch, call, fence).commit()
    assert (failed.value.unknown, failed.value.replace, failed.value.fenced) == (True, True, True)


def test_what_must_be_aborted_and_shows_while_it_is_flushed_is_known_not_to_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = KafkaError(KafkaError._INCONSISTENT, "a record was not written", txn_requires_abort=True)
    with pytest.raises(TransactionFailed, match="flush") as failed:
        begun(monkeypatch, "flush", refusal).commit()
    assert (failed.value.unknown, failed.value.replace, failed.value.fenced) == (False, True, False)


@pytest.mark.parametrize(("waiting", "flushes"), [(1, True), (FEW, True), (FEW + 1, False)])
def test_the_records_of_a_small_transaction_are_written_before_the_offsets_are_sent(
    monkeypatch: pytest.MonkeyPatch, waiting: int, *, flushes: bool
) -> None:
    """Otherwise the offsets may come while partitions are added to the transaction, and are sent again much later."""
    made = begun(monkeypatch, "", KafkaError(KafkaError._FAIL))
    monkeypatch.setattr(Library, "waiting", waiting)
    made.send_offsets("retry", {0: 1}, b"member")
    library = made._producer
    assert isinstance(library, Library)
    assert library.calls[2:] == ["flush"] * flushes + ["send_offsets_to_transaction"]


def test_a_fence_that_shows_while_the_first_records_are_written_fails_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fence = KafkaError(KafkaError._FENCED, "a newer producer has this id", fatal=True)
    with pytest.raises(TransactionFailed) as failed:
        begun(monkeypatch, "flush", fence).send_offsets("retry", {0: 1}, b"member")
    assert (failed.value.unknown, failed.value.replace, failed.value.fenced) == (True, True, True)


OUTGOING = Outgoing("orders", 0, b"k", b"v", [], 0, b"source")


class Reported:
    """Stands in for the message of a delivery report."""

    def partition(self) -> int:
        return 0

    def topic(self) -> str:
        return "orders"

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def report(made: TransactionalProducer, error: KafkaError) -> None:
    """Have records of all kinds reported with an error."""
    message: Any = Reported()
    made._delivered(0, OUTGOING, error, message)
    made._changelog_delivered(error, message)
    made._outcome_delivered(error, message)


@pytest.mark.parametrize("code", sorted(OF_THE_PRODUCER))
def test_what_is_said_about_the_producer_in_a_delivery_report_blames_no_record(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    aborts = KafkaError(code, "the transaction is over", txn_requires_abort=True)
    made = begun(monkeypatch, "commit_transaction", aborts)
    report(made, KafkaError(code))
    assert not made.refused
    assert not made.unwritten_for
    with pytest.raises(TransactionFailed, match="commit_transaction") as failed:
        made.commit()
    assert (failed.value.unknown, failed.value.replace) == (False, True)
    with pytest.raises(TransactionFailed) as aborted:
        made.abort()
    assert aborted.value.replace, "it must not begin another transaction"


def test_what_is_said_about_a_record_blames_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(monkeypatch, "", KafkaError(KafkaError._FAIL))
    report(made, KafkaError(KafkaError.POLICY_VIOLATION))
    assert [each.outgoing for each in made.refused] == [OUTGOING]
    assert made.unwritten_for


@pytest.mark.parametrize("code", sorted(OF_THE_PRODUCER))
def test_a_record_that_cannot_be_queued_because_of_its_producer_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    made = begun(monkeypatch, "produce", KafkaError(code))
    for writes in (
        made.write_outgoing(0, [OUTGOING], traced=True),
        made.write_changelog("changelog", 0, [(b"k", b"v")]),
        made.write_outcomes("status", 0, [(b"k", b"v", [])]),
    ):
        with pytest.raises(TransactionFailed, match="produce") as failed:
            list(writes)
        assert (failed.value.unknown, failed.value.replace) == (False, True)
    assert not made.refused
    assert not made.unwritten_for


class Full(Library):
    """Its queue is full at first; then it refuses what it is given."""

    calls_before = 0

    def produce(self, topic: str, value: bytes, key: bytes, *more: object, **named: object) -> None:
        if len(self.calls) == self.calls_before:
            self.calls.append("full")
            raise BufferError
        super().produce(topic, value, key, *more, **named)

    def poll(self, _timeout_s: float) -> None:
        self.calls.append("poll")


def written_late(monkeypatch: pytest.MonkeyPatch, code: int) -> TransactionalProducer:
    """Begin a transaction on a full queue that refuses with an error of this code."""
    monkeypatch.setattr(Full, "fails_at", "produce", raising=False)
    monkeypatch.setattr(Full, "error", KafkaError(code), raising=False)
    monkeypatch.setattr(Full, "calls_before", 2)
    made = TransactionalProducer({"batch.size": 1_000}, HandClock(), Full)
    made.init(1.0)
    made.begin()
    return made


def test_what_is_refused_once_a_full_queue_has_room_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = written_late(monkeypatch, KafkaError._UNKNOWN_TOPIC)
    list(made.write_outgoing(0, [OUTGOING], traced=True))
    assert [each.why for each in made.refused] == [Refusal.GONE]


@pytest.mark.parametrize("code", sorted(OF_THE_PRODUCER))
def test_a_fence_that_shows_once_a_full_queue_has_room_blames_no_record(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    made = written_late(monkeypatch, code)
    with pytest.raises(TransactionFailed, match="produce") as failed:
        list(made.write_outgoing(0, [OUTGOING], traced=True))
    assert (failed.value.unknown, failed.value.replace) == (False, True)
    assert not made.refused


class Learning(Library):
    """Does not know a partition; then it is asked for, and another error comes."""

    def produce(self, topic: str, value: bytes, key: bytes, *more: object, **named: object) -> None:
        if "list_topics" not in self.calls:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        super().produce(topic, value, key, *more, **named)


@pytest.mark.parametrize("code", sorted(OF_THE_PRODUCER))
def test_a_fence_that_shows_once_a_partition_is_known_blames_no_record(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(Learning, "fails_at", "produce", raising=False)
    monkeypatch.setattr(Learning, "error", KafkaError(code), raising=False)
    made = TransactionalProducer({"batch.size": 1_000}, HandClock(), Learning)
    made.init(1.0)
    made.begin()
    library = made._producer
    assert isinstance(library, Learning)
    for writes in (
        made.write_outgoing(0, [OUTGOING], traced=True),
        made.write_changelog("changelog", 0, [(b"k", b"v")]),
    ):
        library.calls.clear()
        with pytest.raises(TransactionFailed, match="produce") as failed:
            list(writes)
        assert (failed.value.unknown, failed.value.replace) == (False, True)
    assert not made.refused
    assert not made.unwritten_for


def test_a_partition_that_no_broker_tells_of_is_silent_and_its_record_not_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Learning, "fails_at", "list_topics", raising=False)
    monkeypatch.setattr(Learning, "error", KafkaError(KafkaError._TRANSPORT), raising=False)
    made = TransactionalProducer({"batch.size": 1_000}, HandClock(), Learning)
    made.init(1.0)
    made.begin()
    list(made.write_outgoing(0, [OUTGOING], traced=True))
    assert [each.why for each in made.refused] == [Refusal.SILENT]
