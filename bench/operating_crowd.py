"""A sidecar with very many pending messages for 64 origins: requests while it works as fast as it can, and pages."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile, rate_between
from bench.sidecar_process import SidecarProcess
from bench.traffic import DAY_MS, Sender, over_a_day, send
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

ORIGINS = 64
BATCH = 600_000
"""Takes five seconds or more: with three pairs, more than 300 requests."""
REQUESTS_PER_S = 20
WORK_S = 0.002
"""The approximate time of a core that an answer takes."""
PAGES = 200
PAGE_EVERY_S = 0.2
"""The time between two pages, as when a person reads: faster reads would wait for the interpreter and each other."""
_FAR_MS = 20 * 60_000
_DEADLINE_S = 240.0
_CLOCK = SystemClock()


@dataclass(slots=True)
class Crowd:
    """One sidecar and its pending messages.

    Args:
        cluster: The broker.
        sidecar: The sidecar, running.
        origins: The origins of its messages, in turn.
        batch: The messages that it ingests in one measurement.
    """

    cluster: Cluster
    sidecar: SidecarProcess
    origins: list[str]
    batch: int
    stored: int = 0

    def fill(self, many: int) -> None:
        """Store this many messages."""
        dues_ms = over_a_day(many, _CLOCK.wall_ms(), _FAR_MS)
        send(self.cluster.bootstrap_servers, self.sidecar.topic, self.origins, dues_ms)
        self.cluster.watch_ingest(self.sidecar, many, _DEADLINE_S)
        self.stored = many

    def rate(
        self,
        asked: SidecarProcess | None = None,
        took_ms: list[float] | None = None,
        work_ms: list[float] | None = None,
    ) -> float:
        """Return the rate at which a batch is ingested, in messages a second.

        The batch is sent beforehand and becomes visible at once: only sidecar and broker work during the measurement.

        Args:
            asked: The process that receives requests meanwhile, if any.
            took_ms: Receives the time of each answer.
            work_ms: Receives the time of each piece of work in a separate process, when there are no requests.
        """
        servers, transactional_id = self.cluster.bootstrap_servers, f"bench-{uuid.uuid4().hex}"
        sender = Sender(servers, self.sidecar.topic, self.origins, transactional_id)
        sender.send(over_a_day(self.batch, _CLOCK.wall_ms(), _FAR_MS))
        sender.flush()
        before = self.cluster.committed(self.sidecar.group, self.sidecar.topic)
        target = sum(self.cluster.ends(self.sidecar.topic).values())
        beside: AbstractContextManager[None] = nullcontext()
        if asked is not None and took_ms is not None:
            beside = timing(partial(_ask, asked.port), took_ms)
        elif work_ms is not None:
            beside = timing(_work, work_ms)
        with beside:
            sender.commit()
            progress = self.cluster.watch_ingest(self.sidecar, target, _DEADLINE_S)
        self.stored += self.batch
        per_s = rate_between([point for point in progress if point[1] > before]) * 1000
        say(f"full load{'' if asked is None else f', {asked.pid} is asked'}: {number(per_s)} msg/s")
        until(lambda: self.sidecar.pending() == self.stored, _DEADLINE_S, "all is counted", step_s=0.2)
        return per_s

    def asked(self, pairs: int) -> list[Figure]:
        """Return the cost of requests at full load, and the time that they take.

        A separate run sends requests to a process without partitions: their time is not the loop's. In runs without
        requests an unrelated process works now and then for the time of an answer: it measures the wait for a core.
        """
        took_ms: list[float] = []
        idle_ms: list[float] = []
        work_ms: list[float] = []
        ratios: list[float] = []
        for pair in range(pairs):
            # The order changes from pair to pair, so a slow spell of the machine affects both.
            if pair % 2:
                without = self.rate(work_ms=work_ms)
                ratios.append(self.rate(self.sidecar, took_ms) / without)
            else:
                with_requests = self.rate(self.sidecar, took_ms)
                ratios.append(with_requests / self.rate(work_ms=work_ms))
        folder = self.sidecar.log_path.parent / "api"
        with self.cluster.sidecar(self.sidecar.app_id, self.sidecar.topic, folder, "api") as api:
            api.await_ready()
            self.rate(api, idle_ms)
        note = f"{number(len(took_ms))} requests, p50 {number(percentile(took_ms, 0.5))} ms; of a process that owns "
        note += f"nothing p50 {number(percentile(idle_ms, 0.5))}, p99 {number(percentile(idle_ms, 0.99))} ms; "
        note += f"{WORK_S * 1000:g} ms of work in a process beside them p99 {number(percentile(work_ms, 0.99))} ms"
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        loss = (1 - median(ratios)) * 100
        return [
            measured("asked", percentile(took_ms, 0.99), note),
            measured("asked_loss", loss, f"with ÷ without: {shown}; {number(self.stored)} pending in the end"),
        ]

    def listing(self) -> Figure:
        """Return the time of a page at random positions of the listing."""
        dice = random.Random(self.stored)
        connection = self.sidecar.connect()
        took_ms = []
        try:
            for _ in range(PAGES):
                due_ms = _CLOCK.wall_ms() + dice.randrange(_FAR_MS, DAY_MS * 99 // 100)
                body, one_ms = exchange(connection, f"/pending/messages?limit=100&due_from={due_ms}")
                messages = json.loads(body)["messages"]
                assert len(messages) == 100, f"{len(messages)} of 100 behind {due_ms}"
                took_ms.append(one_ms)
                threading.Event().wait(PAGE_EVERY_S)
        finally:
            connection.close()
        note = f"p50 {number(percentile(took_ms, 0.5))} ms, max {number(max(took_ms))} ms; {PAGES} pages, one every "
        return measured("listing", percentile(took_ms, 0.99), f"{note}{PAGE_EVERY_S} s, {number(self.stored)} pending")


def exchange(connection: http.client.HTTPConnection, path: str) -> tuple[bytes, float]:
    """Return body and milliseconds of a GET that must succeed."""
    started_s = _CLOCK.monotonic_s()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    took_ms = (_CLOCK.monotonic_s() - started_s) * 1000
    assert answer.status == 200, body
    return body, took_ms


@contextmanager
def timing(act: Callable[[], float], took_ms: list[float]) -> Iterator[None]:
    """Call `act` REQUESTS_PER_S times a second, in a separate process so that this one does not slow it down."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_repeat, args=(act, theirs))
    process.start()
    try:
        if not ours.poll(_DEADLINE_S):
            raise LateError("the process that is timed does not start")
        ours.recv()
        yield
        ours.send("end")
        if not ours.poll(_DEADLINE_S):
            raise LateError("the process that is timed does not end")
        took_ms.extend(ours.recv())
        process.join(_DEADLINE_S)
    finally:
        if process.is_alive():
            process.kill()


