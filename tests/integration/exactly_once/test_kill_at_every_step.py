"""A process that dies at any point of the commit order, or of a restore, loses nothing and repeats nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import POINTS_OF_A_RESTORE, command
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MESSAGES = 600
KILLED = -9

# Whether the store keeps what it was given or loses it with the process matters only where it was given something.
CASES = [(step, False) for step in Step] + [(Step.OFFSETS_SENT, True), (Step.COMMITTED, True), (Step.APPLIED, True)]


@pytest.mark.parametrize(("step", "flush"), CASES, ids=[f"{step}{'-flushed' * flush}" for step, flush in CASES])
def test_a_kill_while_storing_and_one_while_firing(
    step: Step, flush: bool, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    ledger = Ledger(stage)
    one = sidecars.make("one", stage, INSTANCE_ID="one")  # static: nobody waits for the end of its session
    one.start(command(kill_at=step, flush=flush))
    ledger.send(MESSAGES, (4_000, 8_000))
    assert one.wait() == KILLED, "while storing"

    armed = tmp_path / "armed"
    one.start(command(kill_at=step, armed_by=armed, flush=flush))
    one.await_ready()
    ledger.send(MESSAGES, (10_000, 11_500))  # none is due before all are taken in
    ledger.await_ingested()
    armed.touch()
    assert one.wait() == KILLED, "while firing"

    one.start()
    ledger.settle(one)


@pytest.mark.parametrize("point", list(POINTS_OF_A_RESTORE))
def test_a_kill_during_a_restore(point: str, stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage, INSTANCE_ID="one")
    ledger.send(MESSAGES, (3_000, 6_000))
    ledger.await_ingested()
    one.kill()

    one.start(command(kill_at=point, nth=2, flush=True))
    assert one.wait() == KILLED

    one.start()
    ledger.settle(one)
