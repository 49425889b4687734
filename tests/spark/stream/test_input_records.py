"""Records of the retry topic are read again by position, if they still exist."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.stream import input_records
from tests.integration.messages import Given, send
from tests.integration.sidecars import Stage

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("gap", [1, 1_000])
def test_records_are_found_by_their_position_and_those_that_are_gone_are_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    monkeypatch.setattr(input_records, "GAP_RECORDS", gap)
    settings = Settings(bootstrap_servers=stage.bootstrap, streams_app_id=stage.app_id, input_topic=stage.input_topic)
    given = [
        Given(None if n == 7 else b"%d" % n, b"k%d" % n, [("a", None), ("a", b"%d" % n)], partition=n % 2)
        for n in range(20)
    ]
    sent = send(stage.bootstrap, stage.input_topic, *given)
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(stage.input_topic, 0, 3)]).values()
    assert deleted.result(15).low_watermark == 3
    positions = [(0, 9), (0, 1), (0, 4), (1, 3), (1, 9)]
    expected = {
        (at.partition, at.offset): Record(*at, each.key, each.value, each.headers)
        for each, at in zip(given, sent, strict=True)
        if (at.partition, at.offset) in positions and (at.partition, at.offset) != (0, 1)
    }
    assert input_records.read_input_records(settings, [*positions, (1, 9)]) == expected
    assert len(expected) == 4
