"""The exceptions that are dropped, retried or fatal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.policy.globs import Globs

_CACHED_NAMES: Final = 4096
_CACHED_CHARS_MAX: Final = 512


class ExceptionClass(NamedTuple):
    """The lists that contain one exception name; more than one can be true."""

    droppable: bool
    fatal: bool
    listed: bool
    """It is on the list of retriable ones."""
    retriable: bool
    """It is listed, or there is no such list; what the other lists say comes first."""


class ExceptionRules:
    """The lists DROPPABLE_, RETRIABLE_ and FATAL_EXCEPTION.

    A message without an exception has the empty name: it is on a list only through a glob like `*`.
    """

    def __init__(self, droppable: Iterable[str], retriable: Iterable[str], fatal: Iterable[str]) -> None:
        self._droppable = Globs(droppable)
        self._retriable = Globs(retriable)
        self._fatal = Globs(fatal)
        self._cached = lru_cache(_CACHED_NAMES)(self._classify)

    def classify(self, exception: str | None) -> ExceptionClass:
        """Return the lists that contain this exception."""
        name = exception or ""
        # Senders can make up names without end: the cache is bounded in number and in length.
        return self._cached(name) if len(name) <= _CACHED_CHARS_MAX else self._classify(name)

    def _classify(self, name: str) -> ExceptionClass:
        listed = self._retriable.matches(name)
        return ExceptionClass(
            droppable=self._droppable.matches(name),
            fatal=self._fatal.matches(name),
            listed=listed,
            retriable=listed or not self._retriable,
        )
