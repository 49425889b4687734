"""When the watch asks for the topic's id, and what it makes of the answers; a real broker is tested elsewhere."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from sidecar.changelog.codec import Checkpoint
from sidecar.engine.partition import Partition
from sidecar.kafka.admin.offsets import TopicsNow
from sidecar.kafka.admin.topic_watch import ASK_EVERY_S, TopicWatch
from tests.clocks import HandClock

FORMER = [Partition(number, checkpoint=Checkpoint(input_topic_id="former")) for number in (0, 1)]


class Stage:
    """A watch; the test moves its time and answers for the brokers."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.asked: list[Future[Any]] = []
        self.changelog_id = "changelog-id"
        admin: Any = self
        self.watch = TopicWatch(partial(TopicsNow, admin), self.clock, "retry", "changelog")

    def describe_topics(self, _topics: object, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout <= 5.0
        self.asked.append(Future())
        changelog: Future[Any] = Future()
        changelog.set_result(described(self.changelog_id))
        return {"retry": self.asked[-1], "changelog": changelog}

    def asks(self) -> Future[Any]:
        """Let the time for a question come; return the question."""
        self.clock.now_s += ASK_EVERY_S
        assert self.watch.replaced(FORMER) == set()
        return self.asked[-1]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def described(topic_id: str) -> SimpleNamespace:
    return SimpleNamespace(topic_id=topic_id, partitions=[])


def test_the_id_is_asked_for_each_second_and_one_question_at_a_time(stage: Stage) -> None:
    stage.watch.replaced(FORMER)
    assert not stage.asked, "recoveries have just asked"
    question = stage.asks()
    stage.clock.now_s += 4 * ASK_EVERY_S
    assert stage.watch.replaced(FORMER) == set(), "it does not wait for the answer"
    assert len(stage.asked) == 1
    question.set_result(described("former"))
    assert stage.watch.replaced(FORMER) == set()
    assert stage.watch.replaced(FORMER) == set()
    assert len(stage.asked) == 2


def test_partitions_that_count_in_a_former_topic_are_named_and_those_of_the_new_one_are_not(stage: Stage) -> None:
    recovered = Partition(2, checkpoint=Checkpoint(input_topic_id="new"))
    stage.asks().set_result(described("new"))
    with capture_logs() as lines:
        assert stage.watch.replaced([*FORMER, recovered]) == {0, 1}
    assert [(line["event"], line["partitions"]) for line in lines] == [("input_topic_replaced", [0, 1])]


def test_partitions_whose_changelog_was_made_anew_are_named(stage: Stage) -> None:
    stays, goes = (
        Partition(number, checkpoint=Checkpoint(input_topic_id="retry-id", changelog_topic_id=topic_id))
        for number, topic_id in enumerate(["new", "changelog-id"])
    )
    stage.changelog_id = "new"
    stage.asks().set_result(described("retry-id"))
    with capture_logs() as lines:
        assert stage.watch.replaced([stays, goes]) == {1}
    assert [(line["event"], line["partitions"], line["log_level"]) for line in lines] == [
        ("changelog_replaced", [1], "error")
    ]


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TIMED_OUT])
def test_no_answer_changes_nothing_and_the_next_one_counts(stage: Stage, code: int) -> None:
    """A topic that is deleted does not exist for a moment."""
    stage.asks().set_exception(KafkaException(KafkaError(code)))
    assert stage.watch.replaced(FORMER) == set()
    stage.asks().set_result(described("new"))
    assert stage.watch.replaced(FORMER) == {0, 1}
