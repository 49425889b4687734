"""The last hour of a partition: counted, published, taken over by the next owner, added up."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.group.activity import MINUTE_MS, MINUTES, Activity, Minute, together
from sidecar.engine.group.merge import Published, Standing, StatusPosition
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition, State
from sidecar.runtime.partitions.inheritance import LAST_WORD_S, Inheritance
from tests.clocks import HandClock
from tests.unit.engine.test_view import EMPTY, NOW_MS

NOTHING = Minute()
THIS_MINUTE = NOW_MS // MINUTE_MS

happened = st.lists(
    st.tuples(
        st.integers(NOW_MS - 90 * MINUTE_MS, NOW_MS),
        st.builds(Minute, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    ),
    max_size=30,
)


def hour_of(events: list[tuple[int, Minute]]) -> Activity:
    """Return what these events leave."""
    return reduce(lambda hour, event: hour.plus(*event), events, Activity())


@given(happened)
def test_the_last_hour_is_what_happened_in_its_minutes_in_any_order(events: list[tuple[int, Minute]]) -> None:
    expected = [NOTHING] * MINUTES
    for at_ms, minute in events:
        ago = THIS_MINUTE - at_ms // MINUTE_MS
        if ago < MINUTES:
            expected[MINUTES - 1 - ago] = expected[MINUTES - 1 - ago].plus(minute)
    assert hour_of(events).last(NOW_MS) == expected
    assert hour_of(events[::-1]).last(NOW_MS) == expected


@given(happened, happened)
def test_two_owners_one_after_the_other_are_one_hour(
    first: list[tuple[int, Minute]], second: list[tuple[int, Minute]]
) -> None:
    whole = hour_of(first + second).last(NOW_MS)
    assert hour_of(first).joined(hour_of(second)).last(NOW_MS) == whole
    assert together([hour_of(first), hour_of(second)], NOW_MS) == whole


def test_an_hour_passes() -> None:
    hour = Activity().plus(NOW_MS, Minute(3, 2, 1))
    assert hour.last(NOW_MS + 59 * MINUTE_MS)[0] == (3, 2, 1)
    assert hour.last(NOW_MS + 60 * MINUTE_MS) == [NOTHING] * MINUTES


def test_an_owner_whose_clock_runs_ahead_shows_no_minute_that_has_not_come() -> None:
    ahead = Activity().plus(NOW_MS, Minute(1)).plus(NOW_MS + 5 * MINUTE_MS, Minute(7))
    assert ahead.last(NOW_MS)[-1] == (1, 0, 0)


@given(happened)
def test_the_hour_is_published_with_the_figures(events: list[tuple[int, Minute]]) -> None:
    view = replace(EMPTY, activity=hour_of(events))
    read = PartitionView.from_json(view.to_json())
    assert read is not None
    assert read.activity is not None
    assert read.activity.last(NOW_MS) == hour_of(events).last(NOW_MS)
    assert replace(read, activity=None) == EMPTY


def test_a_busy_hour_is_small_and_an_idle_one_smaller() -> None:
    busy = hour_of([(NOW_MS - ago * MINUTE_MS, Minute(123_456, 12, 34)) for ago in range(MINUTES)])
    plain = len(EMPTY.to_json())
    assert len(replace(EMPTY, activity=busy).to_json()) - plain < 1_200
    assert len(replace(EMPTY, activity=Activity()).to_json()) - plain < 40


def test_records_of_a_release_without_the_hour_are_read() -> None:
    wire = json.loads(EMPTY.to_json())
    del wire["activity"]
    assert PartitionView.from_json(json.dumps(wire).encode()) == EMPTY


# Handed over


def published(offset: int, activity: Activity | None, state: str = "running", sequence: int = 1) -> Published:
    view = replace(
        EMPTY, state=state, restored=1.0 if state == "running" else 0.5, activity=activity, sequence=sequence
    )
    return Published(view, StatusPosition(NOW_MS + offset, offset))


def test_a_new_owner_that_says_nothing_of_the_hour_yet_does_not_hide_the_former_owners() -> None:
    former = Activity().plus(NOW_MS, Minute(5))
    records = [published(1, former), published(2, None, "restoring"), published(3, None, sequence=2)]
    for order in permutations(records):
        standing = reduce(Standing.joined, order, Standing())
        assert standing.activity == former
        assert standing.view(0, broker_ms=NOW_MS, now_ms=NOW_MS).activity == former
    whole = former.plus(NOW_MS, Minute(1))
    assert reduce(Standing.joined, [*records, published(4, whole, sequence=3)], Standing()).activity == whole


def test_a_former_owner_that_wakes_up_does_not_replace_the_hour() -> None:
    new, old = Activity().plus(NOW_MS, Minute(9)), Activity().plus(NOW_MS, Minute(5))
    records = [published(1, new, sequence=8), published(2, old, sequence=3)]
    assert reduce(Standing.joined, records, Standing()).activity == new


@dataclass
class Topic:
    """The records of the status topic."""

    activities: dict[int, Activity]
    reading: str | None = None

    def unread(self) -> str | None:
        return self.reading

    def activity(self, partition: int) -> Activity | None:
        return self.activities.get(partition)


def running(number: int) -> Partition:
    partition = Partition(number)
    partition.transition_to(State.RESTORING)
    partition.transition_to(State.RUNNING)
    return partition


def test_a_new_owner_goes_on_from_the_former_owners_hour_once() -> None:
    former = Activity().plus(NOW_MS, Minute(5))
    topic, clock, partition = Topic({0: former}, reading="not read yet"), HandClock(), running(0)
    inheritance = Inheritance(topic, clock)
    inheritance.join([partition])
    partition.activity = partition.activity.plus(NOW_MS, Minute(2))
    clock.now_s += LAST_WORD_S
    inheritance.join([partition])
    assert not partition.activity_whole
    topic.reading = None
    inheritance.join([partition])
    inheritance.join([partition])
    assert partition.activity_whole
    assert partition.activity.last(NOW_MS)[-1] == (7, 0, 0)


def test_the_former_owners_last_word_is_waited_for() -> None:
    topic, clock, partition = Topic({}), HandClock(), running(0)
    inheritance = Inheritance(topic, clock)
    inheritance.join([partition])
    assert not partition.activity_whole
    topic.activities[0] = Activity().plus(NOW_MS, Minute(5))
    clock.now_s += LAST_WORD_S
    inheritance.join([partition])
    assert partition.activity.last(NOW_MS)[-1] == (5, 0, 0)
