"""The part of the sidecar that the API reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sidecar.engine.group.view import PartitionView

if TYPE_CHECKING:
    from pydantic import JsonValue  # a process loads the API's libraries after it has fired what is due


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the sidecar at one moment."""

    live: bool
    """False: only a restart can help."""
    ready: bool
    """True: takes messages in and fires them."""
    reasons: tuple[str, ...] = ()
    """Why it is not ready or not live, each a sentence for a person."""
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    """Facts by name, shown unchanged."""
    starting: bool = False
    """Not ready because it has not been ready yet."""


class Reloaded(NamedTuple):
    """What a reload changed."""

    changed: Sequence[str]
    """Names of the settings that are taken over."""
    needs_restart: Sequence[str]
    """Names of the settings that changed too, and keep their values until the next start."""


class Source(Protocol):
    """Snapshots for the API.

    Called from the API's thread. Every method returns a stored, immutable object at once; none of them waits or sends a
    request.
    """

    def views(self) -> Sequence[PartitionView]:
        """Return the latest view of each partition, at most one per partition."""
        ...

    def partitions_total(self) -> int | None:
        """Return the number of input partitions, or None while unknown."""
        ...

    def unread(self) -> str | None:
        """Return why the views cannot be shown yet, as a sentence for people; None when they can."""
        ...

    def health(self) -> Health: ...

    def now_ms(self) -> int:
        """Return wall time, epoch milliseconds."""
        ...

    def cluster_id(self) -> str | None:
        """Return the id of the Kafka cluster, or None while that is unknown."""
        ...
