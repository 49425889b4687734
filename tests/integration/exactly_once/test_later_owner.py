"""A partition comes back to an instance whose last checkpoint the broker has compacted away."""

from __future__ import annotations

import json
import re

import pytest

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.kafka.admin.topics import changelog_config
from tests.broker import Read, create_topic, read_committed
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

DEADLINE_S = 120.0
FAR_MS = (3_600_000, 7_200_000)
KEPT = 200
COMPACTED_AT_ONCE = {
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
"""Not even a tombstone outlives the next run of the cleaner."""


def test_an_instance_reads_only_the_tail_though_its_last_checkpoint_is_compacted_away(sidecars: Sidecars) -> None:
    with LocalBroker(properties={"log.cleaner.backoff.ms": "200"}) as broker:
        stage = set_stage(broker.bootstrap_servers, partitions=1)
        create_topic(stage.bootstrap, stage.changelog_topic, 1, {**changelog_config(2**21), **COMPACTED_AT_ONCE})
        ledger = Ledger(stage)
        one = sidecars.start("one", stage)
        ledger.send(KEPT, FAR_MS)
        ledger.await_pending([one], KEPT, DEADLINE_S)
        assert one.stop() == 0
        written = [each.offset for each in checkpoints(stage)]

        two = sidecars.start("two", stage)
        sent = 0

        def compacted() -> bool:
            nonlocal sent
            # Some of them fire before the end, and each commit rolls a segment.
            ledger.send(1, (500, 600) if sent % 2 else FAR_MS)
            sent += 1
            return all(each.offset > max(written) for each in checkpoints(stage))

        eventually(compacted, DEADLINE_S, "the last checkpoint of the first instance is compacted away")
        kept = KEPT + (sent + 1) // 2
        ledger.await_ingested(DEADLINE_S)
        ledger.await_pending([two], kept, DEADLINE_S)
        known = listed(two)
        assert two.stop() == 0

        one.start()
        one.await_ready()
        assert "store_not_confirmed" not in one.log
        (timers_read,) = re.findall(r"partition_restored .*\btimers_read=(\d+)", one.log)
        assert int(timers_read) < KEPT, "of the whole log it would be more"
        ledger.await_pending([one], kept, DEADLINE_S)
        assert listed(one) == known
        assert one.stop() == 0


def checkpoints(stage: Stage) -> list[Read]:
    return [each for each in read_committed(stage.bootstrap, [stage.changelog_topic]) if each.key == b"c"]


def listed(sidecar: Sidecar) -> list[str]:
    """Return all that wait, as the API lists them."""
    status, page = sidecar.get("/pending/messages?limit=1000")
    assert status == 200, page
    return sorted(json.dumps(each, sort_keys=True) for each in page["messages"])
