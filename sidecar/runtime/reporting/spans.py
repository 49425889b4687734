"""OpenTelemetry spans: one per transaction, with links to the traces of the messages it sends.

The SDK is not imported unless OpenTelemetry's standard environment variables ask for an exporter. The messages' own
headers (`traceparent`, `tracestate`, `baggage`) pass through unchanged, with or without spans.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import structlog
from opentelemetry.trace import SpanContext, Status, StatusCode, TracerProvider, get_current_span, get_tracer_provider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sidecar import __version__
from sidecar.engine.transaction import Plan
from sidecar.model import Headers
from sidecar.runtime.transaction.commit import Result

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

log = structlog.get_logger(__name__)

NAME: Final = "retry_sidecar.transaction"
LINKS_MAX: Final = 128
"""Most links of one span; OpenTelemetry's default limit."""
LOOKED_AT_MAX: Final = 1_000
"""Most messages of one transaction whose headers are searched for a trace."""
SERVICE: Final = "retry-sidecar"
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PROPAGATED: Final = frozenset({"traceparent", "tracestate"})


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
        span = self._tracer.start_span(NAME, start_time=began_ns, attributes=_attributes(plan, outcome))
        if span.is_recording():
            for context in islice(self._contexts(plan), LINKS_MAX):
                span.add_link(context)
            if outcome != "committed":
                span.set_status(self._failed)
        span.end(began_ns + round(result.seconds * 1e9))

    def _contexts(self, plan: Plan) -> Iterator[SpanContext]:
        for headers in islice(_sent(plan), LOOKED_AT_MAX):
            if (carrier := _carrier(headers)) and "traceparent" in carrier:
                context = get_current_span(self._propagator.extract(carrier)).get_span_context()
                if context.is_valid:
                    yield context


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


def _sent(plan: Plan) -> Iterator[Headers]:
    for partition_plan in plan.partition_plans:
        yield from chain(
            (outgoing.headers for outgoing in partition_plan.deliveries),
            (outgoing.headers for _, outgoing in partition_plan.dead_letters),
        )


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
