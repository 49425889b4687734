"""OpenTelemetry spans: one per transaction, and one for each message of it that has a sampled trace, in that trace.

The spans of messages and of their transaction link to each other. The SDK is not imported unless OpenTelemetry's
standard environment variables ask for an exporter. The messages' own headers (`traceparent`, `tracestate`, `baggage`)
pass through unchanged, with or without spans.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sidecar import __version__
from sidecar.changelog.codec import BlockKey, decode_block, decode_key
from sidecar.changelog.entry import head, origin_of, payload_of
from sidecar.contract.dialects import native
from sidecar.engine.transaction import PartitionPlan, Plan
from sidecar.model import Headers, TimerId
from sidecar.runtime.transaction.commit import Result

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = structlog.get_logger(__name__)

NAME: Final = "retry_sidecar.transaction"
LINKS_MAX: Final = 128
"""Most links of one span, OpenTelemetry's default limit; also the most messages of a transaction that have a span."""
ACCEPT: Final = "accept"
DELIVER: Final = "deliver"
DEAD_LETTER: Final = "dead-letter"
LOOKED_AT_MAX: Final = 1_000
"""Most messages of one transaction whose headers are searched for a trace."""
SERVICE: Final = "retry-sidecar"
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PROPAGATED: Final = frozenset({"traceparent", "tracestate"})


class _Message(NamedTuple):
    """What a transaction did with a message."""

    what: str
    """`accept`, `deliver` or `dead-letter`."""
    topic: str
    """The origin, or the DLQ."""
    began_ms: int
    """When it came to the retry topic, or was due; negative or 0 when unknown."""
    headers: Headers
    attributes: Mapping[str, str | int]


