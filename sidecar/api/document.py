"""Completes the OpenAPI document: what is true of every call is said once, here."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from sidecar.api.auth import Need, needed

ASSETS: Final = "/docs-assets"
ERROR_REF: Final = "#/components/schemas/ErrorBody"
_MEDIA: Final = "application/json"
_ANY_MISTAKE: Final = "Any other error in the request."
_UNSAID: Final = "Successful Response"
"""FastAPI's description of an answer that the route does not describe."""
_OF_CHANGES: Final = {
    "429": "Too many requests at once: nothing was changed. Try again after `Retry-After`.",
    "503": "The instance is stopping; `applied` says whether the change may act all the same.",
}
_OF_READS: Final = {
    "429": "Too many requests at once. Try again after `Retry-After`.",
    "503": "The instance is stopping. Ask another one, or again in a moment.",
}
_RETRY_AFTER: Final = {
    "retry-after": {"description": "Seconds until the next try.", "schema": {"type": "integer"}, "example": 1}
}
_SCHEMES: Final = {
    "HTTPBearer": {"type": "http", "scheme": "bearer", "description": "API_TOKEN, or API_READ_TOKEN for reading."},
    "HTTPBasic": {"type": "http", "scheme": "basic", "description": "Any user name, with the token as the password."},
}
_REFUSALS: Final = {
    Need.READ: {
        "401": "Reading needs the API_TOKEN or the API_READ_TOKEN.",
        "403": "Refused on this address until a token is set, or from a page of another site.",
    },
    Need.CHANGE: {
        "401": "The API_TOKEN is missing or wrong.",
        "403": "Refused with the API_READ_TOKEN, on this address until a token is set, or from another site's page.",
    },
}
_OF_RANGES: Final = {"4XX": 405, "5XX": 503}


def install(app: FastAPI) -> None:
    """Give the application's document the errors that may happen to any request, and an example for each error."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            document["components"]["securitySchemes"] = _SCHEMES
            for path, calls in document["paths"].items():
                for method, operation in calls.items():
                    need = needed(method.upper(), path)
                    if need is not Need.NOTHING:
                        operation["security"] = [{name: []} for name in _SCHEMES]
                    _complete(operation["responses"], document["components"]["schemas"], need)
        return made()

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own documentation has it


def page_route(title: str) -> APIRouter:
    """Return the route of the page that shows the document; its scripts are those of this server, and its own one."""
    made = get_swagger_ui_html(
        # The page is /docs: its addresses are relative to that, as a proxy may put a path before it.
        openapi_url="openapi.json",
        title=title,
        swagger_js_url=f"{ASSETS[1:]}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS[1:]}/swagger-ui.css",
        swagger_favicon_url="ui/icon.svg",
    )
    own = [hashlib.sha256(script).digest() for script in re.findall(rb"<script>(.*?)</script>", made.body, re.DOTALL)]
    hashes = "".join(f" 'sha256-{base64.b64encode(each).decode()}'" for each in own)
    policy = (
        f"default-src 'self'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    )
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page() -> Response:
        return Response(made.body, headers={"content-security-policy": policy}, media_type="text/html; charset=utf-8")

    return router


def _complete(responses: dict[str, Any], schemas: dict[str, Any], need: Need) -> None:
    """Add the errors of the guards in front of every route, examples of errors, and what successes bring."""
    changes = need is Need.CHANGE
    guards = {**_REFUSALS.get(need, {}), "4XX": _ANY_MISTAKE, **(_OF_CHANGES if changes else _OF_READS)}
    for status, description in guards.items():
        responses.setdefault(status, {"description": description, "content": {_MEDIA: {"schema": {"$ref": ERROR_REF}}}})
    responses["429"]["headers"] = _RETRY_AFTER
    for status, response in responses.items():
        content = response.get("content", {}).get(_MEDIA, {})
        if response["description"] == _UNSAID:
            named = schemas.get(content.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
            response["description"] = named.get("description", "Done.").partition("\n")[0]
        if content.get("schema") == {"$ref": ERROR_REF} and not {"example", "examples"} & content.keys():
            code = _OF_RANGES.get(status) or int(status)
            content["example"] = {"error_code": code, "message": response["description"]}
            if changes and status in {"429", "503"}:
                content["example"]["applied"] = "no" if status == "429" else "unknown"
