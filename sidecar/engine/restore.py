"""Restores the local rows of a partition from its changelog, from the start or from the state of the store.

Records are applied in log order, in slices. At the target, rows up to the watermark are read once and subtracted from
the counters.

From the state of the store, each slice is one batch with its counters and its next changelog offset, so a process that
dies continues from the last slice. From the start, timers are buffered and ingested as sorted files, which takes less
processor time; counters and changelog offset are written last, so a process that dies starts again.

The log must prove the last checkpoint that the store applied: a broker that is shut down can report "committed" and
abort the transaction after its restart. The first checkpoint behind the state of the store decides: it is that one, or
the assignment that wrote it is named in it with a sequence that is no lower. Otherwise the rows are useless, and the
whole log is read.

Rows that the log does not continue are wiped only when the log proves to have what they have (wholeness.py): to see its
last checkpoint, it is read once without being applied.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Final, NamedTuple

from sidecar.changelog.codec import (
    CHECKPOINT_KEY,
    BlockKey,
    Checkpoint,
    Engine,
    RemovedKey,
    check_removed,
    decode_block_head,
    decode_checkpoint,
    decode_key,
    entries_of,
)
from sidecar.changelog.entry import (
    DEFERRED,
    DUE,
    FIRST_DUE,
    FLAGS_AT,
    KEY,
    KEY_BYTES,
    NO_RETRY_ID,
    ORDERED,
    RETRY_ID_LENGTH,
    head,
    origin_of,
    retry_id_of,
)
from sidecar.engine import hot
from sidecar.engine.apply import check_next_due
from sidecar.engine.crossings import Crossings
from sidecar.engine.delivered import NOTHING
from sidecar.engine.lanes import lane_of_entry
from sidecar.engine.partition import Partition
from sidecar.engine.plan_checks import check_counts
from sidecar.engine.ports import Mutations, Store
from sidecar.engine.rows import NOT_RESTORED, Identity, Meta, after, decode_meta, encode_due, meta_row
from sidecar.engine.wholeness import ChangelogLost, Log, replaces, why_not
from sidecar.errors import PartitionStopped, RecordCorrupt, StoreCorrupt, invariant
from sidecar.wheel.counts import Counts, CountsDelta
from sidecar.wheel.geometry import LEVELS, slot_end_ms, slot_of

SETTLE_ROWS_MAX: Final = 5_000
SETTLE_BYTES_MAX: Final = 16 * 1024 * 1024
COUNTER_ROWS_MAX: Final = 1_000_000


class ChangelogRead(NamedTuple):
    """One committed record of a changelog partition."""

    offset: int
    key: bytes | None
    value: bytes | None


def to_spill(restores: Iterable[Restore], buffer_bytes: int) -> Restore | None:
    """Return the restore whose next step must be `spill`; None while all together hold less than `buffer_bytes`.

    It is the one that holds most: fewer and larger files are merged in less time.
    """
    fullest, held = None, 0
    for restore in restores:
        if restore.is_spilling:
            return restore
        held += restore.buffered_bytes
        if fullest is None or restore.buffered_bytes > fullest.buffered_bytes:
            fullest = restore
    return fullest if held >= buffer_bytes else None


class Restore:
    """A restore of one partition. Every method that writes does so in one batch."""

    def __init__(self, partition: Partition, store: Store, identity: Identity) -> None:
        self.partition = partition
        self.rows = partition.rows
        self.timers = 0
        """Timers read from the changelog so far."""
        self._store = store
        self._identity = identity
        self._settle_from = self.rows.timer
        self._to_confirm = -1
        self._log = Log(identity, 0, 0)
        self._standing: Meta | None = None
        """Of rows that the log does not continue, until it proves to have what they have."""
        self._unproven: Checkpoint | None = None
        """The last checkpoint of the store, until the log shows what became of it."""
        self.refuted = False
        """The log shows that the state of the store was never committed: `start_over` is next."""
        self._bulk: dict[bytes, bytes | None] | None = None
        """Timer rows of a restore from the start that are not in the store yet."""
        self._plain = hot.ingest.Timers(self.rows.timer) if hot.COMPILED else None
        """The same, while all of them are plain; then `_bulk` is empty."""
        self._ingesting: Generator[None] | None = None
        self._is_marked = False
        self.buffered_bytes = 0
        """Bytes of the blocks whose timers are buffered."""

    def begin(self, log_start: int, log_end: int) -> int:
        """Load the state of the store and return the changelog offset to read from.

        Any age is fine: the watermark covers what the log has dropped meanwhile. When the log does not continue the
        rows, because it is another topic or their offset is outside of it, it is `unconfirmed` until `start_over`.

        Raises:
            StoreCorrupt: A row of the partition cannot be read, or it is of another cluster or another changelog.
        """
        self._log = Log(self._identity, log_start, log_end)
        try:
            return self._load(log_start, log_end)
        except PartitionStopped as cause:
            raise StoreCorrupt(f"the state folder is strange: {cause}") from cause

    def _load(self, log_start: int, log_end: int) -> int:
        # They may know what was never committed.
        self.partition.lanes_from.clear()
        self.partition.crossings = Crossings()
        self.partition.delivered = NOTHING
        value = self._store.get(self.rows.meta)
        meta = None if value is None else decode_meta(value)
        if meta is None or meta.changelog_offset == NOT_RESTORED or not meta.checkpoint.sequence:
            self._wipe()
            return log_start
        cluster_id, topic_id, topic = self._identity
        if (meta.cluster_id, meta.changelog_topic) != (cluster_id, topic):
            raise StoreCorrupt(
                f"the state folder is of the changelog {meta.changelog_topic} on cluster {meta.cluster_id}, "
                f"not of {topic} on {cluster_id}"
            )
        if meta.changelog_topic_id != topic_id or not log_start <= meta.changelog_offset <= log_end:
            return self._doubt(meta)
        partition = self.partition
        partition.checkpoint = meta.checkpoint
        partition.changelog_offset = meta.changelog_offset
        counts = Counts()
        for row, value in self._store.items(self.rows.counter, after(self.rows.counter), limit=COUNTER_ROWS_MAX):
            counts.load(row[len(self.rows.counter) :], value)
        partition.counts = counts
        if meta.restored:
            self._settle_from = self.rows.timer + partition.watermark + b"\0"
        self._to_confirm = meta.to_confirm
        if meta.to_confirm >= 0 or meta.checkpoint.assignment:
            self._unproven = meta.checkpoint
        # Behind it, a restore that ended halfway has applied records already.
        is_last = meta.to_confirm == meta.changelog_offset - 1 and meta.to_confirm >= log_start
        start = meta.to_confirm if is_last else meta.changelog_offset
        if self.unconfirmed and start >= log_end:
            return self._doubt(meta)
        return start

    def _doubt(self, standing: Meta) -> int:
        """Leave the rows as they are until the log, read from its start, proves to have what they have."""
        self._standing = standing
        self._unproven, self._to_confirm = None, -1
        self._unload()
        self.partition.changelog_offset = self._log.start
        return self._log.start

    @property
    def unconfirmed(self) -> bool:
        """Whether the log has yet to prove that the store's last checkpoint was committed, or that it has the same."""
        return self._to_confirm >= 0 or self._standing is not None

    def start_over(self) -> Checkpoint:
        """Wipe the store, as the log does not confirm it; return its checkpoint. The whole log must be read again.

        Raises:
            ChangelogLost: The log has been read, and lacks what the rows have, which stay.
        """
        if self._standing is not None and not replaces(self.partition.checkpoint, self._log, self._standing):
            raise ChangelogLost(why_not(self._log, self._standing))
        wiped = self.partition.checkpoint if self._standing is None else self._standing.checkpoint
        self._standing = None
        self._wipe()
        self._settle_from = self.rows.timer
        self._to_confirm = -1
        self._unproven = None
        self.refuted = False
        self.timers = 0
        return wiped

    def _wipe(self) -> None:
        wiped = Mutations()
        wiped.ranges = self.rows.ranges()
        self._store.apply([wiped])
        self._forget()
        self._unload()

    def _unload(self) -> None:
        self.partition.checkpoint = Checkpoint()
        self.partition.counts = Counts()
        self.partition.changelog_offset = 0
        self.partition.next_slot_end_ms = None

    def apply(self, records: Sequence[ChangelogRead], topic: str) -> None:
        """Apply a slice of the log; nothing of it if it has refuted the state of the store.

        Raises:
            PartitionStopped: a record cannot be read; the text names topic, partition and offset.
        """
        invariant(self._ingesting is None, "applied between two steps of a spill", partition=self.partition.number)
        self._check_order(records)
        mutations, delta = Mutations(), CountsDelta()
        checkpoint = self.partition.checkpoint
        for record in records:
            if self._standing is not None and record.key != CHECKPOINT_KEY:
                continue
            try:
                key = decode_key(record.key)
                if isinstance(key, BlockKey):
                    self._block(key, record.value, mutations, delta)
                elif key is not None:
                    self._removed(key, record.value, mutations, delta)
                elif record.value is not None:
                    checkpoint = decode_checkpoint(record.value)
                    if not self._is_proven_by(checkpoint):
                        return
            except PartitionStopped as cause:
                where = f"{topic}, partition {self.partition.number}, offset {record.offset}"
                raise type(cause)(f"{where}: {cause}") from cause
        if records:
            self.partition.changelog_offset = records[-1].offset + 1
        if self._standing is not None:
            self.partition.checkpoint = checkpoint
            return
        self._write(mutations, delta, checkpoint, restored=False)

    def _check_order(self, records: Sequence[ChangelogRead]) -> None:
        """Raise InvariantViolated if records are applied twice or out of order. The one that confirms comes again."""
        if not records:
            return
        first, last, applied = records[0].offset, records[-1].offset, self.partition.changelog_offset
        invariant(
            first >= applied - 1,
            "a changelog record is applied twice",
            partition=self.partition.number,
            offset=first,
            applied_below=applied,
        )
        invariant(
            last - first >= len(records) - 1,
            "changelog records are applied out of order",
            partition=self.partition.number,
            first=first,
            last=last,
            records=len(records),
        )

    @property
    def is_spilling(self) -> bool:
        """Whether a spill has begun: it must end before more is applied."""
        return self._ingesting is not None

    def spill(self) -> bool:
        """Write buffered timers to the store: one step, of some milliseconds; return whether that was all."""
        if not self._is_buffering:
            return True
        if self._ingesting is None:
            if not self._is_marked:
                # On disk before the first file is, with the wiping of what was there: they are of no use by themselves.
                mark = Mutations()
                mark.rows[self.rows.meta] = meta_row(self._identity, Checkpoint(), NOT_RESTORED, restored=False)
                self._store.apply([mark])
                self._store.flush()
                self._is_marked = True
            self._ingesting = self._store.ingest(self._plain or sorted((self._bulk or {}).items()))
        for _ in self._ingesting:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Forget what is buffered, and the file that is being written."""
        if self._ingesting is not None:
            self._ingesting.close()
        if self._bulk is not None:
            self._forget()
        self._ingesting = None
        self.buffered_bytes = 0

    @property
    def _is_buffering(self) -> bool:
        return bool(self._bulk or self._plain)

    def _forget(self) -> None:
        self._bulk = {}
        self._plain = hot.ingest.Timers(self.rows.timer) if hot.COMPILED else None

    def _is_proven_by(self, found: Checkpoint) -> bool:
        """Return whether a checkpoint behind the state of the store has not refuted it."""
        if self._unproven is not None:
            self.refuted = not found.follows(self._unproven)
        if not self.refuted:
            self._unproven = None
            self._to_confirm = -1
        return not self.refuted

    def settle(self) -> bool:
        """Subtract one batch of rows at or below the watermark from the counters; return whether that was all.

        First the buffered timers are written, a step at a time.
        """
        if self._is_buffering:
            self.spill()
            return False
        upper = self.rows.timer + self.partition.watermark + b"\0"
        mutations, delta = Mutations(), CountsDelta()
        entries: Sequence[bytes] = ()
        if self._settle_from < upper:
            entries = self._store.values(self._settle_from, upper, limit=SETTLE_ROWS_MAX, limit_bytes=SETTLE_BYTES_MAX)
        for entry in entries:
            self._drop(entry, mutations, delta)
        if entries:
            end = self.rows.timer + entries[-1][:KEY_BYTES] + b"\0"
            mutations.ranges.append((self._settle_from, end))
            self._settle_from = end
        done = len(entries) < SETTLE_ROWS_MAX and sum(map(len, entries)) < SETTLE_BYTES_MAX
        self._write(mutations, delta, self.partition.checkpoint, restored=done)
        return done

    def finish(self, target: int, assignment: int = 0) -> None:
        """Finish once after settle() returned True: the partition matches its changelog up to `target`.

        Args:
            target: End of the log that was read.
            assignment: Random number of the assignment that begins; 0 if nothing will be written.
        """
        checkpoint = self.partition.checkpoint
        invariant(not self.unconfirmed, "rows that the log does not confirm", partition=self.partition.number)
        if checkpoint.engine is not Engine.EMBEDDED:
            raise PartitionStopped(
                f"partition {self.partition.number} was last written by the {checkpoint.engine} engine; "
                f"hand it over first (retry-sidecar {checkpoint.engine} export)"
            )
        self.partition.changelog_offset = max(self.partition.changelog_offset, target)
        self.partition.next_slot_end_ms = None
        delta = CountsDelta()
        if self._bulk is not None:
            self._bulk = None
            delta, self.partition.counts = self.partition.counts.as_delta(), Counts()
        self._write(Mutations(), delta, checkpoint, restored=True)
        if self._is_marked:
            # A process that dies soon would read the whole log again. It also ends what ingesting puts off.
            self._store.flush()
        if assignment:
            self.partition.checkpoint = checkpoint.assigned(assignment)
        self.partition.look_ahead(self._store)
        check_counts(self.partition.number, self.partition.counts, checkpoint.watermark_ms)
        check_next_due(self.partition)

    def _block(self, key: BlockKey, value: bytes | None, mutations: Mutations, delta: CountsDelta) -> None:
        row = self.rows.block_row(key)
        if value is None:
            mutations.rows[row] = None
            return
        block = decode_block_head(value)
        number = slot_of(key.slot_end_ms - 1, block.level) if block.level < LEVELS else None
        if number is None or slot_end_ms(number, block.level) != key.slot_end_ms:
            raise RecordCorrupt(f"no slot of level {block.level} ends at {key.slot_end_ms}")
        mutations.rows[row] = b""
        timers = self._timers(mutations)
        if self._plain is None:
            entries: Sequence[bytes] = entries_of(value, block)
        else:
            entries = self._plain.add(value, block.lengths, block.entries_at)
            if entries or timers or self._bulk is None:
                self._plain.pour(timers)
        for entry in entries:
            restore_entry(timers, mutations.rows, self.partition, entry)
        slot = (block.level, number)
        for origin, (total, deferred) in block.origins.items():
            delta.add(slot, origin, False, total)
            if deferred:
                delta.deferred[origin] = delta.deferred.get(origin, 0) + deferred
        self.timers += len(block.lengths)
        if self._bulk is not None:
            self.buffered_bytes += len(value)

    def _timers(self, mutations: Mutations) -> dict[bytes, bytes | None]:
        """Return what takes timer rows."""
        return mutations.rows if self._bulk is None else self._bulk

    def _removed(self, key: RemovedKey, value: bytes | None, mutations: Mutations, delta: CountsDelta) -> None:
        offset, due_ms = key
        row = self.rows.removed_row(due_ms, offset)
        if value is None:
            mutations.rows[row] = None
            return
        check_removed(value)
        mutations.rows[row] = b""
        timers = self._timers(mutations)
        if self._plain:
            self._plain.pour(timers)
        timer = self.rows.timer + KEY.pack(due_ms, offset)
        entry = timers[timer] if timer in timers else self._store.get(timer)
        if entry is not None:
            self._drop(entry, mutations, delta)
            timers[timer] = None

    def _drop(self, entry: bytes, mutations: Mutations, delta: CountsDelta) -> None:
        fixed = head(entry)
        slot = (fixed.level, slot_of(fixed.due_ms, fixed.level))
        delta.add(slot, origin_of(entry, fixed), bool(fixed.flags & DEFERRED), -1)
        # A later copy of the timer may own these rows: they are deleted only if they point here.
        if fixed.due_ms != fixed.first_ms:
            self._unpoint(self.rows.moved_row(fixed.offset, fixed.first_ms), entry, mutations)
        if (retry_id := retry_id_of(entry, fixed)) is not None:
            self._unpoint(self.rows.named_row(retry_id, fixed.offset, fixed.first_ms), entry, mutations)
        if fixed.flags & ORDERED:
            lane = lane_of_entry(entry, fixed)
            self._unpoint(self.rows.lane_row(lane, fixed.offset, fixed.first_ms), entry, mutations)

    def _unpoint(self, row: bytes, entry: bytes, mutations: Mutations) -> None:
        value = mutations.rows[row] if row in mutations.rows else self._store.get(row)
        if value == entry[DUE]:
            mutations.rows[row] = None

    def _write(self, mutations: Mutations, delta: CountsDelta, checkpoint: Checkpoint, *, restored: bool) -> None:
        counts = self.partition.counts.plus(delta)
        if self._bulk is None:
            for suffix, value in counts.rows(delta):
                mutations.rows[self.rows.counter + suffix] = value
            mutations.rows[self.rows.elsewhere] = None
            mutations.rows[self.rows.meta] = meta_row(
                self._identity,
                checkpoint,
                self.partition.changelog_offset,
                restored=restored,
                to_confirm=self._to_confirm,
            )
        self._store.apply([mutations])
        self.partition.counts = counts
        self.partition.checkpoint = checkpoint


def restore_entry(
    timers: dict[bytes, bytes | None], rows: dict[bytes, bytes | None], partition: Partition, entry: bytes
) -> None:
    """Write the rows of an entry from a block, as `store_new` and `store_again` do.

    Args:
        timers: Takes the timer's own row.
        rows: Takes those that point at it.
        partition: Owns them.
        entry: A timer.
    """
    own = partition.rows
    timers[own.timer + entry[:KEY_BYTES]] = entry
    if entry[DUE] != entry[FIRST_DUE]:
        fixed = head(entry)
        rows[own.moved_row(fixed.offset, fixed.first_ms)] = encode_due(fixed.due_ms)
    if entry[RETRY_ID_LENGTH] != NO_RETRY_ID:
        fixed = head(entry)
        rows[own.named_row(retry_id_of(entry, fixed) or b"", fixed.offset, fixed.first_ms)] = encode_due(fixed.due_ms)
    if entry[FLAGS_AT] & ORDERED:
        fixed = head(entry)
        rows[own.lane_row(lane_of_entry(entry, fixed), fixed.offset, fixed.first_ms)] = encode_due(fixed.due_ms)
