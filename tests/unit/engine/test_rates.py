"""Plans for origins with a rate."""

from __future__ import annotations

from dataclasses import replace

from sidecar.changelog.codec import NextTurn
from sidecar.changelog.entry import DEFERRED, HELD
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.rates import BURST_MS, LATE_MS, ORIGIN_BYTES, TURNS_BYTES_MAX, Turns
from sidecar.engine.transaction import Terms
from sidecar.model import TimerId
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes


def rated(per_second: float = 1.0, partitions: int = 1) -> Terms:
    rates = {"A": per_second}
    return replace(TERMS, rate_of=rates.get, partitions=partitions)


def test_what_exceeds_the_rate_is_moved_once_to_its_turn_and_no_other_origin_waits() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5, "A") for _ in range(4)), *(stage.send(NOW + 5, "B") for _ in range(4)))
    partition_plan = stage.commit(NOW + 5, terms=rated())
    assert fired(partition_plan) == [0, 4, 5, 6, 7]
    assert partition_plan.held == {"A": 3}
    assert partition_plan.complete
    assert stage.dues() == [NOW + 5 + turn * 1_000 for turn in (1, 2, 3)]
    assert {timer.flags for timer in stage.timers()} == {DEFERRED | HELD}
    assert stage.partition.checkpoint.turns["A"].behind(NOW + 5) == 3
    for turn in (1, 2, 3):
        partition_plan = stage.commit(NOW + 5 + turn * 1_000, terms=rated())
        assert fired(partition_plan) == [turn]
        assert partition_plan.held == {}
    assert stage.partition.counts.pending == 0


def test_each_partition_has_an_equal_share() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(3)))
    stage.commit(NOW + 5, terms=rated(100.0, partitions=4))
    assert stage.dues() == [NOW + 45, NOW + 85]


def test_what_comes_due_within_the_rate_fires_at_once_however_seldom_plans_are_made() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + at * 10) for at in range(1, 11)))
    assert len(fired(stage.commit(NOW + 100, terms=rated(100.0)))) == 10


def test_what_comes_overdue_takes_a_turn_too() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, *(stage.send(NOW - 10**6) for _ in range(3)), terms=rated())
    assert fired(partition_plan) == [0]
    assert stage.dues() == [NOW - BURST_MS + 1_000, NOW - BURST_MS + 2_000]


def test_a_turn_that_was_missed_is_taken_again_behind_the_others() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(4)))
    stage.commit(NOW + 5, terms=rated())
    late_ms = NOW + 2_005 + LATE_MS
    partition_plan = stage.commit(late_ms, terms=rated())
    assert fired(partition_plan) == [2]
    assert sorted(stage.dues()) == [NOW + 3_005, NOW + 4_005]
    assert partition_plan.held == {"A": 1}


def test_what_a_control_record_fires_does_not_wait_for_a_turn() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(3)))
    stage.commit(NOW + 5, terms=rated())
    fire = stage.control(ControlKind.FIRE, TimerId(0, 2, NOW + 5))
    now = stage.control(ControlKind.RESCHEDULE, TimerId(0, 1, NOW + 5), NOW)
    partition_plan = stage.commit(NOW + 6, fire, now, terms=rated())
    assert fired(partition_plan) == [2, 1]
    assert outcomes(partition_plan) == [(Outcome.FIRED, 1), (Outcome.RESCHEDULED, 1)]


def test_a_turn_survives_a_restore() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(3)))
    stage.commit(NOW + 5, terms=rated())
    assert stage.folded().checkpoint.turns == {"A": NextTurn((NOW + 3_005) * 1_000_000, 10**9)}


def test_a_turn_that_is_over_is_not_kept() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 10_000, "B"))
    assert stage.commit(NOW + 5, terms=rated()).checkpoint.turns
    assert not stage.commit(NOW + 10_000, terms=rated()).checkpoint.turns


def test_the_turns_in_a_checkpoint_are_bounded_and_the_farthest_stay() -> None:
    names = [f"{at:0100}" for at in range(1_000)]
    turns = Turns({}, lambda _: 1.0, 1, NOW, 0)
    for number, name in enumerate(names):
        for _ in range(1 + number % 5):
            turns.take(name, NOW)
    kept = turns.kept()
    assert sum(len(name) + ORIGIN_BYTES for name in kept) <= TURNS_BYTES_MAX
    assert len(kept) == TURNS_BYTES_MAX // (100 + ORIGIN_BYTES)
    dropped = max(turns.take(name, NOW) or 0 for name in names if name not in kept)
    assert min(turn.next_ns for turn in kept.values()) // 1_000_000 >= dropped
