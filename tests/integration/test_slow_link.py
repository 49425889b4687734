"""On a slow link transactions carry less, so all of it arrives, and no origin is taken for silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import unique
from tests.integration.messages import Given, native, noise, one_sidecar, scrape
from tests.integration.quota import limit_writes
from tests.waiting import eventually

pytestmark = pytest.mark.broker

BYTES_A_SECOND = 100_000


def test_what_takes_longer_than_a_transaction_may_last_arrives_in_several(bootstrap: str, tmp_path: Path) -> None:
    """3 MB at once, for which the link needs half a minute."""
    marker = unique("m").encode()
    with one_sidecar(bootstrap, tmp_path) as world:
        limit_writes(bootstrap, f"{world.stage.app_id}-transactions", BYTES_A_SECOND)
        given = [
            Given(noise(1_500, n), b"%d" % n, native(world.stage, marker, 0), partition=n % 2) for n in range(2_000)
        ]
        world.send(*given)
        fired = world.fired(marker, len(given), deadline_s=180)
        assert sorted(int(each.key or b"") for each in fired) == list(range(len(given)))
        assert 'retry_sidecar_origin_state{origin="' + world.stage.origin + '",state="unreachable"} 1' not in scrape(
            world.sidecar
        )
        eventually(world.sidecar.ready, 60, "it is ready")
