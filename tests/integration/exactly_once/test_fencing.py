"""Two processes under one identity: one of them ends and says why."""

from __future__ import annotations

import threading

import pytest

from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

MESSAGES = 500


def test_an_instance_id_that_is_used_again_ends_the_older_process(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    old = sidecars.start("old", stage, INSTANCE_ID="same")
    ledger.send(MESSAGES, (0, 10_000))
    ledger.await_fired(count=50)
    new = sidecars.make("new", stage, INSTANCE_ID="same")
    new.start()

    assert old.wait(40) == 1
    assert old.log.splitlines()[-1] == (
        "fenced 3 times in a minute: another running process has INSTANCE_ID same too; "
        "give every running instance a different INSTANCE_ID"
    )
    # The two fence each other in turn until the old one ends, so the new one may be fenced a third time as well. Then
    # whoever restarts processes starts it again.
    eventually(lambda: not new.running or new.ready(), 40, "the new one is ready, or has ended too")
    if not new.running:
        assert "another running process has INSTANCE_ID same too" in new.log
        new.start()
    new.await_ready()
    ledger.settle(new)


def test_a_state_folder_that_was_copied_ends_one_of_the_two(stage: Stage, sidecars: Sidecars) -> None:
    """Each new producer fences the other process; who was fenced three times within a minute ends."""
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
        ended = eventually(lambda: [each for each in (one, two) if not each.running], 60, "one of them ends")
    finally:
        stop.set()
        load.join()
    for each in ended:
        assert each.wait() == 1
        assert each.log.splitlines()[-1] == (
            "fenced 3 times in a minute: another running process uses the same transactional id; "
            "give every running instance a different STATE_DIR or INSTANCE_ID"
        )
    ledger.settle(_any_left(one, two))


def _send_until(stop: threading.Event, ledger: Ledger) -> None:
    lot = 0
    while not stop.is_set():
        lot += 1
        ledger.send(20, (0, 500), seed=lot)
        stop.wait(0.2)


def _any_left(*both: Sidecar) -> Sidecar:
    left = next((each for each in both if each.running), None)
    if left is None:
        left = both[0]
        left.start()
    left.await_ready()
    return left
