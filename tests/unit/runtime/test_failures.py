"""Lessons of failed transactions: what to leave out, when to try again, when to give up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.changelog.codec import Checkpoint
from sidecar.engine.ports import Mutations, Outgoing
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import PartitionPlan, Plan
from sidecar.errors import DuplicateInstance, TransactionFailed
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.fences import FENCES_MAX, FENCES_WITHIN_S, Fences
from sidecar.kafka.producer import Refusal, Refused
from sidecar.model import Reason, StoredOffset
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.transaction.commit import Result, Work
from sidecar.runtime.transaction.failures import BACK_OFF_MAX_S, DLQ_AGAIN_S, STOOD_STILL_S, Failures
from sidecar.runtime.transaction.pace import ITEMS_MAX
from sidecar.wheel.counts import Counts
from tests.clocks import NOW_MS, HandClock

DLQ = "dlq"
TRANSACTION_TIMEOUT_S = 20.0
LIMIT_BYTES = 300_000
ABORTED = TransactionFailed("refused", unknown=False, replace=False)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def failures(clock: HandClock) -> Failures:
    return Failures(clock, Fences(clock, None, TRANSACTION_TIMEOUT_S, lambda: True))


@pytest.fixture
def closed() -> ClosedOrigins:
    return ClosedOrigins(Catalogue(AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})))


def outgoing(number: int, topic: str = "orders") -> Outgoing:
    return Outgoing(topic, -1, None, b"v", [], NOW_MS, b"%016d" % number)


def refused(number: int, why: Refusal = Refusal.RECORD, topic: str = "orders", target: int = 0) -> Refused:
    return Refused(3, outgoing(number, topic), why, f"no {number}", target)


def result(
    deliveries: int,
    refused: Sequence[Refused] = (),
    error: TransactionFailed = ABORTED,
    accepted: int = 0,
    seconds: float = 0.1,
) -> Result:
    partition_plan = PartitionPlan(
        number=3,
        checkpoint=Checkpoint(),
        counts=Counts(),
        records=[],
        deliveries=[outgoing(number) for number in range(deliveries)],
        fired={"orders": deliveries},
        fired_dues_ms=[NOW_MS] * deliveries,
        dead_letters=[],
        control_outcomes=[],
        dropped=[],
        deferred={},
        held={},
        mutations=Mutations(),
        ingested=0,
        stored=0,
        rejected=0,
        cancelled=0,
        complete=True,
        stored_end_ms=None,
        taken=frozenset(),
    )
    work = Work(Plan(NOW_MS, [partition_plan], frozenset()), {}, b"", Identity("", ""), "retry", "changelog", "status")
    return Result(work, seconds, error, refused, {("orders", 0): accepted})


def fail(
    failures: Failures,
    closed: ClosedOrigins,
    *rejected: Refused,
    deliveries: int = 10_000,
    error: TransactionFailed = ABORTED,
    accepted: int = 0,
    seconds: float = 0.1,
) -> bool:
    return failures.failed(
        error, result(deliveries, rejected, error, accepted, seconds), closed, (DLQ,), lambda _: LIMIT_BYTES
    )


def commit(
    failures: Failures, *, dead_letters: int = 0, ingested: int = 0, without: frozenset[str] = frozenset()
) -> None:
    done = result(0)
    (partition_plan,) = done.work.plan.partition_plans
    partition_plan.dead_letters += [(Reason.FATAL, outgoing(number, DLQ)) for number in range(dead_letters)]
    partition_plan.ingested = ingested
    failures.committed(dataclasses.replace(done, work=dataclasses.replace(done.work, closed_dlqs=without)), more=False)


def test_a_record_that_is_refused_alone_goes_to_the_dlq_with_the_brokers_words(
    failures: Failures, closed: ClosedOrigins
) -> None:
    fail(failures, closed, refused(7))
    assert failures.unfireable == {(3, outgoing(7).source): (Reason.UNFIREABLE, "no 7")}
    assert failures.items_max == ITEMS_MAX


def test_where_nothing_was_written_a_timeout_closes_neither_an_origin_nor_the_dlq(
    failures: Failures, closed: ClosedOrigins
) -> None:
    late = [refused(7, Refusal.SILENT), refused(8, Refusal.SILENT, DLQ)]
    given = result(1, late, ABORTED)
    given.work.plan.partition_plans[0].dead_letters.append((Reason.FATAL, outgoing(8, DLQ)))
    failures.failed(ABORTED, given, closed, (DLQ,), lambda _: LIMIT_BYTES)
    assert failures.dlq_open(DLQ)
    assert not closed.closed
    failures.failed(ABORTED, dataclasses.replace(given, changelog_written=True), closed, (DLQ,), lambda _: LIMIT_BYTES)
    assert not failures.dlq_open(DLQ)
    assert set(closed.closed) == {"orders"}


def test_what_timed_out_while_the_process_was_suspended_closes_neither_an_origin_nor_the_dlq(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    late = [refused(7, Refusal.SILENT), refused(8, Refusal.SILENT, DLQ)]
    given = dataclasses.replace(result(2, late, ABORTED, seconds=STOOD_STILL_S + 1), changelog_written=True)
    clock.now_s += STOOD_STILL_S + 1
    failures.next_round()
    failures.failed(ABORTED, given, closed, (DLQ,), lambda _: LIMIT_BYTES)
    assert failures.dlq_open(DLQ)
    assert not closed.closed


def test_a_transaction_that_began_after_the_process_was_suspended_closes_what_times_out(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    clock.now_s += STOOD_STILL_S + 1
    failures.next_round()
    late = [refused(7, Refusal.SILENT), refused(8, Refusal.SILENT, DLQ)]
    given = dataclasses.replace(result(2, late, ABORTED, seconds=STOOD_STILL_S + 1), changelog_written=True)
    for _ in range(6):
        clock.now_s += 1.1
        failures.next_round()
    failures.failed(ABORTED, given, closed, (DLQ,), lambda _: LIMIT_BYTES)
    assert not failures.dlq_open(DLQ)
    assert set(closed.closed) == {"orders"}


def test_records_that_the_broker_names_are_all_guilty_at_once(failures: Failures, closed: ClosedOrigins) -> None:
    fail(failures, closed, refused(7, Refusal.NAMED), refused(9, Refusal.NAMED), accepted=2)
    assert set(failures.unfireable) == {(3, outgoing(7).source), (3, outgoing(9).source)}
    assert failures.items_max == ITEMS_MAX


def test_a_whole_batch_that_is_named_has_no_name_in_it(failures: Failures, closed: ClosedOrigins) -> None:
    """A broker that names no record is reported as one that names each of its batch."""
    fail(failures, closed, *(refused(number, Refusal.NAMED) for number in range(34)), deliveries=90, accepted=4)
    assert not failures.unfireable
    assert failures.items_max == 17


def test_who_is_named_in_one_partition_says_nothing_of_another_that_is_named_as_a_whole(
    failures: Failures, closed: ClosedOrigins
) -> None:
    whole = [refused(number, Refusal.NAMED, target=1) for number in range(27)]
    fail(failures, closed, refused(40, Refusal.NAMED), refused(41, Refusal.NAMED), *whole, accepted=31)
    assert set(failures.unfireable) == {(3, outgoing(40).source), (3, outgoing(41).source)}


def test_of_a_refused_batch_ever_fewer_are_tried_until_one_is_alone(failures: Failures, closed: ClosedOrigins) -> None:
    tries = 0
    while not failures.unfireable:
        tries += 1
        count = min(1_000, failures.items_max)
        fail(failures, closed, *(refused(number) for number in range(count)))
    assert tries == 10
    assert list(failures.unfireable) == [(3, outgoing(0).source)]


def test_what_was_learnt_is_forgotten_with_the_next_commit_and_plans_grow_again(
    failures: Failures, closed: ClosedOrigins
) -> None:
    fail(failures, closed, *(refused(number) for number in range(100)))
    fail(failures, closed, refused(1))
    assert (failures.items_max, len(failures.unfireable)) == (50, 1)
    commit(failures, dead_letters=1, ingested=1)
    assert (failures.items_max, failures.unfireable) == (100, {})
    for _ in range(10):
        commit(failures, dead_letters=0, ingested=0)
    assert failures.items_max == ITEMS_MAX


def test_an_origin_that_refuses_is_closed_and_none_of_its_records_is_guilty(
    failures: Failures, closed: ClosedOrigins
) -> None:
    fail(failures, closed, refused(1, Refusal.GONE), refused(2, Refusal.GONE))
    assert set(closed.closed) == {"orders"}
    assert not failures.unfireable
    assert failures.items_max == ITEMS_MAX


def test_a_dlq_that_refuses_holds_ingest_and_says_so_until_a_dead_letter_is_written(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    fail(failures, closed, refused(1, Refusal.GONE, "dlq"))
    assert "the DLQ dlq cannot be written: no 1" in (failures.blocker() or "")
    assert not failures.dlq_open(DLQ)
    assert not closed.closed
    clock.now_s += DLQ_AGAIN_S
    assert failures.dlq_open(DLQ)
    commit(failures, dead_letters=0, ingested=0)
    assert failures.blocker() is not None
    commit(failures, dead_letters=1, ingested=1)
    assert failures.blocker() is None


def test_what_cannot_be_stored_is_remembered_over_commits_until_the_dlq_is_tried(
    failures: Failures, closed: ClosedOrigins
) -> None:
    place = (3, StoredOffset(7), 100)
    fail(failures, closed, refused(1, Refusal.GONE, "dlq"))
    failures.oversize.unstorable[place] = "too large"
    commit(failures, without=frozenset({DLQ}))
    assert failures.oversize.unstorable.keys() == {place}
    fail(failures, closed, refused(1, Refusal.GONE, "dlq"))
    assert not failures.oversize.unstorable, "the changelog may take more by now"
    failures.oversize.unstorable[place] = "too large"
    commit(failures, dead_letters=1)
    assert not failures.oversize.unstorable


def test_a_dlq_that_refused_is_no_blocker_once_messages_are_ingested_without_it(
    failures: Failures, closed: ClosedOrigins
) -> None:
    """The partition of the one that it refused may have gone to another instance."""
    fail(failures, closed, refused(1, Refusal.GONE, "dlq"))
    commit(failures, dead_letters=0, ingested=1)
    assert failures.blocker() is None


def test_the_wait_grows_with_each_failure_in_a_row_and_ends_with_a_commit(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    waits = []
    for _ in range(12):
        fail(failures, closed)
        began_s = clock.now_s
        while failures.waiting():
            clock.now_s += 0.01
        waits.append(round(clock.now_s - began_s, 1))
    assert waits == sorted(waits)
    assert waits[0] <= 0.1
    assert waits[-1] == BACK_OFF_MAX_S
    assert failures.blocker() == "refused"
    commit(failures, dead_letters=0, ingested=0)
    assert failures.blocker() is None


def test_a_broker_that_is_away_for_days_is_no_overflow(failures: Failures, clock: HandClock) -> None:
    for _ in range(5_000):
        failures.back_off("no broker")
    clock.now_s += BACK_OFF_MAX_S + 0.01
    assert not failures.waiting()


def test_a_refusal_teaches_something_so_the_next_try_comes_soon(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    for _ in range(10):
        fail(failures, closed, refused(1), refused(2))
    clock.now_s += 0.06
    assert not failures.waiting()


@pytest.mark.parametrize(
    ("error", "rejected", "replaced"),
    [
        (ABORTED, (), False),
        (ABORTED, (refused(1),), True),
        (TransactionFailed("late", unknown=True, replace=True), (), True),
        (TransactionFailed("bad", unknown=False, replace=True), (), True),
    ],
    ids=["aborted", "refused", "unknown", "replace"],
)
def test_the_producer_is_replaced_unless_the_transaction_was_cleanly_aborted(
    failures: Failures, closed: ClosedOrigins, error: TransactionFailed, rejected: tuple[Refused, ...], replaced: bool
) -> None:
    assert fail(failures, closed, *rejected, error=error) is replaced


def fenced() -> TransactionFailed:
    return TransactionFailed("fenced", unknown=True, replace=True, fenced=True)


def test_a_young_transaction_that_is_fenced_counts_and_one_that_outlived_its_timeout_does_not(
    failures: Failures, closed: ClosedOrigins
) -> None:
    """The broker fences both with the same words."""
    for _ in range(3):
        assert fail(failures, closed, error=fenced(), seconds=TRANSACTION_TIMEOUT_S)
    assert fail(failures, closed, error=fenced())
    assert fail(failures, closed, error=fenced())
    with pytest.raises(DuplicateInstance):
        fail(failures, closed, error=fenced())


def test_a_producer_that_could_not_be_created_explains_fences_for_a_minute(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    """Brokers that were away process the initialisations that they did not answer."""
    failures.renewal_failed(TransactionFailed("timed out", unknown=False, replace=True))
    for _ in range(5):
        assert fail(failures, closed, error=fenced())
    clock.now_s += FENCES_WITHIN_S
    for _ in range(FENCES_MAX - 1):
        assert fail(failures, closed, error=fenced())
    with pytest.raises(DuplicateInstance):
        fail(failures, closed, error=fenced())


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (fenced(), "fenced"),
        (TransactionFailed("x", unknown=True, replace=True), "unknown"),
        (ABORTED, "aborted"),
    ],
)
def test_each_failure_has_its_label_in_the_metric(failures: Failures, error: TransactionFailed, label: str) -> None:
    assert failures.outcome(error) == label


def test_a_dlq_that_refuses_leaves_the_others_open_and_each_opens_when_a_dead_letter_is_written_to_it(
    failures: Failures, closed: ClosedOrigins, clock: HandClock
) -> None:
    both = (DLQ, "pay-dlq")
    given = result(2, [refused(1, Refusal.GONE, "pay-dlq"), refused(2, Refusal.GONE, "pay-dlq")], ABORTED)
    failures.failed(ABORTED, given, closed, both, lambda _: LIMIT_BYTES)
    assert (failures.dlq_open(DLQ), failures.dlq_open("pay-dlq")) == (True, False)
    assert "the DLQ pay-dlq cannot be written: no 1" in (failures.blocker() or "")
    commit(failures, dead_letters=1, ingested=1, without=frozenset({"pay-dlq"}))
    assert not failures.dlq_open("pay-dlq"), "a dead letter for another DLQ says nothing about it"
    clock.now_s += DLQ_AGAIN_S
    assert failures.dlq_open("pay-dlq")
    commit(failures, ingested=1)
    assert failures.blocker() is None
