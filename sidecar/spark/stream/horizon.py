"""How far ahead a step plans: from the instants in its state, and from no clock."""

from __future__ import annotations

from typing import Final

from sidecar.spark.state.entries import Meta

AHEAD_MS_MAX: Final = 2_000
"""The furthest that a step plans ahead."""
AHEAD_DELIVERIES_MAX: Final = 20_000
"""The most deliveries that a step plans ahead; it renders them a second time in the next step."""
AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""The most that the slots due by then have in the state; the next step reads all of it a second time."""
SLICE_MS: Final = 100
"""The dues of one plan that is made ahead, between two multiples of it: each is sent when the last of them is due."""
PACES: Final = 4
"""The last times between steps, of which the shortest tells how far ahead to plan."""


def note_step(meta: Meta, now_ms: int) -> None:
    """Note that a step had this instant."""
    if meta.last_step_ms > 0:
        meta.paces_ms = [*meta.paces_ms, now_ms - meta.last_step_ms][-PACES:]
    meta.last_step_ms = now_ms


def horizon_ms(meta: Meta) -> int:
    """Return the instant up to which the last step plans ahead: about when what the next one sends is on its way."""
    if not meta.paces_ms:
        return 0
    # What is stored now is due behind what was planned ahead before.
    behind_ms = meta.checkpoint.watermark_ms - meta.last_step_ms + SLICE_MS
    return meta.last_step_ms + min(AHEAD_MS_MAX, max(min(meta.paces_ms) * 3 // 2, behind_ms))


def instants(meta: Meta, until_ms: int) -> range:
    """Return the instants of the plans ahead of the last step."""
    first_ms = max(meta.last_step_ms, meta.checkpoint.watermark_ms) // SLICE_MS * SLICE_MS + SLICE_MS
    return range(first_ms, until_ms + 1, SLICE_MS)
