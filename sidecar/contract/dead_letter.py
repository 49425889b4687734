"""Headers of the records on the DLQ, written and read: this project's own, and Kafka Connect's for its tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sidecar.contract.control import CONTROL
from sidecar.contract.dialects import native
from sidecar.contract.dialects.dialect import Dialect, HeaderValues
from sidecar.contract.dialects.registry import DIALECTS
from sidecar.contract.dialects.spring import ORIGINAL_GROUP
from sidecar.contract.sizes import header_bytes, record_bytes
from sidecar.contract.values import INT32_MAX, INT64_MAX, HeaderError, is_text, read_number
from sidecar.model import NO_TIMESTAMP, Headers, Reason

TIMESTAMP_MS: Final = "retry-timestamp-ms"
REASON: Final = "retry-dlq-reason"
DETAIL: Final = "retry-dlq-detail"
TRUNCATED: Final = "retry-dlq-truncated"
"""The missing parts of the message: `value`, `headers`, `key`, comma-separated; `true` in older records: the value."""
REDRIVES: Final = "retry-redrives"
"""How often the record was sent from the DLQ to the retry topic again. It is foreign to every dialect, so it goes
through them untouched and is still there when the record dies again."""
CONNECT_TOPIC: Final = "__connect.errors.topic"
CONNECT_PARTITION: Final = "__connect.errors.partition"
CONNECT_OFFSET: Final = "__connect.errors.offset"
CONNECT_NAME: Final = "__connect.errors.connector.name"
CONNECT_STAGE: Final = "__connect.errors.stage"
CONNECT_CLASS: Final = "__connect.errors.exception.class.name"
CONNECT_MESSAGE: Final = "__connect.errors.exception.message"
CLASS_BYTES_MAX: Final = 256
"""The limit of the class name copied for Connect's tools; the sender's own header stays unchanged."""
DETAIL_BYTES_MAX: Final = 1_000

# Those of an earlier death speak of another record: a record that was sent again and failed again has only the new.
GIVEN_AT_DEATH: Final = frozenset(
    {
        TIMESTAMP_MS,
        REASON,
        DETAIL,
        TRUNCATED,
        CONNECT_TOPIC,
        CONNECT_PARTITION,
        CONNECT_OFFSET,
        CONNECT_NAME,
        CONNECT_STAGE,
        CONNECT_CLASS,
        CONNECT_MESSAGE,
    }
)
_COORDINATES: Final = frozenset({TIMESTAMP_MS, REASON, CONNECT_TOPIC, CONNECT_PARTITION, CONNECT_OFFSET})
_CLASS_NAMES: Final = {
    reason: ("sidecar." + "".join(word.capitalize() for word in reason.split("-"))).encode() for reason in Reason
}
_EVERY_DIALECT: Final = tuple(DIALECTS.values())


class RecordLocation(NamedTuple):
    """The location of a failed record, which retention may have removed since."""

    topic: str
    partition: int
    offset: int


class DeadLetter:
    """The contents of the headers of a record on the DLQ, each read when it is asked for.

    Any bytes give an answer, never an exception. Texts are unchanged, with invalid UTF-8 escaped.

    Args:
        headers: The headers of the record on the DLQ; None when they cannot be read.
        dialects: In the order of preference, as the sidecar has them.
    """

    __slots__ = ("_dialects", "_headers", "_read")

    def __init__(self, headers: Headers | None, dialects: Sequence[Dialect] = _EVERY_DIALECT) -> None:
        self._headers = headers
        self._dialects = dialects
        self._read: HeaderValues | None = None

    @property
    def _values(self) -> HeaderValues:
        if self._read is None:
            self._read = dict(self._headers or ())
        return self._read

    @property
    def reason(self) -> str:
        """One of the contract's reasons, or what a newer version wrote; empty: no sidecar wrote this record."""
        return _text(self._values.get(REASON))

    @property
    def detail(self) -> str:
        """For a person."""
        return _text(self._values.get(DETAIL))

    @property
    def is_control(self) -> bool:
        """Whether it is a control record."""
        return CONTROL in self._values

    @property
    def dialect(self) -> Dialect | None:
        """The one that the message speaks; None for a control record, and when no dialect knows its headers."""
        values = self._values
        if CONTROL not in values:
            for dialect in self._dialects:
                if dialect.claims(values):
                    return dialect
        return None

    @property
    def origin(self) -> str:
        """Empty when none is named."""
        dialect = self.dialect
        return "" if dialect is None else _text(dialect.origin_of(self._values))

    @property
    def exception(self) -> str:
        """The class that the sender named, or else the class of the reason."""
        values = self._values
        return _text(values.get(CONNECT_CLASS)) or _text(_class_name(values))

    @property
    def attempt(self) -> int | None:
        """Retries already made; None when that cannot be read."""
        dialect = self.dialect
        try:
            return None if dialect is None else dialect.attempt_of(self._values)
        except HeaderError:
            return None

    @property
    def group(self) -> str:
        """The consumer group that failed; empty when none is named."""
        return _group(self._values)

    @property
    def retry_id(self) -> str:
        """The sender's own id, in `retry-id`; empty when none is named."""
        return _text(self._values.get(native.RETRY_ID))

    @property
    def timestamp_ms(self) -> int | None:
        """The timestamp of the record that failed."""
        return _number(self._values.get(TIMESTAMP_MS))

    @property
    def came_from(self) -> RecordLocation | None:
        """The location of the record that failed."""
        values = self._values
        topic = values.get(CONNECT_TOPIC)
        partition = _number(values.get(CONNECT_PARTITION), INT32_MAX)
        offset = _number(values.get(CONNECT_OFFSET))
        return (
            None
            if not topic or partition is None or offset is None
            else RecordLocation(_text(topic), partition, offset)
        )

    @property
    def redrives(self) -> int | None:
        """How often it was redriven; None: what the header says cannot be read."""
        if REDRIVES not in self._values:
            return 0
        # The greatest of several: an extra header never lowers the count.
        counts = [_number(value, INT32_MAX) for name, value in self._headers or () if name == REDRIVES]
        return None if None in counts else max(each for each in counts if each is not None)

    @property
    def truncated(self) -> bool:
        """Whether a part of the message was too large for the DLQ, and is lost."""
        return TRUNCATED in self._values