def _repeat(act: Callable[[], float], pipe: Connection) -> None:
    act()
    pipe.send("begun")
    took_ms: list[float] = []
    next_s = _CLOCK.monotonic_s()
    while not pipe.poll(max(0.0, next_s - _CLOCK.monotonic_s())):
        took_ms.append(act())
        next_s += 1 / REQUESTS_PER_S
    pipe.send(took_ms)


@cache
def _connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=10)


def _ask(port: int) -> float:
    return exchange(_connection(port), "/pending")[1]


def _work() -> float:
    started_s, end_s = _CLOCK.monotonic_s(), time.thread_time() + WORK_S
    while time.thread_time() < end_s:
        pass
    return (_CLOCK.monotonic_s() - started_s) * 1000


def crowd(cluster: Cluster, folder: Path, pairs: int, wanted: set[str], *, quick: bool) -> list[Figure]:
    """Measure the wanted ones of pages and requests on one set of messages."""
    many, batch = (100_000, 60_000) if quick else (1_000_000, BATCH)
    name = f"crowd-{uuid.uuid4().hex[:8]}"
    topic, origins = f"bench-{name}", [f"bench-origin-{name}-{each:02d}" for each in range(ORIGINS)]
    cluster.create(topic, *origins)
    with cluster.sidecar(f"bench-{name}", topic, folder) as sidecar:
        sidecar.await_ready()
        say(f"crowd: sidecar {sidecar.pid}, {number(many)} messages for {ORIGINS} origins")
        found = Crowd(cluster, sidecar, origins, batch)
        found.fill(many)
        figures = [found.listing()] if "listing" in wanted else []
        if "asked" in wanted:
            figures += found.asked(pairs)
    return figures
