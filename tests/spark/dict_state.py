"""The state of a partition in a dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sidecar.changelog.codec import RemovedKey, decode_key, decode_removed
from sidecar.changelog.entry import KEY, KEY_BYTES
from sidecar.spark.handover.changelog import timers_of
from sidecar.spark.pages import removed_of
from sidecar.spark.state.entries import META, PAGE, decode_meta


class DictCells:
    """Cells as Spark keeps them, and how often each call came."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def get(self, cell: bytes) -> bytes | None:
        return self.cells.get(cell)

    def put(self, cell: bytes, value: bytes) -> None:
        self.cells[cell] = value

    def remove(self, cell: bytes) -> None:
        self.cells.pop(cell, None)


def pending(cells: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the entries that are pending in a state by their keys, as who exports or audits it finds them."""
    removed = set()
    for key, value in removed_in(cells):
        decoded = decode_key(key)
        assert isinstance(decoded, RemovedKey)
        removed |= {KEY.pack(due_ms, decoded.offset) for due_ms in decode_removed(decoded, value)}
    checkpoint = decode_meta(cells[META]).checkpoint
    watermark = KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)
    blocks = (value for cell, value in cells.items() if cell[:1] == b"b")
    entries = [entry for block in blocks for entry in timers_of(block, watermark)]
    found = {entry[:KEY_BYTES]: entry for entry in entries}
    assert len(found) == len(entries), "no timer is in two blocks"
    return {key: entry for key, entry in found.items() if key not in removed}


def removed_in(cells: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the changelog records that say what was removed."""
    for cell, value in cells.items():
        if cell[:1] == b"p":
            yield from removed_of(PAGE.decode(value))
