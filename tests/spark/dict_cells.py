"""The state of a partition in a dict."""

from __future__ import annotations


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
