"""The ledger: compares the records on the topics with the plans of the messages. Pure; it never asks the sidecar.

Each record on the retry topic has a position (partition, offset), and every record from the sidecar names the position
that it came from. So each position must occur exactly once: on its origin, on the DLQ, or nowhere because the message
was dropped or is not due yet.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.demo.plan import DROPPED, FIRED, Plan
from sidecar.model import Headers

IN_TIME_MS: Final = 1_000
_NAMED: Final = 5


class Position(NamedTuple):
    """The position of a record on the retry topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"


class Content(NamedTuple):
    """The part of a record that the sidecar must not change: key, value and the application's headers."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class InputRecord(NamedTuple):
    """A record that was committed to the retry topic."""

    position: Position
    plan: Plan
    attempt: int
    origin: str
    due_ms: int | None
    """The due time by its headers and timestamp; None when it is malformed, or must not fire."""
    content: Content


class OutputRecord(NamedTuple):
    """A record that the sidecar wrote."""

    position: Position
    outcome: str
    """FIRED, or the reason on the DLQ."""
    topic: str
    at_ms: int
    """The broker's time of the record."""
    was_due_ms: int | None
    """The due time by the sidecar's header."""
    content: Content


class Lateness(NamedTuple):
    """The broker's time of deliveries minus their due times, in ms."""

    p50_ms: int
    p99_ms: int
    max_ms: int

    @property
    def in_time(self) -> bool:
        """Return whether 99 % came within IN_TIME_MS."""
        return self.p99_ms <= IN_TIME_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The result: entered = fired + dead_lettered + dropped + pending, or `problems` says what is wrong."""

    entered: int
    planned: int
    """The number of records that the plans give."""
    fired: int
    dead_lettered: Mapping[str, int]
    """The dead letters by reason."""
    dropped: int
    pending: int
    """The messages that were not due yet when the topics were read."""
    reported_pending: int | None
    """The answer of `GET /pending` at that time."""
    lost: Sequence[str]
    twice: Sequence[str]
    early: Sequence[str]
    altered: Sequence[str]
    """The records whose key, value or application header changed."""
    unplanned: Sequence[str]
    """The records with another outcome than planned, or without a record on the retry topic."""
    lateness: Lateness | None

    @property
    def accounted(self) -> int:
        """The right side of the equation."""
        return self.fired + sum(self.dead_lettered.values()) + self.dropped + self.pending

    @property
    def problems(self) -> list[str]:
        """One line for each problem; empty when the ledger holds."""
        lists = (
            ("lost", self.lost),
            ("came out twice", self.twice),
            ("fired early", self.early),
            ("altered", self.altered),
            ("not as planned", self.unplanned),
        )
        found = [f"{len(which):,} {what}: {_listed(which)}" for what, which in lists if which]
        if self.entered != self.accounted:
            found.append(f"{self.entered:,} went in, but {self.accounted:,} are accounted for")
        if self.entered != self.planned:
            found.append(f"{self.entered:,} records are on the retry topic, {self.planned:,} were planned")
        if self.reported_pending is not None and self.reported_pending != self.pending:
            found.append(f"GET /pending says {self.reported_pending:,}, the topics say {self.pending:,}")
        return found

    @property
    def holds(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """Return the ledger for `--json`."""
        return {
            "holds": self.holds,
            "in": self.entered,
            "fired": self.fired,
            "dead_lettered": sum(self.dead_lettered.values()),
            "dead_lettered_by_reason": dict(self.dead_lettered),
            "dropped": self.dropped,
            "pending": self.pending,
            "lost": len(self.lost),
            "twice": len(self.twice),
            "early": len(self.early),
            "altered": len(self.altered),
            "unplanned": len(self.unplanned),
            "lateness_ms": None
            if self.lateness is None
            else {"p50": self.lateness.p50_ms, "p99": self.lateness.p99_ms, "max": self.lateness.max_ms},
            "in_time": self.lateness is None or self.lateness.in_time,
            "problems": self.problems,
        }


def draw_up(
    entered: Sequence[InputRecord],
    outputs: Iterable[OutputRecord],
    *,
    planned: int,
    read_at_ms: int,
    reported_pending: int | None = None,
    warm_ms: int = 0,
) -> Ledger:
    """Compare the records that entered with those that the sidecar wrote.

    Args:
        entered: All records of the retry topic.
        outputs: All records that the sidecar wrote to the origins and the DLQ.
        planned: The number of records that the retry topic should have.
        read_at_ms: The start of the reading: only messages that were not due by then may be pending.
        reported_pending: The answer of `GET /pending`.
        warm_ms: The time from which on lateness counts: what was due before warmed the sidecar up.
    """
    found: dict[Position, list[OutputRecord]] = defaultdict(list)
    for out in outputs:
        found[out.position].append(out)
    outcomes: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {"lost": [], "twice": [], "early": [], "altered": [], "unplanned": []}
    late_ms: list[int] = []
    for record in entered:
        outs = found.pop(record.position, [])
        outcomes[_outcome(record, outs, read_at_ms)] += 1
        for kind, text in _faults(record, outs, read_at_ms):
            wrong[kind].append(text)
        if record.due_ms is not None and record.due_ms >= warm_ms:
            late_ms += [fired.at_ms - record.due_ms for fired in outs if fired.outcome == FIRED]
    wrong["unplanned"] += [f"{position} came out, but never went in" for position in sorted(found)]
    return Ledger(
        entered=len(entered),
        planned=planned,
        fired=outcomes.pop(FIRED, 0),
        dropped=outcomes.pop(DROPPED, 0),
        pending=outcomes.pop(_PENDING, 0),
        dead_lettered={reason: n for reason, n in sorted(outcomes.items()) if reason != _LOST},
        reported_pending=reported_pending,
        lateness=_lateness(late_ms),
        lost=wrong["lost"],
        twice=wrong["twice"],
        early=wrong["early"],
        altered=wrong["altered"],
        unplanned=wrong["unplanned"],
    )


_PENDING: Final = "pending"
_LOST: Final = "lost"


def _outcome(record: InputRecord, outs: Sequence[OutputRecord], read_at_ms: int) -> str:
    if outs:
        return outs[0].outcome
    planned = record.plan.outcome(record.attempt)
    if planned == DROPPED:
        return DROPPED
    return _PENDING if planned == FIRED and record.due_ms is not None and record.due_ms > read_at_ms else _LOST


def _faults(record: InputRecord, outs: Sequence[OutputRecord], read_at_ms: int) -> Iterable[tuple[str, str]]:
    """Yield the faults of one record: the list it belongs to, and a text."""
    planned = record.plan.outcome(record.attempt)
    if _outcome(record, outs, read_at_ms) == _LOST:
        yield "lost", f"{record.position} ({record.plan}, to be {planned})"
    if len(outs) > 1:
        yield "twice", f"{record.position} ({', '.join(out.outcome for out in outs)})"
    for out in outs:
        if out.outcome != planned:
            yield "unplanned", f"{record.position} is {out.outcome}, not {planned}"
        if out.content != record.content:
            yield "altered", str(record.position)
        if out.outcome != FIRED:
            continue
        if out.topic != record.origin:
            yield "unplanned", f"{record.position} was fired to {out.topic}, not to {record.origin}"
        if out.was_due_ms != record.due_ms:
            yield "unplanned", f"{record.position} was due {record.due_ms}, fired as due {out.was_due_ms}"
        if record.due_ms is not None and out.at_ms < record.due_ms:
            yield "early", f"{record.position} by {record.due_ms - out.at_ms} ms"


def _lateness(late_ms: list[int]) -> Lateness | None:
    if not late_ms:
        return None
    ordered = sorted(late_ms)
    return Lateness(_rank(ordered, 0.50), _rank(ordered, 0.99), ordered[-1])


def _rank(ordered: Sequence[int], share: float) -> int:
    """Return the least value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _listed(texts: Sequence[str]) -> str:
    rest = len(texts) - _NAMED
    return "; ".join(texts[:_NAMED]) + (f"; and {rest:,} more" if rest > 0 else "")
