"""The cost of many pending messages: memory, GET /pending, clean restart, restore."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile
from bench.runs import repeat
from bench.sidecar_process import SidecarProcess
from bench.traffic import over_a_day, send
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

FEW = 10_000
REQUESTS = 200
REQUEST_EVERY_S = 0.05
"""Requests that come faster wait for each other: the API may use a quarter of a core."""
DUE_WHILE_AWAY = 1_000
_FAR_MS = 20 * 60_000
_AWAY_MS = 10_000
_QUIET_S = 3.0
_DEADLINE_S = 600.0
_MIB = 1024 * 1024
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Buffer:
    """One sidecar with many pending messages.

    Args:
        cluster: The broker.
        sidecar: The sidecar, not started yet.
        topic: The retry topic.
        origin: The origin of all messages.
        many: The number of pending messages in the end.
    """

    cluster: Cluster
    sidecar: SidecarProcess
    topic: str
    origin: str
    many: int

    def fill(self) -> Figure:
        """Store few, then many; return the memory of the same process then and now."""
        self.sidecar.start()
        self.sidecar.await_ready()
        say(f"pending: sidecar {self.sidecar.pid}, {number(self.many)} messages")
        few = self._resident_with(0, FEW)
        many = self._resident_with(FEW, self.many)
        return measured("memory", many / few, f"{few // _MIB} MiB with {number(FEW)}, {many // _MIB} MiB in the end")

    def _resident_with(self, stored: int, wanted: int) -> int:
        send(
            self.cluster.bootstrap_servers,
            self.topic,
            self.origin,
            over_a_day(wanted - stored, _CLOCK.wall_ms(), _FAR_MS),
        )
        self.cluster.watch_ingest(self.sidecar, wanted, _DEADLINE_S)
        threading.Event().wait(_QUIET_S)
        return self.sidecar.resident_bytes()

    def ask(self) -> list[Figure]:
        """Return the time of `GET /pending`."""
        connection = self.sidecar.connect()
        try:
            took_ms = []
            for _ in range(REQUESTS):
                took_ms.append(self._request_ms(connection))
                threading.Event().wait(REQUEST_EVERY_S)
        finally:
            connection.close()
        note = f"p50 {number(percentile(took_ms, 0.5))} ms, {REQUESTS} requests, {number(self.many)} pending"
        return [measured("pending", percentile(took_ms, 0.99), note)]

    def _request_ms(self, connection: http.client.HTTPConnection) -> float:
        started_s = _CLOCK.monotonic_s()
        connection.request("GET", "/pending")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        took_ms = (_CLOCK.monotonic_s() - started_s) * 1000
        assert answer.status == 200, body
        assert body["total"] == self.many, body
        return took_ms

    def restart(self) -> list[Figure]:
        """Restart with the same state folder after some messages became due; return the time to the first delivery."""
        origin = f"{self.origin}-{uuid.uuid4().hex[:8]}"
        self.cluster.create(origin)
        due_ms = _CLOCK.wall_ms() + _AWAY_MS
        send(self.cluster.bootstrap_servers, self.topic, origin, [due_ms] * DUE_WHILE_AWAY)
        stored = self.many + DUE_WHILE_AWAY
        until(lambda: self.sidecar.pending() == stored, _DEADLINE_S, "what is due while away is stored")
        stopping_s = _CLOCK.monotonic_s()
        self.sidecar.stop()
        stopped_s = _CLOCK.monotonic_s()
        late = _CLOCK.wall_ms() >= due_ms
        until(lambda: _CLOCK.wall_ms() > due_ms, _DEADLINE_S, "messages are due")
        started_ms = _CLOCK.wall_ms()
        self.sidecar.start()
        first_ms = min(each.append_ms for each in self.cluster.arrivals(origin, DUE_WHILE_AWAY))
        self.sidecar.await_ready()
        if late:
            raise LateError("storing and stopping took until the messages were due")
        fresh_mib = self.sidecar.resident_bytes() // _MIB
        note = f"stop took {number(stopped_s - stopping_s)} s; {fresh_mib} MiB resident after the restart"
        return [measured("restart", (first_ms - started_ms) / 1000, note)]

    def restore(self) -> list[Figure]:
        """Start with an empty state folder; return timers a second until the last partition is restored."""
        self.sidecar.stop()
        shutil.rmtree(self.sidecar.state_dir)
        log_bytes = self.sidecar.log_path.stat().st_size
        self.sidecar.start()
        until(self._is_restored, _DEADLINE_S, "the state is restored")
        with self.sidecar.log_path.open(encoding="utf-8") as log:
            log.seek(log_bytes)
            took_s = restore_s(log)
        cpu_us = self.sidecar.cpu_seconds() / self.many * 1e6
        note = (
            f"{number(self.many)} timers in {number(took_s)} s, {cpu_us:.1f} µs of processor time each with the start"
        )
        return [measured("restore", self.many / took_s, note)]

    def _is_restored(self) -> bool:
        status, body = self.sidecar.get("/pending")
        return status == 200 and bool(body["partitions"]) and _whole(body) and body["total"] == self.many


def restore_s(log: Iterable[str]) -> float:
    """Return the seconds from the assignment of the partitions until the last one was restored, by the log.

    HTTP is too late for it: its application is loaded while the restore runs.
    """
    began, ended = "", ""
    for line in log:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "partitions_assigned":
            began = began or event["timestamp"]
        elif event.get("event") == "partition_restored":
            ended = event["timestamp"]
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _whole(body: Mapping[str, Any]) -> bool:
    return all(partition["restored"] == 1 for partition in body["partitions"])


def pending_figures(cluster: Cluster, folder: Path, many: int, wanted: set[str], runs: int) -> list[Figure]:
    """Measure the wanted ones of memory, GET /pending, restart and restore on one set of messages."""
    name = f"pending-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    sidecar = cluster.sidecar(f"bench-{name}", topic, folder)
    world = Buffer(cluster, sidecar, topic, origin, many)
    try:
        memory = world.fill()
        figures = [memory] if "memory" in wanted else []
        for each, act in (("pending", world.ask), ("restart", world.restart), ("restore", world.restore)):
            if each in wanted:
                figures += repeat((each,), act, runs)
    finally:
        sidecar.stop()
    return figures
