"""Origins with delays and limits of their own, beside one that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.contract.dialects.native import WAS_DUE_MS
from tests.broker import create_topic, unique
from tests.integration.messages import Given, Pairs, one_sidecar

pytestmark = pytest.mark.broker

POLICIES = """
{"*-quick": {"delays": ["700ms", "1d"], "max_attempts": 5}, "*-slow-quick": {"delays": "1s,1s", "first_delay_ms": 300}}
"""


def test_each_origin_fires_by_its_own_delays_and_limit(bootstrap: str, tmp_path: Path) -> None:
    marker = unique("m").encode()
    with one_sidecar(bootstrap, tmp_path, DELAYS="400ms", FIRST_DELAY_MS="1h", ORIGIN_POLICIES=POLICIES) as world:
        plain = world.stage.origin
        quick, slow = (f"{world.stage.app_id}-{name}" for name in ("quick", "slow-quick"))
        for topic in (quick, slow):
            create_topic(bootstrap, topic)
        expected = {plain: (400, b"0"), quick: (700, b"4"), slow: (1_000, b"1")}
        native: dict[str, Pairs] = {
            topic: [("test", marker), ("retry-origin-topic", topic.encode())] for topic in expected
        }
        sent = world.send(*(Given(b"v", b"k", headers) for headers in native.values()))
        for (topic, (delay_ms, remaining)), place in zip(expected.items(), sent, strict=True):
            (fired,) = world.fired(marker, topic=topic)
            assert int(fired.header(WAS_DUE_MS) or 0) == place.timestamp_ms + delay_ms
            assert fired.header("retry-remaining") == remaining

        ibm: Pairs = [
            ("test", marker + b"ibm"),
            ("x-ibm-retry-origin-topic", slow.encode()),
            ("x-ibm-retry-exception-type", b"E"),
            ("x-ibm-retry-timestamp-ms", b"%d" % sent[0].timestamp_ms),
        ]
        world.send(Given(b"v", b"k", ibm))
        assert len(world.fired(marker + b"ibm", topic=slow)) == 1
