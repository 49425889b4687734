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
from bench.rates import say
from bench.sidecar_process import SidecarProcess
from bench.traffic import DAY_MS, Sender, over_a_day, send
from bench.waiting import until
from sidecar.clock import SystemClock

ORIGINS = 64
REQUESTS_PER_S = 20
WORK_S = 0.002
"""About what an answer takes of a core."""
PAGES = 200
PAGE_EVERY_S = 0.2
"""As a person turns pages: reads pay for the interpreter they take, so that quicker ones wait for each other."""
_FAR_MS = 20 * 60_000
_DEADLINE_S = 240.0
_CLOCK = SystemClock()


@dataclass(slots=True)
class Crowd:
    """One sidecar and what it holds.

    Args:
        cluster: The broker.
        sidecar: Running.
        origins: Where its messages go, in turn.
        batch: Messages that are taken in while it is measured.
    """

    cluster: Cluster
    sidecar: SidecarProcess
    origins: list[str]
    batch: int
    held: int = 0

    def fill(self, many: int) -> None:
        """Have so many stored."""
        dues_ms = over_a_day(many, _CLOCK.wall_ms(), _FAR_MS)
        send(self.cluster.bootstrap_servers, self.sidecar.topic, self.origins, dues_ms)
        self.cluster.watch_ingest(self.sidecar, many, _DEADLINE_S)
        self.held = many

    def rate(
        self,
        asked: SidecarProcess | None = None,
        took_ms: list[float] | None = None,
        work_ms: list[float] | None = None,
    ) -> float:
        """Return the rate at which a batch is taken in, a second.

        The batch is sent beforehand and becomes visible at once: only sidecar and broker work while it is measured.

        Args:
            asked: Whom to ask meanwhile; nobody without it.
            took_ms: Gets what each answer took.
            work_ms: Gets what each piece of work in a process beside them took, where nobody is asked.
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
        self.held += self.batch
        per_s = rate_between([point for point in progress if point[1] > before]) * 1000
        say(f"full load{'' if asked is None else f', {asked.pid} is asked'}: {number(per_s)} msg/s")
        until(lambda: self.sidecar.pending() == self.held, _DEADLINE_S, "all is counted", step_s=0.2)
        return per_s

    def asked(self, pairs: int) -> list[Figure]:
        """Return what requests cost at full load, and how long they take.

        A process that owns nothing is asked too, in a run of its own: what that takes is not the loop's doing. And
        while nobody is asked, a process that has nothing to do with any of it works now and then for as long as an
        answer takes: how long it waits for a core is the machine's doing.
        """
        took_ms: list[float] = []
        idle_ms: list[float] = []
        work_ms: list[float] = []
        ratios: list[float] = []
        for pair in range(pairs):
            # The order changes from pair to pair: what slows the machine down for a while hits both.
            if pair % 2:
                without = self.rate(work_ms=work_ms)
                ratios.append(self.rate(self.sidecar, took_ms) / without)
            else:
                with_requests = self.rate(self.sidecar, took_ms)
                ratios.append(with_requests / self.rate(work_ms=work_ms))
        servers, folder = self.cluster.bootstrap_servers, self.sidecar.log_path.parent / "api"
        with SidecarProcess(servers, self.sidecar.app_id, self.sidecar.topic, folder, "api") as api:
            api.await_ready()
            self.rate(api, idle_ms)
        note = f"{number(len(took_ms))} requests, p50 {number(percentile(took_ms, 0.5))} ms; of a process that owns "
        note += f"nothing p50 {number(percentile(idle_ms, 0.5))}, p99 {number(percentile(idle_ms, 0.99))} ms; "
        note += f"{WORK_S * 1000:g} ms of work in a process beside them p99 {number(percentile(work_ms, 0.99))} ms"
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        loss = (1 - median(ratios)) * 100
        return [
            measured("asked", percentile(took_ms, 0.99), note),
            measured("asked_loss", loss, f"with ÷ without: {shown}; {number(self.held)} pending in the end"),
        ]

    def listing(self) -> Figure:
        """Return how long a page takes at random places of all that waits."""
        dice = random.Random(self.held)
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
        return measured("listing", percentile(took_ms, 0.99), f"{note}{PAGE_EVERY_S} s, {number(self.held)} pending")


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
    """Act REQUESTS_PER_S times a second, in a process of its own so that nothing here is in its way."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_again_and_again, args=(act, theirs))
    process.start()
    assert ours.poll(_DEADLINE_S), "the process that is timed does not start"
    ours.recv()
    try:
        yield
        ours.send("end")
        assert ours.poll(_DEADLINE_S), "the process that is timed does not end"
        took_ms.extend(ours.recv())
        process.join(_DEADLINE_S)
    finally:
        if process.is_alive():
            process.kill()


def _again_and_again(act: Callable[[], float], pipe: Connection) -> None:
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
    """Measure pages and requests on one set of messages, as far as wanted."""
    many, batch = (100_000, 60_000) if quick else (1_000_000, 300_000)
    name = f"crowd-{uuid.uuid4().hex[:8]}"
    topic, origins = f"bench-{name}", [f"bench-origin-{name}-{each:02d}" for each in range(ORIGINS)]
    cluster.create(topic, *origins)
    with SidecarProcess(cluster.bootstrap_servers, f"bench-{name}", topic, folder) as sidecar:
        sidecar.await_ready()
        say(f"crowd: sidecar {sidecar.pid}, {number(many)} messages for {ORIGINS} origins")
        found = Crowd(cluster, sidecar, origins, batch)
        found.fill(many)
        figures = [found.listing()] if "listing" in wanted else []
        if "asked" in wanted:
            figures += found.asked(pairs)
    return figures