class Spans:
    """Creates the spans.

    Args:
        provider: Creates the tracer.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("sidecar", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._failed = Status(StatusCode.ERROR)

    def transaction(self, result: Result, outcome: str) -> None:
        """Create the span of a transaction that has ended.

        Args:
            result: Result of the transaction.
            outcome: `committed`, or why it was not, as in the label of the metric.
        """
        plan = result.work.plan
        began_ns = plan.now_ms * 1_000_000
        end_ns = began_ns + round(result.seconds * 1e9)
        span = self._tracer.start_span(NAME, start_time=began_ns, attributes=_attributes(plan, outcome))
        if span.is_recording():
            for message, parent in islice(self._traced(plan), LINKS_MAX):
                span.add_link(get_current_span(parent).get_span_context())
                if outcome == "committed":
                    self._message(message, parent, span.get_span_context(), began_ns, end_ns)
            if outcome != "committed":
                span.set_status(self._failed)
        span.end(end_ns)

    def _message(
        self, message: _Message, parent: Context, transaction: SpanContext, began_ns: int, end_ns: int
    ) -> None:
        """Create the span of a message, as a child of the one that its headers name."""
        start_ns = message.began_ms * 1_000_000 if message.began_ms > 0 else began_ns
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": message.what,
            "messaging.operation.type": "receive" if message.what == ACCEPT else "send",
            "messaging.destination.name": message.topic,
            **message.attributes,
        }
        span = self._tracer.start_span(
            f"{message.what} {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER if message.what == ACCEPT else SpanKind.PRODUCER,
            attributes=attributes,
            links=[Link(transaction)],
            start_time=min(start_ns, end_ns),
        )
        span.end(end_ns)

    def _traced(self, plan: Plan) -> Iterator[tuple[_Message, Context]]:
        """Yield the messages whose headers name a span, with it."""
        for message in islice(_messages(plan), LOOKED_AT_MAX):
            if (carrier := _carrier(message.headers)) and "traceparent" in carrier:
                parent = self._propagator.extract(carrier)
                if get_current_span(parent).get_span_context().is_valid:
                    yield message, parent


def _attributes(plan: Plan, outcome: str) -> Mapping[str, str | int]:
    parts = plan.partition_plans
    return {
        "messaging.system": "kafka",
        "retry_sidecar.outcome": outcome,
        "retry_sidecar.partitions": len(parts),
        "retry_sidecar.taken_in": sum(partition_plan.ingested for partition_plan in parts),
        "retry_sidecar.stored": sum(partition_plan.stored for partition_plan in parts),
        "retry_sidecar.fired": plan.deliveries,
        "retry_sidecar.dead_lettered": sum(len(partition_plan.dead_letters) for partition_plan in parts),
        "retry_sidecar.dropped": sum(len(partition_plan.dropped) for partition_plan in parts),
        "retry_sidecar.deferred": sum(sum(partition_plan.deferred.values()) for partition_plan in parts),
        "retry_sidecar.cancelled": sum(partition_plan.cancelled for partition_plan in parts),
    }


def _messages(plan: Plan) -> Iterator[_Message]:
    """Yield the messages that leave, then those that are stored for the first time."""
    for partition_plan in plan.partition_plans:
        for topic, _, _, _, headers, due_ms, _ in partition_plan.deliveries:
            yield _Message(DELIVER, topic, due_ms, headers, _timer_id(headers))
        for reason, (topic, _, _, _, headers, due_ms, _) in partition_plan.dead_letters:
            yield _Message(DEAD_LETTER, topic, due_ms, headers, {"retry_sidecar.reason": reason.value})
    for partition_plan in plan.partition_plans:
        yield from _accepted(partition_plan)


def _accepted(partition_plan: PartitionPlan) -> Iterator[_Message]:
    for key, value in partition_plan.records:
        if value is None or not isinstance(decode_key(key), BlockKey):
            continue
        for entry in decode_block(value).entries:
            fixed = head(entry)
            if fixed.flags or fixed.requested_ms != fixed.first_ms:
                continue  # it was accepted before, and is stored again
            _, _, headers = payload_of(entry, fixed)
            timer_id = TimerId(partition_plan.number, fixed.offset, fixed.first_ms)
            attributes: dict[str, str | int] = {
                "retry_sidecar.timer_id": str(timer_id),
                "retry_sidecar.due_ms": fixed.requested_ms,
            }
            yield _Message(ACCEPT, origin_of(entry, fixed), fixed.timestamp_ms, headers, attributes)


def _timer_id(headers: Headers) -> Mapping[str, str]:
    """Return the timer id as an attribute, where the dialect gives it to the origin."""
    found = next((value for name, value in headers if name == native.TIMER_ID and value), None)
    return {} if found is None else {"retry_sidecar.timer_id": found.decode()}


def _carrier(headers: Headers) -> dict[str, str]:
    carrier = {}
    for name, value in headers:
        if name in _PROPAGATED and value is not None:
            carrier[name] = value.decode("latin-1")
    return carrier


def spans_of_environment() -> Spans | None:
    """Return the spans that OpenTelemetry's environment variables ask for; None when tracing is off.

    `OTEL_TRACES_EXPORTER` names exporters (`otlp`, `console`); an OTLP endpoint alone means `otlp`. A provider that
    the process was started with (`opentelemetry-instrument`) is used as it is.
    """
    endpoint = any(os.environ.get(name) for name in _ENDPOINTS)
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp" if endpoint else "none")
    names = [name for each in wanted.split(",") if (name := each.strip()) not in {"", "none"}]
    if not names or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        return Spans(_provider(names))
    except ImportError as cause:
        log.warning("spans_not_exported", reason=str(cause), advice="pip install '.[otel]' in the source tree")
        return None


def _provider(exporters: list[str]) -> TracerProvider:
    # The SDK is optional, and its import costs time and memory.
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    current = get_tracer_provider()
    if isinstance(current, SdkProvider):
        return current
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = SdkProvider(resource=Resource.create({} if named else {"service.name": SERVICE}))
    for name in exporters:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    return provider


def _exporter(name: str) -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    entry = _OTLP.get(protocol or "http/protobuf", name) if name == "otlp" else name
    for found in entry_points(group=_EXPORTERS, name=entry):
        exporter: SpanExporter = found.load()()
        return exporter
    raise ImportError(f"there is no exporter {entry!r} for OTEL_TRACES_EXPORTER={name}")
