"""What a contract suite needs of a cluster beside the ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from sidecar.clock import Clock
from sidecar.kafka.input import Rebalanced
from sidecar.kafka.origin_search import Wanted
from sidecar.model import Headers
from sidecar.runtime.ports import (
    Brokers,
    Catalogue,
    ChangelogReader,
    Consumer,
    Executor,
    Producer,
    SearchQuestion,
    Writer,
)

T = TypeVar("T")
Fields = Sequence[tuple[str, bytes | None]]

WAIT_S = 60.0
"""For whatever happens by itself: generous, as machines are slow."""


class Seen(NamedTuple):
    """A committed record."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Side(Protocol):
    """A cluster that a suite makes topics on; all names are new."""

    clock: Clock
    topic: str
    """The input topic of this side's process, not yet created."""
    changelog: str
    """Its changelog, not yet created."""

    def create(self, name: str, partitions: int, max_bytes: int = 1_000_000, *, compacted: bool = False) -> None:
        """Create a topic."""
        ...

    def delete(self, name: str) -> None:
        """Delete a topic."""
        ...

    def recreate(self, name: str, partitions: int) -> None:
        """Delete a topic and create it again."""
        ...

    def name(self, prefix: str) -> str:
        """Return a name that is not taken."""
        ...

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Fields = ()) -> None:
        """Write a record outside of any transaction."""
        ...

    def committed(self, topic: str, until: Callable[[Sequence[Seen]], bool]) -> Sequence[Seen]:
        """Return what a reader of committed records sees, once that is enough."""
        ...

    def eventually(self, ask: Callable[[], T], what: str) -> T:
        """Return what is asked for once it is true; time goes on meanwhile."""
        ...

    def producer(self, transactional_id: str, batch_bytes: int = 1_000_000) -> Producer: ...

    def consumer(self, listener: Rebalanced, static_id: str | None = None) -> Consumer: ...

    def brokers(self) -> Brokers: ...

    def reader(self) -> ChangelogReader: ...

    def search(self, wanted: Sequence[Wanted]) -> SearchQuestion: ...

    def writer(self) -> Writer: ...

    def executor(self) -> Executor: ...

    def catalogue(self) -> Catalogue: ...

    def close(self) -> None: ...


class Listener:
    """Implements `sidecar.kafka.input.Rebalanced`: keeps what it was told."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.lost_partitions: set[int] = set()
        self.offsets_lost: list[int] = []
        self.errors: list[str] = []

    def assigned(self, partitions: Sequence[int]) -> None:
        assert not self.owned & set(partitions), "assigned twice"
        self.owned |= set(partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        assert self.owned >= set(partitions), "revoked without being assigned"
        self.owned -= set(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        self.revoked(partitions)
        self.lost_partitions |= set(partitions)

    def offset_lost(self, partition: int) -> None:
        self.offsets_lost.append(partition)

    def broker_error(self, text: str) -> None:
        self.errors.append(text)


def drained(waits: object) -> None:
    """Write to the end, waiting where it waits."""
    for _ in waits:  # type: ignore[attr-defined]
        pass
