"""Ingest: checks a record of the input topic and turns it into an item for plan().

It reads no store, so it runs while the previous transaction is being committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from sidecar.changelog.entry import lasting
from sidecar.contract import ControlRequest, Dialect, parse, render_dead_letter
from sidecar.contract.control import EVERY_ORIGIN, ControlKind, signature_problem
from sidecar.contract.dialects.dialect import Check
from sidecar.contract.dialects.native import FIRST_MS
from sidecar.contract.sizes import DELIVERY_OVERHEAD_BYTES, record_bytes
from sidecar.engine import hot
from sidecar.engine.dlqs import ChooseDlq
from sidecar.engine.items import Arrival, BadControl, Control, Dead, Dropped, Item, Ordered
from sidecar.engine.ports import Origin
from sidecar.engine.rows import lane_of
from sidecar.model import Drop, Reason, Record, Rejection, Request, Schedule
from sidecar.policy import Policy

STAGE: Final = "intake"


class Ingest:
    """Examines records.

    Args:
        policy: Decides about requests that parse.
        dialects: Accepted dialects, in order of preference.
        origins: Topics that exist by a definite answer of the broker; updated by their owner.
        unknown: Topics that do not exist by a recent, definite answer; updated by their owner.
        forbidden: Topics that may not be described, by repeated answers; updated by their owner.
        api_token: Signs control records; None: they need no signature.
        compressed: Writes are compressed, so only an attempt shows whether a record fits its origin. Otherwise sizes
            are checked here.
    """

    def __init__(
        self,
        policy: Policy,
        dialects: Sequence[Dialect],
        origins: Mapping[str, Origin],
        unknown: Collection[str],
        *,
        input_topic: str,
        app_id: str,
        api_token: str | None = None,
        forbidden: Collection[str] = (),
        compressed: bool = False,
    ) -> None:
        self._dialects = dialects
        self._verdict_first = frozenset(each.code for each in dialects if each.checks[0] is not Check.ORIGIN)
        self._origins = origins
        self._unknown = unknown
        self._forbidden = forbidden
        self._input_topic = input_topic
        self._app_id = app_id
        self._api_token = api_token
        self._measures = not compressed
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Decide by this policy from the next record on."""
        self.policy = policy
        self._ordered = policy.ordered
        self.plain = hot.examiner(policy, self._dialects, self._origins, measures=self._measures)
        """Examines plain records, compiled; None: Python examines all."""

    @property
    def choose_dlq(self) -> ChooseDlq | None:
        """What tells the DLQ of a message; None: no policy has a DLQ of its own."""
        return partial(self.policy.dlq_of, self._dialects) if self.policy.has_policy_dlqs else None

    def knows(self, origin: str) -> bool:
        """Return whether there is a definite answer of the broker about a topic."""
        return origin in self._origins or origin in self._unknown or origin in self._forbidden

    def examine(self, record: Record, arrived_ms: int) -> Item | str:
        """Return the item that a record becomes, or the name of its origin when that must be looked up first.

        Args:
            record: As consumed.
            arrived_ms: Wall time now.
        """
        if self.plain is not None and (arrival := self.plain.examine(record, arrived_ms)) is not None:
            return arrival
        return self.examine_any(record, arrived_ms)

    def examine_any(self, record: Record, arrived_ms: int) -> Item | str:
        """Do the same for a record of any kind: the specification of what is compiled for plain ones."""
        request = parse(record, self._dialects)
        if type(request) is Rejection:
            return self._dead(record, request)
        if type(request) is ControlRequest:
            return self._control(record, request, arrived_ms)
        assert type(request) is Request
        topic = request.origin
        origin = self._origins.get(topic)
        if origin is None and request.dialect not in self._verdict_first and self.policy.origin_allowed(topic):
            return self._unresolved(record, request)
        verdict = self.policy.decide(request, record.timestamp_ms, arrived_ms, record.partition, record.offset)
        if origin is None and type(verdict) is Schedule:
            return self._unresolved(record, request)
        if (
            origin is not None
            and (
                request.origin_partition >= 0
                or (self._measures and len(record.value or b"") * 2 > origin.max_message_bytes)
            )
            and (blocker := self._blocker(record, request, origin))
        ):
            return self._dead(record, blocker)
        if type(verdict) is Schedule:
            arrival = arrival_of(record, request, verdict)
            assert origin is not None
            # Large headers with a small value.
            if self._measures and len(arrival.lasting) + DELIVERY_OVERHEAD_BYTES > origin.max_message_bytes:
                return self._dead(record, _too_large(record, request, origin))
            if self._ordered is not None and record.key is not None and self._ordered(topic):
                return Ordered(record.offset, arrival, lane_of(topic, record.key))
            return arrival
        if type(verdict) is Drop:
            return Dropped(record.offset, verdict.detail)
        assert type(verdict) is Rejection
        return self._dead(record, verdict)

    def _blocker(self, record: Record, request: Request, origin: Origin) -> Rejection | None:
        if request.origin_partition >= origin.partitions:
            return Rejection(
                Reason.BAD_HEADER,
                f"retry-origin-partition {request.origin_partition}: {request.origin} has {origin.partitions}"
                " partitions",
            )
        if self._measures and _delivery_bytes(record) > origin.max_message_bytes:
            return _too_large(record, request, origin)
        return None

    def _control(self, record: Record, request: ControlRequest, arrived_ms: int) -> Control | BadControl:
        headers = dict(record.headers or [])
        place = (self._input_topic, record.partition)
        problem = (
            (request.needs_signature and signature_problem(headers, self._api_token, *place, arrived_ms))
            or request.problem
            or self._beyond(request, arrived_ms)
        )
        if problem:
            return BadControl(record.offset, request.control_id, request.target_text, problem)
        return Control(record.offset, request.control_id, request.kind, request.target, request.due_ms, request.scope)

    def _beyond(self, request: ControlRequest, arrived_ms: int) -> str:
        """Return why the settings do not allow a request, empty when they do."""
        paused = request.target_text if request.kind is ControlKind.PAUSE else EVERY_ORIGIN
        if paused != EVERY_ORIGIN and not self.policy.origin_allowed(paused):
            return f"{paused} is not an origin that ORIGIN_TOPICS allows, so nothing is ever fired to it"
        if request.kind is ControlKind.RESCHEDULE:
            return self.policy.delay_problem(request.due_ms, arrived_ms) or ""
        return ""

    def _unresolved(self, record: Record, request: Request) -> Item | str:
        origin = request.origin
        if origin in self._unknown:
            detail = f"{origin} does not exist on this cluster: create it, then redrive"
            return self._dead(record, Rejection(Reason.ORIGIN_UNKNOWN, detail))
        if origin in self._forbidden:
            detail = (
                f"the sidecar may not describe topic {origin} (TOPIC_AUTHORIZATION_FAILED): "
                "give its user the permissions Describe and Write on it, then redrive"
            )
            return self._dead(record, Rejection(Reason.ORIGIN_NOT_ALLOWED, detail))
        return origin

    def _dead(self, record: Record, rejection: Rejection) -> Dead:
        headers = render_dead_letter(
            record.headers,
            reason=rejection.reason,
            detail=rejection.detail,
            topic=self._input_topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            connector_name=self._app_id,
            stage=STAGE,
        )
        return Dead(record.offset, rejection.reason, record.key, record.value, headers)


