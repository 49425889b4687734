"""What must hold of a partition's plan before any of it is written: a defect of the engine ends here.

A plan is checked as a whole, by its counts and by its changelog records, never message by message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sidecar.changelog.codec import CHECKPOINT_KEY
from sidecar.changelog.entry import DUE, KEY
from sidecar.contract.control import Outcome
from sidecar.engine.deliver import Due
from sidecar.engine.partition import Partition
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.errors import invariant
from sidecar.wheel.counts import Counts
from sidecar.wheel.geometry import WIDTHS_MS

_BLOCK, _REMOVED = b"b"[0], b"r"[0]
_SLOT_END = slice(1, 9)
_SEQUENCE = slice(9, 17)
"""Of a block's key, like the one before."""
_CHANGES = frozenset({Outcome.CANCELLED, Outcome.RESCHEDULED, Outcome.FIRED})
_CHANGES_NOTHING = frozenset({Outcome.NOT_PENDING, Outcome.ORIGIN_PAUSED})


def check_plan(partition: Partition, part: PartitionPlan, now_ms: int, terms: Terms) -> None:
    """Raise InvariantViolated if a plan contradicts itself, the partition's state, or the rules of `plan()`.

    Args:
        partition: As it was when the plan was made.
        part: The plan of this partition.
        now_ms: Time of the plan.
        terms: Terms of the plan.
    """
    _check_checkpoint(partition, part, now_ms)
    _check_verdicts(partition, part)
    _check_conservation(partition, part)
    check_counts(partition.number, part.counts, part.checkpoint.watermark_ms)
    _check_records(part, now_ms)
    _check_outgoing(part, now_ms, terms)
    _check_outcomes(partition, part)
    _check_rows(partition, part)


def _check_checkpoint(partition: Partition, part: PartitionPlan, now_ms: int) -> None:
    number, before, after = partition.number, partition.checkpoint, part.checkpoint
    invariant(
        after.sequence == before.sequence + 1,
        "a plan does not continue its partition's sequence",
        partition=number,
        before=before.sequence,
        after=after.sequence,
    )
    watermark, passed = part.watermark, partition.watermark
    invariant(watermark >= passed, "the watermark moves back", partition=number, before=passed, after=watermark)
    invariant(
        after.watermark_ms <= max(now_ms, before.watermark_ms),
        "the watermark passes the time of the plan",
        partition=number,
        watermark_ms=after.watermark_ms,
        now_ms=now_ms,
    )
    invariant(
        after.next_input_offset >= before.next_input_offset,
        "the next input offset moves back",
        partition=number,
        before=before.next_input_offset,
        after=after.next_input_offset,
    )
    invariant(
        after.highest_input_offset >= before.highest_input_offset,
        "the highest input offset moves back",
        partition=number,
        before=before.highest_input_offset,
        after=after.highest_input_offset,
    )
    invariant(
        (after.input_topic_id, after.offset_base) == (before.input_topic_id, before.offset_base),
        "a plan changes the input topic that its offsets count in",
        partition=number,
        before=(before.input_topic_id, before.offset_base),
        after=(after.input_topic_id, after.offset_base),
    )
    begun = after.unfinished
    invariant(
        begun is None or begun == before.unfinished or begun.control_offset >= after.next_input_offset,
        "a control record in progress is behind the next input offset",
        partition=number,
        control_offset=begun and begun.control_offset,
        next_input_offset=after.next_input_offset,
    )


def _check_verdicts(partition: Partition, part: PartitionPlan) -> None:
    before, after = partition.checkpoint, part.checkpoint
    span = after.next_input_offset - before.next_input_offset
    invariant(
        part.ingested <= span,
        "a plan ingests more records than it has input offsets for",
        partition=part.number,
        ingested=part.ingested,
        offsets=span,
    )
    invariant(
        not part.ingested or after.highest_input_offset >= after.next_input_offset,
        "an ingested record is above the highest input offset",
        partition=part.number,
        highest=after.highest_input_offset,
        next_input_offset=after.next_input_offset,
    )
    verdicts = part.stored + part.rejected + len(part.dropped) + len(part.control_outcomes)
    # Of records that were ingested before, after the group's offset was set back, some need none.
    replays = before.highest_input_offset > before.next_input_offset
    invariant(
        verdicts == part.ingested or (replays and verdicts < part.ingested),
        "an ingested record has no verdict, or two",
        partition=part.number,
        ingested=part.ingested,
        stored=part.stored,
        rejected=part.rejected,
        dropped=len(part.dropped),
        outcomes=len(part.control_outcomes),
    )


def _check_conservation(partition: Partition, part: PartitionPlan) -> None:
    before, after = partition.counts.pending, part.counts.pending
    dead = len(part.dead_letters) - part.rejected
    invariant(
        dead >= 0,
        "a rejected record has no dead letter",
        partition=part.number,
        rejected=part.rejected,
        dead_letters=len(part.dead_letters),
    )
    fired, stood = len(part.fired_dues_ms), sum(part.delivered_before.values())
    invariant(
        after - before == part.stored - fired - dead - part.cancelled - stood,
        "timers are lost or come from nowhere",
        partition=part.number,
        before=before,
        after=after,
        stored=part.stored,
        fired=fired,
        dead=dead,
        cancelled=part.cancelled,
        delivered_before=stood,
    )


