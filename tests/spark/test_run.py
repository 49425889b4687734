"""`spark run` as operators run it: a process with a JVM of its own, real signals, a real broker.

One scenario, because each start costs many seconds: what is asked of the ledger at its end holds over a kill and a
restart.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sidecar.contract.control import ControlKind, Outcome, parse_target
from sidecar.contract.filter import MessageFilter
from sidecar.control.client import ControlClient
from sidecar.settings import Settings
from tests.broker import read_committed
from tests.integration.messages import Given, Pairs, marked, native, scrape, send
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.spark.queries import WAIT_S, command, deliveries
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

BURST = 3_000
LATER_MS = 10
"""Half a minute for all of them: a micro-batch of a slow machine that takes many seconds does not fire all."""


def kill_with_its_jvm(one: Sidecar) -> None:
    """End driver and JVM at once, as a machine that loses power does."""
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()


def test_nothing_is_lost_doubled_or_early_over_a_kill_in_the_middle_of_firing(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    one = sidecars.make("spark", stage)
    one.start(command("run", tmp_path))
    bad: tuple[Pairs, ...] = (
        [("bad", b"header")],
        [("retry-origin-topic", b"elsewhere")],
        native(stage, b"x", 10**15),
    )
    send(stage.bootstrap, stage.input_topic, *(Given(headers=headers) for headers in bad))
    send(stage.bootstrap, stage.input_topic, Given(b"first", b"k", native(stage, b"first", 0, ("null", None)), 1))
    (first,) = deliveries(stage, b"first", 1)
    eventually(lambda: f'fired_total{{origin="{stage.origin}"}} 1.0' in scrape(one), WAIT_S, "the fire is counted")
    assert (first.key, first.value) == (b"k", b"first")
    assert ("null", None) in first.headers
    dead = read_committed(stage.bootstrap, [stage.dlq_topic], WAIT_S, until=lambda seen: len(seen) >= 3)
    assert sorted(record.header("retry-dlq-reason") or b"" for record in dead) == [
        b"delay-out-of-range",
        b"missing-header",
        b"origin-not-allowed",
    ]

    _commands_are_answered(stage)

    burst = [
        Given(b"%d" % n, b"%d" % n, native(stage, b"burst", 1 + n * LATER_MS), partition=n % 2) for n in range(BURST)
    ]
    send(stage.bootstrap, stage.input_topic, *burst)
    deliveries(stage, b"burst", BURST // 10)
    kill_with_its_jvm(one)
    before = len(marked(read_committed(stage.bootstrap, [stage.origin]), b"burst"))
    assert before < BURST
    one.start(command("run", tmp_path))
    fired = deliveries(stage, b"burst", BURST)
    assert sorted(int(record.value or b"") for record in fired) == list(range(BURST))
    assert min(record.timestamp_ms - int(record.header("retry-was-due-ms") or b"") for record in fired) >= 0
    assert one.stop(60) == 0
    assert "query_stopped" in one.log
    assert len(marked(read_committed(stage.bootstrap, [stage.origin]), b"burst")) == BURST


def _filters_are_answered(stage: Stage, control: ControlClient) -> None:
    tenants = [(b"acme", 3_600_000), (b"acme", 90_000_000), (b"other", 3_600_000)]
    waiting = [Given(b"w", None, native(stage, b"waiting", due, ("tenant", each))) for each, due in tenants]
    send(stage.bootstrap, stage.input_topic, *waiting)
    cancelled = control.act(ControlKind.CANCEL, MessageFilter(header=("tenant:acme",)), deadline_s=WAIT_S)
    assert (cancelled.outcome, cancelled.count) == (Outcome.CANCELLED, 2)
    rest = control.act(ControlKind.CANCEL, MessageFilter(origin=stage.origin), deadline_s=WAIT_S)
    assert (rest.outcome, rest.count) == (Outcome.CANCELLED, 1)


def _commands_are_answered(stage: Stage) -> None:
    settings = Settings(bootstrap_servers=stage.bootstrap, streams_app_id=stage.app_id, input_topic=stage.input_topic)
    send(
        stage.bootstrap,
        stage.input_topic,
        Given(b"named", None, native(stage, b"named", 3_600_000, ("retry-id", b"a"))),
        Given(b"hurried", None, native(stage, b"hurried", 3_600_000, ("retry-id", b"b"))),
    )
    with ControlClient(settings) as control:
        cancelled = control.act(ControlKind.CANCEL, parse_target("id:a"), deadline_s=WAIT_S)
        assert (cancelled.outcome, cancelled.count) == (Outcome.CANCELLED, 1)
        fired = control.act(ControlKind.FIRE, parse_target("id:b"), deadline_s=WAIT_S)
        assert (fired.outcome, fired.count) == (Outcome.FIRED, 1)
        again = control.act(ControlKind.CANCEL, parse_target("id:a"), deadline_s=WAIT_S)
        assert again.outcome is Outcome.NOT_PENDING
        _filters_are_answered(stage, control)
    assert len(deliveries(stage, b"hurried", 1)) == 1
