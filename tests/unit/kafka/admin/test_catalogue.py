"""The catalogue's reading of the broker's answers about topics; each test supplies the answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation

from sidecar.engine.ports import Origin
from sidecar.kafka.admin import catalogue as module
from sidecar.kafka.admin.catalogue import (
    ASKED_MAX,
    FORBIDDEN_AFTER_S,
    PARTITIONS_MAX,
    REFRESH_S,
    UNKNOWN_S,
    Catalogue,
)

UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED
TIMED_OUT = KafkaError._TIMED_OUT
WRITABLE = [AclOperation.DESCRIBE, AclOperation.WRITE]


def topic(operations: Sequence[AclOperation] = WRITABLE, leader: object = 1) -> Any:
    return SimpleNamespace(authorized_operations=operations, partitions=[SimpleNamespace(leader=leader)])


class Answers:
    """A fake admin client: gives the prepared answers at once, and records the questions."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self.otherwise: Any = UNKNOWN
        self.asked: list[list[str]] = []

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        names: list[str] = topics.topic_names
        self.asked.append(names)
        return {name: self._answer(self.of.get(name, self.otherwise)) for name in names}

    def describe_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future[Any]]:
        return {each: self._answer({"max.message.bytes": SimpleNamespace(value="1000")}) for each in resources}

    @staticmethod
    def _answer(what: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(what, int):
            future.set_exception(KafkaException(KafkaError(what)))
        else:
            future.set_result(what)
        return future


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def catalogue(answers: Answers) -> Catalogue:
    return Catalogue(answers)  # type: ignore[arg-type]  # as much of it as is used


def ask(catalogue: Catalogue, now_s: float, *names: str) -> None:
    catalogue.want(names)
    catalogue.advance(now_s)
    catalogue.advance(now_s)


def test_a_topic_is_known_with_its_limits_and_its_right(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"orders": topic(), "guarded": topic([AclOperation.DESCRIBE]), "headless": topic(leader=None)}
    ask(catalogue, 0, "orders", "guarded", "headless")
    assert catalogue.origins["orders"] == Origin(1, 1000)
    assert (catalogue.allowed, catalogue.denied) == ({"orders", "headless"}, {"guarded"})
    assert catalogue.leaderless == {"headless"}


def test_all_names_are_asked_for_in_few_questions_those_first_that_were_wanted_first(
    catalogue: Catalogue, answers: Answers
) -> None:
    names = [f"made-up-{n}" for n in reversed(range(2 * ASKED_MAX + 1))]
    catalogue.want(names)
    for _ in range(5):
        catalogue.advance(0)
    assert [name for asked in answers.asked for name in asked] == names
    assert [len(asked) for asked in answers.asked] == [ASKED_MAX, ASKED_MAX, 1]
    assert catalogue.unknown.keys() == set(names)


def test_that_a_topic_does_not_exist_is_known_for_a_second(catalogue: Catalogue) -> None:
    ask(catalogue, 0, "old")
    ask(catalogue, 0.5, "new")
    catalogue.advance(UNKNOWN_S + 0.1)
    assert catalogue.unknown.keys() == {"new"}


def test_a_topic_that_may_not_be_looked_at_is_forbidden_once_the_answer_is_repeated(
    catalogue: Catalogue, answers: Answers
) -> None:
    answers.of = {"secret": FORBIDDEN}
    ask(catalogue, 0, "secret")
    ask(catalogue, FORBIDDEN_AFTER_S - 0.1, "secret")
    assert len(answers.asked) == 1, "the same answer would not count yet"
    assert not catalogue.forbidden
    ask(catalogue, FORBIDDEN_AFTER_S, "secret")
    assert catalogue.forbidden.keys() == {"secret"}
    assert "secret" not in catalogue.origins
    catalogue.advance(FORBIDDEN_AFTER_S + UNKNOWN_S + 0.1)
    assert not catalogue.forbidden
    ask(catalogue, 60, "secret")
    assert catalogue.forbidden.keys() == {"secret"}


def test_any_other_answer_in_between_makes_the_next_one_the_first(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"secret": FORBIDDEN}
    ask(catalogue, 0, "secret")
    answers.of = {"secret": UNKNOWN}
    ask(catalogue, FORBIDDEN_AFTER_S, "secret")
    assert catalogue.unknown.keys() == {"secret"}
    answers.of = {"secret": FORBIDDEN}
    ask(catalogue, 2 * FORBIDDEN_AFTER_S, "secret")
    assert not catalogue.forbidden


def test_a_topic_that_was_seen_before_is_denied_when_it_may_not_be_looked_at(
    catalogue: Catalogue, answers: Answers
) -> None:
    answers.of = {"orders": topic()}
    ask(catalogue, 0, "orders")
    answers.of = {"orders": FORBIDDEN}
    for n in range(5):
        ask(catalogue, n * FORBIDDEN_AFTER_S, "orders")
    assert catalogue.origins["orders"] == Origin(1, 1000)
    assert (catalogue.denied, catalogue.allowed) == ({"orders"}, set())
    assert not catalogue.forbidden


def test_a_topic_that_is_expected_is_denied_at_the_first_answer(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"orders": FORBIDDEN}
    ask(catalogue, 0, "orders")
    catalogue.expected = {"orders"}
    ask(catalogue, 0.1, "orders")
    assert catalogue.denied == {"orders"}
    assert catalogue.origins["orders"].partitions == PARTITIONS_MAX


def test_of_a_topic_that_is_gone_nothing_is_known_any_more(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"orders": topic([AclOperation.DESCRIBE], leader=None)}
    ask(catalogue, 0, "orders")
    del answers.of["orders"]
    ask(catalogue, 1, "orders")
    assert not catalogue.origins
    assert not catalogue.denied
    assert not catalogue.leaderless


def test_what_is_known_stays_known_until_there_is_a_definite_answer(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"orders": topic()}
    ask(catalogue, 0, "orders")
    answers.of = {"orders": TIMED_OUT}
    catalogue.advance(REFRESH_S + 1)
    catalogue.advance(REFRESH_S + 1)
    assert "orders" in catalogue.origins
    answers.of = {}
    catalogue.advance(REFRESH_S + 2)
    catalogue.advance(REFRESH_S + 2)
    assert "orders" not in catalogue.origins


def test_a_right_that_is_doubted_counts_when_it_is_shown_again(catalogue: Catalogue, answers: Answers) -> None:
    answers.of = {"orders": topic()}
    ask(catalogue, 0, "orders")
    catalogue.invalidate_permission("orders")
    assert not catalogue.allowed
    ask(catalogue, 1)
    assert catalogue.allowed == {"orders"}


def test_made_up_names_leave_nothing_but_a_bounded_number_behind(
    catalogue: Catalogue, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORBIDDEN_MAX", 2_500)
    answers.otherwise = FORBIDDEN
    for n in range(5):
        ask(catalogue, n, *(f"made-up-{n}-{m}" for m in range(ASKED_MAX)))
    assert len(catalogue._forbidden_since) == 2_500
    assert f"made-up-4-{ASKED_MAX - 1}" in catalogue._forbidden_since
    answers.otherwise = UNKNOWN
    for n in range(5):
        ask(catalogue, 1_000 + 2 * n, *(f"gone-{n}-{m}" for m in range(ASKED_MAX)))
    assert len(catalogue.unknown) <= ASKED_MAX
    assert not catalogue._wanted
    assert not catalogue.origins
