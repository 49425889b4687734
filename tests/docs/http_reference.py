"""docs/reference/http.md, written from the OpenAPI document that the API itself gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.unit.api.test_api import Snapshots
from tests.unit.api_stage import Client

_HEAD: Final = """\
# HTTP reference

Every instance answers these calls for the whole group, and so does `retry-sidecar api`, which owns nothing. A running
one shows the same, to be tried out, at `/docs`, and as OpenAPI at `/openapi.json`.

```console
$ curl -s localhost:8080/pending
$ curl -s 'localhost:8080/pending/messages?origin=orders&limit=20'
```

Every error is `{"error_code": 404, "message": "…"}`. Calls marked *token* need `API_TOKEN` where one is set, as a
bearer token or as the password of HTTP Basic; at an address that other machines can reach they are refused until one is
set. Of a `GET` it is the payload alone that needs it. What the figures mean: [cluster.md](cluster.md); what changes do:
[control.md](control.md); Kafka Connect's part: [connect.md](connect.md).

Made from the code by `python -m tests.docs`.
"""
_TITLES: Final = {
    "pending": "What is pending",
    "messages": "Single messages",
    "control": "Changes",
    "origins": "Origins",
    "health": "Health",
    "metrics": "Metrics",
    "connect": "Kafka Connect's part",
}
_BRIEF: Final = frozenset({"connect"})
"""Explained elsewhere: a table is enough."""

_LIST_MAX: Final = 8


def document() -> dict[str, Any]:
    """Return the OpenAPI document of the whole API."""
    with Client(Snapshots()) as client:
        described: dict[str, Any] = client.get("/openapi.json").json()
    return described


def reference_page() -> str:
    """Return the page."""
    described = document()
    calls: dict[str, list[tuple[str, dict[str, Any]]]] = {tag: [] for tag in _TITLES}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            calls[operation["tags"][0]].append((f"{method.upper()} {path}", operation))
    parts = [_HEAD]
    for tag, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        if tag in _BRIEF:
            rows = [f"| `{call}` | {operation['summary']} | {_token(operation)} |\n" for call, operation in calls[tag]]
            parts.append("\n| call | | |\n|---|---|---|\n" + "".join(rows))
        else:
            for call, operation in calls[tag]:
                parts += _described(call, operation, described)
    return "".join(parts)


def _described(call: str, operation: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    yield f"\n### {call}\n\n**{operation['summary']}.** {operation.get('description', '')}"
    token = _token(operation)
    yield f" *{token.capitalize()}.*\n" if token else "\n"
    parameters = [(each["name"], each.get("description", "")) for each in operation.get("parameters", [])]
    parameters += _fields(operation, described)
    if parameters:
        yield "\n| parameter | |\n|---|---|\n"
        yield from (f"| `{name}` | {_cell(text)} |\n" for name, text in parameters)
    yield "\n| status | |\n|---|---|\n"
    answers = sorted(operation["responses"].items())
    yield from (f"| {status} | {_cell(each['description'])} |\n" for status, each in answers if status != "4XX")
    example = _example(operation["responses"].get("200", {}))
    if example:
        yield f"\n```json\n{example}\n```\n"


def _token(operation: dict[str, Any]) -> str:
    return "token" if operation.get("security") else ""


def _fields(operation: dict[str, Any], described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of the body, if it takes one."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = described["components"]["schemas"].get(name, {}).get("properties", {})
    yield from ((field, f"In the body. {each.get('description', '')}") for field, each in fields.items())


def _example(answer: dict[str, Any]) -> str:
    content = answer.get("content", {}).get("application/json", {})
    example = content.get("example") or next((each["value"] for each in content.get("examples", {}).values()), None)
    return "" if example is None else _folded(example)


def _folded(example: Any) -> str:
    """Return JSON with a line for each field of the outermost object."""
    if not isinstance(example, dict):
        return json.dumps(_shortened(example), ensure_ascii=False)
    fields = ((json.dumps(name), json.dumps(_shortened(value), ensure_ascii=False)) for name, value in example.items())
    lines = ",\n".join(f"  {name}: {value}" for name, value in fields)
    return "{\n" + lines + "\n}"


def _shortened(value: Any) -> Any:
    """Return it with only the ends of long lists."""
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        shown = [*value[:2], "…", *value[-1:]] if len(value) > _LIST_MAX else value
        return [_shortened(each) for each in shown]
    return value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
