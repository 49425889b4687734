"""Profile `sky`: the JSON envelope of sky-uk/kafka-message-scheduler.

From its source, github.com/sky-uk/kafka-message-scheduler: `kafka/json/JsonSchedule.scala`, `circe/serdes.scala`,
`converters/consumerRecord.scala` and `converters/scheduleEvent.scala`. Its time is in epoch milliseconds; key, value
and header values are in base64; the record's key is the id of the schedule, and a record without a value takes the
schedule away. Its Avro envelope is not read.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from typing import Annotated, Final

import msgspec

from sidecar.contract.dialects.dialect import Cancel, HeaderValues, Message
from sidecar.contract.dialects.scheduler import (
    Scheduler,
    checked_epoch_ms,
    has_retry_headers,
    is_tombstone,
    schedule_id,
)
from sidecar.contract.values import HeaderError, read_topic, shown
from sidecar.model import Headers, Record, Rejection, Request, Scope


class Envelope(msgspec.Struct, frozen=True):
    """A schedule as JSON."""

    time: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    topic: str
    key: str
    value: str | None = None
    headers: dict[str, str] | None = None

    def message(self) -> Message:
        """Return what goes to the target. Raises HeaderError."""
        headers: Headers = [(name, _decoded(f"headers.{name}", text)) for name, text in (self.headers or {}).items()]
        return _decoded("key", self.key), None if self.value is None else _decoded("value", self.value), headers


_decoder = msgspec.json.Decoder(Envelope)


class Sky(Scheduler):
    """The dialect that says all in the value. A record's own headers stay behind, as with that scheduler."""

    name: Final = "sky"
    code: Final = 7
    reads_payload = True

    def takes(self, record: Record, values: HeaderValues) -> bool:
        """Return whether the value is a JSON object, or the record a tombstone, and no header is of a retry."""
        if record.value and record.value.lstrip()[:1] == b"{":
            return not has_retry_headers(values)
        return is_tombstone(record, values)

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection | Cancel:  # noqa: ARG002
        """Read the value; any bytes give a request or a rejection."""
        try:
            retry_id = schedule_id(record.key)
            if not record.value:
                return Cancel(retry_id, Scope(dialects=(self.code,)))
            envelope = _envelope(record.value)
            envelope.message()
            return Request(
                self.code,
                read_topic("topic", envelope.topic.encode()),
                due_ms=checked_epoch_ms("time", envelope.time),
                retry_id=retry_id,
                replace=True,
            )
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def delivered(self, message: Message, timestamp_ms: int) -> Message:  # noqa: ARG002
        """Return the message in the envelope."""
        return _envelope(message[1] or b"").message()

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:  # noqa: ARG002
        """Return the headers as they came: a redrive does not change the value, which has the time and the topic."""
        return list(headers)


def _envelope(value: bytes) -> Envelope:
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HeaderError(
            f"the value is no schedule ({error}): allowed is JSON with time (epoch ms), topic, key, value and headers"
        ) from None


def _decoded(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Error, ValueError):
        raise HeaderError(f"{name}={shown(text.encode(errors='replace'))}: allowed is base64") from None
