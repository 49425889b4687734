"""A paused origin stays paused while its partitions move between live instances; a third process resumes it."""

from __future__ import annotations

import re

import pytest

from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.client import ControlClient
from tests.broker import read_committed
from tests.integration.control.test_control import settings_of
from tests.integration.control.test_http_control import call
from tests.integration.messages import Given, marked, scrape, send
from tests.integration.scenarios import TAKEOVER_S, owns_all, share
from tests.integration.sidecars import API, Sidecar, Sidecars, Stage
from tests.waiting import eventually

WAIT_S = 40.0

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def put_one_in_each_partition(stage: Stage, marker: bytes) -> None:
    """Send messages that are overdue when they arrive."""
    due_ms = SystemClock().wall_ms()
    headers: list[tuple[str, bytes | None]] = [
        ("retry-origin-topic", stage.origin.encode()),
        ("retry-due-ms", b"%d" % due_ms),
        ("test", marker),
    ]
    given = (Given(headers=headers, partition=each) for each in range(stage.partitions))
    send(stage.bootstrap, stage.input_topic, *given)


def flags(sidecar: Sidecar) -> int:
    """Return how often it has put a message off."""
    return sum(int(float(each)) for each in re.findall(r"deferred_total\{[^}]*\} (\S+)", scrape(sidecar)))


def paused(sidecar: Sidecar, origin: str) -> bool:
    """Tell whether its list of origins shows the pause."""
    _, body = call(sidecar, "GET", "/origins", token=None)
    return [each["state"] for each in body["origins"] if each["origin"] == origin] == ["paused"]


def test_a_pause_moves_with_its_partitions_and_ends_when_a_third_process_says_so(
    stage: Stage, sidecars: Sidecars
) -> None:
    one, two, api = sidecars.start("one", stage), sidecars.make("two", stage), sidecars.make("api", stage)
    with ControlClient(settings_of(stage)) as client:
        assert client.act(ControlKind.PAUSE, stage.origin, deadline_s=WAIT_S).outcome is Outcome.PAUSED
    two.start()
    api.start(API)
    eventually(lambda: share(one, two), TAKEOVER_S, "two has taken over some of them, and one lives on")
    moved = len(two.partitions())
    put_one_in_each_partition(stage, b"to both")
    eventually(lambda: flags(two) >= moved, WAIT_S, "two puts off what is due")

    assert one.stop() == 0
    eventually(lambda: owns_all(two), TAKEOVER_S, "two has all of them")
    before = flags(two)
    put_one_in_each_partition(stage, b"to two")
    eventually(lambda: flags(two) >= before + stage.partitions, WAIT_S, "two puts off what is due anywhere")
    eventually(lambda: two.pending() == 2 * stage.partitions, WAIT_S, "all wait")
    assert read_committed(stage.bootstrap, [stage.origin]) == []

    api.await_ready()
    eventually(lambda: paused(api, stage.origin), WAIT_S, "the process that owns nothing shows the pause")

    def resumed() -> bool:
        status, said = call(api, "PUT", f"/origins/{stage.origin}/resume", token=None)
        return (status, said.get("result")) == (200, "resumed")

    eventually(resumed, WAIT_S, "every owner has answered")
    records = read_committed(
        stage.bootstrap, [stage.origin], 60.0, until=lambda seen: len(seen) >= 2 * stage.partitions
    )
    assert len(marked(records, b"to both")) == len(marked(records, b"to two")) == stage.partitions
