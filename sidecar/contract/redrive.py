"""Redrive: the headers with which a dead letter goes to the retry topic again, or why it stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract.dead_letter import GIVEN_AT_DEATH, REDRIVES, DeadLetter
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
_OF_DEATH: Final = GIVEN_AT_DEATH | {REDRIVES}
"""Most of the headers that a death gives; all of them are known by the prefixes too, at a higher cost."""
_OWN: Final = Native()
REASON_CHARS_MAX: Final = 500
"""Most characters of why, or by whom, a dead letter was discarded."""
_GOLDEN: Final = 0.6180339887498949


class SkipReason(StrEnum):
    """The reason why a dead letter is not redriven."""

    DISCARDED = "discarded"
    """By an operator. Only the caller of `redrive` knows the discards."""
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

    def due_ms(self, now_ms: int, share: float) -> int:
        """Return when a redriven record is due. `share` is its position in the spread, see `share_of`."""
        return min(now_ms + self.delay_ms + int(self.spread_ms * share), DUE_MS_MAX)


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
        dead_letter: Made of these headers and dialects, if it was made before.
    """
    if dead_letter is None:
        dead_letter = DeadLetter(headers, dialects)
    reason, redrives = dead_letter.reason, dead_letter.redrives
    if headers is None or not reason:
        return Skipped(SkipReason.NOT_A_DEAD_LETTER, "no header retry-dlq-reason: no sidecar wrote it")
    if (
        dead_letter.is_control
        or dead_letter.truncated
        or redrives is None
        or redrives >= terms.max_redrives
        or reason in WOULD_DIE_AGAIN
    ) and (blocker := _blocker(dead_letter, reason, redrives, terms)) is not None:
        return blocker
    again = (dead_letter.dialect or _OWN).redriven(
        _alive(headers), terms.due_ms(now_ms, share), keep_attempts=terms.keep_attempts, to_origin=terms.to_origin
    )
    again.append((REDRIVES, b"%d" % ((redrives or 0) + 1)))
    request = parse(tuple.__new__(Record, (0, 0, NO_TIMESTAMP, key, value, again)), dialects)
    if type(request) is Request:
        return again
    return Skipped(SkipReason.MALFORMED, request.detail if isinstance(request, Rejection) else "a control record")


def _blocker(dead_letter: DeadLetter, reason: str, redrives: int | None, terms: RedriveTerms) -> Skipped | None:
    if dead_letter.is_control:
        return Skipped(SkipReason.MALFORMED, "a control record: send it again")
    if dead_letter.truncated:
        return Skipped(
            SkipReason.TRUNCATED, "a part of it was too large for the DLQ and is not there: raise max.message.bytes"
        )
    if redrives is None or redrives >= terms.max_redrives:
        count = "unknown" if redrives is None else redrives
        return Skipped(
            SkipReason.LOOP_GUARD, f"redriven before: {count}; allowed by --max-redrives: {terms.max_redrives}"
        )
    fixed = reason in FIXED_BY_ORIGIN and bool(terms.to_origin)
    if reason in WOULD_DIE_AGAIN and reason not in terms.named and not fixed:
        return Skipped(SkipReason.WOULD_DIE_AGAIN, f"{reason}: it would die again unless --reason {reason} says so")
    return None


def _alive(headers: Headers) -> Headers:
    """Return the headers without those that its death and its redrives gave it."""
    return [each for each in headers if each[0] not in _OF_DEATH and not each[0].startswith(_DEATH_PREFIXES)]
