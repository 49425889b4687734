"""An upgrade, a roll-back and a rolling update over one changelog: each version goes on where the other stopped."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import fields

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint
from tests.broker import read_committed
from tests.integration.former import FORMER, FORMER_FIELDS
from tests.integration.ledger import Ledger
from tests.integration.scenarios import share
from tests.integration.sidecars import PLAIN, Sidecars, Stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LONG_S = 120.0
FRAME_BYTES = 5


def fields_written(stage: Stage) -> set[int]:
    """Return how many fields the checkpoints in the changelog have."""
    records = read_committed(stage.bootstrap, [stage.changelog_topic], LONG_S)
    values = [each.value or b"" for each in records if each.key == CHECKPOINT_KEY]
    return {len(msgspec.msgpack.decode(value[FRAME_BYTES:])) for value in values}


def test_an_upgrade_and_a_roll_back_lose_nothing(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    for command in (FORMER, PLAIN, FORMER, PLAIN):
        one.start(command)
        one.await_ready(LONG_S)
        ledger.send(200, (0, 15_000))
        ledger.await_ingested(LONG_S)
        assert one.stop(LONG_S) == 0
    one.start(FORMER)
    ledger.settle(one, deadline_s=LONG_S)
    assert fields_written(stage) == {FORMER_FIELDS, len(fields(Checkpoint))}


def test_a_rolling_update_runs_both_versions_in_one_group(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one, two = (sidecars.make(name, stage, INSTANCE_ID=name) for name in ("one", "two"))
    one.start(FORMER)
    two.start(FORMER)
    for updated in (one, two):
        eventually(lambda: share(one, two), LONG_S, "both have partitions")
        ledger.send(200, (0, 10_000))
        assert updated.stop(LONG_S) == 0
        updated.start(PLAIN)
    ledger.settle(one, two, deadline_s=LONG_S)
    assert fields_written(stage) == {FORMER_FIELDS, len(fields(Checkpoint))}
