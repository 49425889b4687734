"""The public view of a partition, and the answer to "how many messages are pending, and until when?".

The partition's owner makes a view from its counters, without reading timers. Its JSON form is the value of the status
topic's `p/` records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, Final, Literal

import msgspec

from sidecar.changelog.codec import Checkpoint, NextTurn
from sidecar.contract.control import EVERY_ORIGIN
from sidecar.engine.group.activity import MINUTES, Activity, Minute
from sidecar.wheel.counts import Counts
from sidecar.wheel.geometry import LEVELS, slot_end_ms, slot_of, slot_start_ms

FIGURE_AGE_MAX_MS: Final = 10_000
"""A view of this age has expired."""

COUNT_MAX: Final = 10**12
"""Most messages of one kind in a partition: more than its disk holds, and exact in JSON for every reader."""

ORIGINS_MAX: Final = 1_000
"""Most origins that a status record counts individually, so that it fits the status topic."""
OTHERS: Final = "(others)"
"""All further origins, counted together; not a valid topic name."""

STOPPED: Final = "stopped"
"""State of EVERY_ORIGIN while the group is stopped; it fires nothing, as while it is paused."""

HORIZONS_MS: Final = {"5s": 5_000, "1m": 60_000, "5m": 300_000, "1h": 3_600_000, "1d": 86_400_000}
"""The bounds of `due_within`, in rising order."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One input partition at one moment. Its mappings must not change once it is made."""

    partition: int
    state: str
    owner: str
    """Instance id of the owner; empty when the partition has none."""
    url: str | None
    """URL of the owner's HTTP API, if published."""
    pending: int = 0
    watermark_ms: int | None = None
    """Due time up to which everything has fired; None before the first fire."""
    restored: float = 0.0
    """Completed fraction of the restore, 0 to 1."""
    restore_remaining: int = 0
    """Changelog records still to be read."""
    by_origin: Mapping[str, int] = field(default_factory=dict)
    deferred_by_origin: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Pending by (level, slot), by stored due."""
    next_due_ms: int | None = None
    """Earliest stored due of the pending timers; None when there are none."""
    due_backlog: int = 0
    """Timers that are due and were not fired by the last scan."""
    closed_origins: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Origin to (state, since in epoch ms), for origins that are not open."""
    turns: Mapping[str, NextTurn] = field(default_factory=dict)
    """The next turn of each origin with a rate that holds messages."""
    sequence: int = 0
    lag: int | None = None
    """Input records that are not ingested yet; None when unknown."""
    as_of_ms: int = 0
    """When the counters were complete and accurate; 0 when unknown."""
    next_input_offset: int | None = None
    """Offset of the first input record that is not ingested; None when unknown."""
    reason: str = ""
    """Why the partition is not running, for people; empty when it is."""
    activity: Activity | None = None
    """The last hour; None until the owner has joined its predecessor's."""
    listable: bool = True
    """Whether the owner can show single messages; False on a Spark driver that has no address."""
    release: str = ""
    """The owner's version of retry-sidecar."""
    restored_ms: int = 0
    """When the state was last restored, by the broker's clock; 0 while it is not, and on Spark."""

    @property
    def held_by_origin(self) -> Mapping[str, int]:
        """Messages held until their turns."""
        return {origin: behind for origin, turn in self.turns.items() if (behind := turn.behind(self.as_of_ms))}

    def counted(self, counts: Counts, checkpoint: Checkpoint, as_of_ms: int) -> PartitionView:
        """Return the view with the values of counters and checkpoint as of `as_of_ms`."""
        return replace(
            self,
            pending=counts.pending,
            by_origin=counts.origins,
            deferred_by_origin=counts.deferred,
            slots=counts.slots,
            watermark_ms=checkpoint.fired_to_ms,
            closed_origins=closed_origins(checkpoint),
            turns={origin: turn for origin, turn in checkpoint.turns.items() if turn.behind(as_of_ms)},
            sequence=checkpoint.sequence,
            as_of_ms=as_of_ms,
        )

    def to_json(self) -> bytes:
        """Return the value of the partition's status record."""
        return _ENCODER.encode(
            _Wire(
                version=1,
                partition=self.partition,
                state=self.state,
                owner=self.owner,
                url=self.url,
                pending=self.pending,
                watermark_ms=self.watermark_ms,
                restored=self.restored,
                restore_remaining=self.restore_remaining,
                by_origin=_greatest(self.by_origin),
                deferred_by_origin=_greatest(self.deferred_by_origin),
                slots=[(level, slot, count) for (level, slot), count in self.slots.items()],
                next_due_ms=self.next_due_ms,
                due_backlog=self.due_backlog,
                closed_origins=dict(self.closed_origins),
                turns=_farthest(self.turns),
                sequence=self.sequence,
                lag=self.lag,
                as_of_ms=self.as_of_ms,
                activity=None if self.activity is None else _hour_of(self.activity),
                next_input_offset=self.next_input_offset,
                reason=self.reason,
                listable=self.listable,
                release=self.release,
                restored_ms=self.restored_ms,
            )
        )

    @classmethod
    def from_json(cls, value: bytes) -> PartitionView | None:
        """Return the view, or None for bytes that are not one of this version. Never raises.

        Anyone may write to a topic: an invalid record counts as absent.
        """
        try:
            wire = _DECODER.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return cls(
            partition=wire.partition,
            state=wire.state,
            owner=wire.owner,
            url=wire.url,
            pending=wire.pending,
            watermark_ms=wire.watermark_ms,
            restored=wire.restored,
            restore_remaining=wire.restore_remaining,
            by_origin=wire.by_origin,
            deferred_by_origin=wire.deferred_by_origin,
            slots={(level, slot): count for level, slot, count in wire.slots},
            next_due_ms=wire.next_due_ms,
            due_backlog=wire.due_backlog,
            closed_origins=wire.closed_origins,
            turns={
                origin: NextTurn(next_ms * 1_000_000, every_ns) for origin, (next_ms, every_ns) in wire.turns.items()
            },
            sequence=wire.sequence,
            lag=wire.lag,
            as_of_ms=wire.as_of_ms,
            activity=None if wire.activity is None else _activity_of(wire.activity),
            next_input_offset=wire.next_input_offset,
            reason=wire.reason,
            listable=wire.listable,
            release=wire.release,
            restored_ms=wire.restored_ms,
        )


