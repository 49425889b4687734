"""What becomes of refusals of the questions before a restore; their answers are tested on a real broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.kafka.offsets import CommittedOffsets, LogBounds, TopicId
from tests.waiting import eventually

GROUP = "connect-app"


class Said:
    """A message that carries an error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code, "in the broker's words")


class Consumer:
    """Says what the test sets."""

    raised: int | None = None
    said: int | None = None
    of_partition: int | None = None

    def __init__(self, _config: dict[str, Any]) -> None: ...

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_raised: object) -> None: ...

    def committed(self, wanted: list[TopicPartition], _timeout_s: float) -> list[Any]:
        if self.raised is not None:
            raise KafkaException(KafkaError(self.raised, "in the library's words"))
        return [Place(each, self.of_partition) for each in wanted]

    def poll(self, _timeout_s: float) -> Said | None:
        return None if self.said is None else Said(self.said)


class Place:
    """An answer for one partition."""

    def __init__(self, asked: TopicPartition, code: int | None) -> None:
        self.topic, self.partition, self.offset = asked.topic, asked.partition, 7
        self.error = None if code is None else KafkaError(code, "in the broker's words")


def ask(monkeypatch: pytest.MonkeyPatch, **said: int) -> tuple[dict[int, int | None] | None, str]:
    for name, code in said.items():
        monkeypatch.setattr(Consumer, name, code)
    monkeypatch.setattr("sidecar.kafka.offsets.Consumer", Consumer)
    asked = CommittedOffsets({"group.id": GROUP}, "retry", [0, 1])
    eventually(asked.done, 10, "it is answered")
    return asked.result(), asked.trouble


def test_offsets_that_are_told_come_without_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch) == ({0: 7, 1: 7}, "")


def test_a_group_that_may_not_be_looked_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's call itself says only that its time is over."""
    found = ask(monkeypatch, raised=KafkaError._TIMED_OUT, said=KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert found == (None, f"committed offsets of group {GROUP}: in the broker's words")


def test_a_refusal_of_the_call_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, raised=KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert found == (None, f"committed offsets of group {GROUP}: in the library's words")


def test_a_refusal_of_one_partition_names_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, of_partition=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert found == (None, f"committed offsets of group {GROUP} for topic retry: in the broker's words")


@pytest.mark.parametrize(
    "said",
    [
        {"raised": KafkaError._TIMED_OUT},
        {"raised": KafkaError._TIMED_OUT, "said": KafkaError._ALL_BROKERS_DOWN},
        {"of_partition": KafkaError.UNSTABLE_OFFSET_COMMIT},
        {"of_partition": KafkaError.COORDINATOR_LOAD_IN_PROGRESS},
    ],
)
def test_what_passes_by_itself_is_no_trouble(said: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is open for a moment is part of every rebalance."""
    assert ask(monkeypatch, **said) == (None, "")


def refused(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code, "in the broker's words")))
    return future


class Admin:
    """Refuses."""

    def __init__(self, code: int) -> None:
        self._code = code

    def list_offsets(self, asked: dict[TopicPartition, object], **_options: object) -> dict[TopicPartition, Any]:
        return {tp: refused(self._code) for tp in asked}

    def describe_topics(self, _topics: object, **_options: object) -> dict[str, Any]:
        return {"retry": refused(self._code)}


@pytest.mark.parametrize(
    ("code", "words"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, "in the broker's words"), (KafkaError.NOT_COORDINATOR, "")],
)
def test_bounds_and_id_that_are_refused_name_the_topic(code: int, words: str) -> None:
    admin: Any = Admin(code)
    bounds, topic_id = LogBounds(admin, {"changelog": [0]}), TopicId(admin, "retry")
    assert (bounds.result(), topic_id.result()) == (None, None)
    assert bounds.trouble == (words and f"bounds of topic changelog: {words}")
    assert topic_id.trouble == (words and f"id of topic retry: {words}")
