"""The form of a value as data, so that a schema can say what `Kind.parse` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from low to high, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number from low to high, both included, with at most nine digits behind the point."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Duration:
    """A whole number with a unit, or in milliseconds, from low to high, both included."""

    low_ms: int
    high_ms: int


@dataclass(frozen=True, slots=True)
class Words:
    """One of some words."""

    words: tuple[str, ...]
    any_case: bool = True
    """Capitals do not matter."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a regular expression matches as a whole, in the syntax that Python and RE2 share."""

    pattern: str
    refused: str = ""
    """What a text must not begin with, another regular expression."""
    accepted: tuple[str, ...] = ()
    """Texts that may begin so."""
    numbers: Whole | None = None
    """The numbers that have this form; None: all."""
    only_texts: bool = False
    """No number has this form."""


@dataclass(frozen=True, slots=True)
class Items:
    """Values separated by commas; in YAML also a list."""

    item: Form
    least: int = 0
    most: int | None = None
    once: bool = False
    """No value may be there twice."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping with known keys."""

    fields: Mapping[str, Form]
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping whose keys have a form."""

    key: Form
    value: Form


Form = Whole | Decimal | Duration | Words | Text | Items | Fields | Entries

UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""The units of a duration, largest first."""


class _Kind(Protocol):
    @property
    def form(self) -> Form | None: ...


class Field(Protocol):
    """A key of a mapping."""

    @property
    def yaml_key(self) -> str: ...

    @property
    def kind(self) -> _Kind: ...


def fields(keys: Iterable[Field], required: Iterable[str]) -> Fields:
    """Return the form of a mapping with these keys."""
    found = {each.yaml_key: each.kind.form for each in keys}
    return Fields({key: form for key, form in found.items() if form is not None}, tuple(required))
