"""The ledger judges by what the present and the former retry topic hold, not by offsets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

import pytest

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, encode_checkpoint
from sidecar.contract.dead_letter import render_dead_letter
from sidecar.kafka.admin.catalogue import FORBIDDEN_AFTER_S
from sidecar.model import Headers, Reason
from tests.simulation.fakes.cluster import Cluster
from tests.simulation.fakes.logs import Row, Transaction
from tests.simulation.fakes.timeline import Timeline
from tests.simulation.shell.ledger import HEADERS_MAX, Fate, Ledger, Sent, check_stops
from tests.simulation.shell.senders import BILLS
from tests.simulation.shell.world import CHANGELOG, DLQ, INPUT

ORIGIN: Final = "orders"
OWN_DLQ: Final = "dlq-bills"


class Judged:
    """A cluster of one partition, what is sent to it, and a ledger that is told each transaction."""

    def __init__(self) -> None:
        rng = random.Random(0)
        self.cluster = Cluster(Timeline(rng), rng)
        for name in (INPUT, CHANGELOG, DLQ, OWN_DLQ, ORIGIN, BILLS):
            self.cluster.create(name, 1, 1_000_000)
        self.ledger = Ledger(self.cluster, self.cluster.timeline, INPUT, CHANGELOG, DLQ, {BILLS: OWN_DLQ})
        self.topic_id = self.cluster.topics[INPUT].id

    def send(self, fate: Fate, headers: int = 0, origin: str = ORIGIN) -> Sent:
        number = len(self.ledger.sent) + 1
        to = ("retry-origin-topic", origin.encode())
        held: Headers = [("uid", b"uid-%d;" % number), to, *[("h", None)] * headers]
        sent = Sent(number, "headers", origin, 0, b"k", b"v", held, fate)
        log = self.cluster.topics[INPUT].logs[0]
        self.ledger.note(sent, 0, log.append([Row(sent.key, sent.value, held)], 0, None))
        return sent

    def recreate(self) -> None:
        self.ledger.recreated()
        self.cluster.delete(INPUT)
        self.cluster.create(INPUT, 1, 1_000_000)

    def commit(
        self,
        taken: int,
        *dead: Sent,
        stage: str = "intake",
        cut: bool = False,
        dlq: str = DLQ,
        reason: Reason = Reason.BAD_HEADER,
        detail: str = "",
        fired: Sequence[Sent] = (),
    ) -> None:
        """Commit an offset in the topic that the sidecar knows, and dead letters; a cut one has only coordinates."""
        transaction = Transaction("app-s0", 0.0, offsets={0: taken})
        for sent in fired:
            self.cluster.produce(transaction, sent.origin, 0, [Row(sent.key, sent.value, sent.headers)], 0)
        for sent in dead:
            headers = render_dead_letter(
                [] if cut else sent.headers,
                reason=reason,
                detail=detail,
                topic=INPUT,
                partition=0,
                offset=sent.offset,
                timestamp_ms=0,
                connector_name="app",
                stage=stage,
            )
            self.cluster.produce(transaction, dlq, 0, [Row(sent.key, sent.value, headers)], 0)
        checkpoint = encode_checkpoint(Checkpoint(input_topic_id=self.topic_id))
        self.cluster.produce(transaction, CHANGELOG, 0, [Row(CHECKPOINT_KEY, checkpoint, [])], 0)
        self.cluster.group.offsets[0] = taken
        self.ledger.completed(transaction)


def test_a_cut_dead_letter_names_an_offset_of_the_topic_that_its_checkpoint_names() -> None:
    judged = Judged()
    former = judged.send(Fate.DEAD)
    judged.recreate()
    good = judged.send(Fate.FIRED)  # at the same offset
    judged.commit(1, former, cut=True)
    assert former.out
    assert not good.out


def test_a_good_message_that_is_cut_to_its_coordinates_is_still_no_dead_letter() -> None:
    judged = Judged()
    judged.send(Fate.DEAD)
    judged.recreate()
    good = judged.send(Fate.FIRED)
    judged.topic_id = judged.cluster.topics[INPUT].id
    with pytest.raises(AssertionError, match="a dead letter of a good message"):
        judged.commit(1, good, cut=True)


@pytest.mark.parametrize(("origin", "dlq", "other"), [(ORIGIN, DLQ, OWN_DLQ), (BILLS, OWN_DLQ, DLQ)])
def test_a_dead_letter_goes_to_the_dlq_of_its_origin(origin: str, dlq: str, other: str) -> None:
    judged = Judged()
    judged.commit(1, dead := judged.send(Fate.DEAD, origin=origin), dlq=dlq)
    assert dead.out
    with pytest.raises(AssertionError, match="a dead letter on another DLQ"):
        judged.commit(2, judged.send(Fate.DEAD, origin=origin), dlq=other)


def test_what_a_recreated_topic_loses_is_not_measured_by_the_offset_of_the_former_one() -> None:
    judged = Judged()
    formers = [judged.send(Fate.DEAD), judged.send(Fate.DEAD)]
    judged.commit(2, *formers)
    judged.recreate()
    unread = judged.send(Fate.FIRED)
    judged.ledger.deleted(0, 1)
    assert unread.is_lost


def test_what_was_taken_in_before_its_log_is_cut_is_not_lost() -> None:
    judged = Judged()
    taken, unread = judged.send(Fate.DEAD), judged.send(Fate.DEAD)
    judged.commit(1, taken)
    judged.ledger.deleted(0, 2)
    assert (taken.is_lost, unread.is_lost) == (False, True)


def test_headers_of_messages_that_are_refused_at_their_arrival_have_a_bound() -> None:
    judged = Judged()
    refused = [judged.send(Fate.DEAD, HEADERS_MAX // 2) for _ in range(2)]
    with pytest.raises(AssertionError, match="headers without end"):
        judged.commit(2, *refused)


def test_headers_of_timers_that_cannot_fire_are_bounded_by_the_plan() -> None:
    judged = Judged()
    unfireable = [judged.send(Fate.EITHER, HEADERS_MAX // 2) for _ in range(2)]
    judged.commit(2, *unfireable, stage="fire")
    assert all(each.out for each in unfireable)


@pytest.mark.parametrize(("takes_one", "is_excused"), [(False, True), (True, False)])
def test_an_origin_is_away_since_the_first_outage_after_it_took_a_message(*, takes_one: bool, is_excused: bool) -> None:
    judged = Judged()
    judged.ledger.origin_timeout_s = 60.0
    judged.ledger.outage(ORIGIN)  # in the first moment of the world
    taken, late = judged.send(Fate.EITHER), judged.send(Fate.EITHER)
    judged.cluster.timeline.advance(100.0)
    if takes_one:
        judged.commit(1, fired=(taken,))
    judged.ledger.outage(ORIGIN)
    judged.cluster.timeline.advance(6.0)
    dead = (late,) if takes_one else (taken, late)
    detail = f"{ORIGIN} has been unreachable for longer than ORIGIN_TIMEOUT"
    with nullcontext() if is_excused else pytest.raises(AssertionError, match="open not long ago"):
        judged.commit(2, *dead, stage="fire", reason=Reason.UNFIREABLE, detail=detail)


@pytest.mark.parametrize(
    ("hidden_s", "is_excused"),
    [((), False), (((0.0, 1.0),), True), (((0.0, 0.5),), False), (((15.0, 20.0),), False)],
    ids=["all could be seen", "while it waited", "before it was due", "when it was out"],
)
def test_a_message_may_wait_for_the_second_answer_about_an_origin_that_may_not_be_seen(
    hidden_s: Sequence[tuple[float, float]], *, is_excused: bool
) -> None:
    sent = Sent(1, "good", ORIGIN, 1_000, b"k", b"v", [], Fate.FIRED)
    sent.out.append((ORIGIN, 1.0 + 10.0 + FORBIDDEN_AFTER_S))
    with nullcontext() if is_excused else pytest.raises(AssertionError, match="s late"):
        check_stops([sent], 0, 10.0, hidden_s=hidden_s)
