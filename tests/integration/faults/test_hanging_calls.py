"""A call of the client library that waits for ever is left behind."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.dlq.reader import RedriveProducer, membership_of, require_topic, run_identity, where_run_stopped
from sidecar.errors import CommandFailed
from sidecar.kafka import bounded
from sidecar.kafka.admin.cluster import Admin
from sidecar.settings import Settings
from tests.integration.sidecars import set_stage

pytestmark = pytest.mark.broker


def test_a_redrive_whose_broker_is_silent_ends_and_the_next_one_goes_on(
    own_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = set_stage(own_broker.bootstrap_servers)
    settings = Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        dlq_topic=stage.dlq_topic,
    )
    topic = require_topic(Admin(settings), stage.input_topic, "WRITE")
    run = run_identity(settings, "r")
    with closing(RedriveProducer(settings, run, 0, topic)) as first:
        first.take_over()
        membership = membership_of(settings, run)
        assert own_broker.pid is not None
        os.kill(own_broker.pid, signal.SIGSTOP)
        try:
            # Only here: on a slow machine the other calls may take longer.
            monkeypatch.setattr(bounded, "HANGS_S", 5.0)
            with pytest.raises(CommandFailed, match=r"no answer within 5 s: .* run the command again: run r continues"):
                first.send([], {0: 7}, membership)
            monkeypatch.undo()
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)

    with closing(RedriveProducer(settings, run, 0, topic)) as second:
        second.take_over()
        second.send([], {0: 8}, membership_of(settings, run))
    assert where_run_stopped(settings, run, [0]) == {0: 8}
