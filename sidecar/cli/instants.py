"""Instants as commands show them."""

from __future__ import annotations

from datetime import UTC, datetime


def shown_instant(at_ms: int) -> str:
    """Return epoch milliseconds as `2026-01-01 08:00:00.250 UTC`; what no calendar holds stays a number."""
    try:
        shown = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{shown}.{at_ms % 1000:03} UTC"
