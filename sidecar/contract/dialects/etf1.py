"""Profile `etf1`: the headers of etf1/kafka-message-scheduler.

From its source, github.com/etf1/kafka-message-scheduler: `schedule/kafka/schedule.go` (what is read),
`runner/kafka/handler.go` (what is sent), `clientlib/clientlib.go` (what clients write). The epoch is in seconds, the
record's key is the id of the schedule, and a record without a value takes the schedule away.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import Cancel, HeaderValues, Message
from sidecar.contract.dialects.scheduler import Scheduler, is_tombstone, read_epoch_s, schedule_id, with_headers
from sidecar.contract.values import HeaderError, read_topic, refuse_repeats
from sidecar.model import Headers, Reason, Record, Rejection, Request

EPOCH: Final = "scheduler-epoch"
TARGET_TOPIC: Final = "scheduler-target-topic"
TARGET_KEY: Final = "scheduler-target-key"
TIMESTAMP: Final = "scheduler-timestamp"
KEY: Final = "scheduler-key"

NAMES: Final = frozenset({EPOCH, TARGET_TOPIC, TARGET_KEY})
"""Every header that a message may have once."""


class Etf1(Scheduler):
    """The dialect of the headers `scheduler-*`.

    The delivery has the target key and all headers, with `scheduler-timestamp` and `scheduler-key` as from the
    scheduler; `scheduler-topic` is left out, since a dialect does not know the name of the retry topic.
    """

    name: Final = "etf1"
    code: Final = 5
    names = NAMES
    origin_header = TARGET_TOPIC
    reads_payload = True

    def takes(self, record: Record, values: HeaderValues) -> bool:
        """Return whether it is a tombstone: clients send those without headers."""
        return is_tombstone(record, values)

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection | Cancel:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            refuse_repeats(record.headers or [], NAMES)
            retry_id = schedule_id(record.key)
            if not record.value:
                return Cancel(retry_id, self.scope_of(values, self.code))
            missing = [name for name in (EPOCH, TARGET_TOPIC) if name not in values]
            if missing:
                raise HeaderError(f"{', '.join(missing)} missing: profile etf1 needs both", Reason.MISSING_HEADER)
            return Request(
                self.code,
                read_topic(TARGET_TOPIC, values[TARGET_TOPIC]),
                due_ms=read_epoch_s(EPOCH, values[EPOCH]),
                retry_id=retry_id,
                replace=True,
            )
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def delivered(self, message: Message, timestamp_ms: int) -> Message:
        """Return the message under its target key, with the scheduler's headers."""
        key, value, headers = message
        given: Headers = [(TIMESTAMP, b"%d" % (timestamp_ms // 1000)), (KEY, key)]
        return dict(headers).get(TARGET_KEY), value, with_headers(headers, given)

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:  # noqa: ARG002
        """Return the headers with a new epoch, rounded up: a message is never early."""
        fresh: Headers = [(EPOCH, b"%d" % -(-due_ms // 1000))]
        if to_origin:
            fresh.append((TARGET_TOPIC, to_origin.encode()))
        return with_headers(headers, fresh)
