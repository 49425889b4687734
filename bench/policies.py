"""python -m bench.policies: what policies and rates cost, as ratios of processor time, without a broker.

Each world stores and fires the same messages through ingest, plan and the local store. Worlds take turns, and the best
of several runs counts, since other work on the machine only ever adds.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.changelog.codec import encode_checkpoint
from sidecar.contract import dialects_of
from sidecar.engine import hot
from sidecar.engine.apply import apply_committed
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Item
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import Terms
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.store.rocks import RocksStore

NOW_MS: Final = 1_700_000_000_000
ORIGINS: Final = 100
MESSAGES: Final = 40_000
BATCH: Final = 10_000
RUNS: Final = 5
MANY_ORIGINS: Final = 1_000
_IDENTITY: Final = Identity("cluster", "changelog")
_NAMES: Final = tuple(f"orders-{number}" for number in range(ORIGINS))


class World(NamedTuple):
    """Policies, and the least part of the plain speed that they keep."""

    name: str
    config: PolicyConfig
    kept: float


class Seconds(NamedTuple):
    """Processor time."""

    store: float
    fire: float


WORLDS: Final = (
    World("plain", PolicyConfig(), 0.0),
    World(
        "a hundred policies",
        PolicyConfig(by_origin=tuple(PolicyConfig(name=name, delays_ms=(1_000,)) for name in _NAMES)),
        0.9,
    ),
    World("a rate on every origin", PolicyConfig(max_per_second=1_000_000), 0.8),
    World("order per key", PolicyConfig(order_by_key=True), 0.6),
)


def records() -> list[Record]:
    """Return messages of all origins that name their delay, of 512 bytes with three headers.

    Those of a key, fifty in each origin, fall due in the order in which they come, as equal delays do.
    """
    value = bytes(512)
    return [
        Record(
            *(0, offset, NOW_MS, b"key-%d" % (offset // 5_000), value),
            [
                ("retry-origin-topic", _NAMES[offset % ORIGINS].encode()),
                ("retry-delay-ms", b"%d" % (60_000 + offset % 5_000)),
                ("trace", b"0123456789abcdef"),
            ],
        )
        for offset in range(MESSAGES)
    ]


def run(config: PolicyConfig, sent: list[Record], folder: Path) -> Seconds:
    """Store all messages and fire them; return the processor time of each."""
    origins = {name: Origin(4, 1_048_588) for name in _NAMES}
    policy = Policy(config)
    ingest = Ingest(policy, dialects_of(("native",)), origins, (), input_topic="retry", app_id="app")
    terms = Terms("retry", "dlq", "app", origins, rate_of=policy.rate_of)
    store = RocksStore(folder)
    partition = Partition(0)
    partition.transition_to(State.RESTORING)
    partition.transition_to(State.RUNNING)
    offset = 0

    def step(items: list[Item], now_ms: int) -> int:
        nonlocal offset
        made = plan([partition], {0: items} if items else {}, store, now_ms, terms)
        for partition_plan in made.partition_plans:
            offset += len(partition_plan.records)
            apply_committed(store, partition, partition_plan, _IDENTITY, offset)
        return made.deliveries

    began = time.process_time()
    for start in range(0, MESSAGES, BATCH):
        items = [ingest.examine(record, NOW_MS) for record in sent[start : start + BATCH]]
        step([item for item in items if not isinstance(item, str)], NOW_MS)
    stored = time.process_time()
    fired, now_ms = 0, NOW_MS + 60_000
    while fired < MESSAGES:
        now_ms += 500
        fired += step([], now_ms)
    ended = time.process_time()
    store.close()
    return Seconds(stored - began, ended - stored)


def memory_bytes() -> tuple[int, int]:
    """Return the memory and the checkpoint bytes of origins with rates that all hold messages."""
    policy = Policy(PolicyConfig(max_per_second=1.0))
    assert policy.rate_of is not None
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    origins = {f"orders-{number:024}": Origin(4, 1_048_588) for number in range(MANY_ORIGINS)}
    terms = Terms("retry", "dlq", "app", origins, rate_of=policy.rate_of)
    ingest = Ingest(policy, dialects_of(("native",)), origins, (), input_topic="retry", app_id="app")
    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore(Path(folder))
        partition = Partition(0)
        for state in (State.RESTORING, State.RUNNING):
            partition.transition_to(state)
        overdue = [
            ingest.examine(Record(0, at, NOW_MS, None, b"", [("retry-origin-topic", name.encode()), _OVERDUE]), NOW_MS)
            for at, name in enumerate([*origins, *origins])
        ]
        made = plan([partition], {0: [item for item in overdue if not isinstance(item, str)]}, store, NOW_MS, terms)
        (partition_plan,) = made.partition_plans
        apply_committed(store, partition, partition_plan, _IDENTITY, len(partition_plan.records))
        del made, partition_plan, overdue
        held = tracemalloc.get_traced_memory()[0] - before
        store.close()
    tracemalloc.stop()
    return held, len(encode_checkpoint(partition.checkpoint))


_OVERDUE: Final = ("retry-due-ms", b"1")


def best(measure: Callable[[World], Seconds]) -> dict[str, Seconds]:
    """Return the least processor time of each world, over runs in turn."""
    found: dict[str, Seconds] = {}
    for _ in range(RUNS):
        for world in WORLDS:
            took = measure(world)
            least = found.get(world.name, took)
            found[world.name] = Seconds(min(least.store, took.store), min(least.fire, took.fire))
    return found


def main() -> int:
    """Print the ratios; return 1 when one is missed."""
    sent = records()

    def measure(world: World) -> Seconds:
        with tempfile.TemporaryDirectory() as folder:
            return run(world.config, sent, Path(folder))

    found = best(measure)
    plain = found[WORLDS[0].name]
    missed = False
    print(f"hot path: {hot.KIND}; {MESSAGES:,} messages, {ORIGINS} origins, best of {RUNS}")
    for world in WORLDS:
        store, fire = (plain.store / found[world.name].store, plain.fire / found[world.name].fire)
        missed |= min(store, fire) < world.kept
        each = [seconds / MESSAGES * 1e6 for seconds in found[world.name]]
        print(f"{world.name:<24} store {store:5.0%} ({each[0]:.1f} µs)  fire {fire:5.0%} ({each[1]:.1f} µs)")
    memory, checkpoint = memory_bytes()
    missed |= memory > 50 * 1024 * 1024
    print(f"{MANY_ORIGINS:,} origins with rates: {memory / 1024 / 1024:.1f} MiB, checkpoint {checkpoint:,} bytes")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
