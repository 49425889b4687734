"""The index of retry ids: runs of sorted rows that are only ever added, merged and let go.

A message with a retry id adds one row to the run of its turn; nothing is looked up or rewritten for it. Whoever looks
an id up finds candidates and checks each against the timer itself, so a row whose timer is gone does no harm.

    run: n × [hash of the retry id u64 | offset u64 | first due u64 | stored due u64], sorted
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from sidecar.spark.cells import NameRun

ROW: Final = Struct(">8sQQQ")
RUN_NAMES_MAX: Final = 65_536
"""Runs of this length are merged no more: 2 MiB."""


class Named(NamedTuple):
    """A candidate: the timer that stood at this key under an id with this hash."""

    offset: int
    first_ms: int
    due_ms: int


def row_of(retry_id: bytes, named: Named) -> bytes:
    """Return the row of one timer."""
    return ROW.pack(_hash(retry_id), *named)


def found(run: bytes, retry_id: bytes) -> Iterator[Named]:
    """Yield the candidates of a retry id in one run."""
    wanted, rows = _hash(retry_id), _Rows(run)
    at = bisect_left(rows, wanted)
    while at < len(rows) and rows[at] == wanted:
        yield Named(*ROW.unpack_from(run, at * ROW.size)[1:])
        at += 1


def merged(runs: Iterable[bytes], watermark_ms: int) -> bytes:
    """Return one run of several, without what the watermark has passed."""
    rows = [run[at : at + ROW.size] for run in runs for at in range(0, len(run), ROW.size)]
    return b"".join(sorted(row for row in rows if int.from_bytes(row[-8:], "big") >= watermark_ms))


def to_merge(runs: Sequence[NameRun]) -> int:
    """Return how many of the last runs to merge into one, so that their lengths fall geometrically; 0: none."""
    last, names = len(runs) - 1, runs[-1].names if runs else 0
    while last > 0 and runs[last - 1].names <= 2 * names and runs[last - 1].names < RUN_NAMES_MAX:
        last -= 1
        names += runs[last].names
    return 0 if last == len(runs) - 1 else len(runs) - last


def greatest_due_ms(run: bytes) -> int:
    """Return the greatest stored due of a run; 0 when it is empty."""
    return max((int.from_bytes(run[at + 24 : at + 32], "big") for at in range(0, len(run), ROW.size)), default=0)


def _hash(retry_id: bytes) -> bytes:
    return hashlib.blake2b(retry_id, digest_size=8).digest()


class _Rows(Sequence[bytes]):
    """The hashes of a run, for bisecting it without taking it apart."""

    def __init__(self, run: bytes) -> None:
        self._run = run

    def __len__(self) -> int:
        return len(self._run) // ROW.size

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]  # never sliced
        return self._run[at * ROW.size : at * ROW.size + 8]
