"""What `spark run` asks the brokers before there is a session, of a broker that has only just started."""

from __future__ import annotations

import threading

import pytest

from sidecar.clock import SystemClock
from sidecar.kafka.cluster import Admin
from sidecar.kafka.local_broker import LocalBroker
from sidecar.kafka.patience import await_answer
from sidecar.settings import Settings
from sidecar.spark import group
from tests.broker import unique

pytestmark = pytest.mark.broker


def test_a_broker_that_has_no_coordinator_yet_is_waited_for(own_broker: LocalBroker) -> None:
    settings = Settings(
        bootstrap_servers=own_broker.bootstrap_servers, streams_app_id=unique("app"), create_topics=True
    )
    admin = Admin(settings)
    asked = await_answer(lambda: group.idle_topics(admin, settings), settings, SystemClock(), threading.Event().wait)
    assert asked is not None
    assert asked.partitions > 0
    assert group.committed(settings, asked.partitions) == {}
    assert group.last_checkpoints(settings, asked.partitions) == {}
