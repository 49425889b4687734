"""The dead letters for the API: bounded looks at the DLQ, and redrives in the background."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from sidecar.api.dlq.bodies import (
    DISCARDS_SHOWN_MAX,
    NAMES_MAX,
    CountsBody,
    DeadLetterBody,
    DeadLetterDetailBody,
    DeadLettersBody,
    DiscardBody,
    DiscardRequest,
    DiscardsBody,
    FilterFields,
    ListQuery,
    RedriveBody,
    RedriveRequest,
    ScanQuery,
    read_position,
)
from sidecar.clock import Clock
from sidecar.contract import dialects_of
from sidecar.dlq.count import Count
from sidecar.dlq.discards import Discard, DiscardLog, Place, discard_of
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, KafkaDeadLetterReader, OffsetRange, offset_ranges
from sidecar.dlq.scan import SECONDS_MAX, KafkaLook, Named, Scanned, ScanPosition, newest, scan
from sidecar.errors import BrokerUnavailable
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.serving.local_messages import HeaderRoom, base64_of
from sidecar.serving.redrives import Redrives
from sidecar.settings import Settings

ASK_S: Final = 4.0
"""The time for all questions on offsets of one request."""
TEXT_CHARS_MAX: Final = 1_000
"""Longer texts of a dead letter are shortened: a header can be as large as a message."""


class KafkaDeadLetters:
    """Implements `sidecar.api.dlq.routes.DeadLetters`.

    Args:
        settings: The effective ones.
        clock: The clock of this machine.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._redrives = Redrives(clock, body_of)

    def counts(self, query: ScanQuery) -> CountsBody:
        """Count the dead letters of one look."""
        wanted = filter_of(query)
        settings, scanned = self._scan(query, wanted)
        count = Count(wanted, names_max=NAMES_MAX)
        for found in scanned.matching.values():
            count.add(found)
        facts = self._facts(settings, scanned, scanned.position)
        return CountsBody.model_validate({**facts, "total": count.total, **count.sorted()})

    def page(self, query: ListQuery) -> DeadLettersBody:
        """List the newest dead letters of one look."""
        settings, scanned = self._scan(query, filter_of(query))
        records, position = newest(scanned, query.limit)
        return DeadLettersBody(**self._facts(settings, scanned, position), messages=[body_of(each) for each in records])

    def find(self, topic: str | None, partition: int, offset: int, *, payload: bool) -> DeadLetterDetailBody | None:
        """Return one dead letter."""
        settings = self._settings_of(topic)
        log = offset_ranges(settings, self._made_admin(), None, None, Deadline(ASK_S, self._clock)).get(partition)
        if log is None or not log.start <= offset < log.end:
            return None
        record = self._read(settings, partition, log._replace(start=offset, end=offset + 1))
        if record is None:
            return None
        discard = discard_of(self._discards(settings), record)
        found: dict[str, Any] = {
            **body_of(record).model_dump(),
            "discarded": None if discard is None else discard_body(partition, offset, discard),
            **HeaderRoom().shown(record.headers or ()),
        }
        if payload:
            found |= {"key": base64_of(record.key), "value": base64_of(record.value)}
        return DeadLetterDetailBody.model_validate(found)

    def discard(self, request: DiscardRequest, who: str) -> DiscardBody | None:
        """Discard a dead letter."""
        settings = self._settings_of(request.topic)
        partition, offset = read_position(request.id)
        whole = offset_ranges(settings, self._made_admin(), None, None, Deadline(ASK_S, self._clock))
        log = whole.get(partition)
        if log is None or not log.start <= offset < log.end:
            return None
        record = self._read(settings, partition, log._replace(start=offset, end=offset + 1))
        if record is None:
            return None
        made = self._discard_log(settings).add([record], who, request.why, whole)
        return discard_body(partition, offset, made)

    def take_back(self, topic: str | None, partition: int, offset: int) -> bool:
        """End a discard."""
        return bool(self._discard_log(self._settings_of(topic)).take_back([(partition, offset)]))

    def discards(self, topic: str | None) -> DiscardsBody:
        """Return the discarded dead letters, latest first."""
        settings = self._settings_of(topic)
        found = sorted(self._discards(settings).items(), key=lambda each: each[1].at_ms, reverse=True)
        shown = [discard_body(*place, discard) for place, discard in found[:DISCARDS_SHOWN_MAX]]
        return DiscardsBody(topic=settings.dlq_topic, total=len(found), discards=shown)

    def start(self, request: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Start a redrive."""
        settings, wanted = self._wanted(request)
        return self._redrives.start(settings, wanted, request)

    def run_of(self, request: RedriveRequest) -> str:
        """Return the name of the run that a request starts."""
        return request.run or self._wanted(request)[1].run_name

    def _wanted(self, request: RedriveRequest) -> tuple[Settings, DeadLetterFilter]:
        settings = self._settings_of(request.topic)
        main = settings.dlq_topic == self._settings.dlq_topic
        wanted = replace(filter_of(request), topic="" if main else settings.dlq_topic, only=request.id or "")
        return settings, wanted

    def redrive(self, run: str) -> RedriveBody | None:
        """Return the status of a redrive of this process."""
        return self._redrives.status(run)

    def redrives(self) -> Sequence[RedriveBody]:
        """Return the redrives of this process, newest first."""
        return self._redrives.all()

    def stop(self, run: str) -> RedriveBody | None:
        """Ask a redrive of this process to stop."""
        return self._redrives.stop(run)

    def close(self, deadline_s: float) -> None:
        """Stop the redrive that runs; after the deadline its thread dies with the process."""
        self._redrives.close(deadline_s)

    def _scan(self, query: ScanQuery, wanted: DeadLetterFilter) -> tuple[Settings, Scanned]:
        settings = self._settings_of(query.topic)
        position = None if query.cursor is None else ScanPosition.from_cursor(query.cursor)
        deadline = Deadline(ASK_S, self._clock)
        whole = offset_ranges(settings, self._made_admin(), query.died_from, query.died_to, deadline)
        look = KafkaLook(settings, self._clock, keep_keys=query.key is not None)
        named = Named(query.key, query.retry_id)
        return settings, scan(whole, wanted, position, look, self._discards(settings), named)

    def _discard_log(self, settings: Settings) -> DiscardLog:
        return DiscardLog(settings, self._made_admin(), self._clock)

    def _discards(self, settings: Settings) -> Mapping[Place, Discard]:
        return self._discard_log(settings).read(Deadline(ASK_S, self._clock))

    def _read(self, settings: Settings, partition: int, only: OffsetRange) -> DlqRecord | None:
        """Return the record of a range of one offset, None for a transaction marker."""
        ranges: Mapping[int, OffsetRange] = {partition: only}
        until_s = self._clock.monotonic_s() + SECONDS_MAX
        group_id, dialects = f"{settings.group_id}-dlq-report", dialects_of(settings.dialects)
        with closing(KafkaDeadLetterReader(settings, ranges, group_id, dialects)) as reader:
            while not reader.done:
                if records := reader.read():
                    return records[0]
                if self._clock.monotonic_s() >= until_s:
                    raise BrokerUnavailable(
                        f"topic {settings.dlq_topic}: no record within {SECONDS_MAX:g} s; try again"
                    )
        return None

    def _settings_of(self, topic: str | None) -> Settings:
        """Return the settings with this DLQ as the DLQ. Raises ValueError."""
        if topic is None or topic == self._settings.dlq_topic:
            return self._settings
        allowed = ", ".join(self._settings.dlq_topics)
        if topic not in self._settings.dlq_topics:
            raise ValueError(f"topic: {topic} is not a DLQ of this sidecar: allowed are {allowed}")
        return replace(self._settings, dlq_topic=topic)

    def _facts(self, settings: Settings, scanned: Scanned, position: ScanPosition | None) -> dict[str, Any]:
        return {
            "topic": settings.dlq_topic,
            "topics": list(self._settings.dlq_topics),
            "read": scanned.read,
            "unread": scanned.unread(position),
            "cursor": None if position is None else position.to_cursor(),
        }

    def _made_admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(self._settings)
            return self._admin


def filter_of(query: FilterFields) -> DeadLetterFilter:
    """Return the filter of a request: the same one as that of the command's options."""
    return DeadLetterFilter(
        tuple(query.reason),
        tuple(query.origin),
        tuple(query.exception),
        tuple(query.group),
        None if query.died_from is None else str(query.died_from),
        None if query.died_to is None else str(query.died_to),
    )


def discard_body(partition: int, offset: int, discard: Discard) -> DiscardBody:
    """Return a discard as JSON shows it."""
    return DiscardBody(id=f"{partition}-{offset}", who=discard.who, why=discard.why, at_ms=discard.at_ms)


def body_of(record: DlqRecord) -> DeadLetterBody:
    """Return a dead letter as JSON shows it."""
    facts = {name: _short(value) for name, value in record.to_json().items()}
    return DeadLetterBody(id=f"{record.partition}-{record.offset}", **facts)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return f"{value[:TEXT_CHARS_MAX]}…"
    return value
