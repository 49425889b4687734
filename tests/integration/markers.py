"""Aborts one partition's part of an open transaction, as `kafka-transactions.sh abort` does.

It speaks Kafka's requests DescribeProducers (61, version 0) and WriteTxnMarkers (27, version 1), to a broker that leads
the partition and takes plain connections.
"""

from __future__ import annotations

import socket
from struct import Struct, pack
from typing import Final, NamedTuple

_WAIT_S: Final = 30.0
_DESCRIBE_PRODUCERS: Final = (61, 0)
_WRITE_TXN_MARKERS: Final = (27, 1)
_CORRELATION: Final = 7
_NO_TAGS: Final = b"\0"
_PRODUCER: Final = Struct(">qiiqiq")


class OpenProducer(NamedTuple):
    """A producer with an open transaction in a partition."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    first_offset: int
    """Of the transaction in the partition."""


def abort_part(bootstrap: str, topic: str, partition: int) -> None:
    """Write an ABORT marker for the one transaction that is open in a partition."""
    (found,) = open_producers(bootstrap, topic, partition)
    marker = pack(">qh?", found.producer_id, found.epoch, False) + _one(_place(topic, partition))
    _call(bootstrap, _WRITE_TXN_MARKERS, _one(marker + pack(">i", found.coordinator_epoch)))
    assert not open_producers(bootstrap, topic, partition), "its transaction is still open"


def open_producers(bootstrap: str, topic: str, partition: int) -> list[OpenProducer]:
    """Return the producers with an open transaction in a partition."""
    answer = _call(bootstrap, _DESCRIBE_PRODUCERS, _one(_place(topic, partition)))
    # Throttle time, one topic with its name, one partition with its number.
    at = 4 + 1 + 1 + len(topic) + 1 + 4
    error = int.from_bytes(answer[at : at + 2], "big")
    assert error == 0, f"DescribeProducers of {topic}, partition {partition}: error {error}"
    at += 2
    assert answer[at] == 0, "an error message"
    count, at = answer[at + 1] - 1, at + 2
    found = []
    for number in range(count):
        start = at + number * (_PRODUCER.size + 1)
        producer_id, epoch, _, _, coordinator_epoch, first_offset = _PRODUCER.unpack_from(answer, start)
        if first_offset >= 0:
            found.append(OpenProducer(producer_id, epoch, max(0, coordinator_epoch), first_offset))
    return found


def _place(topic: str, partition: int) -> bytes:
    name = topic.encode()
    return pack(">B", len(name) + 1) + name + b"\2" + pack(">i", partition)


def _one(entry: bytes) -> bytes:
    """Return a compact array of one entry."""
    return b"\2" + entry + _NO_TAGS


def _call(bootstrap: str, api: tuple[int, int], body: bytes) -> bytes:
    """Return the body of the answer."""
    host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    request = pack(">hhi", *api, _CORRELATION) + pack(">h", -1) + _NO_TAGS + body + _NO_TAGS
    with socket.create_connection((host, int(port)), _WAIT_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(pack(">i", len(request)) + request)
        answer = answers.read(int.from_bytes(answers.read(4), "big"))
    assert answer[:5] == pack(">i", _CORRELATION) + _NO_TAGS, answer[:5]
    return answer[5:]
