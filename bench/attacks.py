"""Lateness of what falls due while a stranger attacks the HTTP port, beside the same without an attack.

The instance has an API_TOKEN, and API_READ=open: so strangers reach more than by default.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from bench.attackers import ATTACKS
from bench.cluster import Cluster
from bench.figures import Figure, measured, number, percentile
from bench.operating import waiting
from bench.sidecar_process import SidecarProcess
from bench.traffic import send
from bench.waiting import LateError, say, until
from sidecar.clock import SystemClock

NAMES = ("attack_none", *(f"attack_{name}" for name in ATTACKS))
MESSAGES = 1_000
FALL_DUE_S = 10
LEAD_S = 4
"""From the sending to the first due; the attack begins halfway."""
BOMBS = 24
HEADERS = 60_000
EXCEPTION_BYTES = 900_000
TOKEN = "token-of-the-benchmark"
PROBES = ("/livez", "/readyz")
PROBE_EVERY_S = 0.2
PROBE_S = 1.0
"""The time that Kubernetes gives a probe by default."""
CANCEL_EVERY_S = 0.5
FAR_MS = 6 * 3_600_000
_DEADLINE_S = 60.0
_CLOCK = SystemClock()


@dataclass(slots=True)
class Asked:
    """What somebody who asks again and again was answered."""

    what: str
    took_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.took_ms)} {self.what}, p99 {number(percentile(self.took_ms, 0.99))} ms"


def attacks(cluster: Cluster, folder: Path, wanted: Sequence[str] = NAMES) -> list[Figure]:
    """Return p99 of the lateness without an attack and during each of the wanted ones.

    Raises:
        AssertionError: A probe or the operator was not answered.
    """
    name = f"attacks-{uuid.uuid4().hex[:8]}"
    topic, origin = f"bench-{name}", f"bench-origin-{name}"
    cluster.create(topic, origin)
    open_reads = {"API_TOKEN": TOKEN, "API_READ": "open"}
    fired = 0
    figures: list[Figure] = []
    plain_ms = math.nan
    with cluster.sidecar(f"bench-{name}", topic, folder, **open_reads) as sidecar:
        sidecar.await_ready()
        bombs = plant(cluster.bootstrap_servers, topic, origin)
        until(lambda: sidecar.pending() == bombs, _DEADLINE_S, "the bombs wait")
        say(f"attacks: sidecar {sidecar.pid}")
        for each in wanted:
            attack = each.removeprefix("attack_")
            probes, operator, tried = _during(cluster, sidecar, topic, origin, attack)
            fired += MESSAGES
            late_ms = [each.append_ms - each.was_due_ms for each in cluster.arrivals(origin, fired)[-MESSAGES:]]
            p50, p99 = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
            if attack == "none":
                plain_ms = p99
            wrong = [*probes.wrong, *operator.wrong]
            assert not wrong, f"{attack}: {len(wrong)} were not answered: {wrong[:3]}"
            against = "" if attack == "none" else f"{number(p99 / plain_ms)} × without; "
            figures.append(measured(each, p99, f"p50 {number(p50)} ms; {against}{probes}; {operator}; {tried}"))
            say(f"{each}: p99 {number(p99)} ms; {figures[-1].note}")
    return figures


def _during(
    cluster: Cluster, sidecar: SidecarProcess, topic: str, origin: str, attack: str
) -> tuple[Asked, Asked, str]:
    """Let the messages fall due while the attack goes on."""
    servers = cluster.bootstrap_servers
    before = sidecar.pending()
    timers = waiting(servers, topic, origin, int(FALL_DUE_S / CANCEL_EVERY_S))
    due_ms = _CLOCK.wall_ms() + LEAD_S * 1000
    send(servers, topic, origin, (due_ms + each * FALL_DUE_S * 1000 // MESSAGES for each in range(MESSAGES)))
    until(lambda: sidecar.pending() >= before + MESSAGES + len(timers), LEAD_S / 2, "all wait", step_s=0.1)
    probes, operator = Asked("probes"), Asked("cancels")
    ended = threading.Event()
    asking = [
        threading.Thread(target=_probe, args=(sidecar, ended, probes)),
        threading.Thread(target=_cancel, args=(sidecar, ended, operator, timers)),
    ]
    with attacking(attack, sidecar.port, LEAD_S + FALL_DUE_S) as tried:
        for thread in asking:
            thread.start()
        try:
            until(lambda: _CLOCK.wall_ms() > due_ms + FALL_DUE_S * 1000, _DEADLINE_S, "all are due", step_s=0.2)
        finally:
            ended.set()
            for thread in asking:
                thread.join()
    left = before + len(timers) - len(operator.took_ms)
    until(lambda: sidecar.pending() == left, _DEADLINE_S, "all have fired")
    return probes, operator, ", ".join(tried)


def _probe(sidecar: SidecarProcess, ended: threading.Event, probes: Asked) -> None:
    while not ended.wait(PROBE_EVERY_S):
        for path in PROBES:
            _ask(sidecar, "GET", path, probes)


def _cancel(sidecar: SidecarProcess, ended: threading.Event, operator: Asked, timers: Sequence[str]) -> None:
    for timer in timers:
        if ended.wait(CANCEL_EVERY_S):
            return
        _ask(sidecar, "DELETE", f"/pending/messages/{timer}", operator)


def _ask(sidecar: SidecarProcess, method: str, path: str, asked: Asked) -> None:
    connection = sidecar.connect()
    started_s = _CLOCK.monotonic_s()
    try:
        connection.request(method, path, headers={"authorization": f"Bearer {TOKEN}"} if method == "DELETE" else {})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            asked.wrong.append(f"{method} {path}: {answer.status}")
    except OSError as error:
        asked.wrong.append(f"{method} {path}: {error!r}")
    finally:
        connection.close()
    asked.took_ms.append((_CLOCK.monotonic_s() - started_s) * 1000)


@contextmanager
def attacking(attack: str, port: int, seconds: int) -> Iterator[list[str]]:
    """Yield a list while a separate process attacks; then it has what the attacker was answered."""
    tried: list[str] = []
    if attack == "none":
        yield tried
        return
    command = [sys.executable, "-m", "bench.attackers", attack, str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), "the attacker did not start"
            yield tried
            said, _ = process.communicate(timeout=seconds + _DEADLINE_S)
            assert process.returncode == 0, "the attacker failed"
            tried.append(said.strip())
        except subprocess.TimeoutExpired as late:
            raise LateError("the attacker did not end in time") from late
        finally:
            process.kill()


def plant(servers: str, topic: str, origin: str) -> int:
    """Send the messages that are large to show or to filter, and return how many there are."""
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 1_000_000, "log_level": 0})
    failed: list[object] = []
    due = b"%d" % (_CLOCK.wall_ms() + FAR_MS)
    plain: list[tuple[str, str | bytes | None]] = [("retry-origin-topic", origin.encode()), ("retry-due-ms", due)]
    many: list[tuple[str, str | bytes | None]] = [("h", b"")] * HEADERS
    for each in range(BOMBS):
        for headers in (
            [*plain, ("retry-id", b"bomb"), *many],
            [*plain, ("retry-exception", b"a" * EXCEPTION_BYTES)],
        ):
            producer.produce(
                topic, b"", b"%d" % each, headers=headers, on_delivery=lambda error, _: failed.append(error)
            )
            producer.poll(0)
    if producer.flush(_DEADLINE_S):
        raise LateError("the broker did not take the bombs in time")
    if wrong := [error for error in failed if error is not None]:
        raise KafkaException(wrong[0])
    return len(failed)
