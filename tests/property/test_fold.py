"""The meaning of a changelog does not depend on what compaction has done to it, nor on the order of different keys."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fold import Folded, LogRecord, fold
from tests.simulation.audit import check_fold, check_rows
from tests.simulation.limits import small_limits
from tests.simulation.world import World

seeds = st.integers(0, 2**32)


def grown(seed: int) -> World:
    """Return a world with a log that no cleaner has touched."""
    world = World(seed)
    for _ in range(40):
        world.send()
        world.rng.choice([world.command, world.shuffle_one_timer, world.pause, world.reset_offsets])()
        world.turn_clock()
        world.take_step()
    return world


def folded(records: Sequence[LogRecord]) -> tuple[Folded, frozenset[tuple[bytes, bytes]]]:
    found = fold(records)
    return found, frozenset(found.pending.items())


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans())
def test_any_legal_compaction_gives_the_same_pending_timers(seed: int, everything: bool) -> None:
    with small_limits():
        world = grown(seed)
    left = world.log.compacted(world.rng, everything=everything)
    check_fold(world.partition, world.store, fold((record.key, record.value) for record in left))
    check_rows(world.partition, world.store)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_records_of_different_keys_may_come_in_any_order(seed: int) -> None:
    with small_limits():
        world = grown(seed)
    records = [(record.key, record.value) for record in world.log.records]
    assert folded(shuffled(records, random.Random(seed)))[1] == folded(records)[1]


def shuffled(records: Sequence[LogRecord], rng: random.Random) -> list[LogRecord]:
    """Return the records in a random order that keeps the order within each key."""
    waiting: dict[bytes | None, list[LogRecord]] = {}
    for record in records:
        waiting.setdefault(record[0], []).append(record)
    turns = [key for key, of_key in waiting.items() for _ in of_key]
    rng.shuffle(turns)
    return [waiting[key].pop(0) for key in turns]
