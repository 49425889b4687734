"""Redrive: the headers with which a dead letter goes to the retry topic again, or why it stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.contract.dead_letter import REDRIVES, TIMESTAMP_MS, DeadLetter, read_dead_letter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.dialects.native import Native
from sidecar.contract.dialects.registry import DIALECTS, parse
from sidecar.model import DUE_MS_MAX, NO_TIMESTAMP, Headers, Reason, Record, Rejection, Request

MAX_REDRIVES: Final = 3
"""The most redrives of a record unless the operator sets another limit."""

WOULD_DIE_AGAIN: Final = frozenset(
    {
        Reason.MISSING_HEADER,
        Reason.BAD_HEADER,
        Reason.DELAY_OUT_OF_RANGE,
        Reason.TOO_LARGE,
        Reason.ORIGIN_NOT_ALLOWED,
    }
)
"""Reasons that lie in the message: it stays where it is unless the operator names them."""

FIXED_BY_ORIGIN: Final = frozenset(
    {Reason.MISSING_HEADER, Reason.BAD_HEADER, Reason.TOO_LARGE, Reason.ORIGIN_NOT_ALLOWED}
)
"""The reasons that another origin can fix."""

_DEATH_PREFIXES: Final = ("retry-dlq-", "__connect.errors.")
_OWN: Final = Native()
_GOLDEN: Final = 0.6180339887498949


class SkipReason(StrEnum):
    """The reason why a dead letter is not redriven."""

    NOT_A_DEAD_LETTER = "not-a-dead-letter"
    TRUNCATED = "truncated"
    LOOP_GUARD = "loop-guard"
    WOULD_DIE_AGAIN = "would-die-again"
    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    """For the retry topic, which who calls `redrive` knows."""


class Skipped(NamedTuple):
    """The dead letter stays on the DLQ."""

    why: SkipReason
    detail: str
    """For a person."""


@dataclass(frozen=True, slots=True)
class RedriveTerms:
    """The terms on which dead letters are redriven."""

    delay_ms: int = 0
    spread_ms: int = 0
    """Over which the due times are spread evenly, behind the delay."""
    keep_attempts: bool = False
    max_redrives: int = MAX_REDRIVES
    to_origin: str = ""
    """Goes there, wherever it would have gone; empty: where it would have gone."""
    named: frozenset[str] = frozenset()
    """Reasons that the operator named in full: redriven even if they lie in the message."""


def share_of(number: int) -> float:
    """Return where in the spread the record of this number goes, 0 to below 1: even over any run of numbers."""
    return number * _GOLDEN % 1.0


def redrive(
    headers: Headers | None,
    terms: RedriveTerms,
    *,
    now_ms: int,
    share: float,
    dialects: Sequence[Dialect] = tuple(DIALECTS.values()),
    key: bytes | None = None,
    value: bytes | None = None,
    dead_letter: DeadLetter | None = None,
) -> Headers | Skipped:
    """Return the headers for the retry topic, as a new list, or why the record stays. Never raises.

    All headers that the sidecar does not know go as they came, in their order; so do key and value, which are the
    caller's business.

    Args:
        headers: The headers of the record on the DLQ; None when they cannot be read.
        terms: The operator's.
        now_ms: The instant that the delay counts from.
        share: The position in the spread, see `share_of`.
        dialects: In the order of preference, as the sidecar has them.
        key: The record's key; in some dialects it is the id of a schedule.
        value: The record's value; in some dialects a record without one takes a schedule away.
        dead_letter: What `read_dead_letter` returned for these headers and dialects, if it was called before.
    """
    dead_letter = dead_letter or read_dead_letter(headers, dialects)
    if headers is None or not dead_letter.reason:
        return Skipped(SkipReason.NOT_A_DEAD_LETTER, "no header retry-dlq-reason: no sidecar wrote it")
    if (blocker := _blocker(dead_letter, terms)) is not None:
        return blocker
    at_ms = min(now_ms + terms.delay_ms + int(terms.spread_ms * share), DUE_MS_MAX)
    again = (dead_letter.dialect or _OWN).redriven(
        _alive(headers), at_ms, keep_attempts=terms.keep_attempts, to_origin=terms.to_origin
    )
    again.append((REDRIVES, b"%d" % ((dead_letter.redrives or 0) + 1)))
    request = parse(Record(0, 0, NO_TIMESTAMP, key, value, again), dialects)
    if type(request) is Request:
        return again
    return Skipped(SkipReason.MALFORMED, request.detail if isinstance(request, Rejection) else "a control record")


def _blocker(dead_letter: DeadLetter, terms: RedriveTerms) -> Skipped | None:
    if dead_letter.is_control:
        return Skipped(SkipReason.MALFORMED, "a control record: send it again")
    if dead_letter.truncated:
        return Skipped(
            SkipReason.TRUNCATED, "a part of it was too large for the DLQ and is not there: raise max.message.bytes"
        )
    if dead_letter.redrives is None or dead_letter.redrives >= terms.max_redrives:
        count = "unknown" if dead_letter.redrives is None else dead_letter.redrives
        return Skipped(
            SkipReason.LOOP_GUARD, f"redriven before: {count}; allowed by --max-redrives: {terms.max_redrives}"
        )
    fixed = dead_letter.reason in FIXED_BY_ORIGIN and bool(terms.to_origin)
    if dead_letter.reason in WOULD_DIE_AGAIN and dead_letter.reason not in terms.named and not fixed:
        return Skipped(
            SkipReason.WOULD_DIE_AGAIN,
            f"{dead_letter.reason}: it would die again unless --reason {dead_letter.reason} says so",
        )
    return None


def _alive(headers: Headers) -> Headers:
    """Return the headers without those that its death and its redrives gave it."""
    return [header for header in headers if not _is_of_death(header[0])]


# Bounded, since senders can make up names without end.
@lru_cache(maxsize=1024)
def _is_of_death(name: str) -> bool:
    return name.startswith(_DEATH_PREFIXES) or name in (TIMESTAMP_MS, REDRIVES)
