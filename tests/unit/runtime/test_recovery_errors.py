"""A partition that cannot be brought to run says why; that it runs in the end is tested on a real broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sidecar.engine.partition import Partition, State
from sidecar.engine.restore import ChangelogRead
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.admin.offsets import Committed as CommittedOffset
from sidecar.runtime.partitions.recovery import STALLED_S, Recovery
from sidecar.runtime.partitions.search import Searches
from sidecar.runtime.partitions.start_offsets import PARTITION_BACK_OFF_MAX_S, PARTITION_BACK_OFF_S, Topics
from tests.clocks import HandClock
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY

TOPICS = Topics("retry", "app-changelog", "group")


STEP_S = 1.0


class Answer:
    """A question to the broker that is answered as the test says; it is asked by making one."""

    refused: Mapping[int, str] = {}

    def __init__(self, *_asked: object) -> None:
        self.errors: Mapping[int, str] = self.refused

    def done(self) -> bool:
        return True


class Committed(Answer):
    def result(self) -> dict[int, CommittedOffset | None]:
        return {number: CommittedOffset(3, "") for number in (0, 1) if number not in self.refused}


class Edges(Answer):
    told: Mapping[tuple[str, int], Bounds] = {
        (topic, number): Bounds(0, 5) for topic in (TOPICS.changelog_topic, TOPICS.input_topic) for number in (0, 1)
    }

    def result(self) -> dict[tuple[str, int], Bounds]:
        return {place: bounds for place, bounds in self.told.items() if place[1] not in self.refused}


class Now:
    refused: Mapping[int, str] = {}

    def __init__(self, *_asked: object) -> None: ...

    def done(self) -> bool:
        return True

    def id_of(self, _topic: str) -> str:
        return "an-id"

    def errors(self, numbers: Sequence[int]) -> dict[int, str]:
        return {number: self.refused[number] for number in numbers if number in self.refused}


class Reader:
    """A changelog of which nothing is read."""

    def __init__(self) -> None:
        self.errors: dict[int, str] = {}

    def start(self, partition: int, offset: int, topic_id: str = "") -> None: ...

    def stop(self, partition: int) -> None: ...

    def read(self, _timeout_s: float) -> dict[int, list[ChangelogRead]]:
        Stage.now.now_s += 0.001  # the slice must come to its end
        return {}

    def take_lost(self) -> Sequence[int]:
        return []

    def error_of(self, partition: int) -> str:
        return self.errors.get(partition, "")

    def position(self, _partition: int) -> int:
        return 0


class Answers:
    """Implements `sidecar.runtime.ports.Brokers`."""

    def committed(self, _topic: str, _partitions: Sequence[int]) -> Committed:
        return Committed()

    def topics(self, _names: Sequence[str]) -> Now:
        return Now()

    def bounds(self, _partitions: Mapping[str, Sequence[int]]) -> Edges:
        return Edges()


class Stage:
    """Two partitions on their way."""

    now: HandClock

    def __init__(self) -> None:
        Stage.now = self.clock = HandClock()
        self.reader = Reader()
        self.recovery = Recovery(
            Answers(),
            self.reader,
            self.clock,
            TOPICS,
            IDENTITY,
            Searches(Mock(), self.clock, 60_000, str),
            running=lambda _partition, _offset: None,
            restored=lambda _seconds: None,
            input_lost=lambda partition, records: self.lost.append((partition, records)),
            rolled_back=lambda _partition: None,
        )
        self.lost: list[tuple[int, int]] = []
        self.partitions = [Partition(0), Partition(1)]
        self.recovery.start(self.partitions)

    def advance(self, times: int = 8) -> list[tuple[str, int, str]]:
        """Go on for a while; return event, partition and reason of what was logged."""
        with capture_logs() as lines:
            for _ in range(times):
                self.clock.now_s += STEP_S
                self.recovery.advance(MemoryStore(), others_run=True)
        return [(str(line["event"]), int(line["partition"]), str(line["reason"])) for line in lines]

    def shown(self) -> list[tuple[State, str]]:
        return [(each.state, each.reason) for each in self.partitions]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize("query", [Committed, Edges, Now])
def test_a_partition_without_an_answer_says_why_and_delays_no_other(
    query: type[Answer], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "partition 1 of topic retry has no leader"
    monkeypatch.setattr(query, "refused", {1: words})
    assert stage.advance() == [("offsets_not_told", 1, words)]
    assert stage.shown() == [(State.RESTORING, ""), (State.ASSIGNED, words)]
    assert stage.advance() == [], "the same is logged once"
    monkeypatch.setattr(query, "refused", {})
    assert stage.advance() == []
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_a_partition_that_had_no_answer_in_time_is_queried_without_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committed, "refused", {1: ""})
    queried: list[list[int]] = []

    def committed(_answers: Answers, _topic: str, partitions: Sequence[int]) -> Committed:
        queried.append(list(partitions))
        return Committed()

    monkeypatch.setattr(Answers, "committed", committed)
    stage.advance()
    assert queried[:2] == [[0, 1], [1]]
    queried.clear()
    stage.recovery.start(stage.partitions)
    stage.advance(2)
    assert sorted(queried[:2]) == [[0], [1]], "a transaction is still open on its offset"
    monkeypatch.setattr(Committed, "refused", {})
    stage.advance()
    assert stage.shown() == [(State.RESTORING, "")] * 2
    queried.clear()
    stage.recovery.start(stage.partitions)
    stage.advance(1)
    assert queried == [[0, 1]]


@pytest.mark.parametrize("query", [Committed, Edges, Now])
def test_what_is_refused_of_all_is_the_reason_of_all(
    query: type[Answer], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "group x: Broker: Group authorization failed"
    monkeypatch.setattr(query, "refused", dict.fromkeys((0, 1), words))
    assert stage.advance() == [("offsets_not_told", number, words) for number in (0, 1)]
    assert stage.shown() == [(State.ASSIGNED, words)] * 2


def test_a_partition_whose_changelog_takes_nothing_is_held_back_longer_each_time_and_the_others_go_on(
    stage: Stage,
) -> None:
    waits: list[float] = []
    for _ in range(3):
        stage.recovery.back_off({1: "it takes nothing"}, 2, others_run=True)
    for _ in range(10):
        stage.recovery.back_off({1: "it takes nothing"}, 2, others_run=True)
        stage.recovery.start(stage.partitions)
        began_s = stage.clock.now_s
        stage.advance(4)
        assert stage.shown() == [(State.RESTORING, ""), (State.ASSIGNED, "it takes nothing")]
        while stage.partitions[1].state is State.ASSIGNED:
            stage.advance(1)
        waits.append(round(stage.clock.now_s - began_s))
    assert waits == sorted(waits)
    assert PARTITION_BACK_OFF_MAX_S <= waits[-1] <= PARTITION_BACK_OFF_MAX_S + 4 * STEP_S
    stage.recovery.on_committed({1: stage.partitions[1]})
    stage.recovery.back_off({1: "it takes nothing"}, 2, others_run=True)
    stage.recovery.start(stage.partitions)
    began_s = stage.clock.now_s
    while stage.partitions[1].state is State.ASSIGNED:
        stage.advance(1)
    assert stage.clock.now_s - began_s <= PARTITION_BACK_OFF_S + 4 * STEP_S


def test_a_partition_that_is_stuck_is_held_back_though_the_transaction_was_for_it_alone(stage: Stage) -> None:
    for _ in range(4):
        stage.recovery.back_off({}, 1, others_run=False, stuck={1: "it is too large"})
    stage.recovery.start(stage.partitions)
    stage.advance(4)
    assert stage.shown() == [(State.RESTORING, ""), (State.ASSIGNED, "it is too large")]


def test_where_nothing_at_all_was_taken_no_partition_is_held_back(stage: Stage) -> None:
    stage.recovery.back_off({0: "timed out", 1: "timed out"}, 2, others_run=False)
    stage.recovery.start(stage.partitions)
    stage.advance(4)
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_a_partition_that_failed_alone_is_held_back_and_longer_only_if_another_was_written_since(stage: Stage) -> None:
    def fail_alone() -> list[float]:
        with capture_logs() as logs:
            stage.recovery.back_off({1: "timed out"}, 1, others_run=True)
        return [each["seconds"] for each in logs]

    assert [*fail_alone(), *fail_alone(), *fail_alone()] == [PARTITION_BACK_OFF_S] * 3
    stage.recovery.start(stage.partitions)
    stage.advance(4)
    assert stage.shown() == [(State.RESTORING, ""), (State.ASSIGNED, "timed out")]
    stage.recovery.on_committed({0: stage.partitions[0]})
    assert [*fail_alone(), *fail_alone()] == [2 * PARTITION_BACK_OFF_S] * 2


def test_a_partition_that_failed_alone_is_tried_again_at_once_where_no_other_runs(stage: Stage) -> None:
    stage.recovery.back_off({1: "timed out"}, 1, others_run=False)
    stage.recovery.start(stage.partitions)
    stage.advance(4)
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_a_restore_that_reads_nothing_for_long_asks_the_brokers_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.advance(4)
    assert stage.shown() == [(State.RESTORING, "")] * 2
    monkeypatch.setattr(Now, "refused", {0: "no leader"})
    stage.clock.now_s += STALLED_S
    stage.advance(5)
    assert stage.shown() == [(State.ASSIGNED, "no leader"), (State.RESTORING, "")]


def test_a_changelog_that_is_not_read_is_the_reason_of_its_partition_until_it_is(stage: Stage) -> None:
    stage.advance(4)
    stage.reader.errors[1] = "Broker: Topic authorization failed"
    assert stage.advance(1) == [("changelog_not_read", 1, stage.reader.errors[1])]
    assert stage.shown() == [(State.RESTORING, ""), (State.RESTORING, stage.reader.errors[1])]
    stage.reader.errors.clear()
    assert stage.advance(1) == []
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_records_that_retention_took_are_counted_once_though_nothing_is_committed_before_the_next_reset(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_anew(log_start: int) -> list[tuple[int, int]]:
        edges = {**Edges.told, **{(TOPICS.changelog_topic, number): Bounds(0, 0) for number in (0, 1)}}
        monkeypatch.setattr(Edges, "told", edges | {(TOPICS.input_topic, 1): Bounds(log_start, 99)})
        stage.lost.clear()
        stage.recovery.start(stage.partitions)
        with capture_logs():
            for _ in range(9):
                stage.clock.now_s += STEP_S
                stage.recovery.advance(MemoryStore(), others_run=True)
        assert [each.state for each in stage.partitions] == [State.RUNNING] * 2
        return stage.lost

    assert begin_anew(10) == [(1, 7)]
    assert begin_anew(10) == [(1, 0)]
    assert begin_anew(12) == [(1, 2)]
    assert begin_anew(5) == [(1, 2)], "another log, which the topic has since it was made anew"
