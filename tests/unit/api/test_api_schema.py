"""The API as its OpenAPI document says it: generated requests, good and bad, and answers held against the document."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from sidecar.api.app import Operations, create_app
from sidecar.api.auth import Gate
from sidecar.api.guard import RateLimiter
from sidecar.api.source import Reloaded
from sidecar.contract.control import Outcome
from sidecar.errors import AlreadyRunning, CommandFailed, StoreFailed
from sidecar.metrics import Metrics
from tests.unit.api.test_api import UNWELL, WELL, Snapshots
from tests.unit.api_stage import WORKER, Desk, Held, Letters, Neighbours, Told, letter, message
from tests.unit.engine.test_view import NOW_MS, view_of

TOKEN: Final = "secret"
EXAMPLES: Final = 5
"""Generated requests for each call, in good and in bad health."""
BEYOND_SCHEMA: Final = {
    # due_from is not after due_to, and a cursor is one that a page gave.
    ("GET", "/pending/messages"): ("positive_data_acceptance",),
    # A reason is one that there is, and died_from is not after died_to.
    ("GET", "/dlq"): ("positive_data_acceptance",),
    ("GET", "/dlq/messages"): ("positive_data_acceptance",),
    ("POST", "/dlq/redrives"): ("positive_data_acceptance",),
    # A target may contain slashes, so with other methods this path is another call's.
    ("POST", "/pending/messages/{target}/fire"): ("unsupported_method", "allow_header_conformance"),
    # The same, and due_from is not after due_to.
    **dict.fromkeys(
        [("POST", f"/pending/messages/{kind}") for kind in ("cancel", "reschedule", "fire")],
        ("positive_data_acceptance", "unsupported_method", "allow_header_conformance"),
    ),
    # A body where none belongs is refused before the method is looked at.
    ("PUT", "/connector-plugins/{plugin}/config/validate"): ("unsupported_method",),
    # The levels are those of Kafka Connect; null is refused in its words.
    ("PUT", "/admin/loggers/{name}"): ("positive_data_acceptance",),
}
"""What a document cannot say, by call."""

Case = schemathesis.Case[Any]
load_all_checks()


def staged(source: Snapshots, held: Held, desk: Desk, letters: Letters, *, boundaries: bool) -> Any:
    """Return the document of the application over these, with the application in it.

    Args:
        source: Snapshots.
        held: Messages.
        desk: Takes changes.
        letters: Dead letters.
        boundaries: Also ask for the bounds of each parameter, and with methods that are not there.
    """
    metrics = Metrics(version="1.2.3", now_ms=lambda: NOW_MS)
    metrics.publish(source.shown)
    gate = Gate([TOKEN], loopback=False)
    operations = Operations(held, Neighbours(), desk, gate, WORKER, letters, lambda: Reloaded(["POLICIES"], []))
    app = create_app(source, metrics=metrics, version="1.2.3", operations=operations)
    config = SchemathesisConfig.from_dict(
        {
            "generation": {"deterministic": True, "max-examples": EXAMPLES, "database": "none"},
            "phases": {"coverage": {"enabled": boundaries}},
            "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]}},
            "auth": {"openapi": {"HTTPBearer": {"bearer": TOKEN}}},
        }
    )
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config)


def in_good_health() -> Any:
    """Return a group with messages, those of the document's examples among them."""
    known = message(1_770_000_060_000, partition=2, offset=1841)
    waiting = [message(NOW_MS + 1_000 * number, partition=number % 2, offset=number) for number in range(1, 6)]
    views = [view_of([NOW_MS + 3_000]), view_of([NOW_MS + 90_000] * 2, partition=1, origin="mail")]
    views.append(view_of([known.due_ms], partition=2))
    desk = Desk(known={"1770000000000-9f86d081884c7d65": Told(Outcome.CANCELLED, 1)})
    # As many partitions as a number can name: how many there are is no fact of the document.
    return staged(
        Snapshots(views, 2**31, WELL),
        Held([known, *waiting], frozenset({0, 1, 2})),
        desk,
        Letters([letter(17)]),
        boundaries=True,
    )


