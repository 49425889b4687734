"""Lateness at a steady rate in and out."""

from __future__ import annotations

import uuid
from pathlib import Path

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percent, percentile
from bench.operating import load
from bench.waiting import say, until
from sidecar.clock import SystemClock

RATE = 5_000
DELAYS_MS = (1_000, 10_000)


def lateness(cluster: Cluster, folder: Path, seconds: int) -> list[Figure]:
    """Send at a steady rate until the rate out has built up, and then for so many seconds more.

    Args:
        cluster: the broker.
        folder: for the state folder and the log.
        seconds: how long in = out is measured.
    """
    name, clock = f"late-{uuid.uuid4().hex[:8]}", SystemClock()
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    building_ms = DELAYS_MS[1]
    sending_s = seconds + building_ms // 1000
    with cluster.sidecar(f"bench-{name}", topic, folder) as sidecar:
        sidecar.await_ready()
        say(f"lateness: sidecar {sidecar.pid}, {sending_s} s")
        started_ms = clock.wall_ms()
        before_s = sidecar.cpu_seconds()
        with load(cluster.bootstrap_servers, topic, origin, RATE, sending_s, DELAYS_MS):
            pass
        ended_ms = clock.wall_ms()
        cpu = (sidecar.cpu_seconds() - before_s) / (ended_ms - started_ms) * 1000
        cluster.watch_ingest(sidecar, RATE * sending_s, 60)
        until(lambda: sidecar.pending() == 0, 60, "everything has fired", step_s=0.2)
    arrivals = cluster.arrivals(origin, RATE * sending_s)
    all_late_ms = [each.append_ms - each.was_due_ms for each in arrivals]
    late_ms = [
        each.append_ms - each.was_due_ms for each in arrivals if started_ms + building_ms < each.was_due_ms < ended_ms
    ]
    note = f"{number(RATE)} msg/s in and out, {number(len(late_ms))} messages, max {max(late_ms)} ms"
    return [
        measured("lateness_p50", percentile(late_ms, 0.5), note),
        measured("lateness_p99", percentile(late_ms, 0.99), f"{percent(cpu)} of a core"),
        measured("early", sum(late < 0 for late in all_late_ms), f"of {number(len(all_late_ms))}"),
    ]
