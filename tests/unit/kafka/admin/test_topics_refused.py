"""Refused questions about topics become errors that name what to check."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.errors import CommandFailed, TopicsInvalid
from sidecar.kafka.admin.topics import check_topics, ensure_topics, grow_internal, topic_names
from sidecar.settings import Settings

SETTINGS = Settings(bootstrap_servers="kafka:9092", input_topic="retry")


def refused(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


class Admin:
    """Refuses to describe topics, or itself."""

    bootstrap_servers = SETTINGS.bootstrap_servers

    def __init__(self, itself: int | None = None) -> None:
        self._itself = itself

    def describe_cluster(self, **_options: object) -> Future[Any]:
        if self._itself is not None:
            return refused(self._itself)
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(cluster_id="id", controller=None, nodes=[]))
        return future

    def describe_topics(self, _topics: object, **_options: object) -> dict[str, Any]:
        return dict.fromkeys(topic_names(SETTINGS), refused(KafkaError.TOPIC_EXCEPTION))


@pytest.mark.parametrize("act", [ensure_topics, grow_internal, check_topics])
def test_a_topic_that_may_not_be_described_is_named_with_the_settings_to_look_at(act: Any) -> None:
    words = r"^topic retry cannot be described: Broker: Invalid topic; check its name .*INPUT_TOPIC"
    with pytest.raises(TopicsInvalid, match=words):
        act(Admin(), SETTINGS)


def test_a_cluster_that_does_not_describe_itself_is_named_with_its_setting() -> None:
    admin: Any = Admin(KafkaError._UNSUPPORTED_FEATURE)
    with pytest.raises(CommandFailed, match=r"kafka:9092 \(BOOTSTRAP_SERVERS\) cannot be described"):
        ensure_topics(admin, SETTINGS)
