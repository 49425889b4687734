"""Plans for origins whose messages keep the order of their key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.changelog.codec import Closed, Closure
from sidecar.changelog.entry import BEHIND, DEFERRED, ORDERED, lasting
from sidecar.contract import dialects_of
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine import lanes
from sidecar.engine.crossings import Crossings
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Item, Ordered
from sidecar.engine.ports import Origin
from sidecar.engine.rows import Rows, lane_of
from sidecar.model import Headers, Record, TimerId
from sidecar.policy import Policy, PolicyConfig
from tests.simulation.audit import check_rows, rows_of
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes

WAITS = ORDERED | DEFERRED | BEHIND


def send(stage: Stage, due_ms: int, key: bytes = b"key", origin: str = "A", **named: object) -> Ordered:
    """Return an ordered message at the next offset."""
    plain: Arrival = stage.send(due_ms, origin, **named)  # type: ignore[arg-type]  # those of Stage.send
    body = lasting(due_ms, NOW, 1, 4, 1, origin.encode(), plain.retry_id, key, b"value", [("a", b"b")])
    return Ordered(plain.offset, plain._replace(lasting=body), lane_of(origin, key))


def test_a_due_message_waits_for_an_earlier_one_of_its_key_and_moves_once() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100), send(stage, NOW + 10), send(stage, NOW + 20))
    waiting = stage.commit(NOW + 30)
    assert fired(waiting) == []
    assert waiting.put_behind == {"A": 2}
    assert stage.dues() == [NOW + 100] * 3
    assert [timer.flags for timer in stage.timers()] == [ORDERED, WAITS, WAITS]
    assert fired(stage.commit(NOW + 100)) == [0, 1, 2]
    assert not stage.timers()


def test_messages_of_other_keys_and_origins_and_those_without_an_order_do_not_wait() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100))
    others: list[Item] = [send(stage, NOW + 5, b"other"), send(stage, NOW + 5, origin="B"), stage.send(NOW + 5)]
    stage.commit(NOW, *others)
    assert fired(stage.commit(NOW + 5)) == [1, 2, 3]


def test_an_overdue_arrival_waits_too() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100))
    assert fired(stage.commit(NOW + 1, send(stage, NOW - 5))) == []
    assert fired(stage.commit(NOW + 100)) == [0, 1]


def test_overdue_arrivals_of_one_key_fire_in_one_transaction() -> None:
    stage = Stage()
    assert fired(stage.commit(NOW, send(stage, NOW - 5), send(stage, NOW - 9))) == [0, 1]


def test_a_message_waits_behind_the_nearest_earlier_one() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 50), send(stage, NOW + 200), send(stage, NOW + 10))
    stage.commit(NOW + 10)
    assert stage.dues() == [NOW + 50, NOW + 200, NOW + 200]


@pytest.mark.parametrize("kind", [ControlKind.CANCEL, ControlKind.FIRE])
def test_those_behind_a_message_that_is_cancelled_or_fired_by_hand_go_together(kind: ControlKind) -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 9_000), send(stage, NOW + 10), send(stage, NOW + 20), send(stage, NOW + 500))
    stage.commit(NOW + 30)
    by_hand = stage.commit(NOW + 40, stage.control(kind, TimerId(0, 0, NOW + 9_000)))
    assert fired(by_hand) == ([0] if kind is ControlKind.FIRE else [])
    assert fired(stage.commit(NOW + 41)) == [1, 2]
    assert fired(stage.commit(NOW + 500)) == [3]


def test_many_behind_a_message_that_is_cancelled_go_as_fast_as_the_limits_of_a_plan_allow() -> None:
    count, each = 100, 30
    stage, few = Stage(), replace(TERMS, deliveries_max=each)
    stage.commit(NOW, send(stage, NOW + 9_000), *(send(stage, NOW + 10) for _ in range(count)))
    stage.commit(NOW + 10)
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 9_000)))
    plans = [fired(stage.commit(NOW + 21 + at, terms=few)) for at in range(4)]
    assert list(map(len, plans)) == [30, 30, 30, 10]
    assert [at for each in plans for at in each] == list(range(1, count + 1))
    assert not stage.timers()


def test_those_behind_a_message_that_is_cancelled_are_bounded_in_bytes() -> None:
    stage, small = Stage(), replace(TERMS, delivery_bytes_max=150)
    stage.commit(NOW, send(stage, NOW + 9_000), *(send(stage, NOW + 10) for _ in range(4)))
    stage.commit(NOW + 10)
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 9_000)))
    assert 1 < len(fired(stage.commit(NOW + 21, terms=small))) < 4


def test_those_behind_a_message_that_is_cancelled_take_one_turn_each() -> None:
    stage, rated = Stage(), replace(TERMS, rate_of={"A": 1.0}.get)
    stage.commit(NOW, send(stage, NOW + 9_000), *(send(stage, NOW + 10) for _ in range(3)), terms=rated)
    stage.commit(NOW + 10, terms=rated)
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 9_000)), terms=rated)
    assert fired(stage.commit(NOW + 21, terms=rated)) == [1]
    assert stage.dues() == [NOW + 21 + turn * 1_000 for turn in (1, 2)]


def test_those_behind_a_message_of_a_closed_origin_wait_with_it() -> None:
    stage, closed = Stage(), replace(TERMS, closed={"A": Closed(Closure.UNREACHABLE, NOW)})
    stage.commit(NOW, send(stage, NOW + 9_000), *(send(stage, NOW + 10) for _ in range(3)))
    stage.commit(NOW + 10)
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 9_000)))
    deferred = stage.commit(NOW + 21, terms=closed)
    assert (fired(deferred), deferred.deferred) == ([], {"A": 3})
    assert fired(stage.commit(max(stage.dues()))) == [1, 2, 3]


def test_those_behind_a_message_that_is_rescheduled_follow_it() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 9_000), send(stage, NOW + 10))
    stage.commit(NOW + 10)
    stage.commit(NOW + 20, stage.control(ControlKind.RESCHEDULE, TimerId(0, 0, NOW + 9_000), NOW + 100))
    assert fired(stage.commit(NOW + 21)) == []
    assert fired(stage.commit(NOW + 100)) == [0, 1]


def test_those_behind_messages_that_are_cancelled_by_one_retry_id_go() -> None:
    stage = Stage()
    first = [send(stage, NOW + 9_000, retry_id=b"x"), send(stage, NOW + 10, retry_id=b"x"), send(stage, NOW + 20)]
    stage.commit(NOW, *first)
    stage.commit(NOW + 30)
    assert outcomes(stage.commit(NOW + 40, stage.control(ControlKind.CANCEL, b"x"))) == [(Outcome.CANCELLED, 2)]
    assert fired(stage.commit(NOW + 41)) == [2]


def test_those_behind_a_message_that_is_replaced_go() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 9_000, retry_id=b"x"), send(stage, NOW + 10))
    stage.commit(NOW + 10)
    stage.commit(NOW + 20, send(stage, NOW + 8_000, b"other", retry_id=b"x", replace=True))
    assert fired(stage.commit(NOW + 21)) == [1]


def test_a_message_fired_by_hand_does_not_wait() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100), send(stage, NOW + 200))
    assert fired(stage.commit(NOW + 10, stage.control(ControlKind.FIRE, TimerId(0, 1, NOW + 200)))) == [1]


def test_a_message_waits_for_one_that_was_deferred() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 10), send(stage, NOW + 20))
    stage.commit(NOW + 10, terms=replace(TERMS, closed={"A": Closed(Closure.UNREACHABLE, NOW)}))
    (first_ms,) = {timer.due_ms for timer in stage.timers() if timer.offset == 0}
    assert fired(stage.commit(NOW + 20)) == []
    assert fired(stage.commit(first_ms)) == [0, 1]


def test_a_rate_moves_a_backlog_of_one_key_once() -> None:
    stage = Stage()
    rated = replace(TERMS, rate_of={"A": 1.0}.get)
    stage.commit(NOW, *(send(stage, NOW + 5) for _ in range(4)))
    assert fired(stage.commit(NOW + 5, terms=rated)) == [0]
    assert stage.dues() == [NOW + 5 + turn * 1_000 for turn in (1, 2, 3)]
    assert [fired(stage.commit(NOW + 5 + turn * 1_000, terms=rated)) for turn in (1, 2, 3)] == [[1], [2], [3]]


def test_a_message_that_waits_behind_another_one_takes_no_turn_meanwhile() -> None:
    stage, rated = Stage(), replace(TERMS, rate_of={"A": 1.0}.get)
    stage.commit(NOW, send(stage, NOW + 9_000), send(stage, NOW + 10), send(stage, NOW + 20, b"other"))
    waiting = stage.commit(NOW + 10, terms=rated)
    assert (fired(waiting), waiting.put_behind, waiting.held) == ([], {"A": 1}, {})
    assert fired(stage.commit(NOW + 20, terms=rated)) == [2]
    assert fired(stage.commit(NOW + 9_000, terms=rated)) == [0]
    assert stage.dues() == [NOW + 10_000]
    assert fired(stage.commit(NOW + 10_000, terms=rated)) == [1]


def test_a_message_whose_turn_would_come_after_one_ahead_that_has_none_yet_waits_without_a_turn() -> None:
    stage, rated = Stage(), replace(TERMS, rate_of={"A": 1.0}.get)
    stage.commit(NOW, send(stage, NOW + 500), send(stage, NOW + 5, b"other"), send(stage, NOW + 10))
    assert fired(stage.commit(NOW + 5, terms=rated)) == [1]
    assert stage.commit(NOW + 10, terms=rated).put_behind == {"A": 1}
    assert stage.commit(NOW + 500, terms=rated).held == {"A": 2}
    assert stage.dues() == [NOW + 1_005, NOW + 2_005]
    assert [fired(stage.commit(NOW + 5 + turn * 1_000, terms=rated)) for turn in (1, 2)] == [[0], [2]]


def test_an_engine_that_keeps_no_order_fires_at_the_due() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100), send(stage, NOW + 10))
    (part,) = stage.plan(NOW + 10, terms=replace(TERMS, keeps_order=False)).partition_plans
    assert fired(part) == [1]


def test_a_restore_finds_the_order_again() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 100), send(stage, NOW + 10), send(stage, NOW + 20))
    stage.commit(NOW + 10)
    store = MemoryStore()
    check_rows(stage.restored(store), store)
    rows = Rows(0)
    assert rows_of(store, rows.lane) == rows_of(stage.store, rows.lane) != {}


def test_a_message_that_is_read_again_is_ahead_again() -> None:
    stage = Stage()
    early = send(stage, NOW + 5)
    stage.commit(NOW, early, send(stage, NOW + 50), send(stage, NOW + 60))
    assert fired(stage.commit(NOW + 5)) == [0]
    assert fired(stage.commit(NOW + 50)) == [1]
    again = early._replace(arrival=early.arrival._replace(due_ms=NOW + 80))
    stage.commit(NOW + 51, again)
    assert fired(stage.commit(NOW + 60)) == []
    assert fired(stage.commit(NOW + 80)) == [0, 2]


def test_a_plan_that_is_discarded_leaves_no_trace() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 30), send(stage, NOW + 10), send(stage, NOW + 30))
    assert fired(stage.plan(NOW + 30).partition_plans[0]) == [0]
    assert fired(stage.commit(NOW + 10)) == []
    assert fired(stage.commit(NOW + 30)) == [0, 1, 2]


def test_a_row_that_another_version_left_behind_holds_nothing_up() -> None:
    stage = Stage()
    stage.commit(NOW, send(stage, NOW + 5))
    stage.commit(NOW + 5)
    stage.store.rows[stage.partition.rows.lane_row(lane_of("A", b"key"), 0, NOW + 5)] = (NOW + 5).to_bytes(8, "big")
    late = send(stage, NOW + 10)
    (part,) = stage.plan(NOW + 6, late._replace(arrival=late.arrival._replace(due_ms=NOW))).partition_plans
    assert fired(part) == [1]


def test_a_long_lane_costs_a_few_reads_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 600
    stage = Stage()
    stage.commit(NOW, *(send(stage, NOW + 5) for _ in range(count)))
    rows, items = 0, stage.store.items

    def counted(lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        nonlocal rows
        found = items(lower, upper, limit=limit)
        rows += len(found)
        return found

    monkeypatch.setattr(stage.store, "items", counted)
    assert len(fired(stage.plan(NOW + 5).partition_plans[0])) == count
    assert rows == 0
    stage.partition.crossings.insert(lane_of("A", b"key"), NOW + 6)
    assert len(fired(stage.plan(NOW + 5).partition_plans[0])) == count
    assert 0 < rows <= 3 * count


def test_the_lanes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KNOWN_MAX", 5)
    stage = Stage()
    stage.commit(NOW, *(send(stage, NOW + 5, b"%d" % each) for each in range(12)))
    for each in range(12):
        stage.partition.crossings.insert(lane_of("A", b"%d" % each), NOW + 6)
    stage.commit(NOW + 5)
    assert 0 < len(stage.partition.lanes_from) <= 5


SENDS = st.lists(st.tuples(st.integers(-5, 60), st.sampled_from([b"k", b"l"])), min_size=1, max_size=12)


@given(SENDS, st.lists(st.integers(1, 40), max_size=8))
def test_each_message_fires_once_and_in_the_order_of_its_key(sends: list[tuple[int, bytes]], steps: list[int]) -> None:
    stage = Stage()
    keys = {at: key for at, (_, key) in enumerate(sends)}
    order = fired(stage.commit(NOW, *(send(stage, NOW + delay_ms, key) for delay_ms, key in sends)))
    now_ms = NOW
    for step_ms in [*steps, 100, 1, 1]:
        now_ms += step_ms
        if stage.plan(now_ms).partition_plans:
            order += fired(stage.commit(now_ms))
    assert sorted(order) == list(range(len(sends)))
    for key in (b"k", b"l"):
        assert [at for at in order if keys[at] == key] == [at for at in range(len(sends)) if keys[at] == key]


@given(SENDS, st.lists(st.integers(1, 40), max_size=8))
def test_a_new_owner_that_reads_the_index_in_slices_keeps_the_order(
    sends: list[tuple[int, bytes]], steps: list[int]
) -> None:
    """Some messages come while it has read a part of the index."""
    stage = Stage()
    keys = {at: key for at, (_, key) in enumerate(sends)}
    half = len(sends) // 2
    order = (
        fired(stage.commit(NOW, *(send(stage, NOW + delay_ms, key) for delay_ms, key in sends[:half]))) if half else []
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lanes, "READ_ROWS", 2)
        stage.partition.crossings = Crossings()
        stage.partition.lanes_from.clear()
        now_ms = NOW
        for delay_ms, key in sends[half:]:
            order += fired(stage.commit(now_ms, send(stage, now_ms + delay_ms, key)))
            now_ms += 1
        for step_ms in [*steps, 100, 1, 1]:
            now_ms += step_ms
            if stage.plan(now_ms).partition_plans:
                order += fired(stage.commit(now_ms))
    assert sorted(order) == list(range(len(sends)))
    for key in (b"k", b"l"):
        assert [at for at in order if keys[at] == key] == [at for at in range(len(sends)) if keys[at] == key]


def test_a_message_behind_many_that_one_plan_took_away_fires_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PAGE_ROWS", 2)
    stage = Stage()
    stage.commit(NOW, *(send(stage, NOW + 100, retry_id=b"x") for _ in range(5)), send(stage, NOW + 10))
    assert fired(stage.commit(NOW + 10, stage.control(ControlKind.CANCEL, b"x"))) == [5]


def examine(key: bytes | None, origin: str = "orders", **policy: object) -> Item | str:
    config = PolicyConfig(by_origin=(PolicyConfig(name="orders", order_by_key=True),), **policy)  # type: ignore[arg-type]
    known = {"orders": Origin(4, 1_000_000), "mail": Origin(4, 1_000_000)}
    ingest = Ingest(Policy(config), dialects_of(("native",)), known, (), input_topic="retry", app_id="app")
    headers: Headers = [("retry-origin-topic", origin.encode()), ("retry-delay-ms", b"5")]
    return ingest.examine(Record(0, 7, NOW, key, b"v", headers), NOW)


def test_ingest_orders_the_messages_of_an_origin_by_their_keys() -> None:
    item = examine(b"k")
    assert isinstance(item, Ordered)
    assert (item.offset, item.arrival.offset, item.lane) == (7, 7, lane_of("orders", b"k"))
    assert isinstance(examine(b""), Ordered)


def test_ingest_orders_neither_messages_without_a_key_nor_those_of_other_origins() -> None:
    assert isinstance(examine(None), Arrival)
    assert isinstance(examine(b"k", "mail"), Arrival)
    assert isinstance(examine(b"k", "mail", order_by_key=True), Ordered)
