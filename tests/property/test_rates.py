"""The turns of an origin, over any course of dues, plans, restarts and partitions."""

from __future__ import annotations

from bisect import bisect_left, insort

from hypothesis import given
from hypothesis import strategies as st

from sidecar.changelog.codec import Checkpoint, NextTurn, decode_checkpoint, encode_checkpoint
from sidecar.engine.rates import LATE_MS, Turns, every_ns

NOW_MS = 1_700_000_000_000
plans = st.lists(st.tuples(st.integers(1, 3_000), st.lists(st.integers(0, 5_000), max_size=6)), max_size=30)


def fired_at(rate: float, partitions: int, course: list[tuple[int, list[int]]]) -> list[int]:
    """Return when timers fire that come due as a course says: steps of the clock, and how long ago each came due."""
    now_ms, fired, held = NOW_MS, list[int](), list[int]()
    former: dict[str, NextTurn] = {}
    for step_ms, ages_ms in [*course, *[(LATE_MS // 2, [])] * 20]:
        now_ms += step_ms
        turns = Turns(former, lambda _: rate, partitions, now_ms, 0)
        due = held[: bisect_left(held, now_ms + 1)]
        del held[: len(due)]
        for turn_ms in due:
            if not turns.missed(turn_ms) or (again := turns.take("A", turn_ms)) is None:
                fired.append(now_ms)
            else:
                insort(held, again)
        for age_ms in ages_ms:
            turn = turns.take("A", now_ms - age_ms)
            if turn is None:
                fired.append(now_ms)
            else:
                assert turn > now_ms
                insort(held, turn)
        kept = Checkpoint(turns=turns.kept())
        former = dict(decode_checkpoint(encode_checkpoint(kept)).turns)
    assert held == sorted(held)
    return fired


@given(st.floats(0.1, 50), st.integers(1, 5), plans)
def test_no_time_has_more_than_the_rate_and_what_may_be_late(
    rate: float, partitions: int, course: list[tuple[int, list[int]]]
) -> None:
    fired = fired_at(rate, partitions, course)
    every_ms = every_ns(rate, partitions) / 1_000_000
    for first, at_ms in enumerate(fired):
        for last in range(first + 1, len(fired)):
            assert fired[last] - at_ms >= (last - first) * every_ms - LATE_MS - 2


@given(st.integers(1, 1_000), st.integers(1, 12), st.integers(2, 200))
def test_a_backlog_is_spaced_evenly_to_the_millisecond(rate: int, partitions: int, number: int) -> None:
    turns = Turns({}, lambda _: float(rate), partitions, NOW_MS, 0)
    dues = [turns.take("A", NOW_MS) for _ in range(number)]
    every_ms = every_ns(rate, partitions) / 1_000_000
    assert dues[0] is None
    for at, due_ms in enumerate(dues[1:], 1):
        assert due_ms is not None
        assert 0 <= due_ms - (NOW_MS + at * every_ms) < 1.5
    behind = turns.kept()["A"].behind(NOW_MS)
    assert behind == number - 1


@given(st.floats(0.001, 1_000_000), st.integers(1, 10_000))
def test_the_shares_of_all_partitions_make_the_rate(rate: float, partitions: int) -> None:
    assert abs(every_ns(rate, partitions) - max(1.0, partitions * 1e9 / rate)) <= 1
