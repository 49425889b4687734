"""When the watch asks for the ends of the changelog, and which commits it takes for unended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from sidecar.engine.partition import Partition
from sidecar.kafka.admin.marker_watch import ASK_EVERY_S, UNENDED_S, MarkerWatch
from sidecar.kafka.admin.offsets import Bounds
from tests.clocks import HandClock

COMMITTED = 40
"""Where the last transaction ends in the changelog; its marker is next."""


class Answer:
    """Implements `marker_watch.Question`; the test answers."""

    def __init__(self) -> None:
        self.ends: dict[int, int] | None = None
        self.errors: Mapping[int, str] = {}

    def done(self) -> bool:
        return self.ends is not None

    def result(self) -> Mapping[tuple[str, int], Bounds]:
        return {("changelog", number): Bounds(0, end) for number, end in (self.ends or {}).items()}


class Stage:
    """A watch of two running partitions."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.partitions = [Partition(number, changelog_offset=COMMITTED) for number in (0, 1)]
        self.asked: list[Answer] = []
        self.asked_for: list[Sequence[int]] = []
        self.watch = MarkerWatch(self._ask, self.clock, "changelog")

    def _ask(self, partitions: Mapping[str, Sequence[int]]) -> Answer:
        self.asked.append(Answer())
        self.asked_for.append(partitions["changelog"])
        return self.asked[-1]

    def missing(self) -> set[int]:
        return self.watch.missing(self.partitions)

    def told(self, *ends: int, errors: Mapping[int, str] = {}) -> set[int]:
        """Ask, and answer with these ends of the changelog's partitions."""
        self.clock.now_s += ASK_EVERY_S
        assert not self.missing()
        self.asked[-1].errors = errors
        self.asked[-1].ends = dict(enumerate(ends))
        return self.missing()


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.watch.committed(stage.partitions)
    return stage


def test_nothing_is_asked_before_a_commit_nor_after_its_marker_was_seen() -> None:
    stage = Stage()
    assert not stage.missing()
    assert not stage.asked
    stage.watch.committed(stage.partitions)
    assert not stage.told(COMMITTED + 1, COMMITTED + 1)
    stage.clock.now_s += UNENDED_S
    assert not stage.missing()
    assert stage.asked_for == [[0, 1]]


def test_one_question_at_a_time_and_one_a_second(stage: Stage) -> None:
    assert not stage.told(COMMITTED, COMMITTED)
    assert not stage.missing()
    assert len(stage.asked) == 1, "it is not asked again at once"
    stage.clock.now_s += ASK_EVERY_S
    assert not stage.missing()
    stage.clock.now_s += 9 * ASK_EVERY_S
    assert not stage.missing(), "it does not wait for the answer"
    assert len(stage.asked) == 2


def test_a_commit_that_has_no_marker_for_long_is_named_once(stage: Stage) -> None:
    assert not stage.told(COMMITTED, COMMITTED + 1), "the marker may come yet"
    stage.clock.now_s += UNENDED_S
    with capture_logs() as lines:
        assert stage.told(COMMITTED) == {0}
    assert [(line["event"], line["partition"]) for line in lines] == [("marker_missing", 0)]
    assert stage.asked_for == [[0, 1], [0]]
    stage.clock.now_s += UNENDED_S
    assert not stage.missing()
    assert len(stage.asked) == 2


def test_a_log_that_has_no_leader_or_ends_earlier_has_no_marker_but_silence_says_nothing(stage: Stage) -> None:
    stage.clock.now_s += UNENDED_S
    assert not stage.told(errors={0: "", 1: ""}), "no broker answers"
    assert stage.told(COMMITTED - 9, errors={1: "Leader not available"}) == {0, 1}


def test_an_answer_about_a_former_commit_says_nothing_of_the_next_one(stage: Stage) -> None:
    stage.clock.now_s += UNENDED_S
    assert not stage.missing()
    stage.partitions[0].changelog_offset += 2
    stage.watch.committed(stage.partitions[:1])
    stage.asked[0].ends = {0: COMMITTED, 1: COMMITTED}
    assert stage.missing() == {1}


def test_partitions_that_do_not_run_are_left_to_their_recovery(stage: Stage) -> None:
    stage.clock.now_s += UNENDED_S
    assert not stage.missing()
    stage.asked[0].ends = {0: COMMITTED, 1: COMMITTED}
    assert stage.watch.missing(stage.partitions[:1]) == {0}