def render_dead_letter(
    headers: Headers | None,
    *,
    reason: Reason,
    detail: str,
    topic: str,
    partition: int,
    offset: int | None,
    timestamp_ms: int,
    connector_name: str,
    stage: str,
) -> Headers:
    """Return the headers of a DLQ record: those that came, byte for byte, then why and where from.

    Args:
        headers: The headers as they came; None when they cannot be read.
        reason: One of the contract's reasons.
        detail: For a person.
        topic: The input topic; with partition and offset, the coordinates of the record that failed.
        partition: See topic.
        offset: See topic. None: the record was in a deleted and recreated topic, where the offset is another record's.
        timestamp_ms: The record's own; NO_TIMESTAMP when it has none.
        connector_name: The app id.
        stage: The stage at which it failed, in Connect's words.
    """
    came = headers or []
    dead = [header for header in came if header[0] not in GIVEN_AT_DEATH]
    if timestamp_ms > NO_TIMESTAMP:
        dead.append((TIMESTAMP_MS, b"%d" % timestamp_ms))
    explanation = _capped(_encoded(detail), DETAIL_BYTES_MAX)
    dead.append((REASON, reason.encode()))
    dead.append((DETAIL, explanation))
    dead += [
        (CONNECT_TOPIC, _encoded(topic)),
        (CONNECT_PARTITION, b"%d" % partition),
        *([] if offset is None else [(CONNECT_OFFSET, b"%d" % offset)]),
        (CONNECT_NAME, _encoded(connector_name)),
        (CONNECT_STAGE, _encoded(stage)),
        (CONNECT_CLASS, _capped(_class_name(dict(came)) or _CLASS_NAMES[reason], CLASS_BYTES_MAX)),
        (CONNECT_MESSAGE, explanation),
    ]
    return dead


def fit_dead_letter(
    key: bytes | None, value: bytes | None, headers: Headers, bytes_max: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a dead letter, without what does not fit: the value, then the headers that came,
    largest first, then the key. `retry-dlq-truncated` says what is missing.

    Args:
        key: The key of the message.
        value: The value of the message.
        headers: The headers as rendered.
        bytes_max: The limit of the DLQ, uncompressed; 0 leaves nothing but where the record came from, and why.
    """
    if record_bytes(key, value, headers) <= bytes_max:
        return key, value, headers
    lost = ["value"] if value else []
    kept = [*headers, (TRUNCATED, b"value,headers,key")]
    excess = record_bytes(key, None, kept) - bytes_max
    foreign = sorted(
        (at for at, (name, _) in enumerate(headers) if name not in GIVEN_AT_DEATH),
        key=lambda at: header_bytes(*headers[at]),
        reverse=True,
    )
    gone = set[int]()
    for at in foreign:
        if excess <= 0:
            break
        excess -= header_bytes(*headers[at])
        gone.add(at)
    if gone:
        lost.append("headers")
    if excess > 0 and key:
        lost.append("key")
        key = None
    own = (header for at, header in enumerate(headers) if at not in gone)
    left = [header for header in own if bytes_max or header[0] in _COORDINATES]
    flags: Headers = [(TRUNCATED, ",".join(lost).encode())] if lost else []
    return key, None if value else value, left + flags


def _capped(text: bytes, bytes_max: int) -> bytes:
    """Return the beginning of a text, as whole characters."""
    return text if len(text) <= bytes_max else text[:bytes_max].decode(errors="ignore").encode()


def exception_of(headers: Headers) -> str:
    """Return the class of the exception that the sender named in any dialect; empty when none is named."""
    return _text(_class_name(dict(headers)))


def group_of(headers: Headers) -> str:
    """Return the consumer group that the sender named; empty when none is named."""
    return _group(dict(headers))


def _group(values: HeaderValues) -> str:
    """Return the group; Spring's own header is newer than `retry-group`, which came with the last delivery."""
    spoken = native.GROUP if native.ORIGIN_TOPIC in values or ORIGINAL_GROUP not in values else ORIGINAL_GROUP
    return _text(values.get(spoken))


def _class_name(values: HeaderValues) -> bytes | None:
    """Return the class that the sender named, which is more precise than the reason."""
    naming = ((name, dialect) for dialect in DIALECTS.values() for name in dialect.exception_headers)
    for name, dialect in naming:
        if name in values and (text := dialect.bare(values[name])) and is_text(text):
            return text
    return None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def _number(value: bytes | None, maximum: int = INT64_MAX) -> int | None:
    try:
        return read_number("", value, maximum)
    except HeaderError:
        return None