def closed_origins(checkpoint: Checkpoint) -> dict[str, tuple[str, int]]:
    """Return state and since (epoch ms) of the origins that are not open. A stop of the group shows as STOPPED."""
    found = {name: (closed.why.value, closed.since_ms) for name, closed in checkpoint.closed.items()}
    if checkpoint.stopped and EVERY_ORIGIN in found:
        found[EVERY_ORIGIN] = (STOPPED, found[EVERY_ORIGIN][1])
    return found


def _greatest(by_origin: Mapping[str, int]) -> dict[str, int]:
    if len(by_origin) <= ORIGINS_MAX:
        return dict(by_origin)
    named = dict(nlargest(ORIGINS_MAX, by_origin.items(), key=itemgetter(1, 0)))
    return {**named, OTHERS: sum(by_origin.values()) - sum(named.values())}


def _farthest(turns: Mapping[str, NextTurn]) -> dict[str, tuple[int, int]]:
    """Return next turn (ms) and time between two of them (ns), of the origins whose turns are farthest ahead."""
    named = nlargest(ORIGINS_MAX, turns.items(), key=lambda each: (each[1].next_ns, each[0]))
    return {origin: (turn.next_ns // 1_000_000, turn.every_ns) for origin, turn in named}


_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
_Every = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Level = Annotated[int, msgspec.Meta(ge=0, le=LEVELS - 1)]


class _Hour(msgspec.Struct, frozen=True):
    newest: _Natural
    counts: list[tuple[_Count, _Count, _Count]]


def _hour_of(activity: Activity) -> _Hour:
    used = max((at for at, minute in enumerate(activity.counts, 1) if any(minute)), default=0)
    return _Hour(activity.newest, list(activity.counts[:used]))


def _activity_of(hour: _Hour) -> Activity:
    return Activity(hour.newest, tuple(Minute(*counts) for counts in hour.counts[:MINUTES]))


class _Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Version 1 of the JSON. Unknown fields are ignored, so that a later release can add some."""

    version: Literal[1]
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    state: str
    owner: str
    url: str | None
    pending: _Count
    watermark_ms: _Natural | None
    restored: Annotated[float, msgspec.Meta(ge=0, le=1)]
    restore_remaining: _Count
    by_origin: dict[str, _Count]
    deferred_by_origin: dict[str, _Count]
    slots: list[tuple[_Level, _Natural, _Count]]
    next_due_ms: _Natural | None
    due_backlog: _Count
    closed_origins: dict[str, tuple[str, _Natural]]
    sequence: _Natural
    lag: _Natural | None
    as_of_ms: _Natural
    activity: _Hour | None = None
    next_input_offset: _Natural | None = None
    reason: str = ""
    listable: bool = True
    release: str = ""
    restored_ms: _Natural = 0
    turns: dict[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=2**43)], _Every]] = {}


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Wire)


def summarise(
    views: Iterable[PartitionView],
    *,
    partitions_total: int | None,
    now_ms: int,
    origin: str | None = None,
    partition: int | None = None,
) -> dict[str, object]:
    """Return the JSON of `GET /pending`.

    Args:
        views: At most one per partition.
        partitions_total: Number of input partitions; None while unknown: then the answer is never complete.
        now_ms: Wall time.
        origin: Count this origin only; the answer then has only `total` and `by_partition`.
        partition: Count this partition only; `complete` then refers to it.
    """
    chosen = sorted((view for view in views if partition in {None, view.partition}), key=lambda view: view.partition)
    if origin is not None:
        counts = {str(view.partition): view.by_origin.get(origin, 0) for view in chosen}
        return {"total": sum(counts.values()), "by_partition": counts}
    total = sum(view.pending for view in chosen)
    by_origin: Counter[str] = Counter()
    for view in chosen:
        by_origin.update(view.by_origin)
    return {
        "total": total,
        "by_origin": {name: by_origin[name] for name in sorted(by_origin) if by_origin[name]},
        "by_partition": {str(view.partition): view.pending for view in chosen},
        **_due(chosen, total=total, now_ms=now_ms),
        "next_due_ms": min((view.next_due_ms for view in chosen if view.next_due_ms is not None), default=None),
        "as_of_ms": as_of_ms(chosen, now_ms),
        "complete": is_complete(chosen, wanted=1 if partition is not None else partitions_total, now_ms=now_ms),
        "partitions": [
            {
                "partition": view.partition,
                "state": view.state,
                "owner": view.owner or None,
                "pending": view.pending,
                "watermark_ms": view.watermark_ms,
                "restored": view.restored,
            }
            for view in chosen
        ],
    }


def as_of_ms(views: Iterable[PartitionView], now_ms: int) -> int:
    """Return when the oldest of the figures was taken; now when there is none."""
    return min((view.as_of_ms for view in views if view.as_of_ms), default=now_ms)


def is_complete(views: Sequence[PartitionView], *, wanted: int | None, now_ms: int) -> bool:
    """Return whether each wanted partition has an owner and a recent figure."""
    known = {view.partition for view in views if view.owner and now_ms - view.as_of_ms < FIGURE_AGE_MAX_MS}
    return wanted is not None and len(known) >= wanted


def _due(views: Sequence[PartitionView], *, total: int, now_ms: int) -> dict[str, object]:
    """Return `due_within` and `overdue`.

    A deferred timer is in the slot of its next attempt, so `due_within` counts it there; it is overdue as well. If its
    next attempt is late too it would count twice as overdue, hence the cap.
    """
    bounds = [now_ms // 1000 * 1000, *(now_ms + horizon for horizon in HORIZONS_MS.values())]
    late, *within = (min(total, count) for count in _due_before(views, bounds))
    deferred = sum(sum(view.deferred_by_origin.values()) for view in views)
    return {
        "due_within": {**dict(zip(HORIZONS_MS, within, strict=True)), "later": total - within[-1]},
        "overdue": min(total, late + deferred),
    }


def _due_before(views: Sequence[PartitionView], bounds_ms: Sequence[int]) -> list[int]:
    """Estimate for each bound the number due before it: whole slots exactly, straddling slots by their share."""
    merged: defaultdict[tuple[int, int], int] = defaultdict(int)
    for view in views:
        for place, count in view.slots.items():
            merged[place] += count
    counts = []
    for bound_ms in bounds_ms:
        # The one slot of each level that holds the bound; those before it lie inside as a whole.
        edges = [slot_of(bound_ms, level) for level in range(LEVELS)]
        inside = sum([count for (level, slot), count in merged.items() if slot < edges[level]])
        straddling = [place for place in enumerate(edges) if place in merged]
        shares = sum(_share_before(view, *place, bound_ms) for place in straddling for view in views)
        counts.append(inside + round(shares))
    return counts


def _share_before(view: PartitionView, level: int, slot: int, bound_ms: int) -> float:
    """Estimate how many of a slot's timers are due before a bound within the slot.

    They count as spread evenly over the part of the slot that can still hold timers: none is due before the next due
    time or the watermark. Without this a coarse slot would always look partly overdue.
    """
    count = view.slots.get((level, slot), 0)
    if not count:
        return 0.0
    end_ms = slot_end_ms(slot, level)
    start_ms = max(slot_start_ms(slot, level), view.watermark_ms or 0, view.next_due_ms or 0)
    if start_ms >= bound_ms:
        return 0.0
    return count * (bound_ms - start_ms) / (end_ms - start_ms)
