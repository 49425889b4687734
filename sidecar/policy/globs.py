"""Names and globs of a setting, compiled once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Final, Generic, TypeVar

T = TypeVar("T")
TEXT_CHARACTERS_MAX: Final = 1_000
"""A longer text is compared with globs by its beginning: senders decide how long it is."""
_WILDCARDS: Final = frozenset("*?[")


class Globs:
    """A list of names and shell globs (`*`, `?`, `[…]`), compared with upper and lower case distinct."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(patterns)
        self._names = frozenset(pattern for pattern in patterns if _WILDCARDS.isdisjoint(pattern))
        self._matchers = tuple(re.compile(translate(glob)).match for glob in patterns if glob not in self._names)

    def __bool__(self) -> bool:
        return bool(self._names or self._matchers)

    @property
    def plain(self) -> frozenset[str]:
        """The names of the list, without its globs."""
        return self._names

    def names(self, text: str) -> bool:
        """Return whether the list has this very name, not just a glob that matches it."""
        return text in self._names

    def matches(self, text: str) -> bool:
        """Return whether a name or glob of the list matches the whole text."""
        if text in self._names:
            return True
        beginning = text[:TEXT_CHARACTERS_MAX]
        return any(match(beginning) for match in self._matchers)


class Choice(Generic[T]):
    """Values by name or glob: that of the very name wins, else that of the longest glob that matches.

    Between globs of one length the first in the alphabet wins: files and Helm do not keep an order.
    """

    def __init__(self, values: Iterable[tuple[str, T]]) -> None:
        longest_first = sorted(values, key=lambda each: (-len(each[0]), each[0]))
        self._values = [(Globs([pattern]), value) for pattern, value in longest_first]

    def __bool__(self) -> bool:
        return bool(self._values)

    def of(self, text: str) -> T | None:
        """Return the value for a text, None when nothing matches."""
        for globs, value in self._values:
            if globs.names(text):
                return value
        for globs, value in self._values:
            if globs.matches(text):
                return value
        return None
