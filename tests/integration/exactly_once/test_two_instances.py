"""Several instances share the partitions; whatever happens to one of them, the others go on."""

from __future__ import annotations

import pytest

from tests.integration.ledger import Ledger
from tests.integration.scenarios import (
    LONG_SESSION,
    SESSION,
    TAKEOVER_S,
    a_former_owner_commits_after_the_takeover,
    a_former_owner_wakes_up_before_it_fires,
    owns_all,
    share,
)
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

MESSAGES = 1_000


def test_instances_join_and_leave(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage, **LONG_SESSION)
    ledger.send(MESSAGES, (2_000, 20_000))
    two = sidecars.make("two", stage, **LONG_SESSION)
    two.start()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")

    three, four = (sidecars.make(name, stage, **LONG_SESSION) for name in ("three", "four"))
    three.start()
    four.start()
    ledger.send(MESSAGES, (0, 15_000))
    eventually(lambda: share(one, two, three, four), TAKEOVER_S, "each of four has a partition")

    assert [each.stop() for each in (one, two, three)] == [0, 0, 0]
    # Who leaves says so: nobody waits for the session of 40 s to end.
    eventually(lambda: owns_all(four), 30, "the last one has all")
    ledger.settle(four)


def test_the_order_of_keys_is_kept_while_instances_come_and_go(stage: Stage, sidecars: Sidecars) -> None:
    """Of each key forty messages with delays at random, so that most wait behind another one."""
    ledger = Ledger(stage, keys=MESSAGES // 40)
    one, two = (sidecars.make(name, stage, ORDER="key", **SESSION) for name in ("one", "two"))
    one.start()
    ledger.send(MESSAGES // 2, (3_000, 12_000))
    two.start()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    # The messages of a key fire together, behind the latest of them, so the kill must come when the first few have.
    ledger.send(MESSAGES // 2, (8_000, 20_000))
    ledger.await_fired(count=MESSAGES // 2 + 10)
    assert ledger.pending(), "some wait while the next one takes over"

    one.kill()
    ledger.send(MESSAGES, (0, 12_000))
    three = sidecars.start("three", stage, ORDER="key", **SESSION)
    eventually(lambda: share(two, three), TAKEOVER_S, "both have partitions again")
    assert two.stop() == 0
    ledger.settle(three, deadline_s=60)
    ledger.require_order()


def test_an_instance_is_killed(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one, two = sidecars.make("one", stage, **SESSION), sidecars.make("two", stage, **SESSION)
    one.start()
    two.start()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    ledger.send(MESSAGES, (0, 8_000))
    ledger.await_fired(count=MESSAGES // 4)

    one.kill()
    ledger.send(MESSAGES, (0, 8_000))
    ledger.settle(two, deadline_s=60)


def test_an_instance_sleeps_beyond_its_session(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one, two = sidecars.make("one", stage, **SESSION), sidecars.make("two", stage, **SESSION)
    one.start()
    two.start()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    ledger.send(MESSAGES, (0, 10_000))
    ledger.await_fired(count=MESSAGES // 4)

    one.freeze()
    eventually(lambda: owns_all(two), 60, "two has taken over")
    one.thaw()
    ledger.send(MESSAGES, (0, 5_000))
    eventually(lambda: share(one, two), TAKEOVER_S, "one has joined again")
    ledger.settle(one, two)


def test_a_former_owner_fires_nothing(stage: Stage, sidecars: Sidecars) -> None:
    balance = a_former_owner_wakes_up_before_it_fires(stage, sidecars)

    balance.require_right()
    assert (balance.fired, balance.pending) == (600, 0)


def test_a_takeover_waits_for_the_transaction_of_the_former_owner(stage: Stage, sidecars: Sidecars) -> None:
    balance = a_former_owner_commits_after_the_takeover(stage, sidecars)

    balance.require_right()
    assert (balance.fired, balance.pending) == (600, 0)
