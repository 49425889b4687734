"""The index of retry ids: a tree over the hash of the id, in whose nodes rows wait until there are enough to move down.

A row is added at the root. A node with too many rows spreads them over its sixteen children, by the next digit of
their hash, so a row is rewritten a few times on its way and a step writes few nodes, however many rows there are.
A lookup reads the nodes on the way down, and the caller checks each candidate against the timer itself: a row whose
timer is gone does no harm.

Rows are removed in two ways. Every write of a node drops the rows whose due the watermark has passed, and each step
sweeps one path from the root to a leaf. A timer that ends before its due has its row added once more: two are none.

    node: children u16, a bit for each | n × row, sorted
    row:  hash of the retry id u64 | offset u64 | first due u64 | stored due u64
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from sidecar.model import StoredOffset
from sidecar.spark.state.entries import Meta, StateEntries, node_state_key

ROW: Final = Struct(">8sQQQ")
ROWS_MAX: Final = 2_048
"""The most rows of a node, 64 KiB; a node with more is spread."""
ROOT_ROWS_MAX: Final = 256
"""The most rows of the root, 8 KiB: it is written in each step that adds rows."""
SPREADS: Final = 4
"""The nodes that a step spreads; it spreads one more for each SPREAD_ROWS new rows."""
SPREAD_ROWS: Final = ROWS_MAX // 8
AHEAD_DEPTH: Final = 2
"""The depth down to which a step reads nodes ahead."""
CACHE_BYTES_MAX: Final = 32 * 1024 * 1024

_HASH_DIGITS: Final = 8
"""The digits of the hash that a path uses; those of the offset follow, for an id that very many timers share."""
_DIGITS: Final = 15
"""The greatest depth of a node."""
_CHILDREN: Final = slice(0, 2)
_EMPTY: Final = bytes(_CHILDREN.stop)
_HASH_BYTES: Final = 8
_OFFSET: Final = slice(8, 16)
_STORED_DUE: Final = slice(24, 32)
_ROOT: Final = (0, 0)

NodePath = tuple[int, int]
"""The depth of a node, and the digits that lead to it."""


class Candidate(NamedTuple):
    """A timer that had this key under the id when its row was written."""

    offset: StoredOffset
    first_ms: int
    due_ms: int


def row_of(retry_id: bytes, named: Candidate) -> bytes:
    """Return the row of one timer."""
    return ROW.pack(_hash(retry_id), *named)


class RetryIdIndex:
    """The index of one partition.

    Args:
        state: Entries of the partition.
        meta: Position of the partition.
    """

    def __init__(self, state: StateEntries, meta: Meta) -> None:
        self._state = state
        self._meta = meta
        self._cache: OrderedDict[NodePath, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._added = 0

    def add(self, rows: Iterable[bytes]) -> None:
        """Add rows; a row that is there already is removed."""
        came = list(rows)
        self._added += len(came)
        self._merge(_ROOT, came)

    def found(self, retry_id: bytes) -> list[Candidate]:
        """Return the candidates of a retry id, in the order of offsets."""
        wanted = _hash(retry_id)
        return [Candidate(*ROW.unpack(row)[1:]) for row in _once(sorted(self._found(_ROOT, wanted)))]

    def swept(self) -> Iterator[bytes]:
        """Yield the keys of the first nodes on the path that this step sweeps."""
        swept = self._meta.names_swept
        path = [(depth, swept >> 4 * (_DIGITS - depth)) for depth in range(1, AHEAD_DEPTH + 1)]
        if _children(self._node(_ROOT)) >> path[0][1] & 1:
            yield from (node_state_key(*at) for at in path)

    def tidy(self) -> None:
        """Do the work of one step: spread full nodes, sweep one path."""
        self.spread(SPREADS + self._added // SPREAD_ROWS)
        self._sweep()

    def spread(self, most: int | None = None) -> None:
        """Spread at most this many full nodes over their children; None: all."""
        full = self._meta.full_names
        while full and most != 0:
            self._spread(full.pop(0))
            most = None if most is None else most - 1

    # Nodes

    def _found(self, at: NodePath, wanted: bytes) -> Iterator[bytes]:
        node = self._node(at)
        yield from _matching(node[_CHILDREN.stop :], wanted)
        depth, prefix = at
        if depth < _HASH_DIGITS:
            digits: Iterable[int] = (int.from_bytes(wanted, "big") >> 4 * (15 - depth) & 15,)
        else:
            digits = range(16)
        for digit in digits:
            if _children(node) >> digit & 1:
                yield from self._found((depth + 1, prefix << 4 | digit), wanted)

    def _merge(self, at: NodePath, came: Iterable[bytes]) -> None:
        node = self._node(at)
        rows = self._alive([*_rows(node), *came])
        self._write(at, _children(node), rows)
        if len(rows) > _most(at) and at[0] < _DIGITS and at not in self._meta.full_names:
            self._meta.full_names.append(at)

    def _spread(self, at: NodePath) -> None:
        node = self._node(at)
        rows, children, (depth, prefix) = self._alive(_rows(node)), _children(node), at
        if len(rows) > _most(at):
            parts: defaultdict[int, list[bytes]] = defaultdict(list)
            for row in rows:
                parts[_digit(row, depth)].append(row)
            below = [(depth + 1, prefix << 4 | digit) for digit in parts]
            self._state.fetch(node_state_key(*each) for each in below if each not in self._cache)
            for digit, part in parts.items():
                self._merge((depth + 1, prefix << 4 | digit), part)
                children |= 1 << digit
            rows = []
        self._write(at, children, rows)

    def _sweep(self) -> None:
        """Rewrite the nodes on the path to the next leaf, without expired rows."""
        swept, way = self._meta.names_swept, [_ROOT]
        while children := _children(self._cleaned(way[-1])):
            depth, prefix = way[-1]
            shift = 4 * (_DIGITS - 1 - depth)
            digit = swept >> shift & 15
            later = children >> digit
            if not later:
                break
            if skipped := (later & -later).bit_length() - 1:
                digit, swept = digit + skipped, 0
            way.append((depth + 1, prefix << 4 | digit))
        depth, prefix = way[-1]
        self._meta.names_swept = (prefix + 1 << 4 * (_DIGITS - depth)) % 16**_DIGITS
        for depth, prefix in reversed(way[1:]):
            if self._node((depth, prefix)) != _EMPTY:
                break
            above = (depth - 1, prefix >> 4)
            parent = self._node(above)
            self._write(above, _children(parent) & ~(1 << (prefix & 15)), _rows(parent))

    def _cleaned(self, at: NodePath) -> bytes:
        node = self._node(at)
        rows = _rows(node)
        alive = self._alive(rows)
        return node if len(alive) == len(rows) else self._write(at, _children(node), alive)

    def _alive(self, rows: Iterable[bytes]) -> list[bytes]:
        least = self._meta.checkpoint.watermark_ms.to_bytes(8, "big")
        return _once(sorted(row for row in rows if row[_STORED_DUE] >= least))

    def _node(self, at: NodePath) -> bytes:
        node = self._cache.get(at)
        if node is None:
            node = self._state.get(node_state_key(*at)) or _EMPTY
            self._hold(at, node)
        return node

    def _write(self, at: NodePath, children: int, rows: Sequence[bytes]) -> bytes:
        node = children.to_bytes(_CHILDREN.stop, "big") + b"".join(rows)
        if node == self._node(at):
            return node
        if node == _EMPTY:
            self._state.remove(node_state_key(*at))
        else:
            self._state.put(node_state_key(*at), node)
        self._hold(at, node)
        return node

    def _hold(self, at: NodePath, node: bytes) -> None:
        self._cached_bytes += len(node) - len(self._cache.pop(at, b""))
        self._cache[at] = node
        while self._cached_bytes > CACHE_BYTES_MAX and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest)


def _most(at: NodePath) -> int:
    return ROWS_MAX if at != _ROOT else ROOT_ROWS_MAX


def _children(node: bytes) -> int:
    return int.from_bytes(node[_CHILDREN], "big")


def _rows(node: bytes) -> list[bytes]:
    return [node[at : at + ROW.size] for at in range(_CHILDREN.stop, len(node), ROW.size)]


def _once(rows: list[bytes]) -> list[bytes]:
    """Return the sorted rows that occur an odd number of times."""
    if len(set(rows)) == len(rows):
        return rows
    found = []
    for row, same in groupby(rows):
        if sum(1 for _ in same) % 2:
            found.append(row)
    return found


def _digit(row: bytes, depth: int) -> int:
    if depth < _HASH_DIGITS:
        return row[depth // 2] >> 4 * (1 - depth % 2) & 15
    return int.from_bytes(row[_OFFSET], "big") >> 4 * (depth - _HASH_DIGITS) & 15


def _matching(run: bytes, wanted: bytes) -> Iterator[bytes]:
    """Yield the rows of a hash in sorted rows."""
    hashes = _Hashes(run)
    for at in range(bisect_left(hashes, wanted), bisect_right(hashes, wanted)):
        yield run[at * ROW.size : (at + 1) * ROW.size]


def _hash(retry_id: bytes) -> bytes:
    return hashlib.blake2b(retry_id, digest_size=_HASH_BYTES).digest()


class _Hashes(Sequence[bytes]):
    """The hashes of sorted rows, to bisect the rows without splitting them."""

    def __init__(self, run: bytes) -> None:
        self._run = run

    def __len__(self) -> int:
        return len(self._run) // ROW.size

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]  # never sliced
        return self._run[at * ROW.size : at * ROW.size + _HASH_BYTES]
