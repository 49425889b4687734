"""`run --drain`: everything that waits is fired, nothing is taken in, and a later run takes the rest."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sidecar import cli
from tests.integration.ledger import Ledger
from tests.integration.messages import Given, native, send
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

DRAIN = ("-m", "sidecar", "run", "--drain")

pytestmark = pytest.mark.broker


def test_a_drain_fires_all_that_waits_and_leaves_the_offsets_for_the_run_that_takes_the_rest(
    stage: Stage, sidecars: Sidecars
) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(300, (2_000, 5_000))
    ledger.await_ingested()
    assert one.stop() == 0
    ledger.send(100, (0, 1_000))
    offsets = ledger.committed_offsets()

    drain = sidecars.make("drain", stage)
    drain.start(DRAIN)
    assert drain.wait(60) == 0
    assert "drain_progress" in drain.log
    assert "drain_done" in drain.log
    assert ledger.committed_offsets() == offsets
    balance = ledger.balance()
    balance.require_right()
    assert (balance.fired, balance.pending, balance.unread) == (300, 0, 100), str(balance)

    one.start()
    one.await_ready()
    ledger.settle(one)


def test_a_drain_ends_with_status_1_when_only_messages_of_paused_origins_are_left(
    stage: Stage, sidecars: Sidecars
) -> None:
    one = sidecars.start("one", stage)
    send(stage.bootstrap, stage.input_topic, *(Given(headers=native(stage, b"held", 3_600_000)) for _ in range(3)))
    eventually(lambda: one.pending() == 3, 30, "three wait")
    paused = CliRunner().invoke(
        cli.main, ["pause", stage.origin, "--timeout", "60", "--url", f"http://127.0.0.1:{one.port}"]
    )
    assert paused.exit_code == 0, paused.output
    assert one.stop() == 0

    one.start(DRAIN)
    assert one.wait(60) == 1
    assert f"paused_origins={{'{stage.origin}': 3}}" in one.log
    assert "control records are not read while draining" in one.log
