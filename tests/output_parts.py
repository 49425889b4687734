"""What the Spark engine sends, in the one row of a small part."""

from __future__ import annotations

from msgspec.structs import replace

from sidecar.spark.stream.wire import OutputPart, read_row, rows_of


def encode_output_part(part: OutputPart) -> str:
    """Return the one row of a small part."""
    (row,) = rows_of(part)
    return row


def decode_output_part(row: str) -> OutputPart:
    """Return a part with its records."""
    part, packed = read_row(row)
    return replace(part, records=packed.records())
