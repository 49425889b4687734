"""ControlClient merges the answers of several partitions; real brokers test the wire elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.status import OutcomeRecord
from sidecar.control import client as client_module
from sidecar.control.client import CLOCKS_APART_MS, ControlClient, _made_ms, added_up, found_result
from sidecar.errors import CommandFailed, KafkaFailed, OutcomeUnknown
from sidecar.kafka.input import record_of
from sidecar.kafka.status_reader import StatusRead
from sidecar.kafka.writer import Report, Written
from sidecar.model import TimerId
from sidecar.settings import Settings
from tests.clocks import NOW_MS


def answers(*outcomes: tuple[Outcome, int], target: str = "id:x", detail: str = "") -> dict[int, OutcomeRecord]:
    return {
        number: OutcomeRecord(outcome, count, target, number, NOW_MS, detail)
        for number, (outcome, count) in enumerate(outcomes)
    }


@pytest.mark.parametrize(
    ("said", "outcome", "count"),
    [
        ([(Outcome.NOT_PENDING, 0), (Outcome.NOT_PENDING, 0)], Outcome.NOT_PENDING, 0),
        ([(Outcome.NOT_PENDING, 0), (Outcome.CANCELLED, 2)], Outcome.CANCELLED, 2),
        ([(Outcome.CANCELLED, 1), (Outcome.CANCELLED, 2)], Outcome.CANCELLED, 3),
        ([(Outcome.NOT_PENDING, 0), (Outcome.ORIGIN_PAUSED, 0)], Outcome.ORIGIN_PAUSED, 0),
        ([(Outcome.FIRED, 4), (Outcome.ORIGIN_PAUSED, 0)], Outcome.FIRED, 4),
        ([(Outcome.FIRED, 4), (Outcome.BAD_REQUEST, 0)], Outcome.BAD_REQUEST, 4),
        ([(Outcome.PAUSED, 7), (Outcome.PAUSED, 0)], Outcome.PAUSED, 7),
    ],
)
def test_answers_are_added_up(said: list[tuple[Outcome, int]], outcome: Outcome, count: int) -> None:
    result = added_up("c", "id:x", range(2), answers(*said))
    assert (result.outcome, result.count, result.missing) == (outcome, count, ())


def test_without_all_answers_there_is_no_outcome_but_a_count_so_far() -> None:
    result = added_up("c", "id:x", range(3), answers((Outcome.CANCELLED, 2)))
    assert (result.outcome, result.count, result.missing) == (None, 2, (1, 2))


def test_details_are_shown_once() -> None:
    said = answers((Outcome.BAD_REQUEST, 0), (Outcome.BAD_REQUEST, 0), detail="signature")
    assert added_up("c", "id:x", range(2), said).detail == "signature"


def test_a_lookup_expects_an_answer_of_every_partition_unless_the_target_has_one() -> None:
    named = [("id:x", (1,)), ("orders", (1,)), ("0-5-9", ())]
    for target, missing in (*named, ("filter:{}", (1,)), ("filter:{", (1,)), ('filter:{"partition":0}', ())):
        found = found_result("c", answers((Outcome.CANCELLED, 1), target=target), 2)
        assert found is not None
        assert found.missing == missing, target
    refused = found_result("c", answers((Outcome.BAD_REQUEST, 0), target="what?"), 2)
    assert refused is not None
    assert refused.outcome is Outcome.BAD_REQUEST
    assert found_result("c", {}, 2) is None


def test_an_id_of_ours_says_when_it_was_made_and_any_other_does_not() -> None:
    assert _made_ms(f"{NOW_MS}-{'a' * 16}") == NOW_MS - CLOCKS_APART_MS
    for other in ("", "x", f"{NOW_MS}", f"{NOW_MS}-x", f"x-{'a' * 16}", f"{'9' * 5000}-{'a' * 16}", f"²-{'a' * 16}"):
        assert _made_ms(other) == 0, other


class UnreadableHeaders:
    """A record with a header key that is not UTF-8, which the library cannot give."""

    def headers(self) -> list[tuple[str, bytes]]:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    def key(self) -> bytes:
        return b"c/x/1"

    def value(self) -> bytes:
        return b"{}"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return (2, NOW_MS)


def test_a_record_whose_headers_cannot_be_read_is_not_signed() -> None:
    """Anyone may write to the status topic, and a wait for an outcome skips such a record."""
    message: Any = UnreadableHeaders()
    read = StatusRead.of(record_of(message))
    assert read is not None
    assert not read.is_signed("app-status", "secret")
    assert read.is_signed("app-status", None)


class Writers:
    """A producer that takes or refuses records as the test says, and reports at once."""

    def __init__(self, *answers: KafkaFailed | type[BufferError] | int | None) -> None:
        """Take the answers of one record after the other; None: there is no report."""
        self.answers = iter(answers)

    def write(self, _topic: str, _key: None, _value: None, *, partition: int, report: Report, **_: object) -> None:
        match next(self.answers):
            case int(offset):
                report(Written(partition, offset, None))
            case KafkaFailed() as error if error.code == "refused at once":
                raise error
            case KafkaFailed() as error:
                report(error)
            case None:
                pass
            case full:
                raise full

    def poll(self, _timeout_s: float) -> None: ...

    def flush(self, _timeout_s: float) -> int:
        return 0

    def partition_count(self, _topic: str, _timeout_s: float) -> int:
        return 2


class NoAdmin:
    bootstrap_servers, last_error = "kafka:9092", ""

    def poll(self, _timeout_s: float) -> None: ...


AWAY = KafkaFailed("no answer", code="_MSG_TIMED_OUT", away=True)
DENIED = KafkaFailed("not allowed", code="TOPIC_AUTHORIZATION_FAILED", denied=True)
AT_ONCE = KafkaFailed("no such partition", code="refused at once")


@pytest.mark.parametrize(
    ("answers", "unknown"),
    [
        ([DENIED, DENIED], False),
        ([AT_ONCE, DENIED], False),
        ([BufferError, BufferError], False),
        ([AWAY, AWAY], True),  # appended, and the answer was lost
        ([7, DENIED], True),
        ([None, DENIED], True),
        ([BufferError, AWAY], True),
    ],
)
def test_a_record_that_was_not_written_is_not_applied_and_one_that_may_be_has_an_id(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], unknown: bool
) -> None:
    monkeypatch.setattr(client_module, "Admin", lambda _settings: NoAdmin())
    monkeypatch.setattr(client_module, "Writer", lambda _config: Writers(*answers))
    with ControlClient(Settings()) as control, pytest.raises(CommandFailed) as raised:
        control.post(ControlKind.CANCEL, b"x", due_ms=None, deadline_s=0.05, control_id="mine")
    assert isinstance(raised.value, OutcomeUnknown) == unknown
    if isinstance(raised.value, OutcomeUnknown):
        assert raised.value.control_id == "mine"


def test_what_fails_before_the_record_is_written_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Writers):
        def partition_count(self, _topic: str, _timeout_s: float) -> int:
            raise AWAY

    monkeypatch.setattr(client_module, "Admin", lambda _settings: NoAdmin())
    monkeypatch.setattr(client_module, "Writer", lambda _config: Silent())
    with ControlClient(Settings()) as control, pytest.raises(CommandFailed) as raised:
        control.post(ControlKind.CANCEL, TimerId(0, 1, 2), due_ms=None, deadline_s=0.05)
    assert not isinstance(raised.value, OutcomeUnknown)
