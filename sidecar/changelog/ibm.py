"""The changelog of IBM's kafka-retry: one JSON document for each message that waits in its store.

The key is the message's own, the value the store's `RetryInfo`, and a tombstone takes the message out. From its source,
github.com/IBM/kafka-retry: `model/RetryInfo.java`, `consumer/serde/RetryInfoSerde.java` and, for the delays,
`service/impl/DefaultMessageDispatchService.java`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class RetryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A message that waits in IBM's store."""

    time_stamp: Annotated[int, msgspec.Meta(ge=0)]
    """The instant that the delay counts from, epoch ms: its header `x-ibm-retry-timestamp-ms`."""
    origin_topic: Annotated[str, msgspec.Meta(min_length=1)]
    retry_attempt: Annotated[int, msgspec.Meta(ge=1)]
    """The number of the retry that it waits for: 1 at the first failure."""
    payload: msgspec.Raw
    """The value, a JSON document, as it stands in the changelog."""


_decoder = msgspec.json.Decoder(RetryInfo)


def retry_info(value: bytes) -> RetryInfo | None:
    """Return what a record of IBM's changelog says; None for a value of another form."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
