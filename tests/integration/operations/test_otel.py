"""Spans of a running sidecar at the real OpenTelemetry collector: one message from its failure to its delivery.

application ──► sidecar ── OTLP ──► collector ── OTLP/JSON ──► this test
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sidecar.devbroker.local_broker import HOST, free_port
from tests.broker import unique
from tests.deploy.tools import find
from tests.integration.messages import Given, World, native, one_sidecar
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 60.0
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Received:
    """An OTLP receiver for JSON: where the collector sends what it took."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                received.spans += [
                    {**span, "service": attributes_of(resource["resource"])["service.name"]}
                    for resource in body["resourceSpans"]
                    for scope in resource["scopeSpans"]
                    for span in scope["spans"]
                ]
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def named(self, name: str, trace_id: str = "") -> list[dict[str, Any]]:
        """Return the spans of a name, of one trace if given."""
        return [each for each in self.spans if each["name"] == name and trace_id in {"", each["traceId"]}]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Tracing(NamedTuple):
    """A sidecar that exports its spans, and what has come of them."""

    world: World
    received: Received


def attributes_of(spoken: dict[str, Any]) -> dict[str, str]:
    """Return attributes by name; OTLP's JSON writes 64-bit numbers as text."""
    return {each["key"]: str(next(iter(each["value"].values()))) for each in spoken.get("attributes", ())}


@pytest.fixture
def tracing(bootstrap: str, tmp_path: Path) -> Iterator[Tracing]:
    pytest.importorskip("opentelemetry.exporter", reason="the extra otel is not installed: make test-otel installs it")
    program, received, port = find("otelcol", target="collector"), Received(), free_port()
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"{HOST}:{port}"}}}},
        "exporters": {"otlphttp": {"endpoint": received.url, "encoding": "json", "compression": "none"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
        },
    }
    path = tmp_path / "collector.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    with (tmp_path / "collector.log").open("wb") as log:
        collector = subprocess.Popen([program, "--config", str(path)], stdout=log, stderr=log)
        try:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{HOST}:{port}")
                environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
                with one_sidecar(bootstrap, tmp_path, partitions=1) as world:
                    yield Tracing(world, received)
        finally:
            collector.terminate()
            collector.wait()
            received.close()


def test_a_collector_shows_one_message_from_its_failure_to_its_delivery(tracing: Tracing) -> None:
    world, received = tracing
    parent = f"00-{TRACE_ID}-{SPAN_ID}-01".encode()
    marker, origin = unique("m").encode(), world.stage.origin
    world.send(Given(b"v", b"k", [("traceparent", parent), *native(world.stage, marker, 1_500)]))
    (fired,) = world.fired(marker)
    headers = {name: value or b"" for name, value in fired.headers}
    assert headers["traceparent"] == parent

    eventually(lambda: received.named(f"deliver {origin}", TRACE_ID), WAIT_S, "the delivery is in the message's trace")
    (accepted,) = received.named(f"accept {origin}", TRACE_ID)
    (delivered,) = received.named(f"deliver {origin}", TRACE_ID)
    assert accepted["parentSpanId"] == delivered["parentSpanId"] == SPAN_ID
    assert accepted["service"] == delivered["service"] == "retry-sidecar"
    timer_id = headers["retry-timer-id"].decode()
    assert attributes_of(accepted)["retry_sidecar.timer_id"] == timer_id
    assert attributes_of(delivered)["retry_sidecar.timer_id"] == timer_id
    due_ms = int(headers["retry-was-due-ms"])
    assert int(attributes_of(accepted)["retry_sidecar.due_ms"]) == due_ms
    assert int(delivered["startTimeUnixNano"]) == due_ms * 1_000_000
    assert int(accepted["endTimeUnixNano"]) <= int(delivered["endTimeUnixNano"])

    def transactions() -> dict[str, dict[str, Any]]:
        return {each["spanId"]: each for each in received.named("retry_sidecar.transaction")}

    for span in (accepted, delivered):
        (link,) = span["links"]
        eventually(lambda link=link: link["spanId"] in transactions(), WAIT_S, "its transaction has a span")  # type: ignore[misc]
        assert {"traceId": TRACE_ID, "spanId": SPAN_ID} in [
            {name: back[name] for name in ("traceId", "spanId")} for back in transactions()[link["spanId"]]["links"]
        ]
