"""Throughput: relay, store, fire, and store and fire at once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster import Cluster, appended
from bench.figures import Figure, measured, number, rate_between
from bench.relay import relay
from bench.sidecar_process import SidecarProcess
from bench.traffic import Sender, over_a_day, send, within_a_second
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

KEPT = ("bench-dlq", "bench-origin-day", "bench-relay-in")
"""The names with which the topics begin that all measurements share."""
_SOON_MS = 120_000
"""The least delay of messages that must not fire while a throughput is measured."""
_DEADLINE_S = 120.0
_CLOCK = SystemClock()

Rate = tuple[float, float]
"""Messages a second, and microseconds of processor time for each."""


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
    _source: str = ""
    """The topic that is relayed."""
    _patience: float = 1.0
    """Factor of the time for storing messages before they are due; a slow machine raises it."""
    _turns: int = 0
    _settings: dict[str, str] = field(default_factory=dict)
    """Of the next sidecars."""

    def relay(self) -> list[Figure]:
        """Relay messages from topic to topic; first to last transaction."""
        return [measured("relay", self._relay_rate())]

    def _relay_rate(self) -> float:
        self.warm_up()
        per_s = rate_between(self._relayed()) * 1000
        say(f"relay: {number(per_s)} msg/s")
        return per_s

    def beside_relay(self, name: str) -> list[Figure]:
        """Measure `store`, `fire` or `both` and the relay, in alternating order; return the ratio of the two."""
        self.warm_up()
        self._turns += 1
        before = self._relay_rate() if self._turns % 2 else None
        per_s, cpu_us = getattr(self, name)()
        say(f"{name}: {number(per_s)} msg/s, {cpu_us:.1f} µs of processor time each")
        relay = before or self._relay_rate()
        note = f"{number(per_s)} against {number(relay)} msg/s"
        return [
            measured(name, per_s / relay, note),
            measured(f"{name}_rate", per_s),
            measured(f"{name}_cpu", cpu_us),
        ]

    def _sidecar(self, topic: str) -> SidecarProcess:
        """Return a sidecar that never ran before."""
        return self.cluster.sidecar(f"bench-{uuid.uuid4().hex[:8]}", topic, self.folder, **self._settings)

    def order(self) -> list[Figure]:
        """Measure `store` and `fire` with an order per key and without one, in alternating order; return the ratios."""
        self.warm_up()
        self._turns += 1
        figures: list[Figure] = []
        for name in ("store", "fire"):
            found: dict[str, Rate] = {}
            for order in ("none", "key") if self._turns % 2 else ("key", "none"):
                self._settings = {"ORDER": order}
                found[order] = getattr(self, name)()
                say(f"{name} with ORDER={order}: {number(found[order][0])} msg/s, {found[order][1]:.1f} µs each")
            self._settings = {}
            (plain, plain_us), (ordered, ordered_us) = found["none"], found["key"]
            note = f"{number(ordered)} against {number(plain)} msg/s"
            figures.append(measured(f"order_{name}", ordered / plain, note))
            figures.append(
                measured(f"order_{name}_cpu", plain_us / ordered_us, f"{ordered_us:.1f} against {plain_us:.1f} µs")
            )
        return figures

    def warm_up(self) -> None:
        """Relay messages without counting, once: a Java broker that has just started is half as fast."""
        if self._source:
            return
        self._source = f"bench-relay-in-{uuid.uuid4().hex[:8]}"
        self.cluster.create(self._source)
        dues_ms = over_a_day(self.count, _CLOCK.wall_ms(), _SOON_MS)
        send(self.cluster.bootstrap_servers, self._source, "bench-origin-day", dues_ms)
        self._relayed()

    def _relayed(self) -> list[tuple[float, int]]:
        target = f"bench-relay-out-{uuid.uuid4().hex[:8]}"
        self.cluster.create(target)
        return relay(self.cluster.bootstrap_servers, self._source, target, self.count)

    def store(self) -> Rate:
        """Ingest messages that become visible at once; first to last progress of the committed offsets."""
        topic, _ = self._fresh("store")
        with self._sidecar(topic) as sidecar:
            sidecar.await_ready()
            sender = Sender(
                self.cluster.bootstrap_servers, topic, "bench-origin-day", transactional_id=f"bench-{uuid.uuid4().hex}"
            )
            sender.send(over_a_day(self.count, _CLOCK.wall_ms(), _SOON_MS * 4))
            sender.flush()
            target = sum(self.cluster.ends(topic).values())
            say(f"store: sidecar {sidecar.pid}")
            before_s = sidecar.cpu_seconds()
            sender.commit()
            progress = self.cluster.watch_ingest(sidecar, target, _DEADLINE_S)
            return rate_between(progress) * 1000, self._each_us(sidecar.cpu_seconds() - before_s)

    def fire(self) -> Rate:
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
        return rate_between(appended(each.append_ms for each in arrivals)) * 1000, self._each_us(cpu_s)

    def both(self) -> Rate:
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
            self._in_time(due_ms)
            target = sum(self.cluster.ends(topic).values())
            until(lambda: _CLOCK.wall_ms() >= due_ms, _DEADLINE_S, "the first half is due", step_s=0.001)
            say(f"both: sidecar {sidecar.pid}")
            before_s = sidecar.cpu_seconds()
            sender.commit()
            taken = self.cluster.watch_ingest(sidecar, target, _DEADLINE_S)
            until(lambda: sidecar.pending() == self.count, _DEADLINE_S, "the first half has fired", step_s=0.2)
            cpu_s = sidecar.cpu_seconds() - before_s
        fired = appended(each.append_ms for each in self.cluster.arrivals(origin, self.count))
        ingest = [point for point in taken if point[1] > self.count]
        started_ms, ended_ms = min(ingest[0][0], fired[0][0]), max(ingest[-1][0], fired[-1][0])
        say(f"both: in for {ingest[-1][0] - ingest[0][0]:.0f} ms, out for {fired[-1][0] - fired[0][0]:.0f} ms")
        return self.count / (ended_ms - started_ms) * 1000, self._each_us(cpu_s)

    def redrive(self) -> Rate:
        """Redrive dead letters; first to last append at the retry topic. The processor time is the whole command's."""
        topic, origin = self._fresh("redrive")
        dlq, count = f"{topic}-dlq", self.count // 2
        self.cluster.create(dlq)
        sender = Sender(self.cluster.bootstrap_servers, dlq, origin)
        sender.send_dead(count)
        sender.flush()
        command = self.cluster.sidecar(
            f"bench-{uuid.uuid4().hex[:8]}", topic, self.folder, "dlq", "redrive", "--yes", "--dlq-topic", dlq
        )
        cpu_s = command.run(_DEADLINE_S)
        per_s = rate_between(appended(self.cluster.append_times_ms(topic, count))) * 1000
        return per_s, cpu_s / count * 1e6

    def _each_us(self, cpu_s: float) -> float:
        return cpu_s / self.count * 1e6

    def _fresh(self, what: str) -> tuple[str, str]:
        name = f"{what}-{uuid.uuid4().hex[:8]}"
        topic, origin = f"bench-{name}", f"bench-origin-{name}"
        self.cluster.create(topic, origin)
        return topic, origin

    def _stored(self, sidecar: SidecarProcess, topic: str, origin: str, seconds_more: float = 0) -> int:
        """Store `count` messages that are due within one second; return the start of that second."""
        wait_s = (5 + self.count / 20_000 + seconds_more) * self._patience
        due_ms = _CLOCK.wall_ms() + int(wait_s * 1000)
        send(self.cluster.bootstrap_servers, topic, origin, within_a_second(self.count, due_ms))
        self.cluster.watch_ingest(sidecar, self.count, _DEADLINE_S)
        self._in_time(due_ms)
        return due_ms

    def _in_time(self, due_ms: int) -> None:
        """Raise LateError when messages are due before all are there; the next run gives twice the time."""
        if _CLOCK.wall_ms() >= due_ms:
            self._patience = min(8.0, self._patience * 2)
            raise LateError("storing took until the messages were due")
