"""Reads the topics as any read_committed consumer does, and makes records of the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from sidecar import log
from sidecar.contract import dead_letter
from sidecar.contract.dialects import native
from sidecar.demo.ledger import Content, InputRecord, OutputRecord, Position
from sidecar.demo.plan import DLQ_TOPIC, FIRED, INPUT_TOPIC, ORIGINS, PLAN, POLICY_DELAYS_MS, Plan
from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.kafka.admin.cluster import Deadline
from sidecar.kafka.log_reader import End, LogReader
from sidecar.model import Headers, Record, TimerId

_RPC_S = 10.0
_POLL_S = 0.2
_BATCH = 5_000
_OURS = ("retry-", "__connect.")


class Row(NamedTuple):
    """One committed record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def text(self, name: str) -> str | None:
        """Return a header, or None when the record has none of that name."""
        return next((value.decode() for key, value in self.headers if key == name and value is not None), None)

    def needed(self, name: str) -> str:
        """Return a required header. Raises CommandFailed."""
        text = self.text(name)
        if text is None:
            raise CommandFailed(f"{self.topic} {self.partition}/{self.offset} has no header {name}")
        return text

    @property
    def content(self) -> Content:
        return Content(self.key, self.value, [pair for pair in self.headers if not pair[0].startswith(_OURS)])


def read_all(bootstrap_servers: str, deadline_s: float) -> tuple[list[InputRecord], list[OutputRecord]]:
    """Read retry topic, origins and DLQ from the beginning to their ends.

    Args:
        bootstrap_servers: The broker.
        deadline_s: The time for all topics.

    Raises:
        BrokerUnavailable: The ends were not reached in time.
        CommandFailed: A record is not from the demo.
    """
    rows = _rows(bootstrap_servers, (INPUT_TOPIC, DLQ_TOPIC, *ORIGINS), deadline_s)
    entered = [as_input(row) for row in rows if row.topic == INPUT_TOPIC]
    outputs = [as_output(row) for row in rows if row.topic == DLQ_TOPIC or _was_fired(row)]
    return entered, outputs


def as_input(row: Row) -> InputRecord:
    """Return the ledger's record for one on the retry topic."""
    plan = Plan.parse(row.needed(PLAN))
    attempt = int(row.text(native.ATTEMPT) or 0)
    due_ms = None
    if plan.outcome(attempt) == FIRED:
        delay = row.text(native.DELAY_MS)
        due_ms = row.timestamp_ms + (POLICY_DELAYS_MS[attempt] if delay is None else int(delay))
    return InputRecord(
        position=Position(row.partition, row.offset),
        plan=plan,
        attempt=attempt,
        origin=row.text(native.ORIGIN_TOPIC) or "",
        due_ms=due_ms,
        content=row.content,
    )


def as_output(row: Row) -> OutputRecord:
    """Return the ledger's record for a delivery or a dead letter."""
    if row.topic == DLQ_TOPIC:
        position = Position(int(row.needed(dead_letter.CONNECT_PARTITION)), int(row.needed(dead_letter.CONNECT_OFFSET)))
        return OutputRecord(position, row.needed(dead_letter.REASON), row.topic, row.timestamp_ms, None, row.content)
    timer = TimerId.parse(row.needed(native.TIMER_ID))
    if timer is None:
        raise CommandFailed(f"{row.topic} {row.partition}/{row.offset}: {native.TIMER_ID} is malformed")
    was_due_ms = int(row.needed(native.WAS_DUE_MS))
    return OutputRecord(
        Position(timer.partition, timer.offset), FIRED, row.topic, row.timestamp_ms, was_due_ms, row.content
    )


def _was_fired(row: Row) -> bool:
    """Return whether a record on an origin topic is from the sidecar, not from the sender."""
    return row.topic in ORIGINS and row.text(native.TIMER_ID) is not None


def _rows(bootstrap_servers: str, topics: Sequence[str], deadline_s: float) -> list[Row]:
    properties = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"ledger-{uuid.uuid4().hex}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "logger": log.librdkafka_logger(),
    }
    deadline = Deadline(deadline_s)
    rows: list[Row] = []
    for topic in topics:
        with LogReader(properties, topic) as reader:
            rows += (Row(topic, *record[:5], record.headers or []) for record in _to_the_ends(reader, topic, deadline))
    return rows


def _to_the_ends(reader: LogReader, topic: str, deadline: Deadline) -> list[Record]:
    unfinished = set(range(reader.partition_count(_RPC_S)))
    reader.start(dict.fromkeys(unfinished, 0))
    records: list[Record] = []
    while unfinished:
        for read in reader.read(_BATCH, _POLL_S):
            if isinstance(read, Record):
                records.append(read)
            elif isinstance(read, End):
                unfinished.discard(read.partition)
            else:
                raise read.error
        if unfinished and deadline.passed:
            raise BrokerUnavailable(f"topic {topic}: the ends of {sorted(unfinished)} were not reached in time")
    return records
