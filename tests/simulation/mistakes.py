"""Mistakes that anybody might make: in the compiled path, restores, lanes, cut writes, recovery, commits and fences.

Each must be found by a world, or by a test that is named here. What is compiled stays on, but for what is mistaken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.property.test_hot import test_a_run_of_arrivals_is_stored_alike as stored_alike
from tests.simulation.__main__ import STEPS
from tests.simulation.compiled import CompiledMutation
from tests.simulation.mutations import Mutation
from tests.simulation.running import run as run_engine
from tests.simulation.shell.story import run as run_shell


class Mistake(NamedTuple):
    """A mistake, and what finds it."""

    mutation: Mutation | CompiledMutation
    finder: Callable[[int], object]
    """Runs the world of a seed, or the test."""
    seeds: Sequence[int]
    """Of worlds that find it; when they do not any more, others do."""


def shell(seed: int) -> object:
    """Run a world of the whole runtime."""
    return run_shell(seed)


def engine(seed: int) -> object:
    """Run a world of one partition."""
    return run_engine(seed, STEPS[seed % len(STEPS)])


def alike(_: int) -> object:
    """Compare what is compiled with Python."""
    stored_alike()
    return None


MISTAKES: Final = (
    Mistake(
        CompiledMutation(
            "a slot boundary is off by one",
            "blocks",
            "at = due_ms // _WIDTHS[level]",
            "at = (due_ms - 1) // _WIDTHS[level]",
        ),
        shell,
        (100, 101),
    ),
    Mistake(
        CompiledMutation(
            "a level ends one millisecond late",
            "blocks",
            "due_ms >= <int64_t>level_ends_ms[level]",
            "due_ms > <int64_t>level_ends_ms[level]",
        ),
        alike,
        (0,),
    ),
    Mistake(
        CompiledMutation(
            "a lane is released early: a crossing of less than two seconds is not noted",
            "blocks",
            "if due_ms >= latest_ms:",
            "if due_ms + 2_000 >= latest_ms:",
        ),
        shell,
        (138,),
    ),
    Mistake(
        CompiledMutation(
            "what fires is counted off in the slot of the first one",
            "deliver",
            "if last.slot is None or last.level != level or last.slot_number != due_ms // _WIDTHS[level]:",
            "if last.slot is None or last.level != level:",
        ),
        shell,
        (110,),
    ),
    Mistake(
        CompiledMutation(
            "a message with a retry id leaves its row",
            "deliver",
            "if due_ms == first_ms and not id_length:",
            "if due_ms == first_ms:",
        ),
        engine,
        (1, 2),
    ),
    Mistake(
        CompiledMutation(
            "a restore by files forgets the lanes", "ingest", "                or start[_FLAGS_AT] & _ORDERED\n", ""
        ),
        shell,
        (134,),
    ),
    Mistake(
        Mutation(
            "a removed timer stays in the file that is being made",
            "engine.restore:Restore._removed",
            "self._plain.pour(timers)",
            "pass",
            compiled=True,
        ),
        shell,
        (126,),
    ),
    Mistake(
        Mutation("a file deletes nothing", "store.rocks:RocksStore.ingest", "del writer[row]", "pass", compiled=True),
        shell,
        (361,),
    ),
    Mistake(
        Mutation(
            "nothing goes ahead of a cut write",
            "store.rocks:RocksStore.prepare",
            "changes.put(*unfinished)",
            "pass",
            compiled=True,
        ),
        shell,
        (136, 163),
    ),
    Mistake(
        Mutation(
            "a cut write keeps its last batch only",
            "store.rocks:_Changes.add",
            "self.batches.append(batch)",
            "self.batches[:] = [batch]",
            compiled=True,
        ),
        shell,
        (100, 108),
    ),
    Mistake(
        Mutation(
            "an unfinished write counts as what was there before",
            "engine.apply:prepare_committed",
            "NOT_RESTORED, restored=False",
            "partition.changelog_offset",
            compiled=True,
        ),
        shell,
        (136,),
    ),
    Mistake(
        Mutation(
            "a restore begins one record late",
            "engine.restore:Restore._load",
            "else meta.changelog_offset",
            "else meta.changelog_offset + 1",
            compiled=True,
        ),
        shell,
        (108,),
    ),
    Mistake(
        Mutation(
            "the offsets are not a part of the transaction",
            "runtime.transaction.commit:commit",
            "producer.send_offsets(work.input_topic, writing.offsets, work.membership, writing.marks)",
            "pass",
            compiled=True,
        ),
        shell,
        (100, 101),
    ),
    Mistake(
        Mutation(
            "a fence in a delivery report blames its record",
            "kafka.producer:TransactionalProducer._blames",
            "error.code() in OF_THE_PRODUCER",
            "False",
            compiled=True,
        ),
        shell,
        (110, 181),
    ),
)