def in_trouble() -> Any:
    """Return an unknown group whose store is closed and whose brokers do not answer."""
    source = Snapshots([], None, UNWELL, reading="the status topic has not been read to its end yet")
    return staged(
        source,
        Held(trouble=StoreFailed("closed")),
        Desk(result=CommandFailed("no broker answers")),
        Letters(trouble=AlreadyRunning("no broker answers")),
        boundaries=False,
    )


GOOD, BAD = in_good_health(), in_trouble()
DOCUMENT: Final[dict[str, Any]] = GOOD.raw_schema
DETERMINED: Final = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def side_effects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let requests in at once, and undo what they do to the levels of loggers."""
    monkeypatch.setattr(RateLimiter, "OVERHEAD_S", 0.0)
    monkeypatch.setattr(RateLimiter, "SHARE", 1e6)
    levels = {name: logging.getLogger(name).level for name in [None, *logging.root.manager.loggerDict]}
    yield
    for name in [None, *logging.root.manager.loggerDict]:
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


def conforms(case: Case, *besides: str) -> None:
    """Make the request and hold the answer against the document, without these checks."""
    beyond = BEYOND_SCHEMA.get((case.operation.method.upper(), case.operation.path), ())
    # Without the token a change is refused before it is looked for.
    excluded: list[Any] = [CHECKS.get_one(name) for name in {*beyond, *besides, "unsupported_method"}]
    case.call_and_validate(excluded_checks=excluded)


@GOOD.parametrize()  # type: ignore[untyped-decorator]
@DETERMINED
def test_every_answer_is_as_documented_and_bad_requests_are_refused(case: Case) -> None:
    conforms(case)


@BAD.parametrize()  # type: ignore[untyped-decorator]
@DETERMINED
def test_every_error_answer_is_as_documented_too(case: Case) -> None:
    """503 where the document has it; good requests need not succeed."""
    conforms(case, "positive_data_acceptance")


def operations() -> list[Any]:
    return [
        pytest.param(operation, id=f"{method.upper()} {path}")
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def has_example(content: dict[str, Any]) -> bool:
    """Tell whether a parameter, a body or an answer has an example, itself or in its schema."""
    schema = content.get("schema", {})
    schema = DOCUMENT["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
    return bool({"example", "examples"} & (content.keys() | schema.keys()))


@pytest.mark.parametrize("operation", operations())
def test_every_call_is_described_with_examples_of_request_and_answers(operation: dict[str, Any]) -> None:
    lacking = [f"{name} of the call" for name in ("summary", "description", "tags") if not operation.get(name)]
    for parameter in operation.get("parameters", []):
        known = parameter.get("description") and has_example(parameter)
        lacking.extend([] if known else [f"description or example of {parameter['name']}"])
    for media, content in operation.get("requestBody", {"content": {}})["content"].items():
        lacking.extend([f"example of the body, {media}"] if not has_example(content) else [])
    for status, answer in operation["responses"].items():
        lacking.extend([f"description of {status}"] if answer["description"] in {"", "Successful Response"} else [])
        for media, content in answer.get("content", {}).items():
            lacking.extend([f"example of {status}, {media}"] if not has_example(content) else [])
    assert not lacking


@pytest.mark.parametrize("operation", operations())
def test_every_call_has_the_errors_of_the_guards_and_none_of_the_frameworks(operation: dict[str, Any]) -> None:
    assert {"4XX", "429", "503"} <= operation["responses"].keys()
    assert "422" not in operation["responses"]


def test_the_frameworks_error_shape_is_nowhere_in_the_document() -> None:
    assert not {"HTTPValidationError", "ValidationError"} & DOCUMENT["components"]["schemas"].keys()
