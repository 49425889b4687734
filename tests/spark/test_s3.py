"""The checkpoint in an S3-compatible store: nothing is lost, doubled or early over a kill, and it can be rescaled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import read_committed
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, set_stage
from tests.spark.queries import WAIT_S
from tests.spark.s3 import BUCKET, PYTHON, s3_store
from tests.spark.test_run import kill_with_its_jvm
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

BURST = 2_000


@pytest.mark.skipif(not PYTHON.exists(), reason=f"there is no {PYTHON}: make test-spark installs it")
def test_a_query_continues_from_its_checkpoint_in_s3_after_a_kill(
    java: Path, bootstrap: str, sidecars: Sidecars, tmp_path: Path
) -> None:
    stage = set_stage(bootstrap, 2)
    ledger, one = Ledger(stage), sidecars.make("one", stage)
    with s3_store(tmp_path) as store:
        place = ["--checkpoint", f"s3a://{BUCKET}/checkpoint", "--master", "local[2]"]
        run = ["-m", "sidecar", "spark", "run", *place, "--conf", "spark.driver.memory=1g", *store.options()]
        one.start(run)
        one.await_ready(WAIT_S)
        ledger.send(BURST, (0, 30_000))
        eventually(lambda: len(ledger.fired()) > BURST // 10, WAIT_S, "some have fired")
        kill_with_its_jvm(one)
        assert len(ledger.fired()) < BURST
        one.start([*run, "--state-partitions", "1"])
        read_committed(bootstrap, [stage.origin], WAIT_S, until=lambda seen: len(seen) >= BURST)
        eventually(lambda: store.keys("checkpoint/query-2/commits/"), WAIT_S, "a micro-batch is done in the new state")
        assert one.stop(90) == 0
        balance = ledger.balance()
        balance.require_right()
        assert balance.fired == BURST
        assert any(f"/{BUCKET}/checkpoint/query-2/commits/" in line for line in store.requests())
        assert store.keys("checkpoint/query/")
        one.start(run)
        one.await_ready(WAIT_S)
        assert one.stop(90) == 0
        assert store.keys("checkpoint/query/") == [], "the former folder is deleted"
        assert store.keys("checkpoint/query-2/commits/")
