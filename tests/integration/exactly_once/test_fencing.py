"""Two processes under one identity: the one that started first ends and says why, the other one goes on."""

from __future__ import annotations

import threading

import pytest

from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage

pytestmark = pytest.mark.broker

MESSAGES = 500
DECIDED_S = 300.0
"""A process is fenced three times by then, on a machine of any pace."""


def test_an_instance_id_that_is_used_again_ends_the_older_process(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    old = sidecars.start("old", stage, INSTANCE_ID="same")
    ledger.send(MESSAGES, (0, 10_000))
    ledger.await_fired(count=50)
    new = sidecars.make("new", stage, INSTANCE_ID="same")
    new.start()

    assert old.wait(DECIDED_S) == 1
    assert old.log.splitlines()[-1] == (
        "fenced 3 times: a process that started later has INSTANCE_ID same too; "
        "give every running instance a different INSTANCE_ID"
    )
    new.await_ready()
    ledger.settle(new)
    assert new.running


def test_a_state_folder_that_was_copied_ends_the_older_process(stage: Stage, sidecars: Sidecars) -> None:
    """Each new producer fences the other process."""
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    two = sidecars.make("two", stage)
    two.state_dir.mkdir()
    (two.state_dir / "instance-id").write_text((one.state_dir / "instance-id").read_text())
    two.start()

    stop = threading.Event()
    load = threading.Thread(target=_send_until, args=(stop, ledger), name="load")
    load.start()
    try:
        assert one.wait(DECIDED_S) == 1
    finally:
        stop.set()
        load.join()
    assert one.log.splitlines()[-1] == (
        "fenced 3 times: a process that started later uses the same transactional id; "
        "give every running instance a different STATE_DIR or INSTANCE_ID"
    )
    two.await_ready()
    ledger.settle(two)
    assert two.running


def _send_until(stop: threading.Event, ledger: Ledger) -> None:
    lot = 0
    while not stop.is_set():
        lot += 1
        ledger.send(20, (0, 500), seed=lot)
        stop.wait(0.2)
