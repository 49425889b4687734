"""Throughput: relay, store, fire, and store and fire at once."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.cluster import Cluster, appended
from bench.figures import Figure, measured, number, rate_between, spread
from bench.relay import relay
from bench.sidecar_process import SidecarProcess
from bench.traffic import Sender, over_a_day, send, within_a_second
from bench.waiting import until
from sidecar.clock import SystemClock

RELAY_TOPIC = "bench-relay-in"
STORE_TOPIC = "bench-store-in"
_SOON_MS = 120_000
"""The least delay of messages that must not fire while a throughput is measured."""
_DEADLINE_S = 120.0
_CLOCK = SystemClock()


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Rates:
    """The throughput figures; each call of a method measures once more.

    Args:
        cluster: the broker.
        folder: for state folders and logs.
        count: messages per measurement.
    """

    cluster: Cluster
    folder: Path
    count: int
    found: dict[str, list[float]] = field(default_factory=dict)
    """Figure to the rates of its runs, messages a second."""

    def _note(self, name: str, per_ms: float, cpu_s: float | None = None) -> None:
        self.found.setdefault(name, []).append(per_ms * 1000)
        cost = "" if cpu_s is None else f", {cpu_s / self.count * 1e6:.1f} µs of processor time each"
        say(f"{name}: {number(per_ms * 1000)} msg/s{cost}")

    def _sidecar(self, topic: str) -> SidecarProcess:
        """Return a sidecar that never ran before."""
        return SidecarProcess(self.cluster.bootstrap_servers, f"bench-{uuid.uuid4().hex[:8]}", topic, self.folder)

    def _preloaded(self, topic: str, count: int) -> None:
        if topic in self.cluster.topics:
            return
        self.cluster.create(topic)
        dues_ms = over_a_day(count, _CLOCK.wall_ms(), _SOON_MS * 4)
        send(self.cluster.bootstrap_servers, topic, "bench-origin-day", dues_ms)

    def relay(self) -> None:
        """Relay messages from topic to topic; first to last transaction."""
        self._note("relay", rate_between(self._relayed()))

    def warm_up(self) -> None:
        """Relay messages without counting: a Java broker that has just started is half as fast."""
        self._relayed()

    def _relayed(self) -> list[tuple[float, int]]:
        self._preloaded(RELAY_TOPIC, self.count)
        target = f"bench-relay-out-{uuid.uuid4().hex[:8]}"
        self.cluster.create(target)
        return relay(self.cluster.bootstrap_servers, RELAY_TOPIC, target, self.count)

    def store(self) -> None:
        """Ingest the messages that wait on the retry topic; first to last progress of the committed offsets."""
        self._preloaded(STORE_TOPIC, self.count)
        with self._sidecar(STORE_TOPIC) as sidecar:
            say(f"store: sidecar {sidecar.pid}")
            self.cluster.watch_ingest(sidecar, 1, _DEADLINE_S)
            before_s = sidecar.cpu_seconds()
            progress = self.cluster.watch_ingest(sidecar, self.count, _DEADLINE_S)
            self._note("store", rate_between(progress), sidecar.cpu_seconds() - before_s)

    def fire(self) -> None:
        """Fire what is due within one second; first to last append at the origin."""
        topic, origin = self._fresh("fire")
        with self._sidecar(topic) as sidecar:
            sidecar.await_ready()
            due_ms = self._stored(sidecar, topic, origin)
            until(lambda: _CLOCK.wall_ms() >= due_ms, _DEADLINE_S, "they are due", step_s=0.001)
            say(f"fire: sidecar {sidecar.pid}")
            before_s = sidecar.cpu_seconds()
            until(lambda: sidecar.pending() == 0, _DEADLINE_S, "everything has fired", step_s=0.2)
            cpu_s = sidecar.cpu_seconds() - before_s
        arrivals = self.cluster.arrivals(origin, self.count)
        self._note("fire", rate_between(appended(arrivals)), cpu_s)

    def both(self) -> None:
        """Fire `count` messages while ingesting as many; from the first progress of either to the last of both."""
        topic, origin = self._fresh("both")
        servers = self.cluster.bootstrap_servers
        with self._sidecar(topic) as sidecar:
            sidecar.await_ready()
            due_ms = self._stored(sidecar, topic, origin, seconds_more=8 + self.count / 30_000)
            # Sent before the others are due, visible when they are: then only the sidecar and the broker work.
            sender = Sender(servers, topic, origin, transactional_id=f"bench-{uuid.uuid4().hex}")
            sender.send(over_a_day(self.count, _CLOCK.wall_ms(), _SOON_MS))
            sender.flush()
            assert _CLOCK.wall_ms() < due_ms, "the second half was sent too late"
            target = sum(self.cluster.ends(topic).values())
            until(lambda: _CLOCK.wall_ms() >= due_ms, _DEADLINE_S, "the first half is due", step_s=0.001)
            say(f"both: sidecar {sidecar.pid}")
            before_s = sidecar.cpu_seconds()
            sender.commit()
            taken = self.cluster.watch_ingest(sidecar, target, _DEADLINE_S)
            until(lambda: sidecar.pending() == self.count, _DEADLINE_S, "the first half has fired", step_s=0.2)
            cpu_s = sidecar.cpu_seconds() - before_s
        fired = appended(self.cluster.arrivals(origin, self.count))
        ingest = [point for point in taken if point[1] > self.count]
        started_ms, ended_ms = min(ingest[0][0], fired[0][0]), max(ingest[-1][0], fired[-1][0])
        say(f"both: in for {ingest[-1][0] - ingest[0][0]:.0f} ms, out for {fired[-1][0] - fired[0][0]:.0f} ms")
        self._note("both", self.count / (ended_ms - started_ms), cpu_s)

    def _fresh(self, what: str) -> tuple[str, str]:
        name = f"{what}-{uuid.uuid4().hex[:8]}"
        topic, origin = f"bench-{name}", f"bench-origin-{name}"
        self.cluster.create(topic, origin)
        return topic, origin

    def _stored(self, sidecar: SidecarProcess, topic: str, origin: str, seconds_more: float = 0) -> int:
        """Store `count` messages that are due within one second; return the start of that second."""
        due_ms = _CLOCK.wall_ms() + int((5 + self.count / 20_000 + seconds_more) * 1000)
        send(self.cluster.bootstrap_servers, topic, origin, within_a_second(self.count, due_ms))
        self.cluster.watch_ingest(sidecar, self.count, _DEADLINE_S)
        assert _CLOCK.wall_ms() < due_ms, "storing took until the messages were due"
        return due_ms

    def figures(self) -> list[Figure]:
        """Return what was measured: medians, as ratios to the relay where there is one."""
        relays = self.found.get("relay", [])
        figures = [measured("relay", median(relays), spread(relays))] if relays else []
        for name in ("store", "fire", "both"):
            if runs := self.found.get(name):
                ratio = median(runs) / median(relays) if relays else float("nan")
                each = f"; {spread(runs)}" if len(runs) > 1 else ""
                figures.append(measured(name, ratio, f"{number(median(runs))} msg/s{each}"))
        return figures
