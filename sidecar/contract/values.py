"""Readers of single header values. Each raises HeaderError on bytes that it cannot take, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from sidecar.model import Headers, Reason

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(INT64_MAX))
_TOPIC_BYTES_MAX: Final = 249
_SHOWN_BYTES_MAX: Final = 80
_topic_form = re.compile(rb"[a-zA-Z0-9._-]{1,249}").fullmatch


class HeaderError(ValueError):
    """A header cannot be used. Dialects turn it into a Rejection; it never leaves this package."""

    def __init__(self, detail: str, reason: Reason = Reason.BAD_HEADER) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason


def shown(value: bytes | None) -> str:
    """Return a value as a person can read it, escaped and cut to a length that fits a log line."""
    if value is None:
        return "null"
    text = repr(value[:_SHOWN_BYTES_MAX])[1:]
    return text if len(value) <= _SHOWN_BYTES_MAX else f"{text}… ({len(value)} bytes)"


def read_number(name: str, value: bytes | None, maximum: int = INT64_MAX) -> int:
    """Return a number written in ASCII digits: no sign, no blank, no `_`, 0..maximum."""
    # The length is checked first: int() takes time quadratic in it.
    if value and len(value) <= _DIGITS_MAX and value.isdigit() and (number := int(value)) <= maximum:
        return number
    raise HeaderError(f"{name}={shown(value)}: allowed are ASCII digits, 0 to {maximum}")


def read_text(name: str, value: bytes | None) -> str:
    """Return a text that is not empty."""
    if not value:
        raise HeaderError(f"{name}={shown(value)}: allowed is a text of at least one character")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise HeaderError(f"{name}={shown(value)}: allowed is UTF-8 text") from None


def is_text(value: bytes) -> bool:
    """Return whether the value is UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_topic(name: str, value: bytes | None) -> str:
    """Return a name that Kafka accepts for a topic. Equal names come back as the same object."""
    if value and len(value) <= _TOPIC_BYTES_MAX and (topic := _topic_name(value)):
        return topic
    raise HeaderError(
        f"{name}={shown(value)}: allowed is a topic name, 1 to {_TOPIC_BYTES_MAX} characters of a-z A-Z 0-9 . _ -"
        " (not . or .. alone)"
    )


def refuse_repeats(headers: Headers, names: AbstractSet[str]) -> None:
    """Raise when one of the names comes more than once, with the same value or another."""
    seen = set()
    for name, _ in headers:
        if name in names:
            if name in seen:
                raise HeaderError(f"{name} comes more than once: allowed is one")
            seen.add(name)


# Bounded in number here and in length by the caller, since senders can make up names without end.
@lru_cache(maxsize=4096)
def _topic_name(value: bytes) -> str | None:
    return value.decode("ascii") if _topic_form(value) and value not in {b".", b".."} else None
