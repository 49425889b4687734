"""Filters: which pending messages a control record means, as JSON behind `filter:` in its target.

    filter:{"origin":"orders","due_to":1767225600000,"exception":"com.acme.*","header":["tenant:acme"]}

The names are those of the parameters of `GET /pending/messages`. An empty object means every message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from sidecar.contract.values import INT32_MAX, HeaderError, shown
from sidecar.model import DUE_MS_MAX

FILTER_PREFIX: Final = "filter:"
FILTER_BYTES_MAX: Final = 2_000
TEXT_CHARS_MAX: Final = 500
HEADERS_MAX: Final = 8

_Origin = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,249}\Z")]
_Due = Annotated[int, msgspec.Meta(ge=0, le=DUE_MS_MAX)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
_Header = Annotated[str, msgspec.Meta(pattern=r"\A[^:]{1,200}:", max_length=1_000)]


class MessageFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Pending messages by what they have; what is not given does not matter."""

    origin: _Origin | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)] | None = None
    """The only partition of the retry topic that gets the record."""
    due_from: _Due = 0
    """Epoch ms. Of a deferred message the time of its next attempt counts."""
    due_to: _Due = DUE_MS_MAX
    """Exclusive."""
    exception: _Text | None = None
    """A name or a glob."""
    group: _Text | None = None
    """A name or a glob."""
    key: _Text | None = None
    """The record key as UTF-8."""
    header: Annotated[tuple[_Header, ...], msgspec.Meta(max_length=HEADERS_MAX)] = ()
    """Each `name:value`; a message has all of them."""

    def __str__(self) -> str:
        return FILTER_PREFIX + msgspec.json.encode(self).decode()

    @property
    def headers(self) -> Iterator[tuple[str, str]]:
        """The names and values of `header`."""
        return ((name, value) for name, _, value in (each.partition(":") for each in self.header))


_decoder = msgspec.json.Decoder(MessageFilter)


def read_filter(name: str, value: bytes) -> MessageFilter:
    """Return the filter that a header has behind FILTER_PREFIX. Raises HeaderError, whatever the bytes are."""
    if len(value) > FILTER_BYTES_MAX:
        raise HeaderError(f"{name}={shown(value)}: a filter has at most {FILTER_BYTES_MAX} bytes")
    try:
        found = _decoder.decode(value[len(FILTER_PREFIX) :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HeaderError(f"{name}={shown(value)}: {error}") from None
    if found.due_from > found.due_to:
        raise HeaderError(f"{name}={shown(value)}: due_from must not be after due_to")
    return found
