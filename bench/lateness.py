"""Lateness at a steady rate in and out."""

from __future__ import annotations

import multiprocessing
import uuid
from pathlib import Path

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile
from bench.rates import say
from bench.sidecar_process import SidecarProcess
from bench.traffic import steady
from bench.waiting import until
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
    with SidecarProcess(cluster.bootstrap_servers, f"bench-{name}", topic, folder) as sidecar:
        sidecar.await_ready()
        say(f"lateness: sidecar {sidecar.pid}, {sending_s} s")
        load = multiprocessing.get_context("spawn").Process(
            target=steady, args=(cluster.bootstrap_servers, topic, origin, RATE, sending_s, DELAYS_MS)
        )
        started_ms = clock.wall_ms()
        load.start()
        load.join(sending_s + 60)
        assert load.exitcode == 0, "the load generator did not do its work"
        ended_ms = clock.wall_ms()
        cluster.watch_ingest(sidecar, RATE * sending_s, 30)
        until(lambda: sidecar.pending() == 0, 60, "everything has fired", step_s=0.2)
    arrivals = cluster.arrivals(origin, RATE * sending_s)
    all_late_ms = [each.append_ms - each.was_due_ms for each in arrivals]
    late_ms = [
        each.append_ms - each.was_due_ms for each in arrivals if started_ms + building_ms < each.was_due_ms < ended_ms
    ]
    note = f"{number(RATE)} msg/s in and out, {number(len(late_ms))} messages, max {max(late_ms)} ms"
    return [
        measured("lateness_p50", percentile(late_ms, 0.5), note),
        measured("lateness_p99", percentile(late_ms, 0.99)),
        measured("early", sum(late < 0 for late in all_late_ms), f"of {number(len(all_late_ms))}"),
    ]
