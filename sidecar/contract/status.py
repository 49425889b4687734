"""Records of the status topic: their keys, the outcomes among them, and their signature.

    p/<partition>             figures and state of a partition, see engine/group/view.py
    o/<control id>/<offset>   outcome of the control record at this offset of the input topic
    i/<instance id>           random id of the last process that started as this instance; in partition 0
    d/doctor, s/driver        stamped by the broker, to measure a clock; never read

All others are in the partition of the status topic that has the number of the input partition they speak of. With an
API token all but the last kind are signed as signature.py says; the parts are STATUS, the topic, the partition in
decimal digits, key and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sidecar.contract.control import CONTROL_ID, Outcome
from sidecar.contract.signature import sign, verify
from sidecar.contract.values import HeaderError, read_number, read_text
from sidecar.model import Headers

SIGNATURE: Final = "retry-signature"
"""Header that holds the signature."""
STATUS: Final = b"retry-sidecar status"
CLOCK_KEY: Final = b"d/doctor"
"""Of tombstones, so that compaction takes them away."""
DRIVER_CLOCK_KEY: Final = b"s/driver"

START_PARTITION: Final = 0
"""The starts of all instances are in one partition, which orders them."""

_OUTCOME_PREFIX: Final = b"o/"


class OutcomeRecord(msgspec.Struct, frozen=True):
    """The value of an outcome on the status topic, as JSON."""

    outcome: Outcome
    count: int
    """The number of timers it acted on; for pause and resume, of those of the origin that wait in the partition."""
    target: str
    partition: int
    at_ms: int
    """The instant of the plan that acted."""
    detail: str = ""

    def to_json(self) -> bytes:
        """Return the record's value."""
        return _encoder.encode(self)

    @classmethod
    def from_json(cls, value: bytes) -> OutcomeRecord | None:
        """Return the outcome, or None for bytes that are none. Never raises: anyone may write to a topic."""
        try:
            return _decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(OutcomeRecord)


def partition_key(partition: int) -> bytes:
    """Return the key of the figures of a partition."""
    return b"p/%d" % partition


def start_key(instance_id: str) -> bytes:
    """Return the key under which each process that starts as this instance writes its random id."""
    return b"i/" + instance_id.encode()


def outcome_key(control_id: str, offset: int) -> bytes:
    """Return the key of an outcome on the status topic."""
    return b"%b%b/%d" % (_OUTCOME_PREFIX, control_id.encode(), offset)


def parse_outcome_key(key: bytes | None) -> tuple[str, int] | None:
    """Return control id and input offset, or None for a key of another kind. Never raises."""
    if key is None or not key.startswith(_OUTCOME_PREFIX):
        return None
    control_id, _, offset = key[len(_OUTCOME_PREFIX) :].rpartition(b"/")
    try:
        return read_text(CONTROL_ID, control_id), read_number("offset", offset)
    except HeaderError:
        return None


def signed(token: str | None, topic: str, partition: int, key: bytes, value: bytes, at_ms: int) -> Headers:
    """Return the headers of a record: its signature, or none without a token.

    Args:
        token: API_TOKEN.
        topic: The status topic.
        partition: The partition that the record is written to.
        key: The key of the record.
        value: The value of the record.
        at_ms: Wall time of the signer.
    """
    return [] if token is None else [(SIGNATURE, sign(token, _parts(topic, partition, key, value), at_ms))]


def is_signed(
    token: str | None,
    topic: str,
    partition: int,
    key: bytes,
    value: bytes,
    headers: Mapping[str, bytes | None],
    stamped_ms: int,
) -> bool:
    """Return whether a record can be trusted; without a token every record is.

    Args:
        token: As to `signed`, like the next four.
        headers: The last of each name.
        stamped_ms: By the broker's clock. A signature that was valid when written stays valid for later readers.
    """
    if token is None:
        return True
    return verify(token, _parts(topic, partition, key, value), headers.get(SIGNATURE), stamped_ms)


def _parts(topic: str, partition: int, key: bytes, value: bytes) -> tuple[bytes, ...]:
    return STATUS, topic.encode(), b"%d" % partition, key, value
