"""Plans with control records that one transaction cannot finish, or that cannot be obeyed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.changelog.codec import Closed, Closure, Unfinished, decode_checkpoint, encode_checkpoint
from sidecar.changelog.entry import KEY
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.contract.signature import AGE_MAX_MS
from sidecar.engine import controls
from sidecar.engine.closures import DEFERRAL_MIN_MS
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import BadControl, Control, Item
from sidecar.engine.repeats import REMEMBERED_MAX, REMEMBERED_MS
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import Scope, TimerId
from sidecar.policy import Policy, PolicyConfig
from sidecar.runtime.partitions.buffer import Buffer
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes

TWO = replace(TERMS, deliveries_max=2)


def stage_of(timers: int, *, origin: str = "A") -> Stage:
    """Return a stage with so many timers of the retry id `x`, the later sent the earlier due."""
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1000 - at, origin, retry_id=b"x") for at in range(timers)))
    return stage


def drain(stage: Stage, *items: Item, now_ms: int = NOW, terms: Terms = TWO) -> list[PartitionPlan]:
    """Plan and commit until all items are part of a transaction."""
    partition_plans = []
    left = list(items)
    while left:
        partition_plan = stage.commit(now_ms, *left, terms=terms)
        left = left[partition_plan.ingested :]
        partition_plans.append(partition_plan)
    return partition_plans


def test_an_id_of_many_timers_takes_as_many_transactions_as_it_needs_and_one_answer() -> None:
    stage = stage_of(5)
    partition_plans = drain(stage, stage.control(ControlKind.CANCEL, b"x"), stage.send(NOW + 77))
    assert [partition_plan.cancelled for partition_plan in partition_plans] == [2, 2, 1]
    assert [partition_plan.ingested for partition_plan in partition_plans] == [0, 0, 2]
    assert [outcomes(partition_plan) for partition_plan in partition_plans] == [[], [], [(Outcome.CANCELLED, 5)]]
    assert [partition_plan.checkpoint.next_input_offset for partition_plan in partition_plans] == [5, 5, 7]
    assert stage.dues() == [NOW + 77]


def test_what_is_left_over_is_handed_back_in_order() -> None:
    stage = stage_of(3)
    items: list[Item] = [stage.send(NOW + 5), stage.control(ControlKind.CANCEL, b"x"), stage.send(NOW + 6)]
    made = stage.plan(NOW, *items, terms=TWO)
    assert made.left == {0: tuple(items[1:])}
    assert stage.plan(NOW, *items[:1], terms=TWO).left == {}


def test_a_record_that_names_an_origin_leaves_the_others_of_its_id() -> None:
    stage = Stage()
    sent = [stage.send(NOW + 50 + at, "AB"[at % 2], retry_id=b"x") for at in range(7)]
    stage.commit(NOW, *sent)
    partition_plans = drain(stage, stage.control(ControlKind.CANCEL, b"x", scope=Scope("B")))
    assert sum(each.cancelled for each in partition_plans) == 3
    assert outcomes(partition_plans[-1]) == [(Outcome.CANCELLED, 3)]
    assert stage.dues() == [NOW + 50, NOW + 52, NOW + 54, NOW + 56]


@pytest.mark.parametrize("scope", [Scope("B"), Scope(group="billing"), Scope(dialects=(5,))])
def test_a_timer_outside_the_scope_of_a_record_is_not_pending_for_it(scope: Scope) -> None:
    stage = stage_of(1)
    for target in (b"x", TimerId(0, 0, NOW + 1000)):
        made = stage.commit(NOW, stage.control(ControlKind.FIRE, target, scope=scope))
        assert outcomes(made) == [(Outcome.NOT_PENDING, 0)]
    assert len(stage.timers()) == 1


def test_a_message_behind_it_with_the_same_id_is_not_meant() -> None:
    stage = stage_of(3)
    drain(stage, stage.control(ControlKind.CANCEL, b"x"), stage.send(NOW + 77, retry_id=b"x"))
    assert stage.dues() == [NOW + 77]


def test_a_reschedule_of_many_moves_each_once() -> None:
    stage = stage_of(5)
    partition_plans = drain(stage, stage.control(ControlKind.RESCHEDULE, b"x", NOW + 9000))
    assert outcomes(partition_plans[-1]) == [(Outcome.RESCHEDULED, 5)]
    assert stage.dues() == [NOW + 9000] * 5


def test_a_fire_of_many_fires_each_once() -> None:
    stage = stage_of(5)
    partition_plans = drain(stage, stage.control(ControlKind.FIRE, b"x"))
    assert sorted(offset for partition_plan in partition_plans for offset in fired(partition_plan)) == [0, 1, 2, 3, 4]
    assert outcomes(partition_plans[-1]) == [(Outcome.FIRED, 5)]


def test_entries_of_many_bytes_end_a_transaction_too() -> None:
    stage = stage_of(3)
    partition_plans = drain(stage, stage.control(ControlKind.FIRE, b"x"), terms=replace(TERMS, delivery_bytes_max=1))
    assert [len(partition_plan.deliveries) for partition_plan in partition_plans] == [1, 1, 1]


def test_many_records_for_single_timers_are_spread_over_transactions_as_well() -> None:
    stage = stage_of(3)
    cancels = [stage.control(ControlKind.CANCEL, TimerId(0, at, NOW + 1000 - at)) for at in range(3)]
    assert [partition_plan.ingested for partition_plan in drain(stage, *cancels)] == [2, 1]
    assert stage.timers() == []


def test_what_comes_due_on_the_way_fires_and_is_not_counted() -> None:
    stage = stage_of(5)
    cancel = stage.control(ControlKind.CANCEL, b"x")
    stage.commit(NOW, cancel, terms=TWO)
    partition_plans = drain(stage, cancel, now_ms=NOW + 996, terms=TERMS)
    assert outcomes(partition_plans[-1]) == [(Outcome.CANCELLED, 5)], "it is looked at before the scan of the same step"
    stage = stage_of(5)
    cancel = stage.control(ControlKind.CANCEL, b"x")
    stage.commit(NOW, cancel, terms=TWO)
    stage.commit(NOW + 997)
    partition_plans = drain(stage, cancel, now_ms=NOW + 997)
    assert outcomes(partition_plans[-1]) == [(Outcome.CANCELLED, 3)]


def test_a_new_owner_goes_on_where_the_former_one_was() -> None:
    stage = stage_of(5)
    cancel = stage.control(ControlKind.CANCEL, b"x")
    partition_plan = stage.commit(NOW, cancel, terms=TWO)
    assert partition_plan.checkpoint.unfinished == Unfinished(5, acted=2, seen_offset=1, seen_first_ms=NOW + 999)
    store = MemoryStore()
    assert stage.restored(store).checkpoint == partition_plan.checkpoint
    assert outcomes(drain(stage, cancel)[-1]) == [(Outcome.CANCELLED, 5)]


def test_when_the_offsets_were_set_back_it_begins_again() -> None:
    stage = stage_of(3)
    cancel = stage.control(ControlKind.CANCEL, b"x")
    stage.commit(NOW, cancel, terms=TWO)
    partition_plans = drain(stage, stage.send(NOW + 1000, retry_id=b"x", offset=0), cancel)
    assert outcomes(partition_plans[-1]) == [(Outcome.CANCELLED, 2)], "the first one is there again"
    assert stage.timers() == []


def test_a_signature_that_grew_old_on_the_way_does_not_hide_what_was_done() -> None:
    stage = stage_of(3)
    stage.commit(NOW, stage.control(ControlKind.CANCEL, b"x"), terms=TWO)
    partition_plan = stage.commit(NOW, BadControl(3, "c", "id:x", "signature: old"))
    assert outcomes(partition_plan) == [(Outcome.BAD_REQUEST, 2)]
    assert partition_plan.checkpoint.unfinished is None


def test_a_bad_record_is_answered_once_and_does_nothing() -> None:
    stage = stage_of(1)
    bad = BadControl(1, "c", "id:x", "why")
    partition_plan = stage.commit(NOW, bad)
    ((offset, control_id, outcome, timers, target, detail),) = partition_plan.control_outcomes
    assert (offset, control_id, outcome, timers) == (1, "c", Outcome.BAD_REQUEST, 0)
    assert (target, detail) == ("id:x", "why")
    assert stage.commit(NOW, bad).control_outcomes == []
    assert len(stage.timers()) == 1


# Fires that cannot be


@pytest.mark.parametrize("why", list(Closure))
def test_a_fire_to_an_origin_that_is_not_open_names_the_reason(why: Closure) -> None:
    stage = stage_of(1)
    terms = replace(TERMS, closed={"A": Closed(why, NOW)})
    partition_plan = stage.commit(NOW, stage.control(ControlKind.FIRE, b"x"), terms=terms)
    assert outcomes(partition_plan) == [(Outcome.ORIGIN_PAUSED, 0)]
    assert f"A is {why}" in partition_plan.control_outcomes[0].detail
    assert len(stage.timers()) == 1


@pytest.mark.parametrize("target", [b"x", TimerId(0, 0, NOW + 1000)], ids=["retry id", "timer id"])
def test_a_fire_to_an_origin_of_which_nothing_is_known_waits_for_what_the_broker_says(target: TimerId | bytes) -> None:
    stage = stage_of(1)
    fire = stage.control(ControlKind.FIRE, target)
    made = stage.plan(NOW, fire, terms=replace(TERMS, origins={}))
    assert made.unresolved == {"A"}
    assert made.partition_plans == []
    assert made.left == {0: (fire,)}
    assert outcomes(stage.commit(NOW, fire)) == [(Outcome.FIRED, 1)]


def test_a_reschedule_to_the_past_waits_for_an_unknown_origin_too_and_one_to_the_future_does_not() -> None:
    stage = stage_of(1)
    nothing_known = replace(TERMS, origins={})
    past = stage.control(ControlKind.RESCHEDULE, b"x", NOW)
    made = stage.plan(NOW, past, terms=nothing_known)
    assert made.unresolved == {"A"}
    assert made.left == {0: (past,)}
    future = stage.control(ControlKind.RESCHEDULE, b"x", NOW + 9, offset=past.offset)
    assert outcomes(stage.commit(NOW, future, terms=nothing_known)) == [(Outcome.RESCHEDULED, 1)]
    assert fired(stage.commit(NOW + 9)) == [0]


def test_a_fire_of_many_stops_before_the_first_unknown_origin_and_goes_on_there() -> None:
    stage = stage_of(1)
    stage.commit(NOW, stage.send(NOW + 50, "B", retry_id=b"x"))
    fire = stage.control(ControlKind.FIRE, b"x")
    partition_plan = stage.commit(NOW, fire, terms=replace(TERMS, origins={"A": TERMS.origins["A"]}))
    assert (fired(partition_plan), partition_plan.ingested, outcomes(partition_plan)) == ([0], 0, [])
    partition_plan = stage.commit(NOW, fire)
    assert (fired(partition_plan), outcomes(partition_plan)) == ([1], [(Outcome.FIRED, 2)])


def test_a_fire_of_several_origins_counts_those_that_are_open() -> None:
    stage = stage_of(2)
    stage.commit(NOW, stage.send(NOW + 50, "B", retry_id=b"x"))
    terms = replace(TERMS, closed={"A": Closed(Closure.VANISHED, NOW)})
    partition_plan = stage.commit(NOW, stage.control(ControlKind.FIRE, b"x"), terms=terms)
    assert outcomes(partition_plan) == [(Outcome.FIRED, 1)]
    assert partition_plan.control_outcomes[0].detail == "2 were left as they are: A is vanished"


def test_a_fire_gives_the_first_reasons_why_messages_are_left() -> None:
    stage = stage_of(1)
    for origin in "BCD":
        stage.commit(NOW, stage.send(NOW + 50, origin, retry_id=b"x"))
    closures = {"A": Closure.VANISHED, "B": Closure.PAUSED, "C": Closure.UNREACHABLE, "D": Closure.PAUSED}
    terms = replace(TERMS, closed={origin: Closed(closure, NOW) for origin, closure in closures.items()})
    partition_plan = stage.commit(NOW, stage.control(ControlKind.FIRE, b"x"), terms=terms)
    detail = "4 were left as they are: A is vanished, B is paused, C is unreachable"
    assert (outcomes(partition_plan), partition_plan.control_outcomes[0].detail) == (
        [(Outcome.ORIGIN_PAUSED, 0)],
        detail,
    )


def test_a_fire_that_ends_on_the_dlq_says_so() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50, retry_id=b"x", origin_partition=3))
    fewer = replace(TERMS, origins={"A": TERMS.origins["A"]._replace(partitions=2)})
    partition_plan = stage.commit(NOW, stage.control(ControlKind.FIRE, b"x"), terms=fewer)
    assert outcomes(partition_plan) == [(Outcome.FIRED, 1)]
    assert partition_plan.control_outcomes[0].detail == "1 went to the DLQ, which says why"


def test_what_is_fired_before_its_due_and_waits_for_a_closed_dlq_is_due_from_then_on() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 60_000, retry_id=b"x", origin_partition=3))
    fewer = {"A": TERMS.origins["A"]._replace(partitions=2)}
    stage.commit(NOW, stage.control(ControlKind.FIRE, b"x"), terms=replace(TERMS, origins=fewer, dlq_open=False))
    (waiting,) = stage.timers()
    assert (waiting.due_ms, waiting.requested_ms) == (NOW + DEFERRAL_MIN_MS, NOW)
    assert fired(stage.commit(waiting.due_ms)) == [0]


@pytest.mark.parametrize("kind", [ControlKind.FIRE, ControlKind.RESCHEDULE])
def test_what_one_plan_defers_and_fires_has_the_same_key_in_the_next_plan(kind: ControlKind) -> None:
    """A broker that refuses it is tried again for ever if the refusal does not find it."""
    stage = Stage()
    batch: list[Item] = [
        stage.control(ControlKind.PAUSE, "A"),
        stage.send(NOW - 5, retry_id=b"x"),
        stage.control(ControlKind.RESUME, "A"),
        stage.control(kind, b"x", 0 if kind is ControlKind.FIRE else NOW - 1),
    ]
    plans = [stage.plan(NOW + later_ms, *batch).partition_plans[0] for later_ms in (0, 700)]
    assert [[each.source for each in made.deliveries] for made in plans] == [[KEY.pack(NOW - 5, 1)]] * 2


# Pause and resume


def test_a_pause_is_since_the_first_one_and_counts_what_waits() -> None:
    stage = stage_of(2)
    stage.commit(NOW, stage.control(ControlKind.PAUSE, "A"))
    partition_plan = stage.commit(NOW + 9, stage.control(ControlKind.PAUSE, "A"))
    assert outcomes(partition_plan) == [(Outcome.PAUSED, 2)]
    assert partition_plan.checkpoint.closed == {"A": Closed(Closure.PAUSED, NOW)}


def test_a_resume_of_an_origin_that_the_broker_has_closed_leaves_it_closed() -> None:
    stage = stage_of(1)
    terms = replace(TERMS, closed={"A": Closed(Closure.VANISHED, NOW - 5)})
    stage.commit(NOW, stage.control(ControlKind.PAUSE, "A"), terms=terms)
    partition_plan = stage.commit(NOW, stage.control(ControlKind.RESUME, "A"), terms=terms)
    assert outcomes(partition_plan) == [(Outcome.RESUMED, 1)]
    assert partition_plan.checkpoint.closed == {"A": Closed(Closure.VANISHED, NOW - 5)}


def test_there_is_an_end_to_what_can_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "PAUSED_MAX", 2)
    stage = Stage()
    pauses = [stage.control(ControlKind.PAUSE, name) for name in ("A", "B", "C", "A")]
    partition_plan = stage.commit(NOW, *pauses)
    assert [outcome for outcome, _ in outcomes(partition_plan)] == [
        Outcome.PAUSED,
        Outcome.PAUSED,
        Outcome.BAD_REQUEST,
        Outcome.PAUSED,
    ]
    assert set(partition_plan.checkpoint.closed) == {"A", "B"}


def test_what_resumes_drains_at_the_times_it_was_put_off_to() -> None:
    stage = stage_of(4)
    stage.commit(NOW, stage.control(ControlKind.PAUSE, "A"))
    stage.commit(NOW + 2000)
    assert len(stage.timers()) == 4
    stage.commit(NOW + 3000, stage.control(ControlKind.RESUME, "A"))
    latest_ms = max(stage.dues())
    assert latest_ms <= NOW + 2000 + 5000
    assert len(fired(stage.commit(latest_ms))) == 4


# Held


def test_items_that_are_given_back_come_first_again_and_weigh_what_they_did() -> None:
    stage = Stage()
    held = Buffer(Ingest(Policy(PolicyConfig()), [], {}, (), input_topic="r", app_id="a"))
    held.begin(0, 0)
    items = [stage.send(NOW + due) for due in (5, 6, 7)]
    held.put_back({0: items})
    weight = held.bytes
    taken = held.batches([0], 2, 10**6)
    assert taken == {0: items[:2]}
    held.put_back({0: items[1:2]})
    assert held.batches([0], 9, 10**6) == {0: items[1:]}
    assert weight > 0
    assert held.bytes == 0


# Repeats


def again(stage: Stage, control: Control, *, now_ms: int = NOW) -> list[tuple[Outcome, int]]:
    """Commit a copy of a control record at the next offset, and return its outcome."""
    stage.next_offset += 1
    return outcomes(stage.commit(now_ms, control._replace(offset=stage.next_offset - 1)))


@pytest.mark.parametrize(
    ("kind", "target", "due_ms", "expected"),
    [
        (ControlKind.CANCEL, b"x", 0, (Outcome.CANCELLED, 1)),
        (ControlKind.FIRE, b"x", 0, (Outcome.FIRED, 1)),
        (ControlKind.RESCHEDULE, b"x", NOW + 7_000, (Outcome.RESCHEDULED, 1)),
        (ControlKind.PAUSE, "A", 0, (Outcome.PAUSED, 1)),
    ],
)
def test_a_copy_of_a_command_does_nothing_and_has_the_first_outcome(
    kind: ControlKind, target: Target, due_ms: int, expected: tuple[Outcome, int]
) -> None:
    stage = stage_of(1)
    control = stage.control(kind, target, due_ms)
    assert outcomes(stage.commit(NOW, control)) == [expected]
    stage.commit(NOW, stage.send(NOW + 500, retry_id=b"x"), stage.control(ControlKind.RESUME, "A"))
    dues = stage.dues()
    assert again(stage, control) == [expected]
    assert stage.dues() == dues
    assert "A" not in stage.partition.checkpoint.closed


def test_a_copy_is_recognised_by_the_next_owner_and_forgotten_with_its_signature() -> None:
    stage = stage_of(1)
    control = stage.control(ControlKind.PAUSE, "*")
    stage.commit(NOW, control, stage.control(ControlKind.RESUME, "*"))
    stage.partition.checkpoint = decode_checkpoint(encode_checkpoint(stage.partition.checkpoint))
    assert again(stage, control, now_ms=NOW + 2 * AGE_MAX_MS) == [(Outcome.PAUSED, 1)]
    assert "*" not in stage.partition.checkpoint.closed
    assert again(stage, control, now_ms=NOW + REMEMBERED_MS) == [(Outcome.PAUSED, 0)]
    assert "*" in stage.partition.checkpoint.closed
    assert len(stage.partition.checkpoint.acted) == 1


def test_another_command_with_a_used_id_is_refused() -> None:
    stage = stage_of(1)
    control = stage.control(ControlKind.PAUSE, "A")
    stage.commit(NOW, control)
    assert again(stage, control._replace(target="B")) == [(Outcome.BAD_REQUEST, 0)]
    assert again(stage, control._replace(kind=ControlKind.RESUME)) == [(Outcome.BAD_REQUEST, 0)]
    assert list(stage.partition.checkpoint.closed) == ["A"]


def test_a_delay_that_is_computed_again_is_the_same_command() -> None:
    stage = stage_of(1)
    control = stage.control(ControlKind.RESCHEDULE, b"x", NOW + 7_000)
    stage.commit(NOW, control)
    assert again(stage, control._replace(due_ms=NOW + 7_100)) == [(Outcome.RESCHEDULED, 1)]
    assert stage.dues() == [NOW + 7_000]


def test_a_command_of_many_timers_is_remembered_when_it_is_done() -> None:
    stage = stage_of(5)
    control = stage.control(ControlKind.CANCEL, b"x")
    first = stage.commit(NOW, control, terms=TWO)
    assert (first.ingested, first.checkpoint.acted) == (0, ())
    drain(stage, control)
    stage.commit(NOW, stage.send(NOW + 500, retry_id=b"x"))
    assert again(stage, control) == [(Outcome.CANCELLED, 5)]
    assert stage.dues() == [NOW + 500]


def test_records_that_are_read_again_act_again() -> None:
    stage = stage_of(1)
    records = [stage.control(ControlKind.PAUSE, "A"), stage.control(ControlKind.RESUME, "A")]
    stage.commit(NOW, *records)
    assert "A" in stage.commit(NOW, records[0]).checkpoint.closed
    assert "A" not in stage.commit(NOW, records[1]).checkpoint.closed


def test_a_partition_remembers_the_latest_commands_and_none_that_cannot_act_twice() -> None:
    stage = Stage()
    timer = stage.send(NOW + 50)
    stage.commit(NOW, timer, stage.control(ControlKind.CANCEL, TimerId(0, timer.offset, NOW + 50)))
    assert stage.partition.checkpoint.acted == ()
    controls = [stage.control(ControlKind.PAUSE, "A") for _ in range(REMEMBERED_MAX + 3)]
    stage.commit(NOW, *controls)
    assert len(stage.partition.checkpoint.acted) == REMEMBERED_MAX
    stage.commit(NOW, stage.control(ControlKind.RESUME, "A"))
    assert again(stage, controls[-1]) == [(Outcome.PAUSED, 0)]
    assert "A" not in stage.partition.checkpoint.closed
