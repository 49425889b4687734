"""A broker, or an operator, aborts the changelog's part alone of a transaction that is committed everywhere else.

What it ingested is ingested again, and what it delivered is found in the origins and not delivered again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import command
from tests.integration.ledger import Ledger
from tests.integration.markers import abort_part
from tests.integration.messages import scrape
from tests.integration.permissions import broker_with_permissions, deny, give_back
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

KEPT = 5
DEADLINE_S = 60.0
BEHIND_MS = "-50000"
"""Less than MAX_CLOCK_SKEW."""
OVERDUE_MS = (-60_000, -60_000)
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


def fire_and_roll_back(ledger: Ledger, one: Sidecar, folder: Path, *, overdue: bool = False) -> None:
    """Have a transaction deliver, abort its part in the changelog, and end the process behind it.

    Args:
        ledger: Sends the messages.
        one: The process, not started.
        folder: For its files.
        overdue: One message that is overdue when it arrives; else several that were pending.
    """
    armed, clock, stage = folder / "armed", folder / "clock", ledger.stage
    clock.write_text(BEHIND_MS)
    trap = command(freeze_at=Step.OFFSETS_SENT, kill_at=Step.APPLIED, armed_by=armed, flush=True, clock_offset=clock)
    one.start(trap)
    one.await_ready()
    if overdue:
        armed.touch()
        ledger.send(1, OVERDUE_MS)
    else:
        ledger.send(KEPT, (0, 0))
        ledger.await_ingested(DEADLINE_S)
        ledger.await_due()
        armed.touch()
        clock.write_text("0")  # all are due at once
    eventually(one.frozen, DEADLINE_S, "it stands still before it commits")
    abort_part(stage.bootstrap, stage.changelog_topic, 0)
    one.thaw()
    one.wait(DEADLINE_S)


@pytest.mark.parametrize("has_store", [True, False], ids=["with-its-store", "on-another-machine"])
def test_what_such_a_transaction_fired_is_found_in_its_origin_and_does_not_come_twice(
    bootstrap: str, sidecars: Sidecars, tmp_path: Path, *, has_store: bool
) -> None:
    stage = set_stage(bootstrap, partitions=1)
    ledger = Ledger(stage)
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    fire_and_roll_back(ledger, one, tmp_path)
    ledger.await_fired(DEADLINE_S)
    if not has_store:
        one.forget_state()
    one.start()
    one.await_ready()
    ledger.send(1, OVERDUE_MS)
    ledger.settle(one, deadline_s=DEADLINE_S)
    assert ("store_not_confirmed" in one.log) == has_store
    assert one.log.count("origins_searched") == 1
    assert f'retry_sidecar_delivered_before_total{{origin="{stage.origin}"}} {KEPT}.0' in scrape(one)
    assert one.stop() == 0


def test_neither_does_what_had_arrived_overdue(bootstrap: str, sidecars: Sidecars, tmp_path: Path) -> None:
    stage = set_stage(bootstrap, partitions=1)
    ledger = Ledger(stage)
    ledger.send(KEPT, OVERDUE_MS)
    one = sidecars.make("one", stage, INSTANCE_ID="one", START_AT="earliest")
    one.start()
    ledger.settle(one, deadline_s=DEADLINE_S)  # a checkpoint is in the changelog
    assert one.stop() == 0
    fire_and_roll_back(ledger, one, tmp_path, overdue=True)
    ledger.await_fired(DEADLINE_S)
    one.forget_state()
    one.start()
    one.await_ready()
    ledger.send(1, OVERDUE_MS)
    ledger.settle(one, deadline_s=DEADLINE_S)
    assert f'retry_sidecar_delivered_before_total{{origin="{stage.origin}"}} 1.0' in scrape(one)
    assert one.stop() == 0


def test_without_the_permission_to_read_the_origin_it_comes_twice_and_the_log_says_what_to_grant(
    sidecars: Sidecars, tmp_path: Path
) -> None:
    with broker_with_permissions() as bootstrap:
        stage = set_stage(bootstrap, partitions=1)
        ledger = Ledger(stage)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        deny(admin, ResourceType.TOPIC, stage.origin, AclOperation.READ)
        one = sidecars.make("one", stage, INSTANCE_ID="one")
        fire_and_roll_back(ledger, one, tmp_path)
        one.start()
        one.await_ready()
        give_back(admin, ResourceType.TOPIC, stage.origin)
        eventually(lambda: len(ledger.fired()) == 2 * KEPT, DEADLINE_S, "what it delivered comes twice")
        assert _said(one, stage)
        assert one.stop() == 0


def _said(one: Sidecar, stage: Stage) -> bool:
    """Return whether the log says once what to grant."""
    lines = [line for line in one.log.splitlines() if "origins_not_searched" in line]
    return len(lines) == 1 and f"--operation Read --topic {stage.origin}" in lines[0]
