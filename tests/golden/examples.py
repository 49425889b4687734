"""One example of every record kind, key and row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import asdict, replace

from sidecar.changelog import codec
from sidecar.changelog.codec import (
    Acted,
    Block,
    BlockKey,
    Checkpoint,
    Closed,
    Closure,
    Engine,
    FormerAssignment,
    FormerChangelog,
    NextTurn,
    RemovedKey,
    Unfinished,
)
from sidecar.changelog.entry import (
    DEFERRED,
    HEAD,
    KEY,
    MOVING,
    ORDERED,
    Head,
    head,
    lasting,
    moved,
    origin_of,
    payload,
    retry_id_of,
)
from sidecar.engine.lanes import lane_of_entry
from sidecar.engine.rows import (
    FORMAT,
    Meta,
    Rows,
    decode_due,
    decode_meta,
    encode_due,
    encode_meta,
    lane_of,
    timer_of_named_row,
)
from sidecar.model import StoredOffset
from sidecar.spark.marks import Mark, MarkedCheckpoint, decode_marked
from sidecar.spark.stream.wire import Closing
from sidecar.wheel.counts import Counts, CountsDelta

FOLDER: Final = Path(__file__).parent
NOW: Final = 1_700_000_000_000
DUE: Final = NOW + 20_000
PARTITION: Final = 7
ROWS: Final = Rows(PARTITION)


class Example(NamedTuple):
    """What the code writes, and what it reads from it."""

    name: str
    written: bytes
    read: Callable[[bytes], object]
    meaning: object

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.hex"

    def as_text(self) -> str:
        """Return the bytes in hexadecimal, sixteen a line."""
        return "".join(self.written[at : at + 16].hex(" ") + "\n" for at in range(0, len(self.written), 16))


def read_entry(entry: bytes) -> object:
    fixed = head(entry)
    body = payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)
    return fixed, origin_of(entry, fixed), retry_id_of(entry, fixed), body


def _counters() -> tuple[Counts, dict[str, tuple[bytes, bytes]]]:
    delta = CountsDelta()
    delta.add((1, DUE // 64_000), "orders", True, 3)
    counts = Counts().plus(delta)
    names = {b"S": "slot", b"O": "origin", b"D": "deferred"}
    rows = {names[suffix[:1]]: (suffix, value or b"") for suffix, value in counts.rows(delta)}
    return counts, rows


def _read_counters(data: bytes) -> Counts:
    counts = Counts()
    counts.load(data[len(ROWS.counter) : -8], data[-8:])
    return counts


PLAIN: Final = MOVING.pack(DUE, 42, DUE, 0, 0) + lasting(
    DUE, NOW, 1, 6, 1, b"orders", None, b"key", b"value", [("retry-origin-topic", b"orders")]
)
NULLS: Final = MOVING.pack(DUE, 43, DUE, 0, 0) + lasting(
    DUE, -1, 0, 6, 2, b"orders", None, None, None, [("null", None), ("empty", b"")]
)
EMPTIES: Final = MOVING.pack(DUE, 44, DUE, 0, 0) + lasting(DUE, -1, 0, 6, 2, b"orders", None, b"", b"", [])
ORDERED_ONE: Final = MOVING.pack(DUE, 46, DUE, 0, ORDERED) + PLAIN[MOVING.size :]
MOVED: Final = moved(
    MOVING.pack(DUE, 45, DUE, 0, 0)
    + lasting(
        DUE, NOW, 2, 3, 1, "größe".encode(), "ü-1".encode(), b"\x00", b"\xff", [("ключ", "значение".encode())], 3
    ),
    due_ms=DUE + 70_000,
    requested_ms=DUE + 9,
    level=1,
    flags=DEFERRED,
)
CHECKPOINT: Final = Checkpoint(
    engine=Engine.EMBEDDED,
    sequence=12,
    watermark_ms=NOW,
    watermark_offset=2**64 - 1,
    next_input_offset=46,
    highest_input_offset=50,
    input_topic_id="n2fX6bXhQ2yJ4kqk2Y0b7A",
    wall_ms=NOW + 1,
    closed={
        "größe": Closed(Closure.UNREACHABLE, NOW - 5),
        "orders": Closed(Closure.PAUSED, NOW - 6),
        "*": Closed(Closure.PAUSED, NOW - 7),
    },
    unfinished=Unfinished(46, acted=9_000, skipped=3, dead=1, seen_offset=40, seen_first_ms=DUE),
    offset_base=2**40 + 3,
    has_fired=True,
    turns={"größe": NextTurn((NOW + 700) * 1_000_000, 2 * 10**9)},
    assignment=2**63 - 1,
    former=(FormerAssignment(7, 3), FormerAssignment(2**62, 11)),
    stopped=True,
    acted=(Acted(bytes(range(8)), bytes(8), NOW + 60_000, "stopped", 7),),
    changelog_topic_id="changelog-id",
    rebuilt_from=(FormerChangelog("former-id", 40), FormerChangelog("id-before", 97)),
)
BLOCK_KEY: Final = BlockKey(NOW + 21_000, 12, 3)
BLOCK: Final = Block(0, {"orders": (2, 0)}, [PLAIN, NULLS])
MARKED: Final = MarkedCheckpoint(
    **asdict(replace(CHECKPOINT, engine=Engine.SPARK)),
    mark=Mark(14, "4f1c", 7, "d1", "w1", [Closing("größe", "unreachable", 13)], 2, "d2", DUE, 49),
)
META: Final = Meta(FORMAT, "cluster", "changelog", 99, CHECKPOINT, False, 98, "app-retry-queue-changelog")
COUNTERS, COUNTER_ROWS = _counters()

EXAMPLES: Final = (
    Example(
        "entry-plain",
        PLAIN,
        read_entry,
        (
            Head(DUE, StoredOffset(42), DUE, 0, 0, DUE, NOW, 1, 6, 1, -1, 6, 0),
            "orders",
            None,
            (b"key", b"value", [("retry-origin-topic", b"orders")]),
        ),
    ),
    Example(
        "entry-nulls",
        NULLS,
        read_entry,
        (
            Head(DUE, StoredOffset(43), DUE, 0, 0, DUE, -1, 0, 6, 2, -1, 6, 0),
            "orders",
            None,
            (None, None, [("null", None), ("empty", b"")]),
        ),
    ),
    Example(
        "entry-empties",
        EMPTIES,
        read_entry,
        (Head(DUE, StoredOffset(44), DUE, 0, 0, DUE, -1, 0, 6, 2, -1, 6, 0), "orders", None, (b"", b"", [])),
    ),
    Example(
        "entry-moved",
        MOVED,
        read_entry,
        (
            Head(DUE + 70_000, StoredOffset(45), DUE + 9, 1, 1, DUE, NOW, 2, 3, 1, 3, 7, 4),
            "größe",
            "ü-1".encode(),
            (b"\x00", b"\xff", [("ключ", "значение".encode())]),
        ),
    ),
    Example(
        "entry-ordered",
        ORDERED_ONE,
        read_entry,
        (
            Head(DUE, StoredOffset(46), DUE, 0, 4, DUE, NOW, 1, 6, 1, -1, 6, 0),
            "orders",
            None,
            (b"key", b"value", [("retry-origin-topic", b"orders")]),
        ),
    ),
    Example("checkpoint-key", codec.CHECKPOINT_KEY, codec.decode_key, None),
    Example("checkpoint-value", codec.encode_checkpoint(CHECKPOINT), codec.decode_checkpoint, CHECKPOINT),
    Example("checkpoint-value-of-spark", codec.encode_checkpoint(MARKED), decode_marked, MARKED),
    Example("block-key", codec.block_key(BLOCK_KEY), codec.decode_key, BLOCK_KEY),
    Example("block-value", codec.encode_block(*BLOCK), codec.decode_block, BLOCK),
    Example(
        "removed-key",
        codec.removed_key(StoredOffset(2**63 + 1), DUE),
        codec.decode_key,
        RemovedKey(StoredOffset(2**63 + 1), DUE),
    ),
    Example("removed-value", codec.REMOVED, codec.check_removed, None),
    Example("row-timer-key", ROWS.timer + PLAIN[:16], lambda row: KEY.unpack(row[5:]), (DUE, 42)),
    Example("row-block-key", ROWS.block_row(BLOCK_KEY), ROWS.block_of, BLOCK_KEY),
    Example("row-removed-key", ROWS.removed_row(DUE, StoredOffset(45)), ROWS.removed_timer_of, (DUE, 45)),
    Example("row-moved-key", ROWS.moved_row(StoredOffset(45), DUE), lambda row: KEY.unpack(row[5:]), (45, DUE)),
    Example(
        "row-named-key",
        ROWS.named_row("ü-1".encode(), StoredOffset(45), DUE),
        lambda row: (row[7:-16], *timer_of_named_row(row)),
        ("ü-1".encode(), 45, DUE),
    ),
    Example(
        "row-lane-key",
        ROWS.lane_row(lane_of_entry(ORDERED_ONE, head(ORDERED_ONE)), StoredOffset(46), DUE),
        lambda row: (row[5:21], *timer_of_named_row(row)),
        (lane_of("orders", b"key"), 46, DUE),
    ),
    Example("row-due-value", encode_due(DUE), decode_due, DUE),
    Example(
        "row-counter-slot",
        ROWS.counter + b"".join(COUNTER_ROWS["slot"]),
        _read_counters,
        Counts(slots=COUNTERS.slots),
    ),
    Example(
        "row-counter-origin",
        ROWS.counter + b"".join(COUNTER_ROWS["origin"]),
        _read_counters,
        Counts(origins=COUNTERS.origins),
    ),
    Example(
        "row-counter-deferred",
        ROWS.counter + b"".join(COUNTER_ROWS["deferred"]),
        _read_counters,
        Counts(deferred=COUNTERS.deferred),
    ),
    Example("row-elsewhere-key", ROWS.elsewhere, lambda row: int.from_bytes(row[1:], "big"), PARTITION),
    Example("row-meta-key", ROWS.meta, lambda row: int.from_bytes(row[1:], "big"), PARTITION),
    Example("row-meta-value", encode_meta(META), decode_meta, META),
)
