"""A broker, or an operator, aborts the changelog's part alone of a transaction that is committed everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import command
from tests.integration.ledger import Ledger
from tests.integration.markers import abort_part
from tests.integration.messages import scrape
from tests.integration.sidecars import Sidecars, set_stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

KEPT = 5
DEADLINE_S = 60.0
SOON_MS = (8_000, 9_000)
"""None is due before the transaction that ingests it has ended."""


@pytest.mark.parametrize("has_store", [True, False], ids=["with-its-store", "on-another-machine"])
def test_what_the_changelog_alone_lost_is_ingested_again(
    bootstrap: str, sidecars: Sidecars, tmp_path: Path, *, has_store: bool
) -> None:
    stage = set_stage(bootstrap, partitions=1)
    ledger = Ledger(stage)
    armed = tmp_path / "armed"
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    one.start(command(freeze_at=Step.OFFSETS_SENT, armed_by=armed, flush=True))
    one.await_ready()
    ledger.send(KEPT, SOON_MS)
    ledger.await_ingested(DEADLINE_S)
    armed.touch()
    ledger.send(1, SOON_MS)  # of several, some could come in the next transaction
    eventually(one.frozen, DEADLINE_S, "it stands still before it commits")
    abort_part(stage.bootstrap, stage.changelog_topic, 0)
    one.thaw()
    ledger.await_ingested(DEADLINE_S)
    one.kill()
    if not has_store:
        one.forget_state()

    one.start()
    ledger.settle(one, deadline_s=DEADLINE_S)
    assert one.log.count("changelog_rolled_back") == 1
    assert ("store_not_confirmed" in one.log) == has_store
    assert 'retry_sidecar_changelog_rolled_back_total{partition="0"} 1.0' in scrape(one)
    assert one.stop() == 0
