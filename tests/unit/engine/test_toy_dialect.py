"""A dialect is one module: one that only this file knows goes the whole way, from headers to headers."""

from __future__ import annotations

from typing import Final

import pytest

from sidecar.contract import DIALECTS, DIALECTS_BY_CODE, Dialect
from sidecar.contract.dead_letter import REDRIVES, DeadLetter
from sidecar.contract.dialects.dialect import Check, Delays, HeaderValues, Message
from sidecar.contract.redrive import RedriveTerms, redrive
from sidecar.contract.values import HeaderError, read_number, read_text, read_topic
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Dead, Dropped, Item
from sidecar.engine.partition import State
from sidecar.engine.ports import Outgoing
from sidecar.model import Headers, Reason, Record, Rejection, Request
from sidecar.policy import Policy, PolicyConfig
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, ORIGINS, Stage

TOPIC: Final = "toy-topic"
WAIT_S: Final = "toy-wait-s"
TRIES: Final = "toy-tries"
ERROR: Final = "toy-error"


class Toy:
    """Headers `toy-*`, in angle brackets; a drop and a fatal exception come before all else."""

    name: Final = "toy"
    code: Final = 200
    names: Final = frozenset({TOPIC, WAIT_S, TRIES, ERROR})
    origin_header: Final = TOPIC
    exception_headers: Final = (ERROR,)
    attempt_header: Final = TRIES
    delays: Final = Delays.LIST
    checks: Final = (Check.DROPPABLE, Check.FATAL, Check.ORIGIN, Check.DELAY, Check.EXHAUSTED)

    reads_payload: Final = False

    def claims(self, values: HeaderValues) -> bool:
        return TOPIC in values

    def takes(self, record: Record, values: HeaderValues) -> bool:
        return False

    def origin_of(self, values: HeaderValues) -> bytes | None:
        return self.bare(values.get(TOPIC))

    def delivered(self, message: Message, timestamp_ms: int) -> Message:
        return message

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        try:
            return Request(
                self.code,
                read_topic(TOPIC, self.bare(values[TOPIC])),
                delay_ms=read_number(WAIT_S, self.bare(values[WAIT_S])) * 1000 if WAIT_S in values else None,
                attempt=self.attempt_of(values),
                exception=read_text(ERROR, self.bare(values[ERROR])) if ERROR in values else None,
            )
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def render(
        self, headers: Headers, attempt: int, limit: int, timer_id: tuple[int, int, int], due_ms: int
    ) -> Headers:
        others = [header for header in headers if header[0] not in {TRIES, WAIT_S}]
        return [*others, (TRIES, b"<%d>" % (attempt + 1))]

    def bare(self, value: bytes | None) -> bytes | None:
        return None if value is None else value.strip(b"<>")

    def attempt_of(self, values: HeaderValues) -> int:
        return read_number(TRIES, self.bare(values[TRIES])) if TRIES in values else 0

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        gone = {WAIT_S} if keep_attempts else {WAIT_S, TRIES}
        again = [header for header in headers if header[0] not in gone]
        if to_origin:
            again = [(name, to_origin.encode() if name == TOPIC else value) for name, value in again]
        return [*again, (WAIT_S, b"<0>")]


TOY: Final[Dialect] = Toy()
NATIVE: Final = DIALECTS["native"]
CONFIG: Final = PolicyConfig(
    delays_ms=(1000, 5000), droppable=("Boring",), fatal=("Fatal",), origin_topics=("A", "B", "asked")
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, TOY.name, TOY)
    monkeypatch.setitem(DIALECTS_BY_CODE, TOY.code, TOY)


def examined(headers: Headers, *, offset: int = 0, profiles: tuple[str, ...] = ("native", "ibm", "toy")) -> Item | str:
    dialects = [DIALECTS[name] for name in profiles]
    ingest = Ingest(Policy(CONFIG), dialects, ORIGINS, (), input_topic="retry", app_id="app")
    return ingest.examine(Record(0, offset, NOW, b"key", b"value", headers), NOW)


def said(**values: str) -> Headers:
    return [
        ("trace", b"1"),
        *((f"toy-{name.replace('_', '-')}", f"<{text}>".encode()) for name, text in values.items()),
    ]


