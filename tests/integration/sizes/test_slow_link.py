"""On a slow link transactions carry less, so all of it arrives, and no origin is taken for silent."""

from __future__ import annotations

import pytest

from bench.link import Link
from tests.broker import local_broker, unique
from tests.integration.messages import Given, World, native, noise, scrape, send
from tests.integration.sidecars import Sidecars, set_stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

BYTES_A_SECOND = 50_000


def test_what_takes_longer_than_a_transaction_may_last_arrives_in_several(sidecars: Sidecars) -> None:
    """1.2 MB at once, for which the link needs 24 s, and a transaction has 20 s."""
    marker = unique("m").encode()
    with Link() as link, local_broker(link.broker_port, link.properties) as broker:
        stage = set_stage(broker.bootstrap_servers, 2)
        given = [
            Given(noise(1_500, n), b"%d" % n, native(stage, marker, 0 if n % 3 else 3_600_000), partition=n % 2)
            for n in range(750)
        ]
        send(stage.bootstrap, stage.input_topic, *given)
        link.bytes_a_second = BYTES_A_SECOND
        sidecar = sidecars.start("one", stage)
        fired = World(stage, sidecar).fired(marker, 500, deadline_s=120)
        assert sorted(int(each.key or b"") for each in fired) == [n for n in range(750) if n % 3]
        eventually(lambda: sidecar.pending() == 250, 60, "the others wait")
        assert 'retry_sidecar_origin_state{origin="' + stage.origin + '",state="unreachable"} 1' not in scrape(sidecar)
        eventually(sidecar.ready, 60, "it is ready")
