"""One instance with far more pending messages than its memory holds."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile
from bench.operating_crowd import exchange
from bench.pending import FEW, REQUEST_EVERY_S, Buffer
from bench.sidecar_process import SidecarProcess
from bench.traffic import DAY_MS, Sender, over_a_day, send, within_a_second
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

BATCH = 50_000
"""Messages of each measurement of store and fire."""
CHUNK = 250_000
PAIRS = 2
"""How often the two instances are measured in turn."""
FAR_MS = 4 * 3_600_000
"""Nothing of what is pending falls due while it is measured."""
_FIRE_AFTER_MS = (20_000, 60_000, 180_000)
"""How long storing what is to fire may take; the next is tried when it took longer."""
_REQUESTS = 100
_QUIET_S = 5.0
_DEADLINE_S = 900.0
_MIB = 1024 * 1024
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Costs:
    """What an instance costs with some number of pending messages."""

    pending: int
    resident_bytes: int
    """After BATCH more were stored and fired."""
    counts_ms: float
    """Median of `GET /pending`."""
    page_ms: float
    """Median of a page of 100 anywhere."""
    fire_us: float
    """Processor time of a fired message."""
    store_us: float
    """Processor time of a stored message."""


@dataclass(slots=True)
class Large:
    """One sidecar that gets more and more pending messages.

    Args:
        cluster: The broker.
        sidecar: The sidecar, ready.
        origin: The origin of all messages.
    """

    cluster: Cluster
    sidecar: SidecarProcess
    origin: str
    pending: int = 0

    def fill(self, wanted: int) -> None:
        """Store messages until so many are pending."""
        while self.pending < wanted:
            count = min(CHUNK, wanted - self.pending)
            self._send(over_a_day(count, _CLOCK.wall_ms() + self.pending, FAR_MS))
            self.pending += count
            say(f"large: {number(self.pending)} pending, {self.sidecar.resident_bytes() // _MIB} MiB resident")

    def costs(self) -> Costs:
        """Measure; BATCH more messages are pending afterwards."""
        dice = random.Random(self.pending)
        fire_us = self._fire_us()
        dues_ms = [_CLOCK.wall_ms() + dice.randrange(FAR_MS, DAY_MS * 9 // 10) for _ in range(_REQUESTS)]
        counts_ms = self._median_ms(["/pending"] * _REQUESTS)
        page_ms = self._median_ms([f"/pending/messages?limit=100&due_from={due_ms}" for due_ms in dues_ms])
        threading.Event().wait(_QUIET_S)
        pending, resident_bytes = self.pending, self.sidecar.resident_bytes()
        found = Costs(pending, resident_bytes, counts_ms, page_ms, fire_us, self._store_us())
        say(f"large: {found}")
        return found

    def _store_us(self) -> float:
        """Return the processor time of each of BATCH messages that become visible at once."""
        servers, transactional_id = self.cluster.bootstrap_servers, f"bench-{uuid.uuid4().hex}"
        sender = Sender(servers, self.sidecar.topic, self.origin, transactional_id)
        sender.send(over_a_day(BATCH, _CLOCK.wall_ms() + self.pending, FAR_MS))
        sender.flush()
        target = self._end()
        before_s = self.sidecar.cpu_seconds()
        sender.commit()
        self.pending += BATCH
        self.cluster.watch_ingest(self.sidecar, target, _DEADLINE_S)
        return (self.sidecar.cpu_seconds() - before_s) / BATCH * 1e6

    def _fire_us(self) -> float:
        """Return the processor time of each of BATCH messages that fall due within a second.

        Raises:
            LateError: Storing them took until they were due, each time.
        """
        for wait_ms in _FIRE_AFTER_MS:
            due_ms = _CLOCK.wall_ms() + wait_ms
            self._send(within_a_second(BATCH, due_ms))
            in_time = _CLOCK.wall_ms() < due_ms
            until(lambda due_ms=due_ms: _CLOCK.wall_ms() >= due_ms, _DEADLINE_S, "they are due")  # type: ignore[misc]
            before_s = self.sidecar.cpu_seconds()
            until(lambda: self.sidecar.pending() == self.pending, _DEADLINE_S, "the batch has fired", step_s=0.2)
            if in_time:
                return (self.sidecar.cpu_seconds() - before_s) / BATCH * 1e6
        raise LateError("storing took until the messages were due")

    def _send(self, dues_ms: Iterable[int]) -> None:
        send(self.cluster.bootstrap_servers, self.sidecar.topic, self.origin, dues_ms)
        self.cluster.watch_ingest(self.sidecar, self._end(), _DEADLINE_S)

    def _end(self) -> int:
        """Return the offset behind the last message, of all partitions together."""
        return sum(self.cluster.ends(self.sidecar.topic).values())

    def _median_ms(self, paths: Iterable[str]) -> float:
        connection = self.sidecar.connect()
        took_ms = []
        try:
            for path in paths:
                took_ms.append(exchange(connection, path)[1])
                threading.Event().wait(REQUEST_EVERY_S)
        finally:
            connection.close()
        return percentile(took_ms, 0.5)


def compared(pairs: Sequence[tuple[Costs, Costs]]) -> list[Figure]:
    """Return what many pending messages cost, by what few do; each figure is the median of the pairs."""
    few, many = pairs[0]
    with_few, with_many = f"with {number(few.pending)} pending", f"with {number(many.pending)}"

    def ratio(name: str, cost: Callable[[Costs], float], unit: str) -> Figure:
        values = sorted(cost(of_many) / cost(of_few) for of_few, of_many in pairs)
        note = f"{number(cost(few))} {unit} {with_few}, {number(cost(many))} {with_many}"
        return replace(measured(name, median(values), note), values=tuple(values))

    return [
        measured("large_memory", max(of_many.resident_bytes for _, of_many in pairs) / _MIB, with_many),
        ratio("large_growth", lambda costs: costs.resident_bytes / _MIB, "MiB"),
        ratio("large_counts", lambda costs: costs.counts_ms, "ms"),
        ratio("large_page", lambda costs: costs.page_ms, "ms"),
        ratio("large_store", lambda costs: costs.store_us, "µs"),
        ratio("large_fire", lambda costs: costs.fire_us, "µs"),
    ]


def large(cluster: Cluster, folder: Path, count: int) -> list[Figure]:
    """Measure an instance with few and one with `count` pending messages in turn, then restart and restore the latter.

    The machine's own speed changes more within the time of the filling than what is measured.
    """
    with _instance(cluster, folder, "few") as small, _instance(cluster, folder, "many") as world:
        small.fill(FEW)
        world.fill(count)
        figures = compared([(small.costs(), world.costs()) for _ in range(PAIRS)])
        small.sidecar.stop()
        disk_bytes = sum(file.stat().st_size for file in world.sidecar.state_dir.rglob("*") if file.is_file())
        say(f"large: {disk_bytes / world.pending:.0f} bytes of the state folder for each message")
        buffer = Buffer(cluster, world.sidecar, world.sidecar.topic, world.origin, world.pending)
        for each in (*buffer.restart(), *buffer.restore()):
            figures.append(measured(f"large_{each.name}", each.measured, each.note))
    return figures


@contextmanager
def _instance(cluster: Cluster, folder: Path, kind: str) -> Iterator[Large]:
    name = f"large-{kind}-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    with cluster.sidecar(f"bench-{name}", topic, folder) as sidecar:
        sidecar.await_ready()
        say(f"large: sidecar {sidecar.pid}, {kind} messages")
        yield Large(cluster, sidecar, origin)