def fired_at(now_ms: int, headers: Headers) -> Outgoing:
    """Store a message, restore its partition from the changelog as another process does, and fire it from there."""
    item = examined(headers)
    assert isinstance(item, Arrival)
    stage = Stage()
    stage.commit(NOW, item)
    store = MemoryStore()
    stage.partition, stage.store = stage.restored(store), store
    stage.partition.transition_to(State.RUNNING)
    (fire,) = stage.commit(now_ms, *()).deliveries
    return fire


def dead(headers: Headers) -> Outgoing:
    """Return the dead letter that a message becomes."""
    item = examined(headers)
    assert isinstance(item, Dead)
    ((_, dead_letter),) = Stage().commit(NOW, item).dead_letters
    return dead_letter


def test_a_message_comes_back_in_the_words_that_it_came_in() -> None:
    fire = fired_at(NOW + 30_000, said(topic="A", wait_s="30", error="E"))
    assert (fire.topic, fire.key, fire.value, fire.due_ms) == ("A", b"key", b"value", NOW + 30_000)
    assert fire.headers == [("trace", b"1"), (TOPIC, b"<A>"), (ERROR, b"<E>"), (TRIES, b"<1>")]


def test_the_delays_are_those_that_it_names() -> None:
    item = examined(said(topic="A", tries="1"))
    assert isinstance(item, Arrival)
    assert item.due_ms == NOW + 5000


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (said(topic="A", tries="2"), Reason.ATTEMPTS_EXHAUSTED),
        (said(topic="other", tries="2", error="Fatal"), Reason.FATAL),
        (said(topic="other", tries="2"), Reason.ORIGIN_NOT_ALLOWED),
        (said(topic="A", tries="two"), Reason.BAD_HEADER),
    ],
)
def test_what_objects_first_in_its_order_decides(headers: Headers, reason: Reason) -> None:
    item = examined(headers)
    assert isinstance(item, Dead)
    assert item.reason is reason


def test_a_drop_needs_no_origin_where_it_comes_first() -> None:
    assert isinstance(examined(said(topic="B", error="Boring")), Dropped)
    assert isinstance(examined(said(topic="other", error="Boring")), Dropped)
    assert isinstance(examined(said(topic="asked", error="Boring")), Dropped)
    assert examined(said(topic="asked")) == "asked"


def test_a_dead_letter_is_understood() -> None:
    dead_letter = DeadLetter(dead(said(topic="A", tries="2", error="com.acme.E")).headers, [NATIVE, TOY])
    assert dead_letter.dialect is TOY
    assert (dead_letter.reason, dead_letter.origin, dead_letter.exception, dead_letter.attempt) == (
        "attempts-exhausted",
        "A",
        "com.acme.E",
        2,
    )
    assert DeadLetter(dead(said(topic="A", tries="two")).headers, [NATIVE, TOY]).attempt is None


def test_a_dead_letter_is_redriven_and_fires() -> None:
    headers = dead(said(topic="A", tries="2", error="E")).headers
    again = redrive(headers, RedriveTerms(to_origin="B"), now_ms=NOW, share=0.0, dialects=[NATIVE, TOY])
    assert again == [("trace", b"1"), (TOPIC, b"B"), (ERROR, b"<E>"), (WAIT_S, b"<0>"), (REDRIVES, b"1")]
    item = examined(again)
    assert isinstance(item, Arrival)
    (fire,) = Stage().commit(NOW, item).deliveries
    assert (fire.topic, dict(fire.headers)[TRIES]) == ("B", b"<1>")


def test_a_redrive_that_keeps_the_attempts_keeps_them() -> None:
    headers = dead(said(topic="A", tries="2")).headers
    again = redrive(headers, RedriveTerms(keep_attempts=True), now_ms=NOW, share=0.0, dialects=[TOY])
    assert isinstance(again, list)
    assert dict(again)[TRIES] == b"<2>"


def test_a_profile_that_is_not_accepted_is_not_understood() -> None:
    item = examined(said(topic="A"), profiles=("native", "ibm"))
    assert isinstance(item, Dead)
    assert item.reason is Reason.MISSING_HEADER
