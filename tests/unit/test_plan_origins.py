"""What becomes of a due timer whose origin is not open, or can not take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sidecar.changelog.codec import Closed, Closure
from sidecar.changelog.entry import DEFERRED, KEY
from sidecar.contract.control import ControlKind
from sidecar.engine.plan import DEFERRAL_MAX_MS, DEFERRAL_MIN_MS, PartitionPlan, Terms
from sidecar.engine.ports import Origin
from sidecar.model import Headers, Reason
from sidecar.wheel.counts import Counts
from tests.simulation.stage import NOW, ORIGINS, TERMS, Stage, fired

HOUR = 3_600_000


def closed(since_ms: int = NOW, why: Closure = Closure.UNREACHABLE) -> Terms:
    return replace(TERMS, closed={"A": Closed(why, since_ms)}, origin_timeout_ms=HOUR)


def reasons(part: PartitionPlan) -> list[Reason]:
    return [reason for reason, _ in part.dead_letters]


def as_text(headers: Headers) -> Mapping[str, str]:
    return {name: (value or b"").decode() for name, value in headers}


def test_what_is_due_for_a_closed_origin_is_stored_again_and_nobody_else_waits() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, "A"), stage.send(NOW + 6, "B"))
    part = stage.commit(NOW + 10, terms=closed())
    assert fired(part) == [1]
    assert part.deferred == {"A": 1}
    assert [(timer.due_ms, timer.requested_ms) for timer in stage.timers()] == [(NOW + 10 + DEFERRAL_MIN_MS, NOW + 5)]


def test_a_deferral_writes_no_removed_record() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    part = stage.commit(NOW + 10, terms=closed())
    assert sorted(key[:1] for key, _ in part.records) == [b"b", b"c"]


def test_an_overdue_arrival_for_a_closed_origin_is_stored_as_deferred() -> None:
    stage = Stage()
    part = stage.commit(NOW, stage.send(NOW - 5), terms=closed())
    assert part.fires == []
    assert [timer.flags for timer in stage.timers()] == [DEFERRED]
    assert stage.partition.counts.deferred == {"A": 1}


@pytest.mark.parametrize(
    ("late_ms", "delay_ms"),
    [(0, DEFERRAL_MIN_MS), (60_000, 60_000), (10**8, DEFERRAL_MAX_MS)],
    ids=["at least five seconds", "as late as it is already", "at most a quarter of an hour"],
)
def test_a_deferral_lasts(late_ms: int, delay_ms: int) -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW - late_ms), terms=replace(closed(), origin_timeout_ms=10**12))
    assert stage.dues() == [NOW + delay_ms]


def test_many_deferred_timers_come_back_two_thousand_a_second() -> None:
    stage = Stage()
    stage.partition.counts = Counts(deferred={"A": 20_000}, origins={"A": 20_000}, slots={(5, 99): 20_000})
    (part,) = stage.plan(NOW, stage.send(NOW), terms=closed()).parts
    (entry,) = (row for row in part.mutations.rows if row[:1] == b"t")
    assert int.from_bytes(entry[5:13], "big") == NOW + 10_000


def test_an_origin_closed_for_longer_than_origin_timeout_sends_what_is_due_to_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 10**7))
    part = stage.commit(NOW + 10, terms=closed(NOW + 9 - HOUR))
    ((reason, letter),) = part.dead_letters
    assert reason is Reason.UNFIREABLE
    said = as_text(letter.headers)
    assert said["retry-dlq-detail"] == "A has been unreachable for longer than ORIGIN_TIMEOUT"
    assert said["__connect.errors.offset"] == "0"
    assert said["retry-origin-topic"] == "A"
    assert stage.dues() == [NOW + 10**7]


def test_until_origin_timeout_is_over_it_is_deferred() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    assert reasons(stage.commit(NOW + 10, terms=closed(NOW + 10 - HOUR))) == []


def test_a_paused_origin_never_times_out_and_goes_on_when_resumed() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.PAUSE, "A"))
    short = replace(TERMS, origin_timeout_ms=1)
    part = stage.commit(NOW + HOUR, terms=short)
    assert (part.fires, reasons(part), part.deferred) == ([], [], {"A": 1})
    stage.commit(NOW + HOUR, stage.control(ControlKind.RESUME, "A"), terms=short)
    assert stage.partition.checkpoint.closed == {}
    assert fired(stage.commit(NOW + 3 * HOUR, terms=short)) == [0]


def test_time_spent_paused_does_not_count_for_origin_timeout() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.PAUSE, "A"))
    now = NOW + 2 * HOUR
    part = stage.commit(now, stage.control(ControlKind.RESUME, "A"), terms=closed(now))
    assert (reasons(part), part.deferred) == ([], {"A": 1})


def test_the_checkpoint_says_since_when_an_origin_with_timers_is_closed() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), terms=closed(NOW - 7))
    assert stage.partition.checkpoint.closed == {"A": Closed(Closure.UNREACHABLE, NOW - 7)}
    stage.commit(NOW + 10)
    assert stage.partition.checkpoint.closed == {}


def test_an_overdue_arrival_of_an_origin_that_nothing_is_known_of_is_deferred_and_asked_for() -> None:
    stage = Stage()
    arrival = stage.send(NOW - 5, "new")
    made = stage.plan(NOW, arrival)
    assert made.unresolved == {"new"}
    part = stage.commit(NOW, arrival)
    assert part.deferred == {"new": 1}


def test_a_timer_too_large_for_its_origin_by_now_goes_to_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, value=bytes(5000)))
    small = replace(TERMS, origins={"A": Origin(4, 5000)})
    ((reason, letter),) = stage.commit(NOW + 10, terms=small).dead_letters
    assert reason is Reason.TOO_LARGE
    assert "A takes 5000 (max.message.bytes)" in as_text(letter.headers)["retry-dlq-detail"]
    assert letter.value == bytes(5000)


def test_what_is_too_large_for_the_dlq_too_goes_there_without_its_value() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, value=bytes(5000)))
    small = replace(TERMS, origins={"A": Origin(4, 5000)}, dlq_max_message_bytes=6000)
    ((_, letter),) = stage.commit(NOW + 10, terms=small).dead_letters
    assert letter.value is None
    assert letter.key == b"key"
    assert as_text(letter.headers)["retry-dlq-truncated"] == "true"


def test_a_partition_that_the_origin_does_not_have_is_unfireable() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, origin_partition=4))
    ((reason, letter),) = stage.commit(NOW + 10).dead_letters
    assert reason is Reason.UNFIREABLE
    assert as_text(letter.headers)["retry-dlq-detail"] == f"partition 4; A has {ORIGINS['A'].partitions} now"


def test_what_the_broker_refused_goes_to_the_dlq_in_its_words() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 5))
    refused = replace(TERMS, unfireable={(0, KEY.pack(NOW + 5, 0)): "INVALID_RECORD"})
    part = stage.commit(NOW + 10, terms=refused)
    ((reason, letter),) = part.dead_letters
    assert reason is Reason.UNFIREABLE
    assert as_text(letter.headers)["retry-dlq-detail"] == "INVALID_RECORD"
    assert fired(part) == [1]
