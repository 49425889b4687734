"""The meaning of a changelog, straight from its definition: what is pending after these records.

A timer (due, offset) is pending iff it is in a block, its key is above the watermark, and no removed record
names it. No key is ever used twice, so the fold is a union: the order of the records matters only
between records of one key, and any legal compaction gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sidecar.changelog.codec import (
    CHECKPOINT_KEY,
    BlockKey,
    Checkpoint,
    check_removed,
    decode_block,
    decode_checkpoint,
    decode_key,
)
from sidecar.changelog.entry import KEY, KEY_BYTES

LogRecord = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class Folded:
    """The result of a fold: the state that a changelog describes."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    pending: dict[bytes, bytes] = field(default_factory=dict)
    """Timer key (due, offset; sixteen bytes) to entry."""
    removed: set[bytes] = field(default_factory=set)
    """The timer keys that are no longer pending."""
    blocks: set[BlockKey] = field(default_factory=set)


def fold(records: Iterable[LogRecord]) -> Folded:
    """Return the state that the records of one changelog partition describe. Raises FormatUnknown, RecordCorrupt."""
    latest: dict[bytes, bytes | None] = {}
    for key, value in records:
        decode_key(key)
        latest[key or b""] = value
    folded = Folded()
    if (checkpoint := latest.pop(CHECKPOINT_KEY, None)) is not None:
        folded.checkpoint = decode_checkpoint(checkpoint)
    blocks: list[tuple[BlockKey, bytes]] = []
    for raw, body in latest.items():
        if body is None:
            continue
        decoded = decode_key(raw)
        if isinstance(decoded, BlockKey):
            blocks.append((decoded, body))
        elif decoded is not None:
            check_removed(body)
            folded.removed.add(KEY.pack(decoded.due_ms, decoded.offset))
    watermark = KEY.pack(folded.checkpoint.watermark_ms, folded.checkpoint.watermark_offset)
    for block, body in blocks:
        folded.blocks.add(block)
        for entry in decode_block(body).entries:
            key = entry[:KEY_BYTES]
            if key > watermark and key not in folded.removed:
                assert key not in folded.pending, ("a timer key is in two blocks", KEY.unpack(key))
                folded.pending[key] = entry
    return folded
