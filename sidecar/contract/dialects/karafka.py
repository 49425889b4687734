"""Profile `karafka`: the headers of Karafka's Scheduled Messages.

From its documentation, karafka.io/docs/Pro-Scheduled-Messages ("Headers" and "External producers"), schema version
1.0.0. The epoch is in seconds, the record's key is the id of the schedule.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import Cancel, HeaderValues, Message
from sidecar.contract.dialects.scheduler import Scheduler, is_tombstone, read_epoch_s, schedule_id, with_headers
from sidecar.contract.values import INT32_MAX, HeaderError, read_number, read_topic, refuse_repeats, shown
from sidecar.model import ANY_PARTITION, Headers, Reason, Record, Rejection, Request

SCHEMA_VERSION: Final = "schedule_schema_version"
EPOCH: Final = "schedule_target_epoch"
TYPE: Final = "schedule_source_type"
TARGET_TOPIC: Final = "schedule_target_topic"
TARGET_KEY: Final = "schedule_target_key"
TARGET_PARTITION: Final = "schedule_target_partition"
TARGET_PARTITION_KEY: Final = "schedule_target_partition_key"
SOURCE_PARTITION: Final = "schedule_source_partition"
SOURCE_OFFSET: Final = "schedule_source_offset"
SOURCE_KEY: Final = "schedule_source_key"

_REQUIRED: Final = (SCHEMA_VERSION, EPOCH, TYPE, TARGET_TOPIC)
NAMES: Final = frozenset({*_REQUIRED, TARGET_KEY, TARGET_PARTITION, TARGET_PARTITION_KEY})
"""Every header that a message may have once."""
_CANCELS: Final = frozenset({b"cancel", b"tombstone"})


class Karafka(Scheduler):
    """The dialect of the headers `schedule_*`.

    The delivery has the target key and all headers, with `schedule_source_partition`, `_offset` and `_key`. A
    partition key is not used: the target partition decides, or else the target key.
    """

    name: Final = "karafka"
    code: Final = 4
    names = NAMES
    origin_header = TARGET_TOPIC
    reads_payload = True

    def takes(self, record: Record, values: HeaderValues) -> bool:
        """Return whether it is a tombstone."""
        return is_tombstone(record, values)

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection | Cancel:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            refuse_repeats(record.headers or [], NAMES)
            kind = values.get(TYPE)
            if kind in _CANCELS or not self.claims(values):
                return Cancel(schedule_id(record.key), self.scope_of(values, self.code))
            return self._request(record, values)
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def _request(self, record: Record, values: HeaderValues) -> Request:
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise HeaderError(
                f"{', '.join(missing)} missing: profile karafka needs {', '.join(_REQUIRED)}", Reason.MISSING_HEADER
            )
        if values[TYPE] != b"schedule":
            raise HeaderError(f"{TYPE}={shown(values[TYPE])}: allowed are schedule, cancel and tombstone")
        if not (values[SCHEMA_VERSION] or b"").startswith(b"1."):
            raise HeaderError(f"{SCHEMA_VERSION}={shown(values[SCHEMA_VERSION])}: allowed is 1.0.0")
        return Request(
            self.code,
            read_topic(TARGET_TOPIC, values[TARGET_TOPIC]),
            due_ms=read_epoch_s(EPOCH, values[EPOCH]),
            origin_partition=read_number(TARGET_PARTITION, values[TARGET_PARTITION], INT32_MAX)
            if TARGET_PARTITION in values
            else ANY_PARTITION,
            retry_id=schedule_id(record.key),
            replace=True,
        )

    def render(
        self,
        headers: Headers,
        attempt: int,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers as they came, with those of the source; `delivered` adds its key."""
        partition, offset, _ = timer_id
        return with_headers(headers, [(SOURCE_PARTITION, b"%d" % partition), (SOURCE_OFFSET, b"%d" % offset)])

    def delivered(self, message: Message, timestamp_ms: int) -> Message:  # noqa: ARG002
        """Return the message under its target key."""
        key, value, headers = message
        return dict(headers).get(TARGET_KEY), value, with_headers(headers, [(SOURCE_KEY, key)])

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:  # noqa: ARG002
        """Return the headers with a new epoch, rounded up: a message is never early."""
        fresh: Headers = [(EPOCH, b"%d" % -(-due_ms // 1000))]
        if to_origin:
            # The partition is one of the topic that it would have gone to.
            headers = [header for header in headers if header[0] != TARGET_PARTITION]
            fresh.append((TARGET_TOPIC, to_origin.encode()))
        return with_headers(headers, fresh)
