"""Profile `spring`: the headers of Spring Kafka's retry topics and dead-letter publishing.

From its source, github.com/spring-projects/spring-kafka: `retrytopic/RetryTopicHeaders.java`,
`retrytopic/DeadLetterPublishingRecovererFactory.java`, `listener/DeadLetterPublishingRecoverer.java` and
`support/KafkaHeaders.java`. Attempts are a big-endian int of four bytes, in older versions one byte; timestamps of the
retry headers are a big-endian two's complement as short as it can be; topics and classes are UTF-8.

Records name the consumer group of the listener that failed, and deliveries repeat it in `retry-group`: other groups of
the origin can skip them by the header that all dialects' consumers know.

Attempts count deliveries: the first forward writes 2. A record that Spring's retry-topic feature forwarded has a
backoff timestamp, which is when it is due, and attempts that are right for its next delivery. One that a
DeadLetterPublishingRecoverer published has neither; then the sidecar counts, in the same header. The backoff timestamp
is taken out of deliveries, so it tells the two apart.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import HeaderValues
from sidecar.contract.dialects.native import GROUP
from sidecar.contract.dialects.scheduler import Scheduler, checked_epoch_ms, with_headers
from sidecar.contract.values import HeaderError, read_text, read_topic, refuse_repeats, shown
from sidecar.model import Headers, Reason, Record, Rejection, Request

ATTEMPTS: Final = "retry_topic-attempts"
BACKOFF_TIMESTAMP: Final = "retry_topic-backoff-timestamp"
ORIGINAL_TOPICS: Final = ("kafka_original-topic", "kafka_dlt-original-topic")
"""Of a record that went through retry topics to a dead-letter topic, the second names the last retry topic."""
EXCEPTIONS: Final = (
    "kafka_exception-cause-fqcn",
    "kafka_dlt-exception-cause-fqcn",
    "kafka_exception-fqcn",
    "kafka_dlt-exception-fqcn",
)
"""The cause first: the exception itself is a wrapper of the listener container."""
ORIGINAL_GROUP: Final = "kafka_dlt-original-consumer-group"
"""The group of the listener that failed; Spring has one name for it in both cases, and the last one counts."""

NAMES: Final = frozenset({ATTEMPTS, BACKOFF_TIMESTAMP})
"""Every header that a message may have once: recoverers append the original topic each time, and the last counts."""
_ATTEMPTS_MAX: Final = 32_767
_INT_BYTES: Final = 4
_LONG_BYTES: Final = 8


class Spring(Scheduler):
    """The dialect of the headers `retry_topic-*`, `kafka_original-*` and `kafka_dlt-*`."""

    name: Final = "spring"
    code: Final = 3
    names = frozenset({*NAMES, *ORIGINAL_TOPICS, *EXCEPTIONS, ORIGINAL_GROUP})
    origin_header = ORIGINAL_TOPICS[0]
    exception_headers = EXCEPTIONS
    attempt_header = ATTEMPTS

    def claims(self, values: HeaderValues) -> bool:
        """Return whether a header names an original topic, or is of a retry topic."""
        return any(name in values for name in ORIGINAL_TOPICS) or not NAMES.isdisjoint(values)

    def origin_of(self, values: HeaderValues) -> bytes | None:
        """Return the original topic."""
        return next((values[name] for name in ORIGINAL_TOPICS if name in values), None)

    def attempt_of(self, values: HeaderValues) -> int:
        """Return the retries already made. Raises HeaderError."""
        if ATTEMPTS not in values:
            return 0
        delivery = _attempts(values[ATTEMPTS])
        return max(0, delivery - (2 if BACKOFF_TIMESTAMP in values else 1))

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            refuse_repeats(record.headers or [], NAMES)
            origin = next((name for name in ORIGINAL_TOPICS if name in values), None)
            if origin is None:
                raise HeaderError(
                    f"{' or '.join(ORIGINAL_TOPICS)} missing: it says where to send the record when due",
                    Reason.MISSING_HEADER,
                )
            exception = next((name for name in EXCEPTIONS if values.get(name)), None)
            return Request(
                self.code,
                read_topic(origin, values[origin]),
                due_ms=_timestamp(values[BACKOFF_TIMESTAMP]) if BACKOFF_TIMESTAMP in values else None,
                attempt=self.attempt_of(values),
                exception=None if exception is None else read_text(exception, values[exception]),
            )
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def render(
        self,
        headers: Headers,
        attempt: int,
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],  # noqa: ARG002
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers as they came, without the backoff timestamp.

        The number of this delivery is new, and so is the group, where Spring names one.
        """
        kept = [header for header in headers if header[0] != BACKOFF_TIMESTAMP]
        values = dict(headers)
        given: Headers = [(GROUP, values[ORIGINAL_GROUP])] if values.get(ORIGINAL_GROUP) else []
        return with_headers(kept, [*given, (ATTEMPTS, _int(attempt + 2))])

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        """Return the headers with a new backoff timestamp, as from Spring's retry-topic feature."""
        try:
            made = self.attempt_of(dict(headers)) if keep_attempts else 0
        except HeaderError:
            made = 0
        fresh: Headers = [(ATTEMPTS, _int(made + 2)), (BACKOFF_TIMESTAMP, _long(due_ms))]
        if to_origin:
            headers = [header for header in headers if header[0] not in ORIGINAL_TOPICS]
            fresh.append((ORIGINAL_TOPICS[0], to_origin.encode()))
        return with_headers(headers, fresh)


def _attempts(value: bytes | None) -> int:
    number = int.from_bytes(value, "big", signed=len(value) == _INT_BYTES) if value else 0
    if value is None or len(value) not in {1, _INT_BYTES} or not 1 <= number <= _ATTEMPTS_MAX:
        raise HeaderError(
            f"{ATTEMPTS}={shown(value)}: allowed are 1 to {_ATTEMPTS_MAX} in four bytes, big-endian, or in one byte"
        )
    return number


def _timestamp(value: bytes | None) -> int:
    number = int.from_bytes(value, "big", signed=True) if value else -1
    if value is None or not 1 <= len(value) <= _LONG_BYTES or number < 0:
        raise HeaderError(
            f"{BACKOFF_TIMESTAMP}={shown(value)}: allowed are epoch milliseconds in 1 to 8 bytes, big-endian"
        )
    return checked_epoch_ms(BACKOFF_TIMESTAMP, number)


def _int(number: int) -> bytes:
    return min(number, _ATTEMPTS_MAX).to_bytes(_INT_BYTES, "big")


def _long(number: int) -> bytes:
    """Return a number as Java's BigInteger does: as short as its sign allows."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
