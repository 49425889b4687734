"""Partitions that the retry topic gains while a sidecar runs: a control record that is sent to them at once."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sidecar.contract.control import ControlKind
from sidecar.control.client import ControlClient
from sidecar.settings import Settings
from tests.broker import partitions_of
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def test_a_control_record_to_partitions_that_were_just_gained_is_answered(stage: Stage, sidecars: Sidecars) -> None:
    """A writer of earlier outcomes knows the status topic with its former partitions."""
    one = sidecars.start("one", stage)
    settings = Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        dlq_topic=stage.dlq_topic,
    )
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    with ControlClient(settings) as control:
        answered = set(control.act(ControlKind.CANCEL, b"nobody", deadline_s=30.0).answers)
        assert answered == set(range(stage.partitions))
        total = stage.partitions + 2
        admin.create_partitions([NewPartitions(stage.input_topic, total)])[stage.input_topic].result(15)
        eventually(lambda: partitions_of(stage.bootstrap, stage.input_topic) == total, 20, "it has grown")
        sent = control.send(ControlKind.CANCEL, b"nobody", deadline_s=15.0)
        assert set(sent.offsets) == set(range(total))

        def outcomes() -> set[int]:
            found = control.lookup(sent.control_id)
            return set(found.answers) if found else set()

        eventually(lambda: outcomes() == set(sent.offsets), 40, "each partition has answered")
    assert one.stop() == 0
