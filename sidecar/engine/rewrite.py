"""Writes the changelog of a partition again from the rows of its store: what is pending, as blocks, and a checkpoint.

The topic may have something already: what an instance wrote that did not know of the new topic, or what was written
before this was interrupted. A timer is in one block only, so what is there is left out, and the new blocks have a
sequence that no block in the topic has. Until the checkpoint is there, which names the topic, no instance continues
from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    CHECKPOINT_KEY,
    BlockKey,
    Checkpoint,
    block_key,
    decode_block,
    decode_checkpoint,
    decode_key,
    encode_checkpoint,
)
from sidecar.changelog.entry import DEFERRED, FLAGS_AT, KEY, KEY_BYTES, LEVEL_AT, due_ms_of, head, origin_of
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.overlay import SlotEntries
from sidecar.engine.ports import StoreReader
from sidecar.engine.records import block_values
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rows import Meta, Rows, after
from sidecar.engine.transaction import BLOCK_OVERHEAD_BYTES, ChangelogRecord
from sidecar.wheel.geometry import slot_end_ms, slot_of

ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Present:
    """What a changelog partition has already."""

    last: Checkpoint = field(default_factory=Checkpoint)
    first_sequence: int = 0
    """Of the first checkpoint; 0 when there is none."""
    greatest_sequence: int = 0
    """Of all blocks and checkpoints."""
    timers: set[bytes] = field(default_factory=set)
    """The keys of the timers in its blocks."""

    def add(self, records: Iterable[ChangelogRead]) -> None:
        """Add records in the order of the log. Raises PartitionStopped."""
        for record in records:
            key = decode_key(record.key)
            if record.value is None:
                continue
            if key is None:
                self.last = decode_checkpoint(record.value)
                self.first_sequence = self.first_sequence or self.last.sequence
                self.greatest_sequence = max(self.greatest_sequence, self.last.sequence)
            elif isinstance(key, BlockKey):
                self.timers.update(entry[:KEY_BYTES] for entry in decode_block(record.value).entries)
                self.greatest_sequence = max(self.greatest_sequence, key.sequence)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """How a partition is continued."""

    checkpoint: Checkpoint
    """The one that makes the new changelog whole."""
    behind: int
    """How many committed transactions neither the rows nor the topic have: their input is read again."""


def rewriting(meta: Meta, present: Present, mark: OffsetMark | None, topic_id: str, assignment: int) -> Rewriting:
    """Return how to continue from the rows of a store and what the topic has.

    Args:
        meta: Of the rows.
        present: What the topic has.
        mark: Of the group's committed offset.
        topic_id: The id of the topic.
        assignment: A random number, which names the writer.
    """
    own = meta.checkpoint
    continues = own.sequence < present.last.sequence and present.first_sequence <= own.sequence + 1
    base = present.last if continues else own
    committed = max(present.last.sequence, 0 if mark is None else mark.sequence)
    sequence = max(base.sequence, committed, present.greatest_sequence) + 1
    seen = max(own.highest_input_offset, present.last.highest_input_offset)
    checkpoint = replace(base.assigned(assignment), sequence=sequence, highest_input_offset=seen)
    rebuilt = checkpoint.rebuilt(topic_id, meta.changelog_topic_id, meta.changelog_offset)
    return Rewriting(rebuilt, max(0, committed - base.sequence))


def given_up(
    present: Present, mark: OffsetMark | None, next_input_offset: int | None, topic_id: str, assignment: int
) -> Checkpoint:
    """Return the checkpoint from which a partition goes on without what its changelog lacks.

    Args:
        present: What the topic has.
        mark: Of the group's committed offset.
        next_input_offset: The group's committed offset; None: there is none.
        topic_id: The id of the topic.
        assignment: A random number, which names the writer.
    """
    base = present.last
    sequence = max(present.greatest_sequence, 0 if mark is None else mark.sequence) + 1
    continued = replace(base.assigned(assignment), sequence=sequence, changelog_topic_id=topic_id)
    if next_input_offset is None:
        return continued
    return replace(
        continued,
        next_input_offset=next_input_offset,
        highest_input_offset=max(base.highest_input_offset, next_input_offset),
        input_topic_id=base.input_topic_id if mark is None else mark.input_topic_id,
        unfinished=None,
    )


def rewritten(
    store: StoreReader,
    partition: int,
    present: Present,
    checkpoint: Checkpoint,
    max_message_bytes: int,
    counted: Iterator[int],
) -> Iterator[ChangelogRecord]:
    """Yield the records that the topic lacks; the last one is the checkpoint.

    Args:
        store: Has the rows of the partition.
        partition: Its number.
        present: What the topic has.
        checkpoint: From `rewriting`.
        max_message_bytes: Of the topic.
        counted: Advanced by each timer that is written.
    """
    blocks = _Blocks(checkpoint.sequence, min(BLOCK_BYTES_MAX, (max_message_bytes - BLOCK_OVERHEAD_BYTES) // 2))
    for entry in _pending(store, Rows(partition), checkpoint):
        if entry[:KEY_BYTES] not in present.timers:
            next(counted)
            yield from blocks.add(entry)
    yield from blocks.rest()
    yield CHECKPOINT_KEY, encode_checkpoint(checkpoint)


def _pending(store: StoreReader, rows: Rows, checkpoint: Checkpoint) -> Iterator[bytes]:
    lower = rows.timer + KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset) + b"\0"
    while entries := store.values(lower, after(rows.timer), limit=ROWS_MAX, limit_bytes=BYTES_MAX):
        yield from entries
        lower = rows.timer + entries[-1][:KEY_BYTES] + b"\0"


class _Blocks:
    """Packs entries that come in the order of their dues: of each level, one slot at a time is open."""

    def __init__(self, sequence: int, bytes_max: int) -> None:
        self._sequence = sequence
        self._bytes_max = bytes_max
        self._open: dict[int, tuple[int, SlotEntries]] = {}
        """By level, the end of the slot and what it has so far."""
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, int] = {}
        """By slot end, how many blocks it has; levels count together."""

    def add(self, entry: bytes) -> Iterator[ChangelogRecord]:
        level = entry[LEVEL_AT]
        end_ms = slot_end_ms(slot_of(due_ms_of(entry), level), level)
        held = self._open.get(level)
        if held is not None and (held[0] != end_ms or self._sizes[level] + len(entry) > self._bytes_max):
            yield from self._close(level)
            held = None
        if held is None:
            held = self._open[level] = end_ms, SlotEntries()
            self._sizes[level] = 0
        _, group = held
        group.entries.append(entry)
        group.origins.append(origin_of(entry, head(entry)))
        group.deferred = group.deferred or bool(entry[FLAGS_AT] & DEFERRED)
        self._sizes[level] += len(entry)

    def rest(self) -> Iterator[ChangelogRecord]:
        for level in list(self._open):
            yield from self._close(level)

    def _close(self, level: int) -> Iterator[ChangelogRecord]:
        end_ms, group = self._open.pop(level)
        for value in block_values(level, group, self._bytes_max):
            part = self._parts.get(end_ms, 0)
            self._parts[end_ms] = part + 1
            yield block_key(BlockKey(end_ms, self._sequence, part)), value
