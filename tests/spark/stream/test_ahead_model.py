"""Exactly once in random worlds: real steps, sink and marks, over a log and a Spark that are simulated.

A micro-batch is planned, run by workers that may die anywhere or be taken for dead and go on, and completed or not.
What is sent ahead is sent meanwhile. The clocks of drivers and workers are off. Each message must be in the log once,
and none before its due by the broker's clock.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.changelog.codec import encode_checkpoint
from sidecar.contract import DIALECTS
from sidecar.errors import TransactionFailed
from sidecar.kafka.writer import Written
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.marks import MarkedCheckpoint, ReplayClosings, TopicsRefuse, decode_marked, replay_closings
from sidecar.spark.stream import clock_check, sink, topic_metadata
from sidecar.spark.stream.ahead import Ahead, ReleaseClock
from sidecar.spark.stream.clock_check import ClockCheck
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.sender import Sender
from sidecar.spark.stream.sink import TransactionalSink, Worker
from sidecar.spark.stream.step import PartitionSteps
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import Chunk, encode_chunk, rows_of
from tests.spark.state.dict_state import DictState
from tests.spark.stream.test_partition_step import NOW, RULES

PARTITIONS = 2
SETTINGS = Settings(bootstrap_servers="nowhere:9092")


class Died(Exception):
    """The worker died here."""


class Log:
    """The committed records, the last checkpoints, and the epoch of the transactional id."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sent: list[bytes] = []
        self.changelog: dict[int, MarkedCheckpoint] = {}
        self.epoch = 0
        self.ahead = 0
        self.closed = False
        self.failing = 0.1
        self.now_ms = NOW


class Worlds(Sender):
    """A sender whose transactions go to the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._settings = SETTINGS
        self._checkpoint = "checkpoint"
        self._writer = str(id(self))
        self._siblings = frozenset(range(PARTITIONS))
        self._standing = {}
        self._producer: Any = None
        self._epoch = -1
        self._pause: Any = SimpleNamespace(wait=lambda _: None)
        self._batch_bytes = 1_000_000

    def _fencing(self) -> Any:
        self._log.epoch += 1
        self._epoch = self._log.epoch
        return SimpleNamespace(close=lambda: None)

    def _last(self, partitions: Iterable[int]) -> dict[int, MarkedCheckpoint]:
        return {each: self._log.changelog[each] for each in partitions if each in self._log.changelog}

    def _commit(
        self,
        outputs: Sequence[PlanOutput],
        moving: Sequence[PlanOutput],
        marked: Mapping[int, MarkedCheckpoint],
        *_: Any,
        **__: Any,
    ) -> None:
        assert {output.partition for output in moving} == marked.keys()
        log, chance = self._log, self._log.chance
        if self._epoch != log.epoch:
            raise TransactionFailed("fenced", unknown=True, replace=True, fenced=True)
        if chance.random() < log.failing / 2:
            raise Died if chance.random() < 0.5 else TransactionFailed("no answer", unknown=False, replace=True)
        records = [each for output in outputs for each in output.records()]
        if log.closed and any(each.topic == "orders" for each in records):
            if any(output.ahead for output in outputs):
                raise TransactionFailed("refused", unknown=False, replace=True)
            raise TopicsRefuse({"orders": "unreachable"}, "no")
        assert all(each.due_ms <= log.now_ms for each in records), "early by the broker's clock"
        log.sent += [dict(each.headers)["retry-timer-id"] or b"" for each in records]
        log.ahead += sum(output.count for output in outputs if output.ahead)
        for number, checkpoint in marked.items():
            log.changelog[number] = decode_marked(encode_checkpoint(checkpoint))
        if chance.random() < log.failing / 2:
            raise Died if chance.random() < 0.5 else TransactionFailed("no answer", unknown=True, replace=True)

    def _handle_refusals(self, *_: Any) -> None: ...
    def _publish(self, *_: Any) -> None: ...


class WorkerClock:
    """The clocks of a worker: the wall is off, and the other goes at a speed of its own."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ahead_ms = log.chance.choice((-800, 0, 800, 50_000))
        self._speed = log.chance.choice((0.9995, 1.0, 1.0005))

    def wall_ms(self) -> int:
        return self._log.now_ms + self._ahead_ms

    def monotonic_s(self) -> float:
        return (self._log.now_ms - NOW) / 1000 * self._speed


class Broker:
    """Stamps records by the clock of the log, and takes its time to answer."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, *_: Any, report: Any, **__: Any) -> None:
        self._report, self._stamped_ms = report, self._log.now_ms

    def flush(self, _: float) -> None:
        self._log.now_ms += self._log.chance.choice((0, 2, 60))
        self._report(Written(0, 0, self._stamped_ms))


def clock_of(log: Log, monkeypatch: pytest.MonkeyPatch) -> ReleaseClock:
    """Return the clock of a new worker; a wait moves the log's on."""
    monkeypatch.setattr(clock_check, "Writer", lambda _: Broker(log))
    clock = ReleaseClock(SETTINGS, ClockCheck(SETTINGS, WorkerClock(log)))

    def wait(seconds: float) -> None:
        log.now_ms += max(1, round(seconds * 1000))

    pause: Any = SimpleNamespace(wait=wait)
    clock._pause = pause
    return clock


class ByHand(Ahead):
    """Sends when it is told to, while its thread would run."""

    runs = False

    def _start(self) -> None:
        self.runs = True

    def pause(self) -> None:
        self.runs = False

    def go_on(self) -> None:
        if self.runs and self._left:
            try:
                self.send_released()
            except Died:
                self._left = []


