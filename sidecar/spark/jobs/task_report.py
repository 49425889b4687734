"""The part of a task in a redrive: the dead letters of one partition, and what was done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sidecar.contract.dead_letter import read_dead_letter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.redrive import Left, Why
from sidecar.dlq.reader import Letter
from sidecar.dlq.redrive import FIRST, FIRST_LEFT, Tally
from sidecar.errors import invariant
from sidecar.model import Headers


class Shown(NamedTuple):
    """A dead letter without its payload."""

    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers | None

    def letter(self, dialects: Sequence[Dialect]) -> Letter:
        """Return it as the commands show it."""
        said = read_dead_letter(self.headers, dialects)
        return Letter(self.partition, self.offset, self.timestamp_ms, None, None, self.headers, said)


class Told(msgspec.Struct, frozen=True):
    """What a task did, as it goes to the driver."""

    partition: int
    read: int = 0
    filtered: int = 0
    redriven: int = 0
    passed: int = 0
    """Behind which the run was already: an earlier try of the task has dealt with them, or another process."""
    left: dict[str, dict[str, int]] = {}
    first: list[Shown] = []
    first_left: list[tuple[Shown, Left]] = []
    failure: str = ""
    """Why it could not go on; empty: it came to the end."""


@dataclass(slots=True)
class Outcome:
    """What all tasks did."""

    tally: Tally = field(default_factory=Tally)
    passed: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """Why a partition of the DLQ could not be gone through to its end."""


def outcome_of(told: Iterable[Told], dialects: Sequence[Dialect]) -> Outcome:
    """Return what all tasks did together."""
    outcome = Outcome()
    tally = outcome.tally
    for each in sorted(told, key=lambda each: each.partition):
        tally.read += each.read
        tally.filtered += each.filtered
        tally.redriven += each.redriven
        outcome.passed += each.passed
        if each.failure:
            outcome.failures[each.partition] = each.failure
        tally.first += [shown.letter(dialects) for shown in each.first[: FIRST - len(tally.first)]]
        shown_left = Counter(left.why for _, left in tally.first_left)
        for shown, left in each.first_left:
            shown_left[left.why] += 1
            if shown_left[left.why] <= FIRST_LEFT:
                tally.first_left.append((shown.letter(dialects), left))
        for why, by_reason in each.left.items():
            tally.left.setdefault(Why(why), Counter()).update(by_reason)
    return outcome


def told_of(partition: int, tally: Tally, passed: int = 0, failure: str = "") -> Told:
    """Return a tally without payloads."""
    return Told(
        partition=partition,
        read=tally.read,
        filtered=tally.filtered,
        redriven=tally.redriven,
        passed=passed,
        left={why.value: dict(by_reason) for why, by_reason in tally.left.items()},
        first=[_shown(each) for each in tally.first],
        first_left=[(_shown(letter), left) for letter, left in tally.first_left],
        failure=failure,
    )


def _shown(letter: Letter) -> Shown:
    return Shown(letter.partition, letter.offset, letter.timestamp_ms, letter.headers)


class ArrowLetters:
    """The dead letters of one partition, as they come from Spark; those that a run is past are passed over.

    Args:
        partition: Of the DLQ.
        slices: The letters, in their order.
        start: The run's next offset.
        end: Exclusive: so far the source reads.
        membership: Names the group of the run to a transaction.
    """

    def __init__(
        self, partition: int, slices: Iterator[Sequence[Letter]], start: int, end: int, membership: bytes
    ) -> None:
        self._partition = partition
        self._slices = slices
        self._start = start
        # Where the run is behind the end already, it stays.
        self._end = max(start, end)
        self._next = start
        self._membership = membership
        self.passed = 0
        self.done = False

    @property
    def left(self) -> int:
        """How many offsets are ahead."""
        return self._end - self._next

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset behind all that was read."""
        return {self._partition: self._next}

    @property
    def membership(self) -> bytes:
        """What names the group of the run to a transaction."""
        return self._membership

    def read(self) -> Sequence[Letter]:
        """Return what comes next."""
        letters = next(self._slices, None)
        if letters is None:
            # What stands behind the last record are markers of transactions.
            self.done, self._next = True, self._end
            return ()
        invariant(
            all(each.partition == self._partition for each in letters), "a task goes through one partition of the DLQ"
        )
        ahead = [each for each in letters if each.offset >= self._start]
        self.passed += len(letters) - len(ahead)
        if ahead:
            self._next = ahead[-1].offset + 1
        return ahead
