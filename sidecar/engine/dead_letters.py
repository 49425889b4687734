"""Renders the dead letter of a timer, and cuts what the DLQ cannot take."""

from __future__ import annotations

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.entry import Head, payload_of
from sidecar.contract import fit_dead_letter, render_dead_letter
from sidecar.engine.items import Dead
from sidecar.engine.ports import Outgoing
from sidecar.engine.transaction import Terms
from sidecar.model import ANY_PARTITION, Reason


def dead_of(
    entry: bytes, fixed: Head, why: tuple[Reason, str], stage: str, terms: Terms, partition: int, checkpoint: Checkpoint
) -> Dead:
    """Return a timer as a record for the DLQ. Raises RecordCorrupt."""
    reason, detail = why
    key, value, headers = payload_of(entry, fixed)
    rendered = render_dead_letter(
        headers,
        reason=reason,
        detail=detail,
        topic=terms.input_topic,
        partition=partition,
        offset=checkpoint.input_offset(fixed.offset),
        timestamp_ms=fixed.timestamp_ms,
        connector_name=terms.app_id,
        stage=stage,
    )
    return Dead(fixed.offset, reason, key, value, rendered)


def outgoing_of(dead: Dead, due_ms: int, source: bytes, terms: Terms, partition: int) -> Outgoing:
    """Return the dead letter, cut to what the DLQ takes as far as that is known."""
    _, _, key, value, headers = dead
    topic = terms.dlq_of(key, value, headers)
    if (bytes_max := terms.dead_letter_bytes_max(topic, partition, source)) is not None:
        key, value, headers = fit_dead_letter(key, value, headers, bytes_max)
    return Outgoing(topic, ANY_PARTITION, key, value, headers, due_ms, source)