def arrival_of(record: Record, request: Request, schedule: Schedule) -> Arrival:
    """Return the timer that a message becomes."""
    _, offset, timestamp_ms, key, value, headers = record
    dialect, topic, _, _, _, attempt, _, _, target, retry_id, replace, _, _, noted = request
    due_ms, limit, since_ms = schedule
    if since_ms is not None:
        headers = [*(headers or []), (FIRST_MS, b"%d" % since_ms)]
    if noted:
        headers = [*(headers or []), *noted]
    kept = lasting(
        due_ms,
        timestamp_ms,
        attempt,
        limit,
        dialect,
        topic.encode(),
        retry_id,
        key,
        value,
        headers or [],
        target,
    )
    # In the hot path: twice as fast as the constructor.
    return tuple.__new__(Arrival, (offset, due_ms, topic, kept, retry_id, replace))


def _too_large(record: Record, request: Request, origin: Origin) -> Rejection:
    return Rejection(
        Reason.TOO_LARGE,
        f"{_delivery_bytes(record)} bytes with headers and framing; {request.origin} takes {origin.max_message_bytes}"
        " (max.message.bytes)",
    )


def _delivery_bytes(record: Record) -> int:
    """Return the largest possible size of the record's delivery, uncompressed."""
    return record_bytes(record.key, record.value, record.headers or []) + DELIVERY_OVERHEAD_BYTES
