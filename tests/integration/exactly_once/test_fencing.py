"""Two processes under one identity: one of them ends and says why. Brokers that stall look alike, and end none."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence

import pytest

from sidecar.devbroker.local_broker import LocalBroker
from tests.broker import local_broker
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
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


@pytest.fixture
def quick_to_fence() -> Iterator[LocalBroker]:
    """A broker that is fenced itself soon after it falls silent, so that its coordinators start again."""
    with local_broker(properties={"broker.session.timeout.ms": "3000"}) as broker:
        yield broker


def test_brokers_that_stall_for_longer_than_the_session_are_no_duplicate_instance(
    quick_to_fence: LocalBroker, sidecars: Sidecars
) -> None:
    """Static members may then fence themselves: what they sent to join again is answered late, and all at once."""
    own_broker = quick_to_fence
    stage = set_stage(own_broker.bootstrap_servers)
    session = {"CLIENT_SESSION_TIMEOUT_MS": "2000", "CLIENT_HEARTBEAT_INTERVAL_MS": "300"}
    both = [sidecars.start(name, stage, INSTANCE_ID=name, **session) for name in ("one", "two")]
    ledger = Ledger(stage)
    ledger.send(MESSAGES, (0, 12_000))
    stalls = 0
    while stalls < 6 and not any("member_fenced" in each.log for each in both):
        stalls += 1
        eventually(lambda: all(map(_has_partitions_again, both)), 120, "both have partitions")
        _stall(own_broker, both, stalls)
    ledger.settle(*both, deadline_s=90)
    assert [each.stop() for each in both] == [0, 0]
    if not any("member_fenced" in each.log for each in both):
        pytest.skip("no stall has made the brokers fence a member: whether they do depends on when the answers arrive")


def _has_partitions_again(member: Sidecar) -> bool:
    """Read it from the log: while it joins again, the status topic still names it as the owner of what it lost."""
    return member.ready() and member.log.rfind("partition_restored") > member.log.rfind("partitions_lost")


def _stall(broker: LocalBroker, members: Sequence[Sidecar], times: int) -> None:
    """Freeze the broker until each member has lost its partitions so many times."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        eventually(lambda: all(each.log.count("partitions_lost") >= times for each in members), 20, "all are lost")
        eventually(lambda: all(each.log.count("status_not_read") >= times for each in members), 20, "it lasts")
    finally:
        os.kill(broker.pid, signal.SIGCONT)


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
