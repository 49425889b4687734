"""One example of every record kind, key and row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from struct import pack
from typing import Final, NamedTuple
from zlib import crc32

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
    """What today's code writes, and what it reads from it."""

    name: str
    written: bytes
    read: Callable[[bytes], object]
    meaning: object

    @property
    def path(self) -> Path:
        return path_of(self.name)

    def as_text(self) -> str:
        """Return the bytes in hexadecimal, sixteen a line."""
        return "".join(self.written[at : at + 16].hex(" ") + "\n" for at in range(0, len(self.written), 16))


class Earlier(NamedTuple):
    """What today's code reads from what an earlier release wrote."""

    name: str
    read: Callable[[bytes], object]
    meaning: object


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.hex"


def read_entry(entry: bytes) -> object:
    fixed = head(entry)
    body = payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)
    return fixed, origin_of(entry, fixed), retry_id_of(entry, fixed), body


def removed_list(dues_ms: Iterable[int]) -> bytes:
    """Return a list of removed dues, which today's code reads and does not write."""
    dues = sorted(dues_ms)
    body = pack(f">{len(dues)}Q", *dues)
    return pack(">BI", codec.VERSION, crc32(body)) + body


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
    closed={"größe": Closed(Closure.UNREACHABLE, NOW - 5), "orders": Closed(Closure.PAUSED, NOW - 6)},
    unfinished=Unfinished(46, acted=9_000, skipped=3, dead=1, seen_offset=40, seen_first_ms=DUE),
)
BLOCK_KEY: Final = BlockKey(NOW + 21_000, 12, 3)
BLOCK: Final = Block(0, {"orders": (2, 0)}, [PLAIN, NULLS])
BASED: Final = replace(CHECKPOINT, offset_base=2**40 + 3, has_fired=True)
TURNED: Final = replace(BASED, turns={"größe": NextTurn((NOW + 700) * 1_000_000, 2 * 10**9)})
META: Final = Meta(1, "cluster", "changelog", 99, CHECKPOINT, restored=False)
META_2: Final = Meta(FORMAT, "cluster", "changelog", 99, BASED, restored=False)
META_3: Final = Meta(FORMAT, "cluster", "changelog", 99, TURNED, restored=False)
ASSIGNED: Final = replace(TURNED, assignment=2**63 - 1, former=(FormerAssignment(7, 3), FormerAssignment(2**62, 11)))
META_4: Final = Meta(FORMAT, "cluster", "changelog", 99, ASSIGNED, restored=False, to_confirm=98)
HALTED: Final = replace(
    ASSIGNED,
    closed={**ASSIGNED.closed, "*": Closed(Closure.PAUSED, NOW - 7)},
    stopped=True,
    acted=(Acted(bytes(range(8)), bytes(8), NOW + 60_000, "stopped", 7),),
)
META_5: Final = replace(META_4, checkpoint=HALTED)
NAMED: Final = replace(
    HALTED,
    changelog_topic_id="changelog-id",
    rebuilt_from=(FormerChangelog("former-id", 40), FormerChangelog("id-before", 97)),
)
MARKED: Final = MarkedCheckpoint(
    **asdict(replace(NAMED, engine=Engine.SPARK)),
    mark=Mark(14, "4f1c", 7, "d1", "w1", [Closing("größe", "unreachable", 13)], 2, "d2", DUE, 49),
)
META_6: Final = replace(META_5, checkpoint=NAMED, changelog_topic="app-retry-queue-changelog")
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
    Example("checkpoint-value-with-topic", codec.encode_checkpoint(NAMED), codec.decode_checkpoint, NAMED),
    Example("checkpoint-value-of-spark", codec.encode_checkpoint(MARKED), decode_marked, MARKED),
    Example("block-key", codec.block_key(BLOCK_KEY), codec.decode_key, BLOCK_KEY),
    Example("block-value", codec.encode_block(*BLOCK), codec.decode_block, BLOCK),
    Example(
        "removed-key",
        codec.removed_key(StoredOffset(2**63 + 1), None),
        codec.decode_key,
        RemovedKey(StoredOffset(2**63 + 1), None),
    ),
    Example("removed-value", removed_list([DUE + 1, DUE]), codec.decode_removed_list, {DUE, DUE + 1}),
    Example(
        "removed-timer-key",
        codec.removed_key(StoredOffset(2**63 + 1), DUE),
        codec.decode_key,
        RemovedKey(StoredOffset(2**63 + 1), DUE),
    ),
    Example(
        "removed-timer-value", codec.REMOVED, partial(codec.decode_removed, RemovedKey(StoredOffset(45), DUE)), {DUE}
    ),
    Example("row-timer-key", ROWS.timer + PLAIN[:16], lambda row: KEY.unpack(row[5:]), (DUE, 42)),
    Example("row-block-key", ROWS.block_row(BLOCK_KEY), ROWS.block_of, BLOCK_KEY),
    Example("row-removed-key", ROWS.removed_list_row(StoredOffset(45)), lambda row: int.from_bytes(row[5:], "big"), 45),
    Example("row-removed-by-due-key", ROWS.removed_row(DUE, StoredOffset(45)), ROWS.removed_timer_of, (DUE, 45)),
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
    Example("row-meta-value-with-topic", encode_meta(META_6), decode_meta, META_6),
)

EARLIER: Final = (
    Earlier("checkpoint-value", codec.decode_checkpoint, CHECKPOINT),
    Earlier("checkpoint-value-with-base", codec.decode_checkpoint, BASED),
    Earlier("checkpoint-value-with-turns", codec.decode_checkpoint, TURNED),
    Earlier("checkpoint-value-with-assignment", codec.decode_checkpoint, ASSIGNED),
    Earlier("checkpoint-value-with-commands", codec.decode_checkpoint, HALTED),
    Earlier("row-meta-value", decode_meta, META),
    Earlier("row-meta-value-2", decode_meta, META_2),
    Earlier("row-meta-value-3", decode_meta, META_3),
    Earlier("row-meta-value-with-assignment", decode_meta, META_4),
    Earlier("row-meta-value-with-commands", decode_meta, META_5),
)