def check_counts(number: int, counts: Counts, watermark_ms: int) -> None:
    """Raise InvariantViolated if the counters of a partition contradict each other or its watermark."""
    slots, origins = sum(counts.slots.values()), counts.pending
    invariant(
        slots == origins,
        "the counters by slot and by origin differ",
        partition=number,
        slots=slots,
        origins=origins,
    )
    for origin, deferred in counts.deferred.items():
        pending = counts.origins.get(origin, 0)
        invariant(
            deferred <= pending,
            "more timers of an origin are deferred than are pending",
            partition=number,
            origin=origin,
            deferred=deferred,
            pending=pending,
        )
    passed = [key for key in counts.slots if (key[1] + 1) * WIDTHS_MS[key[0]] <= watermark_ms]
    invariant(
        not passed,
        "timers are pending in a slot that the watermark has passed",
        partition=number,
        slots=passed[:3],
        watermark_ms=watermark_ms,
    )


def _check_records(part: PartitionPlan, now_ms: int) -> None:
    records, number = part.records, part.number
    keys = len({key for key, _ in records})
    invariant(
        keys == len(records),
        "two changelog records of a transaction have one key",
        partition=number,
        records=len(records),
        keys=keys,
    )
    invariant(
        bool(records) and records[-1][0] == CHECKPOINT_KEY and records[-1][1] is not None,
        "a transaction does not end with its checkpoint",
        partition=number,
        last=records[-1][0] if records else b"",
    )
    ended, gone = bytes(8), bytes(16)
    earliest = b"\xff" * 8
    sequences = set[bytes]()
    for key, value in records:
        if key[0] == _BLOCK and value is None:
            ended = max(ended, key[_SLOT_END])
        elif key[0] == _BLOCK:
            earliest = min(earliest, key[_SLOT_END])
            sequences.add(key[_SEQUENCE])
        elif key[0] == _REMOVED and value is None and len(key) > _SEQUENCE.start:
            gone = max(gone, key[9:17] + key[1:9])
    watermark = part.watermark
    invariant(
        ended <= watermark[DUE],
        "a block is deleted before the watermark has passed it",
        partition=number,
        slot_end_ms=int.from_bytes(ended, "big"),
        watermark_ms=part.checkpoint.watermark_ms,
    )
    invariant(
        gone <= watermark,
        "a removed record is deleted before the watermark has passed it",
        partition=number,
        key=gone,
        watermark=watermark,
    )
    earliest_ms = int.from_bytes(earliest, "big")
    invariant(
        earliest_ms > now_ms,
        "a block is stored whose slot is over",
        partition=number,
        slot_end_ms=earliest_ms,
        now_ms=now_ms,
    )
    sequence = part.checkpoint.sequence.to_bytes(8, "big")
    invariant(
        sequences <= {sequence},
        "a block has the sequence of another transaction",
        partition=number,
        sequences=sorted(sequences),
        sequence=sequence,
    )


def _check_outgoing(part: PartitionPlan, now_ms: int, terms: Terms) -> None:
    dues = part.fired_dues_ms
    early = len(dues) - bisect_right(dues, now_ms)
    invariant(
        early <= len(part.taken),
        "timers fire before their due, and no control record says so",
        partition=part.number,
        early=early,
        removed=len(part.taken),
        last_ms=dues[-1] if dues else 0,
        now_ms=now_ms,
    )
    elsewhere = {outgoing.topic for _, outgoing in part.dead_letters} - terms.dlq_topics
    invariant(
        not elsewhere,
        "a dead letter goes to a topic that is no DLQ",
        partition=part.number,
        topics=sorted(elsewhere),
        dlq_topics=sorted(terms.dlq_topics),
    )


def _check_outcomes(partition: Partition, part: PartitionPlan) -> None:
    # What lies below was answered before; its outcome stands.
    least = max(partition.checkpoint.highest_input_offset, partition.checkpoint.next_input_offset)
    for each in part.control_outcomes:
        invariant(
            least <= each.offset < part.checkpoint.next_input_offset,
            "an outcome is given twice, or before its control record is ingested",
            partition=part.number,
            offset=each.offset,
            answered_below=least,
            next_input_offset=part.checkpoint.next_input_offset,
        )
        least = each.offset + 1
        invariant(
            (each.timers > 0 or each.outcome not in _CHANGES)
            and (each.timers == 0 or each.outcome not in _CHANGES_NOTHING),
            "an outcome and the number of its timers contradict each other",
            partition=part.number,
            offset=each.offset,
            outcome=each.outcome.value,
            timers=each.timers,
        )


def _check_rows(partition: Partition, part: PartitionPlan) -> None:
    prefix, rows = partition.rows.timer, part.mutations.rows
    back = [key for key in part.taken if rows.get(prefix + key) is not None]
    invariant(
        not back, "a timer is stored under a key that the same plan removed", partition=part.number, keys=back[:3]
    )
    least, most = prefix + partition.watermark, prefix + part.watermark + b"\0"
    for start, end in part.mutations.ranges:
        invariant(
            least < start < end <= most,
            "rows are deleted that have not fired",
            partition=part.number,
            start=start,
            end=end,
            watermark=part.watermark,
        )


def check_due(due: Sequence[Due], reached: bytes, now_ms: int) -> bytes:
    """Raise InvariantViolated unless due timers come after the key `reached` and are due; return the last one's key."""
    if not due:
        return reached
    first, last = due[0][0], due[-1][0]
    invariant(first > reached, "a timer is due that has been disposed of", key=first, reached=reached)
    invariant(first <= last < KEY.pack(now_ms + 1, 0), "a timer is read before it is due", key=last, now_ms=now_ms)
    return last
