"""The size of a record on the wire: an upper bound, uncompressed, in Kafka's record format v2."""

from __future__ import annotations

from typing import Final

from sidecar.model import Headers

BATCH_BYTES: Final = 61
"""Head of a batch; a topic's `max.message.bytes` is on the whole batch."""
FRAMING_BYTES: Final = 36
"""The most a record adds: length, attributes, timestamp and offset delta, lengths of key and value, header count."""
HEADER_BYTES: Final = 10
"""The most a header adds: the lengths of its name and of its value."""
DELIVERY_OVERHEAD_BYTES: Final = 512
"""What the record that fires a timer is larger than the timer's entry at most: its frame, and the headers that a fire
adds. All else takes no less room in an entry than on the wire."""


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the most bytes that a record takes as the only one of a batch, uncompressed."""
    size = BATCH_BYTES + FRAMING_BYTES + len(key or b"") + len(value or b"")
    return size + sum([header_bytes(name, held) for name, held in headers])


def header_bytes(name: str, value: bytes | None) -> int:
    """Return the most bytes that a header takes."""
    length = len(name) if name.isascii() else len(name.encode())
    return length + len(value or b"") + HEADER_BYTES


def content_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of a record's key, value and headers: it takes more than that, uncompressed."""
    size = len(key or b"") + len(value or b"")
    return size + sum([header_bytes(name, held) - HEADER_BYTES for name, held in headers])
