"""A partition that waits for a DLQ, beside a healthy one: the healthy one is as fast as if the other were empty."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from sidecar.contract.control import ControlKind, render_control
from sidecar.contract.status import parse_outcome_key
from sidecar.model import Headers
from sidecar.runtime.partitions import buffer
from tests.simulation.fakes.cluster import Cluster
from tests.simulation.fakes.local import Disk
from tests.simulation.fakes.logs import Row, Transaction
from tests.simulation.fakes.timeline import Timeline
from tests.simulation.shell.process import Process, settings_of
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import CHANGELOG, DLQ, INPUT, STATUS

ORIGIN: Final = "orders"
BAD, GOOD = 0, 1
"""Partitions of the retry topic."""
ITEMS_MAX: Final = 100
LETTERS: Final = 5 * ITEMS_MAX
EVERY_S: Final = 0.5
NEAR_S: Final = 0.3
"""A few rounds, which come at other instants when there is more to do."""


class Scene:
    """A cluster, one sidecar, and a healthy partition that gets a message and a control record from time to time."""

    def __init__(self) -> None:
        rng = random.Random(7)
        self.timeline = Timeline(rng)
        self.cluster = cluster = Cluster(self.timeline, rng)
        for name, partitions in ((INPUT, 2), (CHANGELOG, 2), (STATUS, 2), (DLQ, 1), (ORIGIN, 1)):
            cluster.create(name, partitions, 1_000_000, compacted=name == CHANGELOG)
        cluster.group.partitions = 2
        cluster.completed = self._completed
        settings = settings_of(fatal_exception=("com.Fatal",))
        self.process = Process("s", cluster, settings, 0.1, lambda *_: None, Disk(), instance_id="s", is_static=False)
        self.timeline.every_step(self.process.heartbeat)
        self.done_s: dict[bytes, float] = {}
        """When each message was delivered, and each control record answered, by key."""
        self.dead = 0
        self.process.start()

    def _completed(self, transaction: Transaction) -> None:
        for topic, _, entry in transaction.writes:
            key = entry.row.key
            if topic == STATUS and (answered := parse_outcome_key(key)) is not None:
                key = answered[0].encode()
            if topic in {ORIGIN, STATUS} and key is not None:
                self.done_s.setdefault(key, self.timeline.now_s)
            self.dead += topic == DLQ

    def write(self, partition: int, key: bytes | None, *headers: tuple[str, bytes]) -> None:
        found: Headers = list(headers)
        self.cluster.send(INPUT, partition, Row(key, b"v", found), self.timeline.now_ms())

    def letter(self) -> None:
        self.write(BAD, b"letter", ("retry-origin-topic", b"orders"), ("retry-exception", b"com.Fatal"))

    def run(self, seconds: float) -> None:
        end_s = self.timeline.now_s + seconds
        while self.timeline.now_s < end_s:
            self.timeline.advance(max(0.0, self.process.next_round_s() - self.timeline.now_s))
            self.process.round()

    def until(self, condition: Callable[[], bool], at_most_s: float) -> None:
        end_s = self.timeline.now_s + at_most_s
        while not condition():
            assert self.timeline.now_s < end_s, "it does not come about"
            self.run(0.05)

    def watch(self, seconds: float) -> float:
        """Send to the healthy partition for so long; return the longest time until something had its effect."""
        sent_s: dict[bytes, float] = {}
        for number in range(int(seconds / EVERY_S)):
            name = b"%d-%d" % (number, len(self.done_s))
            for key, headers in (
                (b"m" + name, [("retry-origin-topic", b"orders"), ("retry-delay-ms", b"0")]),
                (b"c" + name, render_control(ControlKind.CANCEL, b"none", f"c{name.decode()}")),
            ):
                sent_s[key] = self.timeline.now_s
                self.write(GOOD, key, *headers)
            self.run(EVERY_S)
        self.run(1.0)
        return max(self.done_s.get(key, float("inf")) - at_s for key, at_s in sent_s.items())

    @property
    def closed(self) -> bool:
        assert self.process.loop is not None
        return bool(self.process.loop._failures._closed_dlqs)


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buffer, "BUFFER_ITEMS_MAX", ITEMS_MAX)
    monkeypatch.setattr(buffer, "AMPLE_ITEMS", ITEMS_MAX * 4 // 5)
    with quiet():
        yield


def delete(scene: Scene) -> Callable[[], None]:
    scene.cluster.delete(DLQ)

    def mend() -> None:
        scene.cluster.create(DLQ, 1, 1_000_000)

    return mend


def deny(scene: Scene) -> Callable[[], None]:
    topic = scene.cluster.topics[DLQ]
    topic.may_write = False
    return lambda: setattr(topic, "may_write", True)


def silence(scene: Scene) -> Callable[[], None]:
    (log,) = scene.cluster.topics[DLQ].logs
    log.has_leader = False
    return lambda: setattr(log, "has_leader", True)


@pytest.mark.parametrize("spoil", [delete, deny, silence])
def test_a_healthy_partition_is_not_later_because_another_one_waits_for_a_dlq(
    spoil: Callable[[Scene], Callable[[], None]],
) -> None:
    alone = Scene()
    alone.run(5)
    expected_s = alone.watch(60)
    assert expected_s < 1
    scene = Scene()
    mend = spoil(scene)
    scene.run(5)
    scene.write(BAD, b"due", ("retry-origin-topic", b"orders"), ("retry-delay-ms", b"30000"))
    for _ in range(LETTERS):
        scene.letter()
    scene.until(lambda: scene.closed, 60)
    scene.run(2)  # all partitions recover after the transaction that failed
    assert scene.watch(60) <= expected_s + NEAR_S
    assert scene.dead == 0
    assert b"due" in scene.done_s, "what is pending in the other one fires"
    mend()
    scene.until(lambda: scene.dead == LETTERS, 60)
    assert not scene.closed
