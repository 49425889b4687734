"""Instants and durations as commands read and show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import click

from sidecar.clock import SystemClock
from sidecar.model import DUE_MS_MAX
from sidecar.settings.kinds import parse_duration_ms

_EPOCH_MS: Final = re.compile(r"[0-9]{1,19}")
_FROM_NOW: Final = re.compile(r"([+-]?)([0-9]{1,15}(?:ms|s|m|h|d))")


def read_duration(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return the milliseconds of an option that is a duration such as `10m`; an option's callback."""
    if text is None:
        return None
    try:
        return parse_duration_ms(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: must be a duration such as 250ms, 20s, 5m, 1h, 7d") from None


def read_instant(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return the epoch milliseconds of an option that is an instant; an option's callback."""
    if text is None:
        return None
    at_ms = parse_instant_ms(text, SystemClock().wall_ms())
    if at_ms is None or not 0 <= at_ms <= DUE_MS_MAX:
        raise click.BadParameter(
            f"{text!r}: must be epoch milliseconds (1767225600000), ISO 8601 (2026-01-01T08:00:00Z), now, or a "
            "duration from now such as 10m or -2h"
        )
    return at_ms


def parse_instant_ms(text: str, now_ms: int) -> int | None:
    """Return the instant that a text names, in epoch milliseconds; None for a text that names none.

    Args:
        text: Epoch milliseconds, ISO 8601 (UTC when it has no offset), `now`, or a duration from now such as `10m`.
        now_ms: The instant that a duration counts from.
    """
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if text == "now":
        return now_ms
    if match := _FROM_NOW.fullmatch(text):
        span_ms = parse_duration_ms(match[2])
        return now_ms - span_ms if match[1] == "-" else now_ms + span_ms
    try:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def shown_instant(at_ms: int) -> str:
    """Return epoch milliseconds as `2026-01-01 08:00:00.250 UTC`; what no calendar holds stays a number."""
    return _calendar(at_ms, f".{at_ms % 1000:03}")


def shown_from(at_ms: int, now_ms: int) -> str:
    """Return an instant to the second, with its distance from now: `2026-01-01 08:00:00 UTC (in 5 min)`."""
    distance = shown_span(abs(at_ms - now_ms))
    return f"{_calendar(at_ms, '')} ({f'in {distance}' if at_ms > now_ms else f'{distance} ago'})"


def shown_span(span_ms: int) -> str:
    """Return a duration in the largest unit of which it has two."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if span_ms >= 2 * unit_ms:
            return f"{span_ms // unit_ms} {unit}"
    return f"{span_ms / 1000:.1f} s"


def _calendar(at_ms: int, fraction: str) -> str:
    try:
        shown = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{shown}{fraction} UTC"
