"""The ends of partitions whose leaders move."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.cluster import Deadline, end_offsets


class Admin:
    """Partition 0 answers with an error so many times, then like the others."""

    def __init__(self, code: int, times: int) -> None:
        self._code = code
        self._left = times
        self.asked: list[list[int]] = []

    def list_offsets(
        self, asked: dict[TopicPartition, object], **_options: object
    ) -> dict[TopicPartition, Future[Any]]:
        self.asked.append([tp.partition for tp in asked])
        return {tp: self._answer(tp.partition) for tp in asked}

    def _answer(self, partition: int) -> Future[Any]:
        future: Future[Any] = Future()
        if partition == 0 and self._left:
            self._left -= 1
            future.set_exception(KafkaException(KafkaError(self._code, "in the broker's words")))
        else:
            future.set_result(SimpleNamespace(offset=7))
        return future


def test_a_partition_whose_leader_does_not_know_it_yet_is_asked_again() -> None:
    admin: Any = Admin(KafkaError.NOT_LEADER_FOR_PARTITION, 2)
    assert end_offsets(admin, "status", range(2), Deadline(60)) == {0: 7, 1: 7}
    assert admin.asked == [[0, 1], [0], [0]]


@pytest.mark.parametrize(
    ("code", "deadline_s"), [(KafkaError.NOT_LEADER_FOR_PARTITION, 0), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 60)]
)
def test_after_the_deadline_and_for_any_other_error_the_answer_counts(code: int, deadline_s: float) -> None:
    admin: Any = Admin(code, 1)
    with pytest.raises(KafkaFailed, match="in the broker's words"):
        end_offsets(admin, "status", range(2), Deadline(deadline_s))
    assert admin.asked == [[0, 1]]
