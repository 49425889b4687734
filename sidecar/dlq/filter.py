"""The filter for dead letters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from sidecar.contract.dead_letter import DeadLetter
from sidecar.model import Reason
from sidecar.policy.globs import Globs

_RUN_CHARS: Final = 10
_READ: Final[tuple[Callable[[DeadLetter], str], ...]] = tuple(
    map(attrgetter, ("reason", "origin", "exception", "group"))
)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter by the headers of dead letters and by when they died; empty and None: any.

    Each tuple is a list of names and globs of which one must match. The instants are kept as given: a duration counts
    from the start of the command.
    """

    reasons: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    died_from: str | None = None
    died_to: str | None = None
    topic: str = ""
    """The DLQ, unless it is DLQ_TOPIC."""
    only: str = ""
    """The partition and the offset of the only record that is meant, `3-17`; empty: all."""

    @property
    def named(self) -> frozenset[str]:
        """The reasons that are named in full, not only matched by a glob."""
        globs = Globs(self.reasons)
        return frozenset(reason for reason in Reason if globs.names(reason))

    @property
    def run_name(self) -> str:
        """The default name of a run: the same for the same filter in any order of names."""
        lists = (self.reasons, self.origins, self.exceptions, self.groups)
        more = [each for each in (self.topic, self.only) if each]
        text = json.dumps([*(sorted(set(each)) for each in lists), self.died_from, self.died_to, *more])
        return hashlib.sha256(text.encode()).hexdigest()[:_RUN_CHARS]

    def matcher(self) -> Callable[[DeadLetter], bool]:
        """Return the function that says whether a dead letter matches."""
        lists = (self.reasons, self.origins, self.exceptions, self.groups)
        # Of a dead letter only what is asked for is read.
        asked = [(Globs(names).matches, read) for names, read in zip(lists, _READ, strict=True) if names]

        def matches(dead_letter: DeadLetter) -> bool:
            return all(matches_name(read(dead_letter)) for matches_name, read in asked)

        return matches

    def __str__(self) -> str:
        names = {"reason": self.reasons, "origin": self.origins, "exception": self.exceptions, "group": self.groups}
        parts = [f"{name} {' or '.join(each)}" for name, each in names.items() if each]
        parts += [
            f"{name} {each}"
            for name, each in (("died from", self.died_from), ("died before", self.died_to))
            if each is not None
        ]
        return ", ".join(parts) or "of all kinds"
