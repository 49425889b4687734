"""A restart: what was pending fires by itself, with or without the state folder."""

from __future__ import annotations

import pytest

from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MESSAGES = 1_000


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_what_is_pending_fires_after_a_restart_with_no_new_input(state: str, stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage, INSTANCE_ID="one")
    ledger.send(MESSAGES, (16_000, 18_000))  # none is due before it has stopped
    ledger.await_pending([one], MESSAGES)
    assert one.stop() == 0
    assert sorted(ledger.pending()) == sorted(ledger.due_ms)

    if state == "lost":
        one.forget_state()
    one.start()
    one.await_ready()
    ledger.settle(one)

    read = sum(int(line.rsplit("timers_read=", 1)[1]) for line in one.log.splitlines() if "timers_read=" in line)
    assert read == (MESSAGES if state == "lost" else 0), "a store that was flushed needs nothing read again"


def test_what_became_due_meanwhile_fires_at_the_start(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage, INSTANCE_ID="one")
    ledger.send(MESSAGES, (3_000, 4_000))
    ledger.await_ingested()
    one.kill()
    ledger.await_due()

    one.start()
    balance = ledger.settle(one)
    assert balance.fired == MESSAGES


def test_a_state_folder_from_the_past_is_brought_up_to_date(stage: Stage, sidecars: Sidecars) -> None:
    """Another instance worked on meanwhile: what it fired and stored is read from the changelog."""
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(MESSAGES, (10_000, 16_000))
    ledger.await_pending([one], MESSAGES)
    assert one.stop() == 0

    two = sidecars.start("two", stage)
    ledger.send(MESSAGES, (1_000, 12_000))
    ledger.await_fired(count=MESSAGES // 2)
    assert two.stop() == 0

    one.start()
    one.await_ready()
    ledger.settle(one)
