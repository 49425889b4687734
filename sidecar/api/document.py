"""Completes the OpenAPI document: what is true of every call is said once, here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI

ERROR_REF: Final = "#/components/schemas/ErrorBody"
_MEDIA: Final = "application/json"
_ANY_MISTAKE: Final = "Any other error in the request."
_UNSAID: Final = "Successful Response"
"""FastAPI's description of an answer that the route does not describe."""
_TOO_MANY: Final = "Too many requests at once; try again in a moment."
_OF_RANGES: Final = {"4XX": 405, "5XX": 503}


def install(app: FastAPI) -> None:
    """Give the application's document the errors that may happen to any request, and an example for each error."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            for operation in operations(document):
                _complete(operation["responses"], document["components"]["schemas"])
        return made()

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own documentation has it


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each operation of an OpenAPI document."""
    for path in document["paths"].values():
        yield from path.values()


def _complete(responses: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Add the errors of the guards in front of every route, examples of errors, and what successes bring."""
    for status, description in (("4XX", _ANY_MISTAKE), ("503", _TOO_MANY)):
        responses.setdefault(status, {"description": description, "content": {_MEDIA: {"schema": {"$ref": ERROR_REF}}}})
    for status, response in responses.items():
        content = response.get("content", {}).get(_MEDIA, {})
        if response["description"] == _UNSAID:
            named = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
            response["description"] = named.get("description", "Done.").partition("\n")[0]
        if content.get("schema") == {"$ref": ERROR_REF} and not {"example", "examples"} & content.keys():
            code = _OF_RANGES.get(status) or int(status)
            content["example"] = {"error_code": code, "message": response["description"]}
