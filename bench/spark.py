"""The engine on Apache Spark: rates, the cost of a micro-batch by the number of pending messages, lateness, memory."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.cluster import Cluster, appended
from bench.figures import Figure, measured, number, percentile, rate_between
from bench.operating import load
from bench.sidecar_process import SidecarProcess
from bench.traffic import Sender, over_a_day, send, within_a_second
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

LEVELS = (10_000, 100_000, 1_000_000)
SHARDS = (1, 2, 4)
LATENESS_RATE = 2_000
DELAYS_MS = (1_000, 10_000)
_TRICKLE_RATE = 200
_TRICKLE_S = 20
_IDLE_S = 15
_FAR_MS = 40 * 60_000
_DEADLINE_S = 600.0
_MIB = 1024 * 1024
_CLOCK = SystemClock()


@dataclass(slots=True)
class SparkWorld:
    """One query on `local[2]` and its pending messages.

    Args:
        cluster: The broker.
        sidecar: The driver, running.
        topic: The retry topic.
        origin: The origin of all messages.
    """

    cluster: Cluster
    sidecar: SidecarProcess
    topic: str
    origin: str
    start_s: float = 0.0
    """From the start of the process to the end of the first micro-batch."""
    stored: int = 0
    """The number of pending messages that are not due for long."""

    def ingest(self, many: int) -> float:
        """Store this many messages that become visible at once; return the rate, in messages a second."""
        sender = Sender(self.cluster.bootstrap_servers, self.topic, self.origin, f"bench-{uuid.uuid4().hex}")
        sender.send(over_a_day(many, _CLOCK.wall_ms(), _FAR_MS))
        sender.flush()
        sender.commit()
        started_s = _CLOCK.monotonic_s()
        self.stored += many
        until(lambda: self.sidecar.pending() == self.stored, _DEADLINE_S, "all is counted")
        per_s = many / (_CLOCK.monotonic_s() - started_s)
        say(f"spark: {number(many)} ingested, {number(per_s)} msg/s")
        return per_s

    def settle(self) -> None:
        """Wait until all pending messages are counted."""
        until(lambda: self.sidecar.pending() == self.stored, _DEADLINE_S, "all is counted", step_s=0.2)

    def trickle(self) -> float:
        """Return the median length of a micro-batch, in ms, while little comes in and nothing fires."""
        far_ms = (_FAR_MS, 2 * _FAR_MS)
        servers, seen = self.cluster.bootstrap_servers, len(self.batches())
        with load(servers, self.topic, self.origin, _TRICKLE_RATE, _TRICKLE_S, far_ms):
            pass
        self.stored += _TRICKLE_RATE * _TRICKLE_S
        self.settle()
        took_ms = [each for each, records in self.batches()[seen:] if records]
        say(f"spark: {number(self.stored)} pending, micro-batches of {number(median(took_ms))} ms")
        return median(took_ms)

    def idle(self) -> float:
        """Return the median length of a micro-batch, in ms, while nothing comes in."""
        seen = len(self.batches())
        threading.Event().wait(_IDLE_S)
        return median(took_ms for took_ms, records in self.batches()[seen:] if not records)

    def fire(self, many: int) -> float:
        """Return the rate at which messages arrive that are due within one second."""
        origin = f"{self.origin}-fire"
        self.cluster.create(origin)
        due_ms = _CLOCK.wall_ms() + 10_000 + many // 10
        send(self.cluster.bootstrap_servers, self.topic, origin, within_a_second(many, due_ms))
        until(lambda: self.sidecar.pending() == self.stored + many, _DEADLINE_S, "what fires is counted", step_s=0.2)
        if _CLOCK.wall_ms() >= due_ms:
            raise LateError("storing took until the messages were due")
        self.settle()
        per_s = rate_between(appended(each.append_ms for each in self.cluster.arrivals(origin, many))) * 1000
        say(f"spark: {number(many)} fired, {number(per_s)} msg/s")
        return per_s

    def lateness(self, seconds: int) -> list[Figure]:
        """Return the lateness at a steady rate in and out."""
        origin = f"{self.origin}-late"
        self.cluster.create(origin)
        total = seconds + DELAYS_MS[1] // 1000
        started_ms = _CLOCK.wall_ms()
        with load(self.cluster.bootstrap_servers, self.topic, origin, LATENESS_RATE, total, DELAYS_MS):
            pass
        ended_ms = _CLOCK.wall_ms()
        self.settle()
        arrivals = self.cluster.arrivals(origin, LATENESS_RATE * total)
        late_ms = [
            each.append_ms - each.was_due_ms
            for each in arrivals
            if started_ms + DELAYS_MS[1] < each.was_due_ms < ended_ms
        ]
        early = sum(each.append_ms < each.was_due_ms for each in arrivals)
        note = f"{number(LATENESS_RATE)} msg/s in and out, {number(len(late_ms))} messages, "
        note += f"p50 {number(percentile(late_ms, 0.5))} ms, max {number(max(late_ms))} ms"
        return [
            measured("spark_lateness", percentile(late_ms, 0.99), note),
            measured("spark_early", early, f"of {number(len(arrivals))}"),
        ]

    def batches(self) -> list[tuple[int, int]]:
        """Return length in ms and input records of each micro-batch so far, from the log."""
        found = []
        for line in self.sidecar.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"micro_batch_done"' in line:
                event = json.loads(line)
                found.append((int(event["took_ms"]), int(event["records"])))
        return found


class Memory:
    """Samples the memory of a process and its descendants; shared pages count once."""

    def __init__(self, pid: int) -> None:
        self.most_bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the greatest sample."""
        self._stopped.set()
        self._thread.join()
        return self.most_bytes

    def _sample(self) -> None:
        while not self._stopped.wait(1.0):
            self.most_bytes = max(self.most_bytes, sum(map(_proportional_bytes, _tree(self._pid))))


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants; Linux only."""
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended meanwhile
        for child in children:
            if not _in_memory_of(pid, int(child)):
                yield from _tree(int(child))


def _in_memory_of(parent: int, child: int) -> bool:
    """Return whether a child of a JVM has not begun its own program yet.

    The JVM starts `chmod` and others for each file of the checkpoint. Until such a child runs its program, it runs in
    the memory of the JVM, which would count twice.
    """
    try:
        programs = [Path(f"/proc/{pid}/exe").readlink() for pid in (parent, child)]
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended meanwhile
    return programs[0] == programs[1] and programs[0].name == "java"


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended meanwhile
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@contextmanager
def running(cluster: Cluster, folder: Path, *arguments: str) -> Iterator[SparkWorld]:
    """Yield a query with a new checkpoint that has completed its first micro-batch."""
    name = f"spark-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    checkpoint = f"file://{(folder / name / 'checkpoint').resolve()}"
    command = ("spark", "run", "--checkpoint", checkpoint, "--master", "local[2]", *arguments)
    command += ("--conf", "spark.driver.memory=1g", "--log-level", "debug")
    began_s = _CLOCK.monotonic_s()
    with cluster.sidecar(f"bench-{name}", topic, folder, *command) as sidecar:
        sidecar.await_ready()
        start_s = _CLOCK.monotonic_s() - began_s
        say(f"spark: driver {sidecar.pid} {' '.join(arguments)} ready after {start_s:.1f} s")
        yield SparkWorld(cluster, sidecar, topic, origin, start_s)


def spark(cluster: Cluster, folder: Path, *, quick: bool) -> list[Figure]:
    """Measure one query from few to many pending messages."""
    levels = LEVELS[:2] if quick else LEVELS
    batch = 60_000 if quick else 200_000
    costs: dict[int, float] = {}
    with running(cluster, folder) as world:
        memory = Memory(world.sidecar.pid)
        try:
            for level in levels:
                per_s = world.ingest(level - world.stored)
                costs[level] = world.trickle()
            idle_ms = world.idle()
            deliveries_per_s = world.fire(batch)
            late = world.lateness(8 if quick else 30)
        finally:
            most_bytes = memory.stop()
    least, most = costs[levels[0]], costs[levels[-1]]
    shown = ", ".join(f"{number(ms)} ms with {number(level)}" for level, ms in costs.items())
    return [
        measured("spark_in", per_s, f"the last {number(levels[-1] - levels[-2])} of {number(levels[-1])}"),
        measured("spark_out", deliveries_per_s, f"{number(batch)} due within one second"),
        measured("spark_idle", idle_ms, f"{number(levels[-1])} pending"),
        measured("spark_start", world.start_s, "until the first micro-batch of a new checkpoint has ended"),
        measured("spark_batch", most / least, f"{number(_TRICKLE_RATE)} msg/s: {shown}"),
        *late,
        measured("spark_memory", most_bytes / _MIB, "driver, JVM and Python workers at their most"),
    ]


def shards(cluster: Cluster, folder: Path, *, quick: bool) -> list[Figure]:
    """Measure the rates by the number of state partitions, with a new query for each."""
    batch = 60_000 if quick else 200_000
    figures = []
    for count in SHARDS:
        with running(cluster, folder, "--state-partitions", str(count)) as world:
            world.ingest(batch)  # the first batch runs in a cold JVM
            in_per_s = world.ingest(2 * batch)
            out_per_s = world.fire(batch)
        figures += [measured(f"spark_in_{count}", in_per_s), measured(f"spark_out_{count}", out_per_s)]
        cluster.delete_except("bench-dlq", "bench-origin-day")
    return figures
