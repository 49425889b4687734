"""A broker that stalls for longer than the session looks like a duplicate instance, and ends none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest

from sidecar.devbroker.local_broker import LocalBroker
from tests.broker import local_broker
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, set_stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = 500


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
        if not own_broker.running:  # a node that was suspended for longer than its own session can end
            own_broker.start()
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
