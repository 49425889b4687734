"""The group's figures, put together from what instances publish, and the thread's part of it without a broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sidecar.api.source import Health
from sidecar.contract import signature, status
from sidecar.contract.control import Outcome
from sidecar.contract.status import OutcomeRecord, outcome_key
from sidecar.engine.group import merge as group
from sidecar.engine.group.merge import BrokerTime, Outcomes, Published, Standing, Start, StatusPosition, group_views
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS, PartitionView, summarise
from sidecar.errors import KafkaFailed
from sidecar.kafka.status_reader import StatusRead
from sidecar.serving.group_view import FIRST_READ_S, ClusterView, GroupSource
from tests.clocks import NOW_MS, HandClock
from tests.unit.engine.test_view import EMPTY
from tests.waiting import eventually

TOPIC = "app-status"
TOKEN = "secret"


def published(stamped_ms: int, offset: int = 0, **fields: Any) -> Published:
    """Return a view of partition 0 that the broker stamped so long after NOW_MS."""
    return Published(replace(EMPTY, **fields), StatusPosition(NOW_MS + stamped_ms, offset))


def standing_of(*records: Published) -> Standing:
    return reduce(Standing.joined, records, Standing())


def shown(*records: Published, after_ms: int = 0, **given: Any) -> PartitionView:
    """Return what is shown so long after the latest record; both clocks agree."""
    now_ms = max((each.position.stamped_ms for each in records), default=NOW_MS) + after_ms
    return standing_of(*records).view(0, broker_ms=now_ms, now_ms=now_ms, **given)


# One partition

states = st.sampled_from(["running", "restoring", "assigned", "closed", "stopped"])
records = st.lists(
    st.builds(
        lambda stamped_ms, state, sequence, restored, restored_ms: published(
            *(stamped_ms, stamped_ms),
            state=state,
            sequence=sequence,
            restored=restored,
            pending=sequence,
            restored_ms=restored_ms,
        ),
        st.integers(0, 3 * FIGURE_AGE_MAX_MS),
        states,
        st.integers(0, 5),
        st.sampled_from([0.5, 1.0]),
        st.integers(0, 3),
    ),
    max_size=12,
    unique_by=lambda each: each.position,
)


@given(records, st.randoms(use_true_random=False), st.integers(0, 12))
def test_the_order_of_arrival_and_repeats_do_not_matter(
    given_records: list[Published], dice: random.Random, repeated: int
) -> None:
    shuffled = [*given_records, *given_records[:repeated]]
    dice.shuffle(shuffled)
    assert standing_of(*shuffled) == standing_of(*given_records)


@given(records)
def test_the_figure_is_the_highest_sequence_of_the_last_restore_in_the_youngest_ten_seconds(
    given_records: list[Published],
) -> None:
    figures = [each for each in given_records if each.is_figure]
    kept = standing_of(*given_records).figures
    assert bool(kept) is bool(figures)
    if figures:
        youngest_ms = max(each.position.stamped_ms for each in figures)
        young = [each for each in figures if each.position.stamped_ms > youngest_ms - FIGURE_AGE_MAX_MS]
        assert kept[0] == max(young, key=lambda each: each.rank)


def test_a_former_owner_that_wakes_up_changes_nothing() -> None:
    now = published(9_000, 8, owner="two", sequence=50, pending=5, restored_ms=8_000)
    late = published(9_100, 9, owner="one", sequence=60, pending=9, restored_ms=2_000)
    assert (shown(now, late).owner, shown(now, late).pending) == ("two", 5)


def test_a_restore_from_a_changelog_that_was_rolled_back_is_shown_at_once() -> None:
    former = published(9_000, 8, sequence=1_000, pending=7, restored_ms=2_000)
    wiped = published(9_001, 9, sequence=999, pending=8, restored_ms=9_000)
    assert shown(former, wiped).pending == 8


def test_a_step_that_is_published_late_on_spark_changes_nothing() -> None:
    now, late = published(9_000, 8, sequence=50, pending=5), published(9_100, 9, sequence=40, pending=9)
    assert shown(now, late).pending == 5


@pytest.mark.parametrize("state", ["assigned", "restoring", "stopped"])
def test_a_partition_on_its_way_keeps_its_last_figure_with_its_age(state: str) -> None:
    figure = published(0, 0, owner="one", sequence=9, pending=70, by_origin={"orders": 70})
    partial = published(
        4_000, 1, owner="two", state=state, sequence=3, pending=2, restored=0.5, restore_remaining=8, lag=3
    )
    view = shown(figure, partial, after_ms=1_000)
    assert (view.pending, view.by_origin, view.sequence) == (70, {"orders": 70}, 9)
    assert (view.state, view.owner, view.restored, view.restore_remaining, view.lag) == (state, "two", 0.5, 8, 3)
    assert view.as_of_ms == NOW_MS


def test_a_restore_at_its_end_is_no_figure_yet() -> None:
    """Rows up to the watermark are still counted then."""
    assert not published(0, state="restoring", restored=1.0).is_figure


def test_an_owner_that_lets_go_leaves_its_figure_and_no_owner() -> None:
    view = shown(published(0, 0, pending=3), published(100, 1, state="closed", owner="", url=None, pending=4))
    assert (view.pending, view.owner, view.state) == (4, "", "closed")


def test_a_silent_owner_is_named_and_its_figure_stays() -> None:
    young = shown(published(0, pending=3), after_ms=FIGURE_AGE_MAX_MS - 1)
    old = shown(published(0, pending=3), after_ms=FIGURE_AGE_MAX_MS)
    assert (young.state, young.owner) == ("running", EMPTY.owner)
    assert (old.state, old.owner, old.url, old.pending) == ("unknown", "", None, 3)


def test_a_partial_count_alone_is_shown_but_not_known() -> None:
    view = shown(published(0, state="restoring", restored=0.5, pending=2))
    assert (view.pending, view.as_of_ms, view.owner) == (2, 0, EMPTY.owner)
    assert summarise([view], partitions_total=1, now_ms=NOW_MS)["complete"] is False


def test_ages_are_by_the_brokers_clock_whatever_this_machine_thinks() -> None:
    hour_ms = 3_600_000
    view = standing_of(published(0)).view(0, broker_ms=NOW_MS + 2_000, now_ms=NOW_MS + hour_ms)
    assert (view.owner, view.as_of_ms) == (EMPTY.owner, NOW_MS + hour_ms - 2_000)


# The group


def of_group(standings: dict[int, Standing], *own: PartitionView, total: int | None = 2) -> list[PartitionView]:
    return group_views(
        standings, own, instance_id="me", partitions_total=total, broker_ms=NOW_MS + 1_000, now_ms=NOW_MS + 1_000
    )


def test_every_input_partition_is_named_and_no_other() -> None:
    views = of_group({1: standing_of(published(0, partition=1)), 7: standing_of(published(0, partition=7))}, total=3)
    assert [(view.partition, view.state, view.owner) for view in views] == [
        (0, "unknown", ""),
        (1, "running", EMPTY.owner),
        (2, "unknown", ""),
    ]


def test_own_figures_are_those_of_this_moment() -> None:
    before = published(900, 3, owner="me", sequence=7, pending=3)
    own = replace(EMPTY, owner="me", sequence=7, pending=2, as_of_ms=NOW_MS + 990)
    assert of_group({0: standing_of(before)}, own, total=1)[0].pending == 2


def test_own_figures_that_another_owner_has_passed_are_not_shown() -> None:
    taken_over = published(900, 3, owner="two", sequence=8, pending=1)
    own = replace(EMPTY, owner="me", sequence=7, pending=2, as_of_ms=NOW_MS + 990)
    view = of_group({0: standing_of(taken_over)}, own, total=1)[0]
    assert (view.owner, view.pending) == ("two", 1)


def test_own_restore_shows_the_figure_of_the_former_owner() -> None:
    former = published(500, 3, owner="two", sequence=8, pending=10)
    own = replace(EMPTY, owner="me", state="restoring", restored=0.2, sequence=1, pending=1, as_of_ms=NOW_MS + 990)
    view = of_group({0: standing_of(former)}, own, total=1)[0]
    assert (view.owner, view.state, view.pending) == ("me", "restoring", 10)


def test_what_this_instance_published_in_a_former_life_names_no_owner() -> None:
    view = of_group({0: standing_of(published(500, 3, owner="me", pending=10))}, total=1)[0]
    assert (view.owner, view.state, view.pending) == ("", "unknown", 10)


def test_one_silent_instance_does_not_touch_the_others() -> None:
    silent, lively = published(-20_000, owner="one", pending=5), published(900, partition=1, owner="two", pending=6)
    views = of_group({0: standing_of(silent), 1: standing_of(lively)})
    answer = summarise(views, partitions_total=2, now_ms=NOW_MS + 1_000)
    assert (answer["total"], answer["complete"]) == (11, False)
    assert [(view.owner, view.state) for view in views] == [("", "unknown"), ("two", "running")]


# The broker's clock


def test_the_brokers_clock_is_the_tightest_bound_that_was_heard() -> None:
    time = BrokerTime()
    assert time.now_ms(5.0, 123) == 123
    time.heard(NOW_MS, 10.5)  # took 500 ms
    time.heard(NOW_MS + 1_000, 11.01)
    assert time.now_ms(12.01, 0) == NOW_MS + 2_000


def test_a_brokers_clock_that_is_set_back_is_followed() -> None:
    time = BrokerTime()
    time.heard(NOW_MS + 60_000, 0.0)
    for second in range(0, 90, 5):
        time.heard(NOW_MS + second * 1_000, float(second))
    assert time.now_ms(90.0, 0) == NOW_MS + 90_000


# Outcomes


def outcome(kind: Outcome = Outcome.CANCELLED, partition: int = 0) -> OutcomeRecord:
    return OutcomeRecord(outcome=kind, count=1, target="id:a", partition=partition, at_ms=NOW_MS)


@given(st.permutations([(5, Outcome.CANCELLED), (9, Outcome.NOT_PENDING), (7, Outcome.NOT_PENDING)]))
def test_the_lowest_input_offset_stands_in_each_partition(arrived: list[tuple[int, Outcome]]) -> None:
    outcomes = Outcomes()
    for offset, kind in arrived:
        outcomes.add("c1", offset, outcome(kind), NOW_MS)
        outcomes.add("c1", 1, outcome(partition=1), NOW_MS)
    assert {number: each.outcome for number, each in outcomes.of("c1").items()} == {
        0: Outcome.CANCELLED,
        1: Outcome.CANCELLED,
    }
    assert outcomes.of("c2") == {}


def test_old_outcomes_and_those_beyond_the_bound_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "OUTCOMES_MAX", 3)
    outcomes = Outcomes()
    for number in range(5):
        outcomes.add(f"c{number}", number, outcome(), NOW_MS + number)
    assert [bool(outcomes.of(f"c{number}")) for number in range(5)] == [False, False, True, True, True]
    outcomes.add("later", 9, outcome(), NOW_MS + group.OUTCOME_AGE_MAX_MS + 3)
    assert [bool(outcomes.of(name)) for name in ("c3", "c4", "later")] == [False, True, True]


def test_a_partition_that_answers_an_hour_after_the_others_does_not_end_the_reading() -> None:
    """Its control id has grown old meanwhile, and may be the only one that is known."""
    outcomes = Outcomes()
    outcomes.add("c1", 1, outcome(), NOW_MS)
    outcomes.add("c1", 9, outcome(partition=1), NOW_MS + group.OUTCOME_AGE_MAX_MS)
    assert outcomes.of("c1") == {}
    outcomes.add("c2", 10, outcome(), NOW_MS + group.OUTCOME_AGE_MAX_MS)
    assert outcomes.of("c2") == {0: outcome()}


# The thread's part


@dataclass
class MemoryReader:
    """A reader that gives what the test puts in."""

    coming: list[StatusRead] = field(default_factory=list)
    caught_up: bool = False
    input_partitions: int | None = 1
    cluster_id: str | None = "cluster"
    error: str = ""

    def read(self, timeout_s: float) -> Sequence[StatusRead]:
        taken, self.coming = self.coming, []
        return taken

    def close(self) -> None:
        self.coming = []


def status_read(
    view: PartitionView = EMPTY, *, key: bytes = b"p/0", signed: str | None = None, **fields: Any
) -> StatusRead:
    value = fields.pop("value", view.to_json())
    headers = dict(status.signed(signed, TOPIC, 0, key, value, NOW_MS))
    return StatusRead(0, 0, NOW_MS, key, value, headers, live=False)._replace(**fields)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def cluster_of(clock: HandClock, token: str | None = None) -> ClusterView:
    return ClusterView(MemoryReader, clock, topic=TOPIC, token=token)


def test_what_is_read_is_shown(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    cluster.step(MemoryReader([status_read(replace(EMPTY, pending=4))]), 0)
    assert [(view.pending, view.owner) for view in cluster.views()] == [(4, EMPTY.owner)]
    assert (cluster.cluster_id, cluster.partitions_total) == ("cluster", 1)


@pytest.mark.parametrize(
    "strange",
    [
        status_read(key=b"d/doctor"),
        status_read(key=b"p/1"),
        status_read(key=b""),
        status_read(value=b"{}"),
        status_read(replace(EMPTY, partition=1)),
        status_read(key=b"o/c1/5", value=b"{}"),
        status_read(key=b"o/c1", value=outcome().to_json()),
        status_read(key=b"o/c1/5", value=outcome(partition=3).to_json()),
    ],
)
def test_records_of_other_kinds_and_of_other_partitions_are_ignored(strange: StatusRead, clock: HandClock) -> None:
    cluster = cluster_of(clock)
    cluster.step(MemoryReader([strange]), 0)
    assert [view.state for view in cluster.views()] == ["unknown"]
    assert cluster.outcomes("c1") == {}


def started(process: bytes, at_ms: int, offset: int, *, key: bytes = b"i/pod-0", token: str = "t") -> StatusRead:
    return status_read(key=key, value=process, signed=token, stamped_ms=at_ms, offset=offset)


def test_the_last_start_of_this_identity_is_known_by_the_broker_s_order(clock: HandClock) -> None:
    cluster = ClusterView(MemoryReader, clock, topic=TOPIC, token="t", instance_id="pod-0")
    others = [
        started(b"other", NOW_MS + 9, 9, key=b"i/pod-1"),
        started(b"forged", NOW_MS + 9, 9, token="another"),
        started(b"elsewhere", NOW_MS + 9, 9)._replace(partition=1),
    ]
    cluster.step(MemoryReader(others), 0)
    assert cluster.last_start is None
    cluster.step(MemoryReader([started(b"b", NOW_MS, 5), started(b"a", NOW_MS, 4)]), 0)
    assert cluster.last_start == Start(StatusPosition(NOW_MS, 5), b"b")


def test_outcomes_are_kept(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    cluster.step(MemoryReader([status_read(key=outcome_key("c1", 5), value=outcome().to_json())]), 0)
    assert GroupSource(Own(), cluster).outcomes("c1") == {0: outcome()}


def test_who_waits_for_outcomes_goes_on_when_the_last_partition_has_answered(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cluster.await_outcomes, "c1", {0, 1}, 60)
        cluster.step(MemoryReader([status_read(key=outcome_key("c1", 5), value=outcome().to_json())]), 0)
        assert not waiting.done()
        other = status_read(key=outcome_key("c1", 9), value=outcome(partition=1).to_json(), partition=1)
        cluster.step(MemoryReader([other]), 0)
        assert waiting.result(30) == {0: outcome(), 1: outcome(partition=1)}


def test_a_wait_for_outcomes_returns_what_is_known_at_the_deadline(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    cluster.step(MemoryReader([status_read(key=outcome_key("c1", 5), value=outcome().to_json())]), 0)
    assert cluster.await_outcomes("c1", {0, 1}, 0.001) == {0: outcome()}


@pytest.mark.parametrize(
    ("record", "accepted"),
    [
        (status_read(signed=TOKEN), True),
        (status_read(), False),
        (status_read(signed="another"), False),
        (status_read(signed=TOKEN, value=replace(EMPTY, pending=9).to_json()), True),
        (status_read(signed=TOKEN)._replace(value=replace(EMPTY, pending=9).to_json()), False),
        (status_read(signed=TOKEN, stamped_ms=NOW_MS + signature.AGE_MAX_MS + 1), False),
    ],
)
def test_with_a_token_only_what_it_signed_lately_is_taken(record: StatusRead, accepted: bool, clock: HandClock) -> None:
    cluster = cluster_of(clock, TOKEN)
    clock.stepped_ms = record.stamped_ms - NOW_MS
    cluster.step(MemoryReader([record]), 0)
    assert (cluster.views()[0].state == "running") is accepted
    assert cluster.refused == (not accepted)


def test_a_signature_stays_good_for_those_who_read_the_topic_later(clock: HandClock) -> None:
    cluster = cluster_of(clock, TOKEN)
    clock.now_s = 3_600
    cluster.step(MemoryReader([status_read(replace(EMPTY, pending=4), signed=TOKEN)]), 0)
    assert (cluster.views()[0].pending, cluster.views()[0].owner) == (4, "")


def test_a_live_record_sets_the_clock_by_which_figures_age(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    clock.stepped_ms = 3_600_000
    cluster.step(MemoryReader([status_read(live=True)]), 0)
    assert cluster.views()[0].owner == EMPTY.owner
    clock.now_s += FIGURE_AGE_MAX_MS / 1000
    assert cluster.views()[0].owner == ""


def test_nothing_is_answered_before_the_topic_was_read_unless_that_takes_long(clock: HandClock) -> None:
    cluster, reader = cluster_of(clock), MemoryReader(error="topic app-status: unknown")
    cluster.step(reader, 0)
    assert "topic app-status: unknown" in (cluster.unread() or "")
    clock.now_s += FIRST_READ_S
    assert cluster.unread() is None
    clock.now_s = 0
    cluster.step(replace(reader, caught_up=True), 0)
    assert cluster.unread() is None
    cluster.step(reader, 0)
    assert cluster.unread() is None, "once is enough"


@dataclass
class Own:
    """The snapshots of one instance."""

    shown: Sequence[PartitionView] = ()

    def views(self) -> Sequence[PartitionView]:
        return self.shown

    def partitions_total(self) -> int | None:
        return 1

    def unread(self) -> str | None:
        return None

    def health(self) -> Health:
        return Health(live=True, ready=True)

    def now_ms(self) -> int:
        return NOW_MS

    def cluster_id(self) -> str | None:
        return None


def test_a_topic_that_is_about_to_be_made_is_no_warning_and_one_that_stays_away_is(clock: HandClock) -> None:
    cluster, reader = cluster_of(clock), MemoryReader(error="topic app-status: unknown")
    with capture_logs() as lines:
        cluster.step(reader, 0.0)
    assert (lines, cluster.unread() is None) == ([], False)
    clock.now_s += FIRST_READ_S
    with capture_logs() as lines:
        cluster.step(reader, 0.0)
        cluster.step(reader, 0.0)
    assert [line["event"] for line in lines] == ["status_not_read"]


def test_the_api_shows_the_group_and_its_own_health(clock: HandClock) -> None:
    cluster = cluster_of(clock)
    source = GroupSource(Own([replace(EMPTY, owner="me", pending=2, as_of_ms=NOW_MS)]), cluster, "me")
    assert (source.health().ready, source.health().live) == (False, True)
    cluster.step(MemoryReader(caught_up=True, input_partitions=2), 0)
    assert source.health() == Health(live=True, ready=True)
    assert [(view.owner, view.pending) for view in source.views()] == [("me", 2), ("", 0)]
    assert (source.partitions_total(), source.cluster_id(), source.unread()) == (2, "cluster", None)


def test_the_thread_reads_until_it_is_stopped(clock: HandClock) -> None:
    cluster = ClusterView(lambda: MemoryReader(caught_up=True), clock, topic=TOPIC, token=None)
    source = GroupSource(Own(), cluster, "me")
    assert source.health().live
    cluster.start()
    cluster.stop(5)
    assert not source.health().live


def test_a_reader_that_cannot_be_made_is_made_again(clock: HandClock) -> None:
    makes: list[None] = []

    def make() -> MemoryReader:
        makes.append(None)
        if len(makes) == 1:
            raise KafkaFailed("the login has no token", away=True)
        return MemoryReader(caught_up=True)

    cluster = ClusterView(make, clock, topic=TOPIC, token=None)
    cluster.start()
    try:
        eventually(lambda: cluster.unread() is None, 30, "the second reader reads")
        assert GroupSource(Own(), cluster, "me").health().live
    finally:
        cluster.stop(5)
