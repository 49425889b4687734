"""The consumer of a Python process of Spark: one for all its ranges, because a new one costs a connection."""

from __future__ import annotations

from sidecar.kafka import config
from sidecar.kafka.range_reader import RangeReader
from sidecar.settings import Settings

_readers: list[tuple[Settings, RangeReader]] = []
"""At most one, with its settings."""


def reader_of(settings: Settings) -> RangeReader:
    """Return the reader of this process, which runs one task at a time."""
    if not _readers or _readers[0][0] != settings:
        forget()
        _readers.append((settings, RangeReader(config.range_reader(settings))))
    return _readers[0][1]


def forget() -> None:
    """Close the reader of this process: after an error the next task begins with a new one."""
    while _readers:
        _readers.pop()[1].close()
