"""The routes, their JSON and their errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from sidecar.api import activity, bodies
from sidecar.api.app import create_app
from sidecar.api.connect.bodies import ServerInfo
from sidecar.api.source import Health
from sidecar.engine.group.view import PartitionView, summarise
from sidecar.metrics import Metrics
from tests.unit.engine.test_view import EMPTY, NOW_MS, view_of

WELL = Health(live=True, ready=True)
UNWELL = Health(live=True, ready=False, reasons=("No broker answers at kafka:9092.",), details={"broker": "away"})
STARTING = Health(live=True, ready=False, reasons=("Partition 0 is being restored.",), starting=True)
DEAD = Health(live=False, ready=True, reasons=("The loop has not moved for 60 s.",))


@dataclass
class Snapshots:
    """A source whose snapshots the test sets."""

    shown: Sequence[PartitionView] = ()
    total: int | None = 2
    state: Health = WELL
    reading: str | None = None

    def views(self) -> Sequence[PartitionView]:
        return self.shown

    def partitions_total(self) -> int | None:
        return self.total

    def unread(self) -> str | None:
        return self.reading

    def health(self) -> Health:
        return self.state

    def now_ms(self) -> int:
        return NOW_MS

    def cluster_id(self) -> str | None:
        return "5L6g3nShT-eMCtK--X86sw"


class Failing(Snapshots):
    """A source with a bug."""

    def views(self) -> Sequence[PartitionView]:
        raise ZeroDivisionError("a secret of the implementation")


@pytest.fixture
def source() -> Snapshots:
    return Snapshots([view_of([NOW_MS + 3_000]), view_of([NOW_MS + 90_000] * 2, partition=1, origin="mail")])


class Client:
    """Asks the application itself, with no server between."""

    def __init__(self, source: Snapshots, *, actuator: bool = True) -> None:
        metrics = Metrics(version="1.2.3", now_ms=source.now_ms)
        metrics.publish(source.shown)
        app = create_app(source, metrics=metrics, version="1.2.3", actuator=actuator)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self._runner = asyncio.Runner()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **kwargs))

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.request("GET", path, **kwargs)


@pytest.fixture
def client(source: Snapshots) -> Iterator[Client]:
    with Client(source) as client:
        yield client


def assert_problem(response: Any, status: int, *parts: str, **facts: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.pop("error_code") == status
    message = body.pop("message")
    assert body == facts
    for part in parts:
        assert part in message


def test_pending_is_the_summary_of_the_snapshots(client: Client, source: Snapshots) -> None:
    answer = client.get("/pending")
    assert answer.status_code == 200
    assert answer.json() == summarise(source.shown, partitions_total=2, now_ms=NOW_MS)
    assert answer.json()["by_origin"] == {"mail": 2, "orders": 1}


def test_pending_without_parameters_is_what_the_route_answers(client: Client, source: Snapshots) -> None:
    source.shown, source.total = [view_of([NOW_MS + 1000, NOW_MS + 70_000])], 1
    short, routed = client.get("/pending"), client.get("/pending?partition=0")
    slashed, head = client.get("/pending/"), client.request("HEAD", "/pending")
    assert short.content == routed.content == slashed.content
    assert short.headers == routed.headers == slashed.headers == head.headers
    assert client.request("POST", "/pending").status_code == 405


def test_pending_is_not_guessed_before_the_group_is_known(client: Client, source: Snapshots) -> None:
    source.reading = "the status topic has not been read to its end yet"
    answer = client.get("/pending")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error_code": 503, "message": f"{source.reading}; try again in a second"}


def test_pending_follows_the_snapshots(client: Client, source: Snapshots) -> None:
    source.shown = [EMPTY]
    assert client.get("/pending").json()["total"] == 0


def test_pending_can_be_narrowed_to_an_origin(client: Client) -> None:
    assert client.get("/pending?origin=mail").json() == {"total": 2, "by_partition": {"0": 0, "1": 2}}


def test_pending_can_be_narrowed_to_a_partition(client: Client) -> None:
    assert client.get("/pending?partition=1").json()["by_partition"] == {"1": 2}
    assert client.get("/pending?partition=1&origin=orders").json() == {"total": 0, "by_partition": {"1": 0}}


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("origin=", ["origin"]),
        ("origin=a%20b", ["origin", "a b"]),
        ("origin=" + "x" * 250, ["origin"]),
        ("origin=%00", ["origin"]),
        ("origin=orders%0A", ["origin"]),
        ("partition=x", ["partition", "integer", "x"]),
        ("partition=-1", ["partition", "greater than or equal to 0", "-1"]),
        ("partition=1.5", ["partition"]),
        ("partition=" + "9" * 5_000, ["partition"]),
        ("partition=2", ["partition", "0 to 1"]),
        ("orign=orders", ["orign", "unknown parameter"]),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(client: Client, query: str, parts: list[str]) -> None:
    answer = client.get(f"/pending?{query}")
    assert_problem(answer, 400, *parts)
    assert len(answer.content) < 500


def test_any_partition_may_be_asked_for_while_their_number_is_unknown(client: Client, source: Snapshots) -> None:
    source.total = None
    answer = client.get("/pending?partition=9").json()
    assert (answer["total"], answer["complete"]) == (0, False)


@pytest.mark.parametrize(
    ("health", "path", "status", "body"),
    [
        (
            WELL,
            "/health",
            200,
            {
                "status": "healthy",
                "message": "Worker has completed startup and is ready to handle requests.",
                "details": {},
            },
        ),
        (
            UNWELL,
            "/health",
            503,
            {"status": "unhealthy", "message": "No broker answers at kafka:9092.", "details": {"broker": "away"}},
        ),
        (STARTING, "/health", 503, {"status": "starting", "message": "Partition 0 is being restored.", "details": {}}),
        (
            DEAD,
            "/health",
            503,
            {"status": "unhealthy", "message": "The loop has not moved for 60 s.", "details": {}},
        ),
        (UNWELL, "/livez", 200, {"status": "ok", "reasons": []}),
        (DEAD, "/livez", 503, {"status": "failed", "reasons": ["The loop has not moved for 60 s."]}),
        (WELL, "/readyz", 200, {"status": "ok", "reasons": []}),
        (UNWELL, "/readyz", 503, {"status": "failed", "reasons": ["No broker answers at kafka:9092."]}),
        (DEAD, "/readyz", 503, {"status": "failed", "reasons": ["The loop has not moved for 60 s."]}),
    ],
)
def test_health_and_probes(
    client: Client, source: Snapshots, health: Health, path: str, status: int, body: dict[str, object]
) -> None:
    source.state = health
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (status, body)


@pytest.mark.parametrize(
    ("health", "status", "overall", "liveness", "readiness"),
    [
        (WELL, 200, "UP", "UP", "UP"),
        (UNWELL, 503, "DOWN", "UP", "DOWN"),
        (DEAD, 503, "DOWN", "DOWN", "UP"),
    ],
)
def test_actuator_health_has_springs_shape(
    client: Client, source: Snapshots, health: Health, status: int, overall: str, liveness: str, readiness: str
) -> None:
    source.state = health
    answer = client.get("/actuator/health")
    assert answer.status_code == status
    assert answer.json() == {
        "status": overall,
        "components": {
            "livenessState": {"status": liveness, "details": {}},
            "readinessState": {"status": readiness, "details": {"reasons": list(health.reasons)}},
            "retrySidecar": {"status": overall, "details": dict(health.details)},
        },
    }


def test_actuator_health_can_be_switched_off_alone(source: Snapshots) -> None:
    with Client(source, actuator=False) as client:
        assert_problem(client.get("/actuator/health"), 404)
        assert "/actuator/health" not in client.get("/openapi.json").json()["paths"]
        assert client.get("/health").status_code == 200


def test_metrics_are_prometheus_text(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'retry_sidecar_pending{origin="mail",partition="1"} 2.0' in answer.text


def test_metrics_are_openmetrics_to_who_asks_for_it(client: Client) -> None:
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


def test_the_root_says_who_answers_in_connects_shape(client: Client) -> None:
    assert client.get("/").json() == {
        "version": "4.3.1",
        "commit": "retry-sidecar-1.2.3",
        "kafka_cluster_id": "5L6g3nShT-eMCtK--X86sw",
    }


PATHS = ["/pending", "/health", "/livez", "/readyz", "/actuator/health", "/metrics"]


@pytest.mark.parametrize("path", PATHS)
def test_a_trailing_slash_changes_nothing(client: Client, path: str) -> None:
    plain, slashed = client.get(path), client.get(path + "/")
    assert (slashed.status_code, slashed.headers["content-type"]) == (200, plain.headers["content-type"])
    if path != "/metrics":
        assert slashed.content == plain.content


@pytest.mark.parametrize("path", [*PATHS, "/"])
def test_head_is_possible_wherever_get_is(client: Client, path: str) -> None:
    assert client.request("HEAD", path).status_code == 200


@pytest.mark.parametrize("path", ["/pendign", "/pending/x/y", "/%00", "/pending%2F..%2Fx", "/metrics/x", "/ui/x"])
def test_an_unknown_path_is_404_in_connects_shape(client: Client, path: str) -> None:
    assert_problem(client.get(path), 404, "nothing at")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_another_method_is_405_and_says_what_is_allowed(client: Client, method: str) -> None:
    answer = client.request(method, "/pending")
    assert_problem(answer, 405, method, "/pending")
    assert answer.headers["allow"] == "GET, HEAD"


def test_a_bug_is_500_without_its_cause() -> None:
    with Client(Failing()) as client:
        answer = client.get("/pending")
    assert_problem(answer, 500, "log")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_a_body_is_refused_where_none_belongs(client: Client, method: str) -> None:
    answer = client.request(method, "/pending", content=b"x")
    assert answer.status_code == 400
    assert answer.headers["connection"] == "close"


def test_a_chunked_body_is_refused(client: Client) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    assert_problem(client.request("GET", "/pending", content=chunks()), 400, "no body")
    assert_problem(client.request("POST", "/pending", content=chunks()), 411, "Content-Length")


@pytest.mark.parametrize("length", ["65537", "9" * 5_000, "-1", "1_0"])
def test_a_body_that_is_too_long_is_refused_before_it_is_read(client: Client, length: str) -> None:
    assert_problem(client.request("POST", "/pending", headers={"content-length": length}), 413, "65536")


def test_openapi_describes_every_route_with_an_example_for_each_json_answer(client: Client) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {*PATHS, "/", "/activity", "/partitions", "/pending/histogram"}
    for path, operations in document["paths"].items():
        for status, answer in operations["get"]["responses"].items():
            text = json.dumps(answer.get("content"))
            assert "example" in text or "$ref" in text or status == "302", (path, status)
        assert operations["get"]["summary"]
        assert "422" not in operations["get"]["responses"]


def test_the_page_that_describes_the_api_needs_no_other_site(client: Client) -> None:
    page = client.get("/docs").text
    needed = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(needed) >= 3
    assert {client.get(path).status_code for path in needed} == {200}
    assert "https://" not in page


def test_the_examples_of_openapi_fit_their_models() -> None:
    bodies.PendingBody.model_validate(bodies.PENDING_EXAMPLE)
    bodies.PendingOfOriginBody.model_validate(bodies.PENDING_OF_ORIGIN_EXAMPLE)
    bodies.HealthBody.model_validate(bodies.HEALTHY_EXAMPLE)
    bodies.HealthBody.model_validate(bodies.UNHEALTHY_EXAMPLE)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/pending", bodies.PendingBody),
        ("/pending?partition=0", bodies.PendingBody),
        ("/pending?origin=mail", bodies.PendingOfOriginBody),
        ("/pending/histogram", activity.HistogramBody),
        ("/activity", activity.ActivityBody),
        ("/partitions", activity.PartitionsBody),
        ("/health", bodies.HealthBody),
        ("/livez", bodies.ProbeBody),
        ("/readyz", bodies.ProbeBody),
        ("/actuator/health", bodies.ActuatorBody),
        ("/", ServerInfo),
        ("/nowhere", bodies.ErrorBody),
    ],
)
def test_answers_have_exactly_the_fields_of_their_models(client: Client, path: str, model: type[BaseModel]) -> None:
    text = client.get(path).content
    assert model.model_validate_json(text).model_dump(by_alias=True, exclude_unset=True) == json.loads(text)


def test_every_partition_of_a_big_group_is_listed(client: Client, source: Snapshots) -> None:
    source.shown, source.total = [replace(EMPTY, partition=p) for p in range(300)], 300
    answer = client.get("/pending").json()
    assert [row["partition"] for row in answer["partitions"]] == list(range(300))
    assert answer["complete"] is True
