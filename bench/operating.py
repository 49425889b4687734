"""The figures of operating: counts of the group, and cancels until their definite answer."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import threading
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile
from bench.sidecar_process import SidecarProcess
from bench.traffic import steady
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

NAMES = ("counts", "asked", "listing", "cancel")
COUNTS_RATE = 500
CANCEL_RATE = 5_000
DELAYS_MS = (1_000, 10_000)
CANCEL_EVERY_S = 0.1
_FAR_MS = (3_600_000, 7_200_000)
_DEADLINE_S = 60.0
_CLOCK = SystemClock()


def counts(cluster: Cluster, folder: Path, seconds: int) -> list[Figure]:
    """Return the age of the total that a process without partitions shows, while two instances ingest messages.

    The truth is the sum of the group's committed offsets, since nothing fires. The two are requested in turn.
    """
    name = f"counts-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    servers, app_id = cluster.bootstrap_servers, f"bench-{name}"
    with ExitStack() as stack:
        group = [stack.enter_context(cluster.sidecar(app_id, topic, folder / each)) for each in ("one", "two")]
        api = stack.enter_context(cluster.sidecar(app_id, topic, folder / "api", "api"))
        for each in (*group, api):
            each.await_ready()
        until(lambda: _owners(api) == len(group), _DEADLINE_S, "both have partitions")
        say(f"counts: sidecars {group[0].pid} and {group[1].pid}, api {api.pid}, {seconds} s")
        truth: list[tuple[float, int]] = []
        shown: list[tuple[float, int]] = []
        with load(servers, topic, origin, COUNTS_RATE, seconds, _FAR_MS) as sending:
            while sending.is_alive():
                # The truth is stamped before the request, the answer after it: the age is never too small.
                truth.append((_CLOCK.wall_ms(), cluster.committed(group[0].group, topic)))
                total = api.pending()
                shown.append((_CLOCK.wall_ms(), total))
    late_ms = behind(truth, shown)
    note = f"{number(COUNTS_RATE)} msg/s into two instances, asked of a third process; {number(len(late_ms))} answers"
    return [measured("counts_p50", percentile(late_ms, 0.5), note), measured("counts_max", max(late_ms))]


def _owners(api: SidecarProcess) -> int:
    status, body = api.get("/pending")
    running = status == 200 and body["complete"] and {each["state"] for each in body["partitions"]} == {"running"}
    return len({each["owner"] for each in body["partitions"]}) if running else 0


def behind(truth: Sequence[tuple[float, int]], shown: Sequence[tuple[float, int]]) -> list[float]:
    """Return the age of each total that was shown while the truth moved; 0 when it was still true.

    Args:
        truth: (time, total) in order, never falling.
        shown: (time, total).
    """
    totals = [total for _, total in truth]
    first_at = truth[bisect_right(totals, totals[0])][0]
    last_at = truth[bisect_left(totals, totals[-1])][0]
    ages = []
    for at, total in shown:
        if not first_at < at < last_at:
            continue
        outdated = bisect_right(totals, total)
        ages.append(max(0.0, at - truth[outdated][0]) if outdated < len(truth) else 0.0)
    return ages


def cancel(cluster: Cluster, folder: Path, seconds: int) -> list[Figure]:
    """Return the time until DELETE answers `cancelled` at a steady rate in and out.

    The requests go in turn to the instance that fires and to a process without partitions.
    """
    name = f"cancel-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    servers, app_id = cluster.bootstrap_servers, f"bench-{name}"
    building_s = DELAYS_MS[1] / 1000
    with ExitStack() as stack:
        owner = stack.enter_context(cluster.sidecar(app_id, topic, folder))
        owner.await_ready()  # it creates the topics that the other one reads
        api = stack.enter_context(cluster.sidecar(app_id, topic, folder / "api", "api"))
        api.await_ready()
        timers = waiting(servers, topic, origin, int(seconds / CANCEL_EVERY_S))
        until(lambda: owner.pending() == len(timers), _DEADLINE_S, "those to be cancelled wait")
        say(f"cancel: sidecar {owner.pid}, api {api.pid}, {seconds} s")
        took_ms: dict[str, list[float]] = {"owner": [], "api": []}
        with load(servers, topic, origin, CANCEL_RATE, seconds + int(building_s), DELAYS_MS) as sending:
            threading.Event().wait(building_s)
            for timer in timers:
                if not sending.is_alive():
                    break
                name = "owner" if len(took_ms["owner"]) <= len(took_ms["api"]) else "api"
                took_ms[name].append(_cancel_ms(owner if name == "owner" else api, timer))
                threading.Event().wait(CANCEL_EVERY_S)
    every_ms = [each for some in took_ms.values() for each in some]
    split = ", ".join(f"{who} p99 {number(percentile(some, 0.99))}" for who, some in took_ms.items())
    note = f"{number(len(every_ms))} at {number(CANCEL_RATE)} msg/s; {split}, max {number(max(every_ms))} ms"
    return [measured("cancel_p50", percentile(every_ms, 0.5), note), measured("cancel_p99", percentile(every_ms, 0.99))]


def waiting(servers: str, topic: str, origin: str, count: int) -> list[str]:
    """Send messages that are not due for long, and return their timer ids."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
    timers: list[str] = []
    for each in range(count):
        due_ms = _CLOCK.wall_ms() + _FAR_MS[0] + each

        def delivered(error: KafkaError | None, message: Message, due_ms: int = due_ms) -> None:
            assert error is None, error
            timers.append(f"{message.partition()}-{message.offset()}-{due_ms}")

        headers: Any = [("retry-origin-topic", origin.encode()), ("retry-due-ms", b"%d" % due_ms)]
        producer.produce(topic, b"value", b"%d" % each, headers=headers, on_delivery=delivered)
    if producer.flush(_DEADLINE_S):
        raise LateError("the broker did not take all in time")
    return timers


def _cancel_ms(asked: SidecarProcess, timer: str) -> float:
    connection = asked.connect()
    started_s = _CLOCK.monotonic_s()
    try:
        status, body = _exchange(connection, "DELETE", f"/pending/messages/{timer}")
    finally:
        connection.close()
    assert (status, body["result"]) == (200, "cancelled"), body
    return (_CLOCK.monotonic_s() - started_s) * 1000


def _exchange(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, Any]:
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@contextmanager
def load(
    servers: str, topic: str, origin: str, rate: int, seconds: int, delays_ms: tuple[int, int]
) -> Iterator[multiprocessing.context.SpawnProcess]:
    """Yield the process that sends at a steady rate; see `bench.traffic.steady`."""
    process = multiprocessing.get_context("spawn").Process(
        target=steady, args=(servers, topic, origin, rate, seconds, delays_ms)
    )
    process.start()
    try:
        yield process
        process.join(seconds + _DEADLINE_S)
        if process.exitcode is None:
            raise LateError("the load generator did not do its work in time")
        assert process.exitcode == 0, "the load generator failed"
    finally:
        if process.is_alive():
            process.kill()
