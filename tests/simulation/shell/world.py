"""A random world: a cluster, one to four sidecars, and what must hold whatever happens to them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.contract.control import ControlKind, Target, render_control
from tests.simulation.fakes.cluster import Cluster
from tests.simulation.fakes.local import Disk
from tests.simulation.fakes.logs import Row
from tests.simulation.fakes.rocks import RocksDisk
from tests.simulation.fakes.timeline import START_MS, Timeline
from tests.simulation.shell.ledger import Ledger, Sent, check_stops
from tests.simulation.shell.process import Process, settings_of
from tests.simulation.shell.senders import COMPACTED, GOOD_ORIGINS, NARROW, SHAKY, Senders
from tests.simulation.shell.traits import DELAYS, JITTER, traits_of

CALM_STOP_S: Final = 10.0
"""Longest time for which a good message may stand behind bad ones, and behind each topic that gives no answer."""
HEALED_STOP_S: Final = 30.0
SLOW_STOP_S: Final = 400.0
IDLE_S: Final = 0.5
AT_LAST_S: Final = 1_000.0
"""An origin that was closed is looked at again every five minutes."""
INPUT, DLQ, CHANGELOG, STATUS = "retry", "dlq", "app-retry-queue-changelog", "app-status"
MAX_CLOCK_SKEW_MS: Final = 200_000
"""The most that a clock of a faulty world is off."""


class Mode(Enum):
    """The character of a world."""

    CALM = "calm"
    """Hostile messages and operators, but brokers that answer: nothing good waits behind something bad."""
    SLOW = "slow"
    """A link on which no transaction of the usual size is in time; all the same everything arrives."""
    FAULTY = "faulty"
    """Anything may fail at any step."""


class World:
    """One seed's story.

    Args:
        seed: All that happens comes from it.
        trace: Takes what happens.
        home: An empty folder.
    """

    def __init__(self, seed: int, trace: list[str], home: Path) -> None:
        self.traits = traits = traits_of(seed)
        self._home = home if traits.has_real_disks else None
        self.rng = rng = random.Random(seed)
        self.trace = trace
        self.mode = rng.choices([Mode.CALM, Mode.SLOW, Mode.FAULTY], [35, 5, 60])[0]
        self.origin_timeout_ms = rng.choice([60_000, 86_400_000])
        self.timeline = Timeline(rng)
        self.cluster = Cluster(self.timeline, rng)
        self._make_topics()
        rates = traits.rates if self.mode is Mode.CALM else {}
        self.ledger = Ledger(
            *(self.cluster, self.timeline, INPUT, CHANGELOG, DLQ, traits.own_dlqs, traits.ordered, rates)
        )
        self.cluster.completed = self.ledger.completed
        self.cluster.settled = self.ledger.settled
        self.senders = Senders(rng, is_rich=traits.is_rich)
        self.healing: list[tuple[float, Callable[[], None]]] = []
        client = {"compression.type": rng.choice(["none", "lz4"])}
        settings = settings_of(
            client=client, delays_ms=(1_000,), origin_timeout_ms=self.origin_timeout_ms, origin_policies=traits.policies
        )
        names = [f"s{number}" for number in range(rng.choice([1, 1, 1, 2, 2, 3, 4]))]
        if self.mode is Mode.CALM and len(names) == 1:  # of several, each has closures of its own
            self.ledger.origin_timeout_s = self.origin_timeout_ms / 1000
        self.silent: set[str] = set()
        """What gave no answer for a while."""
        self.hidden_s: list[tuple[float, float]] = []
        """From when until when an origin might not be looked at."""
        self.controls = 0
        self.bad_partitions: set[int] = set()
        """Of the retry topic: what is in them may wait."""
        self._settings = settings
        self._is_static = rng.random() < 0.3
        self.processes = [self.process(name, name) for name in names]
        members = "static" if self._is_static else "dynamic"
        self.say("world", seed, self.mode.value, len(names), "processes", members, client["compression.type"])
        self.timeline.every_step(self._live)
        for process in self.processes:
            process.start()

    def process(self, name: str, instance_id: str) -> Process:
        """Make a process, not started."""
        idle_takes_s = self.rng.choice([0.1, 0.3, 0.5])
        is_static = self._is_static
        return Process(
            *(name, self.cluster, self._settings, idle_takes_s, self.until, self._disk(name)),
            instance_id=instance_id,
            is_static=is_static,
        )

    def _disk(self, name: str) -> Disk | RocksDisk:
        return RocksDisk(self._home / name) if self._home is not None else Disk()

    def _make_topics(self) -> None:
        rng, create = self.rng, self.cluster.create
        partitions = rng.choice([1, 2, 2, 3, 4])
        create(INPUT, partitions, 1_000_000)
        self.cluster.group.partitions = partitions
        create(CHANGELOG, partitions, rng.choice([5_000, 20_000, 1_100_000]), compacted=True)
        create(STATUS, partitions, rng.choice([5_000, 1_000_000]))
        for name in self.dlqs:
            create(name, rng.choice([1, 2]), rng.choice([1_200, 5_000, 1_000_000]))
        for name in (*GOOD_ORIGINS, SHAKY):
            create(name, rng.choice([1, 2]), rng.choice([4_000, 20_000, 1_000_000]))
        create(NARROW, 2, rng.choice([1_000, 3_000]))
        create(COMPACTED, 2, 10_000, compacted=True)

    @property
    def dlqs(self) -> list[str]:
        """Every DLQ."""
        return [DLQ, *self.traits.own_dlqs.values()]

    def say(self, *what: object) -> None:
        self.trace.append(f"{self.timeline.now_s:9.3f} " + " ".join(map(str, what)))

    def _live(self) -> None:
        for process in self.processes:
            process.heartbeat()

    # Rounds

    def rounds(self, count: int) -> None:
        """Let the processes go round so often in all, each when it is its turn in time."""
        for _ in range(count):
            process = min(self.processes, key=Process.next_round_s)
            now_s = self.timeline.now_s
            wait_s = min(process.next_round_s() - now_s, IDLE_S)
            self.timeline.advance(max(0.0, wait_s))
            if process.next_round_s() <= self.timeline.now_s:
                process.round()
            self._heal()

    def _heal(self, *, all_of_it: bool = False) -> None:
        now_s = self.timeline.now_s
        due = [each for each in self.healing if all_of_it or each[0] <= now_s]
        self.healing = [each for each in self.healing if each not in due]
        for _, heal in due:
            heal()

    def until(self, seconds: float, heal: Callable[[], None]) -> None:
        """Have a fault end after so long."""
        self.healing.append((self.timeline.now_s + seconds, heal))

    # Messages

    def _now_ms(self) -> int:
        return self.timeline.now_ms()

    def write(self, sent: Sent) -> None:
        log_count = len(self.cluster.topics[INPUT].logs)
        self.place(sent, self.rng.randrange(log_count))

    def place(self, sent: Sent, partition: int) -> None:
        log = self.cluster.topics[INPUT].logs[partition]
        self.ledger.note(sent, partition, log.end)
        log.append([Row(sent.key, sent.value, sent.headers)], self._now_ms(), None)
        due_ms = sent.due_ms - START_MS
        self.say("sent", sent.number, sent.kind, sent.origin, f"due {due_ms}", f"at {partition}-{sent.offset}")

    def write_control(
        self, kind: ControlKind, target: Target, due_ms: int | None = None, partition: int | None = None
    ) -> None:
        """Write a control record to one partition, or to each."""
        self.controls += 1
        headers = render_control(kind, target, f"control-{self.controls}", due_ms)
        logs = self.cluster.topics[INPUT].logs
        for log in logs if partition is None else logs[partition : partition + 1]:
            log.append([Row(None, None, headers)], self._now_ms(), None)
        self.say("control", kind, target, due_ms)

    def send_good(self) -> None:
        senders, now_ms = self.senders, self._now_ms()
        for _ in range(self.rng.choice([1, 1, 3, 10])):
            chance = self.rng.random() if self.traits.is_rich else 0.5
            if self.traits.has_delays and chance < 0.3:
                clock_ms = 0 if self.mode is Mode.CALM else MAX_CLOCK_SKEW_MS
                self.write(senders.patient(now_ms, DELAYS.delays_ms, JITTER, clock_ms))
            else:
                self.write(senders.far(now_ms) if chance > 0.97 else senders.good(now_ms))

    def send_hostile(self) -> None:
        senders, now_ms = self.senders, self._now_ms()
        limits = [topic.max_bytes for topic in self.cluster.topics.values() if topic.max_bytes <= 30_000]
        makers: list[Callable[[], Sent]] = [
            lambda: senders.sized(now_ms, limits),
            lambda: senders.many_headers(now_ms),
            lambda: senders.bad(now_ms),
            lambda: senders.named(now_ms),
            lambda: senders.keyless(now_ms),
            lambda: senders.shaky(now_ms),
        ]
        make = self.rng.choice(makers)
        for _ in range(self.rng.choice([1, 2, 5])):
            self.write(make())

    # The end

    def finish(self) -> None:
        """End all faults; then everything that is due comes out."""
        self.say("the faults end")
        self._heal(all_of_it=True)
        longest_s = SLOW_STOP_S if self.mode is Mode.SLOW else HEALED_STOP_S
        for process in self.processes:
            process.link.cut = process.link.loses_answers = False
            if self.mode is not Mode.SLOW:
                process.link.bytes_per_s = 1e9
            process.clock.ahead_ms = 0
            if process.producer is not None:
                process.producer.library.hangs = False
            process.start()
        healed_s = max([self.timeline.now_s, *(process.frozen_until_s for process in self.processes)])
        good = self._free(self.ledger.waiting(good_only=True))
        latest_s = max([healed_s, *((each.due_ms + each.slack_ms - START_MS) / 1000 for each in good)])
        held_s = self._held_s()
        self._run_until(latest_s + longest_s + max(held_s.values(), default=0.0), good)
        assert not (left := [each for each in good if not each.out]), ("good messages still wait", left[:3])
        for message in good:
            message.healed_s = healed_s
        check_stops(good, START_MS, longest_s, held_s=held_s)
        if self.mode is Mode.CALM:
            sent = self.ledger.sent.values()
            unhindered = [each for each in sent if each.is_good and each.partition not in self.bad_partitions]
            longest_s = CALM_STOP_S * max(1, len(self.silent))
            check_stops(*(self._free(unhindered), START_MS, longest_s, self.cluster.refusals_s, held_s, self.hidden_s))
        self._run_until(self.timeline.now_s + AT_LAST_S, self.ledger.waiting())
        assert not (left := self.ledger.waiting()), ("messages still wait", left[:3])
        self.ledger.check_rates()
        for process in self.processes:
            process.stop()

    def _free(self, messages: Collection[Sent]) -> list[Sent]:
        """Return those that wait for no earlier one of their key."""
        return [each for each in messages if each.key is None or each.origin not in self.traits.ordered]

    def _held_s(self) -> dict[str, float]:
        """Return by origin with a rate how long all that was sent to it takes, were all of it in one partition."""
        partitions = len(self.cluster.topics[INPUT].logs)
        sent = Counter(each.origin for each in self.ledger.sent.values())
        return {origin: sent[origin] * partitions / rate for origin, rate in self.traits.rates.items()}

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let the processes go round for so long, or until something holds."""
        end_s = self.timeline.now_s + seconds
        while self.timeline.now_s < end_s and not until():
            self.rounds(len(self.processes))

    def _run_until(self, deadline_s: float, messages: Sequence[Sent]) -> None:
        while any(_is_awaited(each) for each in messages) and self.timeline.now_s < deadline_s:
            self.rounds(4 * len(self.processes))


def _is_awaited(message: Sent) -> bool:
    return not (message.out or message.is_touched or message.is_lost)


class Act(NamedTuple):
    """Something that may happen."""

    weight: int
    run: Callable[[World], None]
    calm: bool
    """It may happen in a calm world too."""
