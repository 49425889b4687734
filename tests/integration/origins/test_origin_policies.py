"""Origins with delays, limits and rates of their own, and policies that change while the sidecar runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from sidecar.contract.dialects.native import WAS_DUE_MS
from tests.broker import create_topic, unique
from tests.integration.messages import Given, Launch, Pairs, one_sidecar
from tests.integration.sidecars import PLAIN, READY_S
from tests.waiting import eventually

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


BACKLOG = 200
PER_SECOND = 100


def test_a_rate_holds_a_backlog_and_a_reload_changes_the_delays(bootstrap: str, tmp_path: Path) -> None:
    config = tmp_path / "sidecar.yaml"
    text = "delays: 1d\norigin_policies:\n  '*-orders': {max_per_second: %d}\n"
    config.write_text(text % PER_SECOND, encoding="utf-8")
    marker = unique("m").encode()
    launch = Launch((*PLAIN, "--config", str(config)), READY_S)
    with one_sidecar(bootstrap, tmp_path, launch=launch) as world:
        origin = ("retry-origin-topic", world.stage.origin.encode())
        backlog: Pairs = [("test", marker), origin, ("retry-due-ms", b"1")]
        clock = SystemClock()
        began_s = clock.monotonic_s()
        world.send(*(Given(b"%d" % each, None, backlog, each % 2) for each in range(BACKLOG)))
        fired = world.fired(marker, BACKLOG)
        # A slow machine takes longer, never less.
        assert clock.monotonic_s() - began_s >= BACKLOG / PER_SECOND - 0.5
        assert sorted(int(each.value or b"") for each in fired) == list(range(BACKLOG))

        waiting: Pairs = [("test", marker + b"1"), origin]
        world.send(Given(b"v", None, waiting))
        config.write_text("delays: many\n", encoding="utf-8")
        world.sidecar.signal(signal.SIGHUP)
        eventually(lambda: "policies_not_reloaded" in world.sidecar.log, READY_S, "the mistake is logged")
        config.write_text("delays: 100ms\n", encoding="utf-8")
        world.sidecar.signal(signal.SIGHUP)
        eventually(lambda: "policies_reloaded" in world.sidecar.log, READY_S, "the file is read again")
        world.send(Given(b"v", None, [("test", marker + b"2"), origin]))
        assert len(world.fired(marker + b"2")) == 1
        eventually(lambda: world.sidecar.pending() == 1, READY_S, "what was pending keeps its due time")
