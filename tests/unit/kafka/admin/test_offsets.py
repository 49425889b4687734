"""Refusals of the questions before a restore; real brokers test the answers elsewhere."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from sidecar.kafka.admin.offsets import (
    LATE_MAX,
    SINGLE_S,
    TOGETHER_S,
    Bounds,
    Committed,
    CommittedOffsets,
    LogBounds,
    TopicsNow,
)
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
    open: frozenset[int] = frozenset()
    """Partitions on which a transaction is open: the library answers for none while one of them is asked for."""

    def __init__(self, _config: dict[str, Any]) -> None: ...

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_raised: object) -> None: ...

    def committed(self, wanted: list[TopicPartition], _timeout_s: float) -> list[Any]:
        if self.raised is not None:
            raise KafkaException(KafkaError(self.raised, "in the library's words"))
        if any(each.partition in self.open for each in wanted):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "in the library's words"))
        return [Place(each, self.of_partition if each.partition == 1 else None) for each in wanted]

    def poll(self, _timeout_s: float) -> Said | None:
        return None if self.said is None else Said(self.said)


SEVEN = Committed(7, "")


class Place:
    """An answer for one partition."""

    def __init__(self, asked: TopicPartition, code: int | None) -> None:
        self.topic, self.partition, self.offset = asked.topic, asked.partition, 7
        self.metadata: str | None = None
        self.error = None if code is None else KafkaError(code, "in the broker's words")


def ask(monkeypatch: pytest.MonkeyPatch, **said: int) -> tuple[dict[int, Committed | None], dict[int, str]]:
    for name, code in said.items():
        monkeypatch.setattr(Consumer, name, code)
    monkeypatch.setattr("sidecar.kafka.admin.offsets.Consumer", Consumer)
    asked = CommittedOffsets({"group.id": GROUP}, "retry", [0, 1])
    eventually(asked.done, 60, "it is answered")
    return asked.result(), asked.errors


def test_known_offsets_come_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch) == ({0: SEVEN, 1: SEVEN}, {})


def test_a_group_that_may_not_be_looked_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's call itself says only that its time is over."""
    found = ask(monkeypatch, raised=KafkaError._TIMED_OUT, said=KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert found == ({}, dict.fromkeys((0, 1), f"committed offsets of group {GROUP}: in the broker's words"))


def test_a_refusal_of_the_call_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, raised=KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert found == ({}, dict.fromkeys((0, 1), f"committed offsets of group {GROUP}: in the library's words"))


def test_a_refusal_of_one_partition_names_its_topic_and_the_others_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ask(monkeypatch, of_partition=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert found == ({0: SEVEN}, {1: f"committed offsets of group {GROUP} for topic retry: in the broker's words"})


@pytest.mark.parametrize(
    "said",
    [
        {"raised": KafkaError._TIMED_OUT},
        {"raised": KafkaError._TIMED_OUT, "said": KafkaError._ALL_BROKERS_DOWN},
        {"of_partition": KafkaError.UNSTABLE_OFFSET_COMMIT},
        {"of_partition": KafkaError.COORDINATOR_LOAD_IN_PROGRESS},
    ],
)
def test_a_passing_condition_is_no_error(said: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is open for a moment is part of every rebalance."""
    offsets, errors = ask(monkeypatch, **said)
    assert 1 not in offsets
    assert set(errors.values()) == {""}


def test_an_open_transaction_on_one_partition_does_not_keep_the_others_from_their_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Consumer, "open", frozenset({1}))
    assert ask(monkeypatch) == ({0: SEVEN}, {1: ""})


def test_partitions_without_an_answer_are_asked_for_again_before_a_query_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sidecar.kafka.admin.offsets.Consumer", Consumer)
    monkeypatch.setattr(Consumer, "open", frozenset(range(1, 100)))
    calls = []
    committed = Consumer.committed

    def counted(self: Consumer, wanted: list[TopicPartition], timeout_s: float) -> list[Any]:
        calls.append(timeout_s)
        return committed(self, wanted, timeout_s)

    monkeypatch.setattr(Consumer, "committed", counted)
    asked = CommittedOffsets({"group.id": GROUP}, "retry", range(100))
    eventually(asked.done, 60, "it is answered")
    found = asked.result()
    assert found in ({}, {0: SEVEN})
    assert asked.errors == dict.fromkeys(set(range(100)) - found.keys(), "")
    assert sum(calls) <= TOGETHER_S + (LATE_MAX + len(found)) * SINGLE_S


def future(answer: object) -> Future[Any]:
    made: Future[Any] = Future()
    if isinstance(answer, int):
        made.set_exception(KafkaException(KafkaError(answer, "in the broker's words")))
    else:
        made.set_result(answer)
    return made


class Admin:
    """Tells of partition 0 what the test sets, else that the log goes from 3 to 3 and the broker 1 leads."""

    def __init__(self, code: int | None = None, leader: object = None) -> None:
        self._code = code
        self._leader = leader

    def list_offsets(self, asked: dict[TopicPartition, object], **_options: object) -> dict[TopicPartition, Any]:
        good = SimpleNamespace(offset=3)
        return {tp: future(self._code if self._code and tp.partition == 0 else good) for tp in asked}

    def describe_topics(self, topics: Any, **_options: object) -> dict[str, Any]:
        if self._code:
            return {name: future(self._code) for name in ("changelog", "retry")}
        led = SimpleNamespace(id=1, leader=SimpleNamespace(id=1))
        described = SimpleNamespace(topic_id="an-id", partitions=[SimpleNamespace(id=0, leader=self._leader), led])
        return {name: future(described) for name in ("changelog", "retry")}


@pytest.mark.parametrize(
    ("code", "words"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, "in the broker's words"), (KafkaError.NOT_COORDINATOR, "")],
)
def test_bounds_and_ids_that_are_refused_as_a_whole_name_the_topic(code: int, words: str) -> None:
    """No answer at all counts as an error of the brokers, not of each partition."""
    admin: Any = Admin(code)
    bounds, now = LogBounds(admin, {"changelog": [0]}), TopicsNow(admin, ["changelog", "retry"])
    assert bounds.result() == {}
    assert bounds.errors == {0: words and f"bounds of topic changelog, partition 0: {words}"}
    assert now.errors([0, 1]) == dict.fromkeys((0, 1), words and f"id of topic changelog: {words}")


def test_missing_bounds_of_one_partition_delay_no_other() -> None:
    admin: Any = Admin(KafkaError.LEADER_NOT_AVAILABLE)
    bounds = LogBounds(admin, {"changelog": [0, 1]})
    assert bounds.result() == {("changelog", 1): Bounds(3, 3)}
    assert bounds.errors == {0: "bounds of topic changelog, partition 0: in the broker's words"}


def test_bounds_that_the_library_does_not_know_are_asked_for_again() -> None:
    """As it said while a leader moved, without an error."""

    class Unknowing(Admin):
        def list_offsets(self, asked: dict[TopicPartition, object], **_options: object) -> dict[TopicPartition, Any]:
            return {tp: future(SimpleNamespace(offset=3 if tp.partition else OFFSET_INVALID)) for tp in asked}

    admin: Any = Unknowing()
    bounds = LogBounds(admin, {"input": [0, 1], "changelog": [0, 1]})
    assert bounds.result() == {("input", 1): Bounds(3, 3), ("changelog", 1): Bounds(3, 3)}
    assert bounds.errors == {0: ""}


@pytest.mark.parametrize("leader", [None, SimpleNamespace(id=-1)])
def test_a_partition_without_a_leader_is_named(leader: object) -> None:
    admin: Any = Admin(leader=leader)
    now = TopicsNow(admin, ["changelog", "retry"])
    assert now.done()
    assert now.id_of("retry") == "an-id"
    assert now.errors([0, 1]) == {0: "partition 0 of topic retry has no leader"}
    assert now.errors([1, 2]) == {2: "partition 2 of topic retry has no leader"}
