"""The cost of a micro-batch for the state of the Spark engine over simulated weeks: calls, bytes and the state's size.

It runs the engine's partition steps on a state in memory, at the pace of a simulated clock, without a JVM. Calls and
bytes of the state are exact and the same on every machine; time is CPU time of the process. Then the pending messages
are imported into a fresh state, as by a handover, and both continue with the same messages, in turns of a few steps.

    python -m bench.spark_state --days 7 --rate 1                                  # 604,800 steps, delays up to a month
    python -m bench.spark_state --days 7 --rate 1000 --every-s 60                  # the same week in 10,080 large steps
    python -m bench.spark_state --days 0.042 --rate 1000 --longest-s 600           # six times the longest delay
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from random import Random

from sidecar.changelog.codec import CHECKPOINT_KEY, encode_checkpoint
from sidecar.changelog.entry import KEY, LEVEL_AT, lasting
from sidecar.contract import DIALECTS
from sidecar.engine.items import Arrival
from sidecar.policy import PolicyConfig
from sidecar.spark.handover.changelog import slot_end_of, sorted_blocks, take_over, timers_of
from sidecar.spark.state.entries import META, BufferedEntries, Meta, decode_meta, encode
from sidecar.spark.state.map_state import READS_AHEAD, WRITES_AHEAD
from sidecar.spark.state.shard_store import ShardStore
from sidecar.spark.stream.step import PartitionSteps, Rules, StepResult
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import Chunk, encode_chunk

START_MS = 1_700_000_000_000
MONTH_S = 30 * 86_400
REPORTS = 14
_RULES = Rules(
    policy=PolicyConfig(origin_topics=("orders",)),
    profiles=("native",),
    app_id="app",
    status_topic="app-status",
    owner="spark",
)
COMPARED_STEPS = 32
"""The old state and the fresh one take so many alternately, so that what else the machine does slows both."""


class CountedState:
    """State entries in a dict, with the number of accesses, bytes and round trips."""

    def __init__(self, state: Mapping[bytes, bytes] = {}) -> None:
        self.entries = dict(state)
        self.calls = 0
        self.bytes = 0
        self.trips = 0

    def get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        found = [self.get(state_key) for state_key in state_keys]
        self.trips += -(-len(found) // READS_AHEAD)
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for state_key, value in changes.items():
            if value is None:
                self.remove(state_key)
            else:
                self.put(state_key, value)
        self.trips += -(-len(changes) // WRITES_AHEAD)

    def get(self, state_key: bytes) -> bytes | None:
        value = self.entries.get(state_key)
        self.calls += 1
        self.bytes += len(value or b"")
        return value

    def put(self, state_key: bytes, value: bytes) -> None:
        self.entries[state_key] = value
        self.calls += 1
        self.bytes += len(value)

    def remove(self, state_key: bytes) -> None:
        self.entries.pop(state_key, None)
        self.calls += 1


@dataclass(slots=True)
class Cost:
    """The cost of a number of steps."""

    steps: int = 0
    calls: int = 0
    bytes: int = 0
    trips: int = 0
    most_calls: int = 0
    most_bytes: int = 0
    seconds: float = 0.0
    fired: int = 0

    def __str__(self) -> str:
        steps = max(1, self.steps)
        calls = f"{self.calls / steps:.1f} calls in {self.trips / steps:.1f} round trips"
        mean = f"{calls}, {self.bytes / steps / 1024:.1f} KiB, {self.seconds / steps * 1e3:.2f} ms"
        return f"{mean}; at most {self.most_calls} calls, {self.most_bytes / 1024:.0f} KiB; {self.fired} fired"


class World:
    """One partition over simulated time.

    Args:
        rate: The messages in each step, each with another retry id.
        longest_s: The longest delay: delays are spread from a second to this, evenly over their logarithm.
        payload_bytes: The payload of each message.
        every_s: Simulated seconds from step to step.
    """

    def __init__(self, rate: int, longest_s: int = MONTH_S, payload_bytes: int = 100, every_s: int = 1) -> None:
        self.state = CountedState()
        self.now_ms = START_MS
        self.offset = 0
        self._rate = rate
        self._every_ms = 1000 * every_s
        self._longest = log(longest_s)
        self._value = b"v" * payload_bytes
        self._random = Random(1)
        self._steps = PartitionSteps(_RULES, [DIALECTS["native"]], self._lookup)
        self.state.put(META, encode(Meta(topics=dict(self._lookup(["orders"])))))

    def run(self, steps: int, cost: Cost | None = None) -> Cost:
        """Run this many steps; return their cost, added to the given one."""
        cost, state = cost or Cost(), self.state
        for _ in range(steps):
            self.now_ms += self._every_ms
            arrivals = list(self._arrivals())
            chunks = [encode_chunk(Chunk(arrivals, []))] if arrivals else []
            calls, size, trips, began_s = state.calls, state.bytes, state.trips, time.process_time()
            result = self._steps.step(0, state, chunks, self.now_ms)
            assert result is not None, "each instant has a step"
            cost.seconds += time.process_time() - began_s
            cost.steps += 1
            cost.calls += state.calls - calls
            cost.bytes += state.bytes - size
            cost.trips += state.trips - trips
            cost.most_calls = max(cost.most_calls, state.calls - calls)
            cost.most_bytes = max(cost.most_bytes, state.bytes - size)
            cost.fired += _fired(result)
        return cost

    def take_rate(self, rate: int) -> None:
        """Continue with this many messages in each step."""
        self._rate = rate

    def send(self, dues_ms: Iterable[int]) -> None:
        """Run one step with messages of these dues."""
        self.now_ms += self._every_ms
        chunk = encode_chunk(Chunk([self._arrival(due_ms) for due_ms in dues_ms], []))
        self._steps.step(0, self.state, [chunk], self.now_ms)

    def fresh(self) -> World:
        """Return a world with the same messages pending, in a state that was imported just now."""
        meta = decode_meta(self.state.entries[META])
        checkpoint = meta.checkpoint
        watermark = KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)
        blocks = (value for state_key, value in self.state.entries.items() if state_key[:1] == b"b")
        # Nothing is cancelled here.
        entries = sorted(
            (slot_end_of(each), each[LEVEL_AT], each) for block in blocks for each in timers_of(block, watermark)
        )
        records = sorted_blocks(((0, entry) for _, _, entry in entries), {0: checkpoint.sequence})
        other = World(self._rate)
        other.__dict__.update({**self.__dict__, "state": CountedState(), "_random": Random(2)})
        other._steps = PartitionSteps(_RULES, [DIALECTS["native"]], other._lookup)
        imports = [(key, value) for _, key, value in records]
        take_over(0, other.state, [*imports, (CHECKPOINT_KEY, encode_checkpoint(checkpoint))])
        imported = decode_meta(other.state.entries[META])
        imported.topics, imported.last_step_ms = meta.topics, meta.last_step_ms
        entries_of_other = BufferedEntries(other.state)
        store = ShardStore(entries_of_other, imported, 0)
        while not store.settle():
            pass
        store.save()
        entries_of_other.put(META, encode(imported))
        entries_of_other.flush()
        self._random.seed(2)
        return other

    def pending(self) -> int:
        """Return the number of pending messages."""
        return sum(decode_meta(self.state.entries[META]).counted_origins.values())

    def size(self) -> dict[str, int]:
        """Return the bytes of the state's entries by kind."""
        sizes: dict[str, int] = {}
        for state_key, value in self.state.entries.items():
            kind = state_key[:1].decode()
            sizes[kind] = sizes.get(kind, 0) + len(state_key) + len(value)
        return sizes

    def _arrivals(self) -> Iterator[Arrival]:
        for _ in range(self._rate):
            yield self._arrival(self.now_ms + int(1000 * exp(self._random.uniform(0, self._longest))))

    def _arrival(self, due_ms: int) -> Arrival:
        offset, named = self.offset, b"id-%d" % self.offset
        self.offset += 1
        code = DIALECTS["native"].code
        stays = lasting(due_ms, self.now_ms, 0, 3, code, b"orders", named, b"key", self._value, [])
        return Arrival(offset, due_ms, "orders", stays, named, False)

    def _lookup(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        return {name: TopicMetadata(1, 1_000_000, asked_ms=self.now_ms) for name in names}


def _fired(result: StepResult) -> int:
    return sum(result.tally.fired.values())


def main() -> None:
    """Run, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--rate", type=int, default=10)
    parser.add_argument("--longest-s", type=int, default=MONTH_S)
    parser.add_argument("--every-s", type=int, default=1, help="simulated seconds from step to step")
    parser.add_argument("--window", type=int, default=4096, help="steps that are compared")
    options = parser.parse_args()
    world = World(options.rate, options.longest_s, every_s=options.every_s)
    steps = int(options.days * 86_400) // options.every_s
    shown = -(-steps // REPORTS)
    for done in range(0, steps, shown):
        cost = world.run(min(shown, steps - done))
        size = world.size()
        days = (done + cost.steps) * options.every_s / 86_400
        print(f"day {days:.2f}: {world.pending()} pending, {cost}; {size}", flush=True)
    worlds = {"old": world, "fresh": world.fresh()}
    before = {name: sum(each.size().values()) for name, each in worlds.items()}
    costs = {name: Cost() for name in worlds}
    for _ in range(0, options.window, COMPARED_STEPS):
        for name, each in worlds.items():
            each.run(COMPARED_STEPS, costs[name])
    for name, each in worlds.items():
        after = sum(each.size().values())
        print(f"{name}: {each.pending()} pending, {before[name]} bytes, then {after}; {costs[name]}; {each.size()}")


if __name__ == "__main__":
    main()
