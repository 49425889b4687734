"""The broker goes away in the middle of the work and comes back: the sidecar goes on by itself."""

from __future__ import annotations

import pytest

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import command
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage, set_stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MESSAGES = 1_000


@pytest.mark.parametrize("ending", ["in-order", "kill-9"])
def test_the_broker_restarts_in_the_middle(ending: str, own_broker: LocalBroker, sidecars: Sidecars) -> None:
    stage = set_stage(own_broker.bootstrap_servers)
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(MESSAGES, (0, 12_000))
    ledger.await_fired(count=MESSAGES // 10)

    if ending == "kill-9":
        own_broker.kill()
        eventually(lambda: one.get("/readyz")[0] == 503, 30, "it says that it is not ready")
        assert one.get("/livez")[0] == 200
        own_broker.start()
    else:
        own_broker.restart()

    ledger.send(MESSAGES, (0, 3_000))
    ledger.settle(one, deadline_s=90, broker_may_roll_back=ending == "kill-9")
    one.await_ready()
    assert one.stop() == 0


def test_a_transaction_that_hangs_in_the_client_library_is_left_behind(stage: Stage, sidecars: Sidecars) -> None:
    """After a broker was away, the library may wait for ever for a coordinator that it takes for gone."""
    ledger = Ledger(stage)
    one = sidecars.make("one", stage)
    one.start(command(hang_at=Step.OFFSETS_SENT))
    one.await_ready()
    ledger.send(MESSAGES, (0, 5_000))
    eventually(lambda: one.get("/readyz")[0] == 503, 20, "it says that a transaction takes long")

    ledger.settle(one, deadline_s=60)
    assert "commit_hangs" in one.log
