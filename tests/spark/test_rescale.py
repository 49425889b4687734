"""Another number of state partitions for a checkpoint, while messages come in and fire: none lost, twice or early."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.broker import read_committed
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, set_stage
from tests.spark.queries import WAIT_S, command
from tests.spark.test_run import kill_with_its_jvm
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

END_S = 90.0
PER_SECOND = 40
WITHIN_MS = (0, 20_000)


def test_state_partitions_grow_and_shrink_under_load(
    java: Path, bootstrap: str, sidecars: Sidecars, tmp_path: Path
) -> None:
    """It stops once with a micro-batch done, once in the middle of one."""
    stage = set_stage(bootstrap, 4)
    ledger, one, stop = Ledger(stage), sidecars.make("one", stage), threading.Event()
    load = threading.Thread(target=ledger.stream, args=(stop, PER_SECOND, WITHIN_MS))
    one.start(command("run", tmp_path, "--state-partitions", "2"))
    one.await_ready(WAIT_S)
    load.start()
    try:
        _fires(ledger)
        assert one.stop(END_S) == 0
        _starts(one, tmp_path, 3)
        assert not (tmp_path / "checkpoint" / "query-3").exists()
        _fires(ledger)
        kill_with_its_jvm(one)
        _starts(one, tmp_path, 1)
        _fires(ledger)
    finally:
        stop.set()
        load.join()
    sent = len(ledger.due_ms)
    read_committed(bootstrap, [stage.origin, stage.dlq_topic], WAIT_S, until=lambda seen: len(seen) >= sent)
    assert one.stop(END_S) == 0
    balance = ledger.balance()
    balance.require_right()
    assert balance.fired + balance.dead == sent, str(balance)


def _starts(one: Sidecar, folder: Path, state_partitions: int) -> None:
    one.start(command("run", folder, "--state-partitions", str(state_partitions)))
    rescaled = re.compile(rf"state_rescaled .*\bstate_partitions={state_partitions}\b")
    eventually(lambda: rescaled.search(one.log), WAIT_S, "it is rescaled")
    one.await_ready(WAIT_S)


def _fires(ledger: Ledger) -> None:
    """Wait until more has fired, while more waits."""
    before = len(ledger.fired())
    eventually(lambda: len(ledger.fired()) > before + 5 * PER_SECOND, WAIT_S, "more has fired")
