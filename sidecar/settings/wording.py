"""Names and values in messages about settings: on one line, quoted where needed, limited in length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN_CHARACTERS = 80


def quoted(text: str) -> str:
    """Return the value in quotes, on one line and not endless."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def plain(name: str) -> str:
    """Return a name as it is, or in quotes when it would not stay on its line."""
    return name if name.isprintable() and len(name) <= _SHOWN_CHARACTERS else quoted(name)


def closest(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return "; did you mean X?" for the known name that looks most like this one, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {form.format(found[0])}?" if found else ""
