"""A sidecar under load that is killed again and again, wherever it happens to be."""

from __future__ import annotations

import os
import random
import threading

import pytest

from sidecar.clock import SystemClock
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS = 6
LOTS = 12
LOT = 300


def test_kills_at_random_under_load(stage: Stage, sidecars: Sidecars) -> None:
    seed = int(os.environ.get("SIDECAR_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"SIDECAR_TEST_SEED={seed} repeats the dues and the moments of the kills")
    dice = random.Random(seed)
    ledger = Ledger(stage)
    one = sidecars.start("one", stage, INSTANCE_ID="one", COMMIT_MAX_MESSAGES="200", COMMIT_INTERVAL_MS="10")
    sending = threading.Thread(target=_send, args=(ledger, seed), name="load")
    sending.start()
    try:
        for _ in range(KILLS):
            _let_pass(dice.uniform(0.1, 1.5))
            one.kill()
            if dice.random() < 0.3:
                one.forget_state()
            one.start()
            if dice.random() < 0.7:  # else the next kill may find it starting
                one.await_ready()
    finally:
        sending.join()
    one.await_ready()
    ledger.settle(one)


def _send(ledger: Ledger, seed: int) -> None:
    for lot in range(LOTS):
        ledger.send(LOT, (0, 6_000), seed=seed + lot)
        _let_pass(1.5)


def _let_pass(seconds: float) -> None:
    """The moment is the point here, not what has happened by then."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + seconds
    eventually(lambda: clock.monotonic_s() >= until_s, seconds + 30, "the moment has come")
