"""A partition that can not be brought to run says why; that it runs in the end is tested on a real broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.engine.partition import Partition, State
from sidecar.engine.restore import ChangelogRead
from sidecar.kafka.offsets import Bounds
from sidecar.runtime import reset as resetting
from sidecar.runtime.reset import ASK_AGAIN_S, Reset, Topics
from tests.clocks import HandClock
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY

TOPICS = Topics("retry", "app-changelog", "group")


class Answer:
    """A question to the broker that is answered as the test says; it is asked by making one."""

    told: Any
    refused = ""

    def __init__(self, *_asked: object) -> None:
        self.trouble = ""

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        self.trouble = self.refused
        return None if self.refused else self.told


class Committed(Answer):
    told: Mapping[int, int | None] = {0: 3, 1: 3}


class Edges(Answer):
    told: Mapping[tuple[str, int], Bounds] = {
        (topic, number): Bounds(0, 5) for topic in (TOPICS.changelog_topic, TOPICS.input_topic) for number in (0, 1)
    }


class Id(Answer):
    told = "an-id"


class Reader:
    """A changelog of which nothing is read."""

    def __init__(self) -> None:
        self.troubles: dict[int, str] = {}

    def start(self, partition: int, offset: int) -> None: ...

    def stop(self, partition: int) -> None: ...

    def read(self, _timeout_s: float) -> dict[int, list[ChangelogRead]]:
        Stage.now.now_s += 0.001  # the slice must come to its end
        return {}

    def take_lost(self) -> Sequence[int]:
        return []

    def trouble(self, partition: int) -> str:
        return self.troubles.get(partition, "")

    def position(self, _partition: int) -> int:
        return 0


class Stage:
    """Two partitions on their way."""

    now: HandClock

    def __init__(self) -> None:
        Stage.now = self.clock = HandClock()
        self.reader = Reader()
        admin: Any = None
        reader: Any = self.reader
        self.reset = Reset(
            admin,
            {},
            reader,
            self.clock,
            TOPICS,
            IDENTITY,
            running=lambda _partition, _offset: None,
            restored=lambda _seconds: None,
            input_lost=lambda partition, records: self.lost.append((partition, records)),
        )
        self.lost: list[tuple[int, int]] = []
        self.partitions = [Partition(0), Partition(1)]
        self.reset.start(self.partitions)

    def advance(self, times: int = 4) -> list[tuple[str, int, str]]:
        """Go on for a while; return event, partition and reason of what was logged."""
        with capture_logs() as lines:
            for _ in range(times):
                self.clock.now_s += ASK_AGAIN_S
                self.reset.advance(MemoryStore(), others_run=True)
        return [(str(line["event"]), int(line["partition"]), str(line["reason"])) for line in lines]

    def shown(self) -> list[tuple[State, str]]:
        return [(each.state, each.reason) for each in self.partitions]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    for name, answer in (("CommittedOffsets", Committed), ("LogBounds", Edges), ("TopicId", Id)):
        monkeypatch.setattr(resetting, name, answer)
    return Stage()


@pytest.mark.parametrize("question", [Committed, Edges, Id])
def test_offsets_that_are_not_told_are_the_reason_of_their_partitions_until_they_are(
    question: type[Answer], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "group x: Broker: Group authorization failed"
    monkeypatch.setattr(question, "refused", words)
    assert stage.advance() == [("offsets_not_told", number, words) for number in (0, 1)]
    assert stage.shown() == [(State.ASSIGNED, words)] * 2
    assert stage.advance() == [], "the same is logged once"
    monkeypatch.setattr(question, "refused", "")
    assert stage.advance() == []
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_a_changelog_that_is_not_read_is_the_reason_of_its_partition_until_it_is(stage: Stage) -> None:
    stage.advance()
    stage.reader.troubles[1] = "Broker: Topic authorization failed"
    assert stage.advance() == [("changelog_not_read", 1, stage.reader.troubles[1])]
    assert stage.shown() == [(State.RESTORING, ""), (State.RESTORING, stage.reader.troubles[1])]
    stage.reader.troubles.clear()
    assert stage.advance() == []
    assert stage.shown() == [(State.RESTORING, "")] * 2


def test_records_that_retention_took_are_counted_once_though_nothing_is_committed_before_the_next_reset(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_anew(log_start: int) -> list[tuple[int, int]]:
        edges = {**Edges.told, **{(TOPICS.changelog_topic, number): Bounds(0, 0) for number in (0, 1)}}
        monkeypatch.setattr(Edges, "told", edges | {(TOPICS.input_topic, 1): Bounds(log_start, 99)})
        stage.lost.clear()
        stage.reset.start(stage.partitions)
        with capture_logs():
            for _ in range(9):
                stage.clock.now_s += ASK_AGAIN_S
                stage.reset.advance(MemoryStore(), others_run=True)
        assert [each.state for each in stage.partitions] == [State.RUNNING] * 2
        return stage.lost

    assert begin_anew(10) == [(1, 7)]
    assert begin_anew(10) == [(1, 0)]
    assert begin_anew(12) == [(1, 2)]
    assert begin_anew(5) == [(1, 2)], "another log, which the topic has since it was made anew"
