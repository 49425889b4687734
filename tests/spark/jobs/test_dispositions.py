"""The rule of the audit, without Spark."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS
from sidecar.contract.control import Outcome
from sidecar.contract.status import OutcomeRecord, outcome_key
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.spark.jobs.dispositions import (
    Disposition,
    Fired,
    RecordKind,
    Sent,
    dead_of,
    disposition_of,
    fired_of,
    outcome_of,
    sent_of,
)

POLICY = Policy(PolicyConfig(origin_topics=("orders",), droppable=("Boring",)))
NATIVE = [DIALECTS["native"]]


def record(*headers: tuple[str, bytes | None], timestamp_ms: int = 1000) -> Record:
    return Record(3, 7, timestamp_ms, b"k", b"v", list(headers))


@pytest.mark.parametrize(
    ("found", "disposition"),
    [
        ({}, Disposition.LOST),
        ({"ingested": False}, Disposition.WAITING),
        ({"cancelled": True}, Disposition.CANCELLED),
        ({"cancelled": True, "pending": 1}, Disposition.PENDING),
        ({"fired": 1}, Disposition.FIRED),
        ({"fired": 2}, Disposition.TWICE),
        ({"fired": 1, "pending": 1}, Disposition.TWICE),
        ({"fired": 1, "dead": 1}, Disposition.TWICE),
        ({"fired": 1, "early_ms": 5}, Disposition.EARLY),
        ({"dead": 1}, Disposition.DEAD),
        ({"kind": RecordKind.DROPPED}, Disposition.DROPPED),
        ({"kind": RecordKind.DROPPED, "fired": 1, "dead": 1}, Disposition.TWICE),
        ({"kind": RecordKind.REJECTED}, Disposition.LOST),
    ],
)
def test_a_message_has_one_disposition(found: dict[str, object], disposition: Disposition) -> None:
    nothing: dict[str, object] = {
        "ingested": True,
        "fired": 0,
        "early_ms": 0,
        "dead": 0,
        "pending": 0,
        "cancelled": False,
    }
    assert disposition_of(**{"kind": RecordKind.MESSAGE, **nothing, **found}) is disposition  # type: ignore[arg-type]  # by name


def test_headers_say_what_a_record_is() -> None:
    kinds = [
        sent_of(each, POLICY, NATIVE).kind
        for each in (
            record(("retry-origin-topic", b"orders")),
            record(("retry-origin-topic", b"orders"), ("retry-exception", b"Boring")),
            record(("retry-origin-topic", b"elsewhere")),
            record(("retry-control", b"cancel"), ("retry-target", b"3-1-5"), ("retry-control-id", b"c")),
            record(("retry-control", b"pause"), ("retry-target", b"orders"), ("retry-control-id", b"c")),
        )
    ]
    assert kinds == [RecordKind.MESSAGE, RecordKind.DROPPED, RecordKind.REJECTED, RecordKind.CANCEL, RecordKind.CONTROL]


def test_a_fired_record_says_which_message_it_is_and_whether_it_came_too_soon() -> None:
    headers = ("retry-timer-id", b"3-7-1500"), ("retry-was-due-ms", b"1500")
    assert fired_of(record(*headers, timestamp_ms=1400)) == Fired(3, 7, 100)
    assert fired_of(record(*headers, timestamp_ms=1600)) == Fired(3, 7, 0)
    assert fired_of(record(("retry-timer-id", b"nonsense"), ("retry-was-due-ms", b"1"))) is None
    assert fired_of(record()) is None


def test_a_dead_letter_says_which_record_it_was() -> None:
    headers = (
        ("__connect.errors.topic", b"retry"),
        ("__connect.errors.partition", b"2"),
        ("__connect.errors.offset", b"9"),
    )
    assert dead_of(record(*headers), "retry") == (2, 9, None)
    assert dead_of(record(*headers, ("retry-timestamp-ms", b"77")), "retry") == (2, 9, 77)
    assert dead_of(record(*headers), "another") is None


def test_only_what_had_to_be_obeyed_ends_a_timer() -> None:
    cancel = ("retry-control", b"cancel"), ("retry-control-id", b"c")
    named = record(*cancel, ("retry-target", b"id:a"))
    assert sent_of(named, POLICY, NATIVE) == Sent(RecordKind.CANCEL, None, None, None, b"a")
    for target, origin in ((b'filter:{"origin":"orders","due_to":5}', "orders"), (b"filter:{}", None)):
        by_filter = record(*cancel, ("retry-target", target))
        assert sent_of(by_filter, POLICY, NATIVE) == Sent(
            RecordKind.CANCEL, None, None, None, None, origin, ends_all=True
        )
    assert not sent_of(named, POLICY, NATIVE, input_topic="retry", token="secret").trusted
    assert sent_of(record(*cancel, ("retry-target", b"3-1-5")), POLICY, NATIVE).ends == 1
    assert sent_of(record(*cancel, ("retry-target", b"4-1-5")), POLICY, NATIVE).kind == RecordKind.CONTROL
    message = ("retry-id", b"a"), ("retry-replace", b"true")
    assert sent_of(record(("retry-origin-topic", b"orders"), *message), POLICY, NATIVE).ends_id == b"a"
    refused = sent_of(record(("retry-origin-topic", b"elsewhere"), *message), POLICY, NATIVE)
    assert refused == Sent(RecordKind.REJECTED, "elsewhere", b"a", None, None)


def test_an_outcome_says_whether_a_cancel_did_anything() -> None:
    def outcome(count: int) -> Record:
        value = OutcomeRecord(Outcome.CANCELLED if count else Outcome.NOT_PENDING, count, "id:a", 3, 1).to_json()
        return Record(0, 1, 1, outcome_key("c", 9), value, None)

    assert outcome_of(outcome(2)) == (3, 9, True)
    assert outcome_of(outcome(0)) == (3, 9, False)
    assert outcome_of(Record(0, 1, 1, b"p/0", b"{}", None)) is None
    assert outcome_of(Record(0, 1, 1, outcome_key("c", 9), b"nonsense", None)) is None
