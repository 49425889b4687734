"""The sink's reaction to refused records; the broker's answers are fakes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.engine.ports import Outgoing
from sidecar.kafka.producer import Refusal, Refused
from sidecar.model import Reason
from sidecar.settings import Settings
from sidecar.spark.marks import TopicsRefuse
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.sender import Sender, Unfireable
from sidecar.spark.stream.wire import pack

SETTINGS = Settings(bootstrap_servers="nowhere:9092", dlq_topic="dlq")


def record(topic: str, number: int) -> Outgoing:
    return Outgoing(topic, -1, b"k", b"v", [], 1, number.to_bytes(16, "big"))


def handle_refusals(
    attempt: int,
    *refusals: tuple[str, Refusal],
    written: int = 3,
    unfireable: dict[tuple[int, bytes], Any] | None = None,
) -> dict[str, str]:
    """Return the topics that are closed."""
    sender = Sender(SETTINGS, "checkpoint", 0, [0])
    refused = [Refused(0, record(topic, at), why, "said") for at, (topic, why) in enumerate(refusals)]
    sender._producer = SimpleNamespace(refused=refused, accepted=Counter())  # type: ignore[assignment]  # what is asked of it
    output = PlanOutput(0, 0, 1, 0, 1, packed=[pack([record("orders", at) for at in range(written)])])
    try:
        sender._handle_refusals([output], {} if unfireable is None else unfireable, attempt)
    except TopicsRefuse as error:
        return TopicsRefuse.read(f"TopicsRefuse: {error}")
    return {}


@pytest.mark.parametrize(
    ("why", "closed"),
    [(Refusal.SILENT, "unreachable"), (Refusal.DENIED, "unauthorised"), (Refusal.GONE, "vanished")],
)
def test_an_origin_that_takes_nothing_is_closed_by_the_second_attempt(why: Refusal, closed: str) -> None:
    assert handle_refusals(0, ("orders", why)) == {}
    assert handle_refusals(1, ("orders", why)) == {"orders": closed}


def test_silence_of_all_that_was_written_is_believed_one_attempt_later() -> None:
    assert handle_refusals(1, ("orders", Refusal.SILENT), written=1) == {}
    assert handle_refusals(2, ("orders", Refusal.SILENT), written=1) == {"orders": "unreachable"}


def test_all_topics_that_take_nothing_are_named_at_once() -> None:
    assert handle_refusals(1, ("orders", Refusal.SILENT), ("payments", Refusal.GONE)) == {
        "orders": "unreachable",
        "payments": "vanished",
    }


def test_a_dlq_that_does_not_take_a_dead_letter_of_the_sink_closes_its_origin_too() -> None:
    """Else the next run would come to the same end."""
    known = {(0, (0).to_bytes(16, "big")): Unfireable("orders", Reason.UNFIREABLE, "no key", None, 7)}
    assert handle_refusals(2, ("dlq", Refusal.GONE), unfireable=known) == {"dlq": "vanished", "orders": "unreachable"}
