"""Plans for due timers whose origin is not open, or cannot take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sidecar.changelog.codec import Closed, Closure, encode_checkpoint
from sidecar.changelog.entry import DEFERRED, KEY
from sidecar.contract.control import EVERY_ORIGIN, ControlKind, Outcome
from sidecar.engine import controls
from sidecar.engine.closures import CLOSED_BYTES_MAX, DEFERRAL_MAX_MS, DEFERRAL_MIN_MS
from sidecar.engine.group.view import closed_origins
from sidecar.engine.ports import Origin
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import Headers, Reason, TimerId
from sidecar.wheel.counts import Counts
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, ORIGINS, TERMS, Stage, fired, outcomes

HOUR = 3_600_000


def closed(since_ms: int = NOW, why: Closure = Closure.UNREACHABLE) -> Terms:
    return replace(TERMS, closed={"A": Closed(why, since_ms)}, origin_timeout_ms=HOUR)


def reasons(partition_plan: PartitionPlan) -> list[Reason]:
    return [reason for reason, _ in partition_plan.dead_letters]


def as_text(headers: Headers) -> Mapping[str, str]:
    return {name: (value or b"").decode() for name, value in headers}


def test_what_is_due_for_a_closed_origin_is_stored_again_and_no_other_origin_waits() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, "A"), stage.send(NOW + 6, "B"))
    partition_plan = stage.commit(NOW + 10, terms=closed())
    assert fired(partition_plan) == [1]
    assert partition_plan.deferred == {"A": 1}
    assert [(timer.due_ms, timer.requested_ms) for timer in stage.timers()] == [(NOW + 10 + DEFERRAL_MIN_MS, NOW + 5)]


def test_a_deferral_writes_no_removed_record() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    partition_plan = stage.commit(NOW + 10, terms=closed())
    assert sorted(key[:1] for key, _ in partition_plan.records) == [b"b", b"c"]


def test_an_overdue_arrival_for_a_closed_origin_is_stored_as_deferred() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW - 5), terms=closed())
    assert partition_plan.deliveries == []
    assert [timer.flags for timer in stage.timers()] == [DEFERRED]
    assert stage.partition.counts.deferred == {"A": 1}


@pytest.mark.parametrize(
    ("late_ms", "closed_ms", "delay_ms"),
    [
        (0, 10**8, DEFERRAL_MIN_MS),
        (60_000, 10**8, 60_000),
        (10**8, 60_000, 60_000),
        (10**8, -60_000, DEFERRAL_MIN_MS),
        (10**8, 10**8, DEFERRAL_MAX_MS),
    ],
    ids=[
        "at least five seconds",
        "as long as it was due for the closed origin",
        "not for what made it late before the origin closed",
        "at least five seconds for an origin that another clock saw closing",
        "at most a quarter of an hour",
    ],
)
def test_a_deferral_lasts(late_ms: int, closed_ms: int, delay_ms: int) -> None:
    stage = Stage()
    terms = replace(closed(NOW - closed_ms), origin_timeout_ms=10**12)
    stage.commit(NOW, stage.send(NOW - late_ms), terms=terms)
    assert stage.dues() == [NOW + delay_ms]


def test_many_deferred_timers_come_back_two_thousand_a_second() -> None:
    stage = Stage()
    stage.partition.counts = Counts(deferred={"A": 20_000}, origins={"A": 20_000}, slots={(5, 99): 20_000})
    (partition_plan,) = stage.plan(NOW, stage.send(NOW), terms=closed()).partition_plans
    (entry,) = (row for row in partition_plan.mutations.rows if row[:1] == b"t")
    assert int.from_bytes(entry[5:13], "big") == NOW + 10_000


def test_an_origin_closed_for_longer_than_origin_timeout_sends_what_is_due_to_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 10**7))
    partition_plan = stage.commit(NOW + 10, terms=closed(NOW + 9 - HOUR))
    ((reason, dead_letter),) = partition_plan.dead_letters
    assert reason is Reason.UNFIREABLE
    said = as_text(dead_letter.headers)
    assert said["retry-dlq-detail"] == "A has been unreachable for longer than ORIGIN_TIMEOUT"
    assert said["__connect.errors.offset"] == "0"
    assert said["retry-origin-topic"] == "A"
    assert stage.dues() == [NOW + 10**7]


@pytest.mark.parametrize(
    "terms",
    [closed(NOW + 9 - HOUR), replace(TERMS, origins={**ORIGINS, "A": Origin(4, 5000)})],
    ids=["closed for too long", "too large by now"],
)
def test_while_the_dlq_takes_nothing_what_is_due_for_it_is_deferred_and_no_origin_waits(terms: Terms) -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, "A", value=bytes(5000)), stage.send(NOW + 6, "B"))
    partition_plan = stage.commit(NOW + 10, terms=replace(terms, dlq_open=False))
    assert (fired(partition_plan), reasons(partition_plan), partition_plan.deferred) == ([1], [], {"A": 1})
    partition_plan = stage.commit(NOW + 10 + DEFERRAL_MIN_MS, terms=terms)
    assert len(reasons(partition_plan)) == 1
    assert stage.dues() == []


def test_until_origin_timeout_is_over_it_is_deferred() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    assert reasons(stage.commit(NOW + 10, terms=closed(NOW + 10 - HOUR))) == []


def test_a_paused_origin_never_times_out_and_goes_on_when_resumed() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.PAUSE, "A"))
    short = replace(TERMS, origin_timeout_ms=1)
    partition_plan = stage.commit(NOW + HOUR, terms=short)
    assert (partition_plan.deliveries, reasons(partition_plan), partition_plan.deferred) == ([], [], {"A": 1})
    stage.commit(NOW + HOUR, stage.control(ControlKind.RESUME, "A"), terms=short)
    assert stage.partition.checkpoint.closed == {}
    assert fired(stage.commit(NOW + 3 * HOUR, terms=short)) == [0]


def test_time_spent_paused_does_not_count_for_origin_timeout() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.PAUSE, "A"))
    now = NOW + 2 * HOUR
    partition_plan = stage.commit(now, stage.control(ControlKind.RESUME, "A"), terms=closed(now))
    assert (reasons(partition_plan), partition_plan.deferred) == ([], {"A": 1})


def test_the_checkpoint_says_since_when_an_origin_with_timers_is_closed() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), terms=closed(NOW - 7))
    assert stage.partition.checkpoint.closed == {"A": Closed(Closure.UNREACHABLE, NOW - 7)}
    stage.commit(NOW + 10)
    assert stage.partition.checkpoint.closed == {}


def test_a_closure_that_is_over_leaves_the_checkpoint_of_a_partition_in_which_nothing_happens() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + HOUR), terms=closed(NOW - 7))
    assert stage.plan(NOW + 1).partition_plans == []
    stage.partition.closures_over = True
    partition_plan = stage.commit(NOW + 1)
    assert [key for key, _ in partition_plan.records] == [b"c"]
    assert stage.partition.checkpoint.closed == {}
    assert stage.plan(NOW + 2).partition_plans == [], "once"


def test_a_checkpoint_names_the_longest_closed_origins_of_thousands_and_every_paused_one() -> None:
    stage = Stage()
    names = [f"origin-{n:04}-{'x' * 200}" for n in range(5_000)]
    stage.partition.counts = Counts(origins=dict.fromkeys(names, 1), slots={(5, 99): 5_000})
    many = {name: Closed(Closure.UNAUTHORISED, NOW - at) for at, name in enumerate(names)}
    (partition_plan,) = stage.plan(
        NOW, stage.control(ControlKind.PAUSE, "A"), terms=replace(TERMS, closed=many)
    ).partition_plans
    named = dict(partition_plan.checkpoint.closed)
    assert sum(map(len, named)) < CLOSED_BYTES_MAX
    assert named.pop("A").why is Closure.PAUSED
    assert 200 < len(named) < 500
    assert list(named) == names[: -len(named) - 1 : -1]
    assert len(encode_checkpoint(partition_plan.checkpoint)) < CLOSED_BYTES_MAX + 1_000


def test_an_origin_that_the_checkpoint_has_no_room_for_is_closed_all_the_same() -> None:
    stage = Stage()
    many = {f"{n:0249}": Closed(Closure.VANISHED, NOW - 9) for n in range(1_000)}
    stage.partition.counts = Counts(origins=dict.fromkeys(many, 1), slots={(5, 99): 1_000})
    terms = replace(TERMS, closed={**many, "A": Closed(Closure.VANISHED, NOW)})
    (partition_plan,) = stage.plan(NOW, stage.send(NOW - 1), terms=terms).partition_plans
    assert "A" not in partition_plan.checkpoint.closed
    assert (partition_plan.deliveries, reasons(partition_plan), partition_plan.deferred) == ([], [], {"A": 1})


def test_an_overdue_arrival_of_an_origin_that_nothing_is_known_of_is_deferred_and_asked_for() -> None:
    stage = Stage()
    arrival = stage.send(NOW - HOUR, "new")
    made = stage.plan(NOW, arrival)
    assert made.unresolved == {"new"}
    partition_plan = stage.commit(NOW, arrival)
    assert partition_plan.deferred == {"new": 1}
    assert stage.dues() == [NOW + DEFERRAL_MIN_MS]  # it is looked up meanwhile


def test_a_timer_too_large_for_its_origin_by_now_goes_to_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, value=bytes(5000)))
    small = replace(TERMS, origins={"A": Origin(4, 5000)})
    ((reason, dead_letter),) = stage.commit(NOW + 10, terms=small).dead_letters
    assert reason is Reason.TOO_LARGE
    assert "A takes 5000 (max.message.bytes)" in as_text(dead_letter.headers)["retry-dlq-detail"]
    assert dead_letter.value == bytes(5000)


def test_what_is_too_large_for_the_dlq_too_goes_there_without_its_value() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, value=bytes(5000)))
    small = replace(TERMS, origins={"A": Origin(4, 5000)}, dlq_max_message_bytes=5500)
    ((_, dead_letter),) = stage.commit(NOW + 10, terms=small).dead_letters
    assert dead_letter.value is None
    assert dead_letter.key == b"key"
    assert as_text(dead_letter.headers)["retry-dlq-truncated"] == "value"


def test_a_partition_that_the_origin_does_not_have_is_unfireable() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, origin_partition=4))
    ((reason, dead_letter),) = stage.commit(NOW + 10).dead_letters
    assert reason is Reason.UNFIREABLE
    assert as_text(dead_letter.headers)["retry-dlq-detail"] == f"partition 4; A has {ORIGINS['A'].partitions} now"


def test_what_the_broker_refused_goes_to_the_dlq_in_its_words() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 5))
    refused = replace(TERMS, unfireable={(0, KEY.pack(NOW + 5, 0)): (Reason.UNFIREABLE, "INVALID_RECORD")})
    partition_plan = stage.commit(NOW + 10, terms=refused)
    ((reason, dead_letter),) = partition_plan.dead_letters
    assert reason is Reason.UNFIREABLE
    assert as_text(dead_letter.headers)["retry-dlq-detail"] == "INVALID_RECORD"
    assert fired(partition_plan) == [1]


# All origins at once


def test_while_every_origin_is_paused_nothing_fires_and_nothing_times_out_whatever_is_known_of_its_origin() -> None:
    stage = Stage()
    sent = [stage.send(NOW + 5, origin) for origin in ("A", "B", "new")]
    stage.commit(NOW, *sent, stage.control(ControlKind.PAUSE, EVERY_ORIGIN))
    terms = replace(TERMS, closed={"B": Closed(Closure.VANISHED, NOW - HOUR)}, origin_timeout_ms=1)
    made = stage.plan(NOW + HOUR, stage.send(NOW - 5), terms=terms)
    assert made.unresolved == set()
    (partition_plan,) = made.partition_plans
    assert (partition_plan.deliveries, reasons(partition_plan), partition_plan.deferred) == (
        [],
        [],
        {"A": 2, "B": 1, "new": 1},
    )


def test_the_checkpoint_holds_the_pause_of_every_origin_next_to_those_that_are_closed_by_name() -> None:
    stage = Stage()
    sent = stage.send(NOW + 5)
    pauses = [stage.control(ControlKind.PAUSE, name) for name in ("B", EVERY_ORIGIN)]
    partition_plan = stage.commit(NOW, sent, *pauses, terms=closed(NOW - 7))
    paused = Closed(Closure.PAUSED, NOW)
    assert partition_plan.checkpoint.closed == {
        "A": Closed(Closure.UNREACHABLE, NOW - 7),
        "B": paused,
        EVERY_ORIGIN: paused,
    }
    assert stage.restored(MemoryStore()).checkpoint.closed == partition_plan.checkpoint.closed


def test_a_resume_of_every_origin_takes_only_that_pause_away() -> None:
    stage = Stage()
    sent = [stage.send(NOW + 5, origin) for origin in ("A", "B")]
    pauses = [stage.control(ControlKind.PAUSE, name) for name in (EVERY_ORIGIN, "B")]
    stage.commit(NOW, *sent, *pauses)
    partition_plan = stage.commit(NOW + 10, stage.control(ControlKind.RESUME, EVERY_ORIGIN))
    assert outcomes(partition_plan) == [(Outcome.RESUMED, 2)]
    assert fired(partition_plan) == [0]
    assert partition_plan.checkpoint.closed == {"B": Closed(Closure.PAUSED, NOW)}


def test_a_resume_by_name_changes_nothing_while_every_origin_is_paused() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.PAUSE, EVERY_ORIGIN))
    partition_plan = stage.commit(NOW + 10, stage.control(ControlKind.RESUME, "A"))
    assert (partition_plan.deliveries, partition_plan.deferred) == ([], {"A": 1})


def test_a_stop_pauses_every_origin_and_lasts_through_transactions_and_a_restore_until_it_is_resumed() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW + 5), stage.control(ControlKind.STOP, EVERY_ORIGIN))
    assert outcomes(partition_plan) == [(Outcome.STOPPED, 1)]
    held = stage.commit(NOW + HOUR, stage.send(NOW - 5))
    assert (held.deliveries, held.deferred, held.checkpoint.stopped) == ([], {"A": 2}, True)
    assert held.checkpoint.closed == {EVERY_ORIGIN: Closed(Closure.PAUSED, NOW)}
    assert stage.restored(MemoryStore()).checkpoint == held.checkpoint
    resumed = stage.commit(NOW + HOUR + 1, stage.control(ControlKind.RESUME, EVERY_ORIGIN))
    assert (resumed.checkpoint.closed, resumed.checkpoint.stopped) == ({}, False)


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        (["stop"], ("stopped", NOW)),
        (["pause", "stop"], ("stopped", NOW)),
        (["stop", "stop"], ("stopped", NOW)),
        (["stop", "pause"], ("paused", NOW)),
        (["stop", "resume"], None),
        (["stop", "resume", "pause"], ("paused", NOW + 2)),
    ],
)
def test_of_a_pause_and_a_stop_the_later_one_is_shown_since_the_first(
    kinds: list[str], shown: tuple[str, int] | None
) -> None:
    stage = Stage()
    for at, kind in enumerate(kinds):
        stage.commit(NOW + at, stage.control(ControlKind(kind), EVERY_ORIGIN))
    assert closed_origins(stage.partition.checkpoint).get(EVERY_ORIGIN) == shown


@pytest.mark.parametrize("kind", [ControlKind.PAUSE, ControlKind.RESUME])
def test_a_switch_of_one_origin_leaves_a_stop_as_it_is(kind: ControlKind) -> None:
    stage = Stage()
    stage.commit(NOW, stage.control(ControlKind.STOP, EVERY_ORIGIN), stage.control(kind, "A"))
    assert closed_origins(stage.partition.checkpoint)[EVERY_ORIGIN] == ("stopped", NOW)


def test_while_every_origin_is_paused_a_fire_by_command_is_refused_and_a_cancel_is_done() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + HOUR), stage.send(NOW + HOUR, "new"), stage.control(ControlKind.PAUSE, "*"))
    partition_plan = stage.commit(
        NOW + 1,
        stage.control(ControlKind.FIRE, TimerId(0, 0, NOW + HOUR)),
        stage.control(ControlKind.FIRE, TimerId(0, 1, NOW + HOUR)),
        stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + HOUR)),
    )
    assert [(each.outcome, each.detail) for each in partition_plan.control_outcomes] == [
        (Outcome.ORIGIN_PAUSED, "1 were left as they are: A is paused"),
        (Outcome.ORIGIN_PAUSED, "1 were left as they are: new is paused"),
        (Outcome.CANCELLED, ""),
    ]


def test_a_pause_of_every_origin_counts_all_that_waits_and_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "PAUSED_MAX", 1)
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + HOUR, "A"), stage.control(ControlKind.PAUSE, "A"))
    partition_plan = stage.commit(NOW + 1, stage.send(NOW + HOUR, "B"), stage.control(ControlKind.PAUSE, EVERY_ORIGIN))
    assert outcomes(partition_plan) == [(Outcome.PAUSED, 2)]