class Spark:
    """Runs micro-batches over two partitions, and repeats those that did not complete."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.chance = log, log.chance
        self.states = [DictState() for _ in range(PARTITIONS)]
        self.batch = 0
        self.offsets = [0] * PARTITIONS
        self.workers: list[Worker] = []
        self.planned: tuple[int, list[list[Record]]] | None = None
        self.idle: set[int] = set()
        self.refusing: dict[str, str] = {}
        self.closings = ReplayClosings()
        self.came = 0
        self.now_ms = 0
        """The instant of the last micro-batch, by the driver's clock."""
        self._monkeypatch = monkeypatch
        self._set_clock()

    def plan(self, records: Sequence[tuple[int, int]]) -> None:
        """Plan a micro-batch, of partitions and delays."""
        found: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        for number, delay_ms in records:
            headers: Any = [("retry-origin-topic", b"orders"), ("retry-delay-ms", b"%d" % delay_ms)]
            found[number].append(Record(number, self.offsets[number], self.log.now_ms, b"k", b"v", headers))
            self.offsets[number] += 1
            self.came += 1
        self.idle = {number for number in range(PARTITIONS) if not found[number] and self.chance.random() < 0.3}
        # A driver whose clock is behind that of the one before plans its first micro-batch right behind the last one.
        self.now_ms = max(self.log.now_ms + self.ahead_ms, self.now_ms + 1)
        self.planned = (self.now_ms, found)

    def run(self) -> bool:
        """Run the planned micro-batch once; return whether it completed."""
        assert self.planned is not None
        now_ms, records = self.planned
        states = copy.deepcopy(self.states)
        if not self.workers or self.chance.random() < 0.4:
            made = Worlds(self.log)
            self.workers.append(Worker(made, ByHand(made, clock_of(self.log, self._monkeypatch))))
        worker = self.chance.choice(self.workers[-2:])
        self._monkeypatch.setattr(TransactionalSink, "_worker", lambda _: worker)
        steps = PartitionSteps(RULES, [DIALECTS["native"]], self._lookup, self.closings)
        one = TransactionalSink(SETTINGS, "checkpoint", (PARTITIONS, 1))
        one.open(0, self.batch)
        self._monkeypatch.setattr(sink, "TRANSACTION_RECORDS_MAX", self.chance.choice((1, 4, 50_000)))
        try:
            for number, state in enumerate(states):
                chunks = [encode_chunk(Chunk([], [each])) for each in records[number]]
                if number in self.idle:
                    continue  # neither records nor a timer: it has no step
                self._elapse()
                result = steps.step(number, state, chunks, now_ms)
                for part in result.output_parts if result is not None else ():
                    for row in rows_of(part):
                        one.process({"payload": row})
            one.close(None)
            self._elapse()
            if self.chance.random() < self.log.failing:
                raise Died
        except TopicsRefuse as refusal:
            self.refusing.update(TopicsRefuse.read(f"TopicsRefuse: {refusal}"))
            self.start_again()
            return False
        except (Died, TransactionFailed):
            if self.chance.random() < 0.5:
                self.start_again()
            return False
        self.states, self.planned = states, None
        self.batch += 1
        self.refusing, self.closings = {}, ReplayClosings()
        if self.chance.random() < self.log.failing:
            self.start_again()
        return True

    def start_again(self) -> None:
        """Start the driver again, maybe on another machine; workers of before may still be there."""
        self._set_clock()
        self.log.epoch += 1
        if self.planned is not None:
            marks = group.marks(self.log.changelog)
            self.closings = replay_closings(self.planned[0], self.batch, marks, self.refusing)

    def _set_clock(self) -> None:
        self.ahead_ms = self.chance.choice((-800, 0, 0, 800, 5_000))
        """The driver's clock minus the broker's."""

    def _elapse(self) -> None:
        """Let time pass, in which what was handed out is sent, also by those that should be dead."""
        for _ in range(self.chance.randrange(4)):
            self.log.now_ms += self.chance.choice((20, 100, 300))
            for worker in self.workers[-3:]:
                assert isinstance(worker.ahead, ByHand)
                worker.ahead.go_on()

    def _lookup(self, names: Any) -> dict[str, TopicMetadata]:
        closed = "unreachable" if self.log.closed and self.chance.random() < 0.5 else ""
        return {name: TopicMetadata(2, 1_000_000, closed, asked_ms=self.log.now_ms) for name in names}


@pytest.mark.parametrize("seed", range(60))
def test_each_message_is_sent_once_and_not_early_whoever_dies_when(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(topic_metadata, "REFRESH_MS", 0)
    log = Log(chance)
    spark = Spark(log, monkeypatch)
    for at in range(60):
        log.now_ms += chance.choice((1, 200, 500))
        log.closed = at in range(20, 40) and seed % 3 == 0
        delays = (0, 1, 90, 400, 900, 1500, 3000)
        spark.plan([(chance.randrange(PARTITIONS), chance.choice(delays)) for _ in range(chance.choice((0, 1, 6)))])
        for _ in range(200):
            if spark.run():
                break
        else:
            raise AssertionError("a micro-batch never completes")
    log.failing, log.closed = 0.0, False
    while log.now_ms < NOW + 60 * 60_000 and len(log.sent) < spark.came:
        log.now_ms += 2_000
        spark.plan([])
        for _ in range(20):
            if spark.run():
                break
    assert [each for each, many in Counter(log.sent).items() if many > 1] == []
    assert len(log.sent) == spark.came
    assert log.ahead > 0
