"""The rows that a partition leaves in a state folder when another instance owns it for good."""

from __future__ import annotations

import json
from itertools import count

import pytest
from click.testing import CliRunner

from sidecar import cli
from sidecar.runtime.partitions.leftovers import KEPT_MS
from tests.integration.killable import command
from tests.integration.ledger import Ledger
from tests.integration.scenarios import TAKEOVER_S, share
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_rows_of_partitions_that_moved_away_are_deleted_and_all_still_fires(stage: Stage, sidecars: Sidecars) -> None:
    ledger, offset = Ledger(stage), sidecars.folder / "offset"
    one = sidecars.make("one", stage, MAX_CLOCK_SKEW="1d")
    one.start(command(clock_offset=offset))
    one.await_ready()
    ledger.send(200, (300 * 3_600_000, 400 * 3_600_000))
    ledger.await_pending([one], 200)
    two = sidecars.start("two", stage)
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    moved = set(two.partitions())
    assert "rows_deleted" not in one.log
    times = count(1)

    def deleted() -> bool:
        offset.write_text(str(next(times) * KEPT_MS // 20), encoding="ascii")
        return one.log.count("rows_deleted") == len(moved)

    eventually(deleted, TAKEOVER_S, "what moved away is deleted")
    ledger.await_pending([one, two], 200)
    own = set(one.partitions())
    assert one.stop() == 0
    shown = CliRunner().invoke(cli.main, ["state", "inspect", "--json", "--state-dir", str(one.state_dir)])
    told = json.loads(shown.stdout)
    assert {each["partition"] for each in told["partitions"]} == own
    assert told["moved"] == []
