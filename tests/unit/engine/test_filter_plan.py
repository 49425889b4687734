"""Plans with a control record that has a filter: what it means, and how it goes on over several transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sidecar.changelog.codec import Closed, Closure, Unfinished
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.filter import MessageFilter
from sidecar.engine.controls import CHANGED_SHARE
from sidecar.engine.delivered import Delivered, Delivery
from sidecar.engine.items import Item, Ordered
from sidecar.engine.ports import Origin
from sidecar.engine.rows import lane_of
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import Headers, Scope, StoredOffset
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes

TWO = replace(TERMS, deliveries_max=2 * CHANGED_SHARE)
"""A transaction changes two timers."""
EVERYTHING = MessageFilter()
HEADERS: Headers = [
    ("retry-origin-topic", b"A"),
    ("retry-exception", b"com.acme.Late"),
    ("retry-group", b"billing"),
    ("tenant", b"acme"),
]


def stage_of(timers: int, origin: str = "A") -> Stage:
    """Return a stage with so many timers a second from now on, the later sent the earlier due."""
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1000 - at, origin) for at in range(timers)))
    return stage


def drain(stage: Stage, *items: Item, now_ms: int = NOW, terms: Terms = TWO) -> list[PartitionPlan]:
    """Plan and commit until all items are part of a transaction."""
    partition_plans: list[PartitionPlan] = []
    left = list(items)
    while left:
        assert len(partition_plans) < 50, "it does not come to an end"
        partition_plan = stage.commit(now_ms, *left, terms=terms)
        left = left[partition_plan.ingested :]
        partition_plans.append(partition_plan)
    return partition_plans


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (EVERYTHING, []),
        (MessageFilter(origin="A"), [1]),
        (MessageFilter(origin="C"), [0, 1, 2]),
        (MessageFilter(due_from=NOW + 2000), [0]),
        (MessageFilter(due_to=NOW + 2000), [1, 2]),
        (MessageFilter(due_from=NOW + 2000, due_to=NOW + 2000), [0, 1, 2]),
        (MessageFilter(exception="com.acme.*"), [0, 1]),
        (MessageFilter(exception="com.acme"), [0, 1, 2]),
        (MessageFilter(group="billing"), [0, 1]),
        (MessageFilter(key="key"), []),
        (MessageFilter(key="another"), [0, 1, 2]),
        (MessageFilter(header=("tenant:acme",)), [0, 1]),
        (MessageFilter(header=("tenant:acme", "retry-group:ops")), [0, 1, 2]),
        (MessageFilter(partition=0), []),
    ],
)
def test_a_filter_means_the_messages_that_a_list_with_it_shows(wanted: MessageFilter, left: Sequence[int]) -> None:
    stage = Stage()
    sent = [stage.send(NOW + 1000), stage.send(NOW + 2000, "B"), stage.send(NOW + 3000, headers=HEADERS)]
    stage.commit(NOW, *sent)
    made = stage.commit(NOW, stage.control(ControlKind.CANCEL, wanted))
    done = 3 - len(left)
    assert outcomes(made) == [(Outcome.CANCELLED if done else Outcome.NOT_PENDING, done)]
    assert sorted(each.offset for each in stage.timers()) == left
    assert made.control_outcomes[0].target == str(wanted)


def test_origin_and_group_of_the_record_narrow_a_filter_too() -> None:
    stage = stage_of(3)
    cancel = stage.control(ControlKind.CANCEL, EVERYTHING, scope=Scope("B"))
    assert outcomes(stage.commit(NOW, cancel)) == [(Outcome.NOT_PENDING, 0)]


def test_many_take_as_many_transactions_as_they_need_and_one_answer() -> None:
    stage = stage_of(5)
    partition_plans = drain(stage, stage.control(ControlKind.CANCEL, EVERYTHING), stage.send(NOW + 77))
    assert [each.cancelled for each in partition_plans] == [2, 2, 1]
    assert [each.ingested for each in partition_plans] == [0, 0, 2]
    assert [outcomes(each) for each in partition_plans] == [[], [], [(Outcome.CANCELLED, 5)]]
    assert stage.dues() == [NOW + 77], "what comes behind it is not meant"


def test_a_transaction_looks_at_a_bounded_number_whether_they_match_or_not() -> None:
    stage = stage_of(7)
    stage.commit(NOW, stage.send(NOW + 5000, headers=HEADERS))
    two = replace(TERMS, deliveries_max=2)
    partition_plans = drain(stage, stage.control(ControlKind.CANCEL, MessageFilter(group="billing")), terms=two)
    assert [each.cancelled for each in partition_plans] == [0, 0, 0, 1, 0]
    assert len(stage.timers()) == 7
    stage = stage_of(3)
    one_each = replace(TERMS, delivery_bytes_max=1)
    assert len(drain(stage, stage.control(ControlKind.CANCEL, MessageFilter(group="billing")), terms=one_each)) == 4


def test_a_transaction_changes_fewer_than_it_looks_at() -> None:
    stage = stage_of(9)
    eight = replace(TERMS, deliveries_max=8)
    partition_plans = drain(stage, stage.control(ControlKind.CANCEL, EVERYTHING), terms=eight)
    assert [each.cancelled for each in partition_plans] == [2, 2, 2, 2, 1]


def test_an_origin_for_which_nothing_waits_costs_no_look() -> None:
    stage = stage_of(7)
    assert len(drain(stage, stage.control(ControlKind.CANCEL, MessageFilter(origin="B")))) == 1


def test_it_means_what_comes_before_it_in_the_same_batch() -> None:
    stage = stage_of(1)
    items: list[Item] = [stage.send(NOW + 5), stage.control(ControlKind.CANCEL, EVERYTHING), stage.send(NOW + 6)]
    partition_plans = drain(stage, *items, terms=TERMS)
    assert [each.ingested for each in partition_plans] == [1, 2]
    assert outcomes(partition_plans[-1]) == [(Outcome.CANCELLED, 2)]
    assert stage.dues() == [NOW + 6]


def test_a_new_owner_goes_on_where_the_former_one_was() -> None:
    stage = stage_of(5)
    cancel = stage.control(ControlKind.CANCEL, EVERYTHING)
    partition_plan = stage.commit(NOW, cancel, terms=TWO)
    assert partition_plan.checkpoint.unfinished == Unfinished(5, acted=2, seen_offset=3, seen_first_ms=NOW + 997)
    assert stage.restored(MemoryStore()).checkpoint == partition_plan.checkpoint
    assert outcomes(drain(stage, cancel)[-1]) == [(Outcome.CANCELLED, 5)]


def test_messages_fire_while_it_goes_on_and_are_not_counted() -> None:
    stage = stage_of(5)
    cancel = stage.control(ControlKind.CANCEL, EVERYTHING)
    stage.commit(NOW, cancel, terms=TWO)
    assert fired(stage.commit(NOW + 998)) == [2]
    assert outcomes(drain(stage, cancel, now_ms=NOW + 998)[-1]) == [(Outcome.CANCELLED, 4)]


def test_a_deferred_message_does_not_escape_it() -> None:
    stage = stage_of(5)
    paused = replace(TWO, closed={"A": Closed(Closure.VANISHED, NOW)})
    cancel = stage.control(ControlKind.CANCEL, EVERYTHING)
    stage.commit(NOW, cancel, terms=paused)
    assert stage.commit(NOW + 1000, terms=replace(paused, deliveries_max=50)).deferred == {"A": 3}
    assert outcomes(drain(stage, cancel, now_ms=NOW + 1000, terms=paused)[-1]) == [(Outcome.CANCELLED, 5)]
    assert stage.timers() == []


@pytest.mark.parametrize("due_ms", [NOW + 5000, NOW + 999, NOW - 5], ids=["later", "among them", "now"])
def test_a_reschedule_within_its_own_filter_moves_each_once(due_ms: int) -> None:
    stage = stage_of(5)
    made = drain(stage, stage.control(ControlKind.RESCHEDULE, EVERYTHING, due_ms))
    # One of them is to be due then already.
    assert outcomes(made[-1]) == [(Outcome.RESCHEDULED, 4 if due_ms == NOW + 999 else 5)]
    if due_ms > NOW:
        assert [each.requested_ms for each in stage.timers()] == [due_ms] * 5
    else:
        assert sorted(offset for each in made for offset in fired(each)) == [0, 1, 2, 3, 4]


def test_a_reschedule_to_the_past_of_messages_that_cannot_go_moves_each_once() -> None:
    stage = stage_of(5)
    closed = replace(TWO, closed={"A": Closed(Closure.VANISHED, NOW)})
    made = drain(stage, stage.control(ControlKind.RESCHEDULE, EVERYTHING, NOW - 5), terms=closed)
    assert outcomes(made[-1]) == [(Outcome.RESCHEDULED, 5)]
    assert {each.requested_ms for each in stage.timers()} == {NOW - 5}


def test_a_fire_of_many_fires_each_once_and_leaves_those_of_closed_origins() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1000 + at, "AB"[at % 2]) for at in range(6)))
    closed = replace(TWO, closed={"B": Closed(Closure.UNAUTHORISED, NOW)})
    made = drain(stage, stage.control(ControlKind.FIRE, EVERYTHING), terms=closed)
    assert sorted(offset for each in made for offset in fired(each)) == [0, 2, 4]
    assert outcomes(made[-1]) == [(Outcome.FIRED, 3)]
    assert made[-1].control_outcomes[0].detail.startswith("3 were left as they are: ")


def test_a_fire_leaves_what_could_go_neither_to_its_origin_nor_to_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1000 + at, origin_partition=7) for at in range(3)))
    terms = replace(TWO, origins={"A": Origin(4, 1_000_000)}, dlq_open=False)
    made = drain(stage, stage.control(ControlKind.FIRE, EVERYTHING), terms=terms)
    assert outcomes(made[-1]) == [(Outcome.ORIGIN_PAUSED, 0)]
    assert "its DLQ cannot be written now" in made[-1].control_outcomes[0].detail
    assert stage.dues() == [NOW + 1000, NOW + 1001, NOW + 1002]
    fire = stage.control(ControlKind.FIRE, EVERYTHING)
    assert len(drain(stage, fire, terms=replace(terms, dlq_open=True))[0].dead_letters) == 2


def test_a_fire_to_an_origin_of_which_nothing_is_known_waits_for_what_the_broker_says() -> None:
    stage = stage_of(2)
    stage.commit(NOW, stage.send(NOW + 1, "B"))
    fire = stage.control(ControlKind.FIRE, EVERYTHING)
    made = stage.plan(NOW, fire, terms=replace(TERMS, origins={"B": Origin(4, 1_000_000)}))
    assert made.unresolved == {"A"}
    assert made.left == {0: (fire,)}
    assert made.partition_plans[0].checkpoint.unfinished == Unfinished(3, acted=1, seen_offset=2, seen_first_ms=NOW + 1)


def test_a_message_that_waits_behind_a_cancelled_one_does_not_step_back_behind_it() -> None:
    stage, hour_ms = Stage(), NOW + 3_600_000
    sent = [stage.send(hour_ms), stage.send(NOW + 1)]
    stage.commit(NOW, *(Ordered(each.offset, each, lane_of("A", b"key")) for each in sent))
    stage.commit(NOW + 1)
    assert stage.dues() == [hour_ms, hour_ms], "the second waits behind the first"
    one_each = replace(TERMS, deliveries_max=1)
    made = drain(stage, stage.control(ControlKind.CANCEL, EVERYTHING), now_ms=NOW + 2, terms=one_each)
    assert outcomes(made[-1]) == [(Outcome.CANCELLED, 2)]
    assert stage.timers() == []


def test_it_waits_until_what_was_delivered_before_is_gone() -> None:
    stage = stage_of(2)
    delivered = Delivery(StoredOffset(0), NOW + 1000, "A")
    stage.partition.delivered = Delivered(pending=frozenset({delivered}))
    made = drain(stage, stage.control(ControlKind.CANCEL, EVERYTHING))
    assert [sum(each.delivered_before.values()) for each in made] == [1, 0]
    assert outcomes(made[-1]) == [(Outcome.CANCELLED, 1)]


def test_when_the_offsets_were_set_back_it_begins_again() -> None:
    stage = stage_of(3)
    cancel = stage.control(ControlKind.CANCEL, EVERYTHING)
    stage.commit(NOW, cancel, terms=TWO)
    made = drain(stage, stage.send(NOW + 998, offset=2), cancel)
    assert outcomes(made[-1]) == [(Outcome.CANCELLED, 2)], "the third one is there again"
    assert stage.timers() == []


def test_the_same_command_again_acts_once() -> None:
    stage = stage_of(2)
    first = stage.control(ControlKind.CANCEL, EVERYTHING)
    stage.commit(NOW, first)
    stage.commit(NOW, stage.send(NOW + 9))
    again = stage.control(ControlKind.CANCEL, EVERYTHING)._replace(control_id=first.control_id)
    assert outcomes(stage.commit(NOW, again)) == [(Outcome.CANCELLED, 2)]
    other = stage.control(ControlKind.CANCEL, MessageFilter(origin="A"))._replace(control_id=first.control_id)
    assert outcomes(stage.commit(NOW, other)) == [(Outcome.BAD_REQUEST, 0)]
    assert stage.dues() == [NOW + 9]
