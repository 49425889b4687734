"""Spans of transactions: their contents and links, and that they cost nothing when not configured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from structlog.testing import capture_logs

from sidecar.changelog.codec import CHECKPOINT_KEY, BlockKey, block_key, encode_block
from sidecar.changelog.entry import DEFERRED, HELD, MOVING, lasting
from sidecar.metrics import Metrics
from sidecar.model import Headers, Reason
from sidecar.runtime.reporting import spans as module
from sidecar.runtime.reporting.spans import LINKS_MAX, LOOKED_AT_MAX, NAME, Spans, spans_of_environment
from sidecar.runtime.reporting.tally import tally_ended
from sidecar.runtime.transaction.commit import Result
from tests.clocks import NOW_MS
from tests.unit.runtime.test_failures import outgoing
from tests.unit.runtime.test_failures import result as failed_with

MEMORY = InMemorySpanExporter()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*module._ENDPOINTS, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    yield
    MEMORY.clear()


@pytest.fixture
def spans() -> Spans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(MEMORY))
    return Spans(provider)


def parent(number: int) -> bytes:
    return b"00-%032x-%016x-01" % (number + 1, number + 1)


def committed(headers: Sequence[Headers], dead: Sequence[Headers] = ()) -> Result:
    """Return a transaction that fires and dead-letters messages with these headers."""
    made = failed_with(0)
    fires = [outgoing(number)._replace(headers=each) for number, each in enumerate(headers)]
    dead_letters = [(Reason.FATAL, outgoing(9)._replace(headers=each)) for each in dead]
    partition_plan = replace(
        made.work.plan.partition_plans[0],
        deliveries=fires,
        fired_dues_ms=[NOW_MS] * len(fires),
        dead_letters=dead_letters,
        stored=5,
        ingested=6,
    )
    plan = replace(made.work.plan, partition_plans=[partition_plan])
    return replace(made, work=replace(made.work, plan=plan), error=None, fired_ms=NOW_MS)


def only_span() -> ReadableSpan:
    """Return the span of the transaction."""
    (span,) = (each for each in MEMORY.get_finished_spans() if each.name == NAME)
    return span


def of_messages() -> list[ReadableSpan]:
    return [each for each in MEMORY.get_finished_spans() if each.name != NAME]


def with_entries(made: Result, *entries: bytes) -> Result:
    """Return the transaction with a block of these entries."""
    block = encode_block(0, {"orders": (len(entries), 0)}, entries)
    (partition_plan,) = made.work.plan.partition_plans
    partition_plan = replace(partition_plan, records=[(CHECKPOINT_KEY, b"x"), (block_key(BlockKey(1, 1, 0)), block)])
    plan = replace(made.work.plan, partition_plans=[partition_plan])
    return replace(made, work=replace(made.work, plan=plan))


def entry(headers: Headers, *, requested_ms: int = NOW_MS + 9_000, flags: int = 0) -> bytes:
    """Return a timer of a message that came a second ago and is due in nine."""
    due_ms = NOW_MS + 9_000
    return MOVING.pack(due_ms, 41, requested_ms, 0, flags) + lasting(
        due_ms, NOW_MS - 1_000, 0, 6, 1, b"orders", None, b"key", b"value", headers
    )


def test_a_committed_transaction_is_one_span_with_its_counts(spans: Spans) -> None:
    metrics = Metrics(version="1", now_ms=lambda: NOW_MS)
    tally_ended(metrics, spans, committed([[], []], [[]]), "committed")
    span = only_span()
    assert (span.name, span.status.status_code, list(span.links)) == (NAME, StatusCode.UNSET, [])
    assert span.start_time == NOW_MS * 1_000_000
    assert span.end_time == span.start_time + 100_000_000
    assert span.attributes is not None
    counts = {name.removeprefix("retry_sidecar."): value for name, value in span.attributes.items()}
    assert counts == {
        "messaging.system": "kafka",
        "outcome": "committed",
        "partitions": 1,
        "taken_in": 6,
        "stored": 5,
        "fired": 2,
        "dead_lettered": 1,
        "dropped": 0,
        "deferred": 0,
        "cancelled": 0,
    }


def test_a_failed_transaction_is_a_span_with_an_error(spans: Spans) -> None:
    metrics = Metrics(version="1", now_ms=lambda: NOW_MS)
    tally_ended(metrics, spans, failed_with(3), "aborted")
    span = only_span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["retry_sidecar.outcome"] == "aborted"
    assert metrics.registry.get_sample_value("retry_sidecar_transactions_total", {"outcome": "aborted"}) == 1


def test_a_span_links_to_the_traces_of_what_is_fired_and_dead_lettered(spans: Spans) -> None:
    traced: Headers = [("traceparent", parent(0)), ("tracestate", b"vendor=1"), ("baggage", b"a=b")]
    bad: list[Headers] = [[("traceparent", value)] for value in (b"", b"nonsense", b"\xff", b"00-0-0-00", None)]
    spans.transaction(committed([traced, [], *bad], [[("traceparent", parent(1))]]), "committed")
    links = [link.context for link in only_span().links]
    assert [(format_trace_id(each.trace_id), format_span_id(each.span_id)) for each in links] == [
        (f"{number:032x}", f"{number:016x}") for number in (1, 2)
    ]
    assert [each.trace_state.get("vendor") for each in links] == ["1", None]


def test_a_message_has_a_span_in_its_own_trace_for_its_arrival_and_its_delivery(spans: Spans) -> None:
    """Both are children of the span that its headers name, and link to the transaction, as that links to it."""
    traced: Headers = [("traceparent", parent(6)), ("retry-timer-id", b"3-41-5")]
    spans.transaction(with_entries(committed([traced]), entry([("traceparent", parent(6))])), "committed")
    delivered, accepted = of_messages()
    assert (delivered.name, accepted.name) == ("deliver orders", "accept orders")
    assert (delivered.kind, accepted.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span in (delivered, accepted):
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (7, 7)
        assert span.context.trace_id == 7
        assert [link.context.span_id for link in span.links] == [only_span().context.span_id]
        assert span.end_time == only_span().end_time
    assert delivered.start_time == NOW_MS * 1_000_000
    assert accepted.start_time == (NOW_MS - 1_000) * 1_000_000
    assert delivered.attributes is not None
    assert accepted.attributes is not None
    assert delivered.attributes["retry_sidecar.timer_id"] == "3-41-5"
    assert accepted.attributes["retry_sidecar.timer_id"] == f"3-41-{NOW_MS + 9_000}"
    assert accepted.attributes["messaging.operation.type"] == "receive"


def test_a_dead_letter_has_a_span_with_its_reason(spans: Spans) -> None:
    spans.transaction(committed([], [[("traceparent", parent(1))]]), "committed")
    (span,) = of_messages()
    assert span.name.startswith("dead-letter ")
    assert span.attributes is not None
    assert span.attributes["retry_sidecar.reason"] == "fatal"


@pytest.mark.parametrize("flags", [DEFERRED, DEFERRED | HELD])
def test_a_message_that_is_stored_again_was_accepted_before(spans: Spans, flags: int) -> None:
    headers: Headers = [("traceparent", parent(1))]
    rescheduled = entry(headers, requested_ms=NOW_MS + 60_000)
    spans.transaction(with_entries(committed([]), entry(headers, flags=flags), rescheduled), "committed")
    assert of_messages() == []


def test_a_message_that_its_sender_did_not_sample_and_one_of_a_failed_transaction_have_no_span(spans: Spans) -> None:
    spans.transaction(committed([[("traceparent", b"00-%032x-%016x-00" % (1, 1))], []]), "committed")
    assert (len(only_span().links), of_messages()) == (1, [])
    MEMORY.clear()
    spans.transaction(committed([[("traceparent", parent(1))]]), "aborted")
    assert (len(only_span().links), of_messages()) == (1, [])


def test_links_and_the_search_for_them_are_bounded(spans: Spans) -> None:
    spans.transaction(committed([[("traceparent", parent(number))] for number in range(LINKS_MAX + 9)]), "committed")
    assert len(only_span().links) == len(of_messages()) == LINKS_MAX
    MEMORY.clear()
    plain: list[Headers] = [[] for _ in range(LOOKED_AT_MAX)]
    spans.transaction(committed([*plain, [("traceparent", parent(0))]]), "committed")
    assert not only_span().links


def test_a_span_that_is_not_sampled_looks_at_no_message() -> None:
    class Untouchable(list[tuple[str, bytes | None]]):
        def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
            raise AssertionError("headers were read")

    quiet = Spans(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    quiet.transaction(committed([Untouchable()]), "committed")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_who_does_not_ask_for_spans_gets_none(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert spans_of_environment() is None


def test_without_the_wish_nothing_of_the_sdk_is_imported() -> None:
    code = (
        "import sys; from sidecar.runtime.reporting.spans import spans_of_environment; "
        "assert spans_of_environment() is None; "
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}, timeout=60)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "entry"),
    [
        ({"OTEL_TRACES_EXPORTER": "memory"}, "memory"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, "otlp_proto_http"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
    ],
)
def test_the_environment_chooses_the_exporter(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], entry: str
) -> None:
    """The exporter itself is the library's: here one that keeps its spans stands at its name."""

    def installed(*, group: str, name: str) -> list[EntryPoint]:
        assert group == "opentelemetry_traces_exporter"
        return [EntryPoint(name, f"{__name__}:exporter_in_memory", group)] if name == entry else []

    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "entry_points", installed)
    made = spans_of_environment()
    assert made is not None
    made.transaction(committed([[]]), "committed")
    made._tracer.span_processor.shutdown()  # type: ignore[attr-defined]
    (span,) = KEPT[-1].get_finished_spans()
    assert span.resource.attributes["service.name"] == "retry-sidecar"


KEPT: list[InMemorySpanExporter] = []


def exporter_in_memory() -> InMemorySpanExporter:
    """Return what the entry point of an exporter makes."""
    KEPT.append(InMemorySpanExporter())
    return KEPT[-1]


def test_an_exporter_that_is_not_installed_is_named_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with capture_logs() as lines:
        assert spans_of_environment() is None
    (line,) = lines
    assert "zipkin" in line["reason"]
    assert "pip install '.[otel]'" in line["advice"]
