"""Errors, always in Kafka Connect's shape: `{"error_code": n, "message": "…"}`, never a stack trace.

An error that is no refusal says of a command whether it was applied: `"applied": "no"` or `"unknown"`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import Scope

from sidecar.api.auth import Need, needed
from sidecar.api.bodies import Applied

_STANDARD = {
    404: "There is nothing at {path}; GET /docs lists all paths.",
    405: "{method} is not allowed at {path}.",
}

REPEATABLE: Final = frozenset({"header", "expand"})
"""Parameters that may be given several times; `expand` is Kafka Connect's."""
_OF_LETTERS: Final = frozenset({"reason", "origin", "exception", "group"})
"""Those of the dead letters' filter: a letter has one of the values."""

_ASKS: Final = "sidecar.asks_what_is_allowed"
"""In a scope that is no request: which methods does a path have?"""


TOO_MANY: Final = "Too many requests at once; try again in a moment."
FAULTS_MAX: Final = 10
"""The most mistakes of one request that an answer lists."""


class Refusing(APIRoute):
    """A route that refuses its methods in words of its own: they are not allowed."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if _ASKS in scope else super().matches(scope)


class NotNow(HTTPException):
    """What cannot be answered now, and may be asked again.

    Args:
        message: Why.
        status: 429 for a limit of the caller, else 503.
        applied: Of a command: `no`, or `unknown` if it may act all the same.
        control_id: The id that finds that out, if it has one.
        headers: Besides `Retry-After`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 503,
        applied: Applied = "no",
        control_id: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, {"retry-after": "1", **(headers or {})})
        self.applied = applied
        self.control_id = control_id

    def answer(self, scope: Scope) -> JSONResponse:
        """Return the answer to this request; only that to a command says whether it was applied."""
        if needed(scope["method"], scope["path"]) is not Need.CHANGE:
            return problem(self.status_code, self.detail, self.headers)
        facts: dict[str, Any] = {"applied": self.applied}
        if self.control_id:
            facts["control_id"] = self.control_id
        return problem(self.status_code, self.detail, self.headers, facts)


def too_many() -> NotNow:
    """Return the error for a caller that asks for too much at once."""
    return NotNow(TOO_MANY, status=429)


def problem(
    status: int, message: str, headers: Mapping[str, str] | None = None, facts: Mapping[str, Any] | None = None
) -> JSONResponse:
    """Return an error answer, with further fields if there are any."""
    # A message may quote the request, and JSON can have half of a surrogate pair in it, which no answer can.
    text = message.encode(errors="backslashreplace").decode()
    return JSONResponse({"error_code": status, "message": text, **(facts or {})}, status, headers)


def install(app: FastAPI) -> None:
    """Make every error of the application take this shape."""
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(Exception, _on_bug)


async def refuse_repeated(request: Request) -> None:
    """Refuse a parameter that is given twice where one value is taken: only one of the two would count."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    repeatable = REPEATABLE | _OF_LETTERS if request.url.path.startswith("/dlq") else REPEATABLE
    for name, count in counts.items():
        if count > 1 and name not in repeatable:
            raise HTTPException(400, f"{name[:100]}: given {count} times; give it once")


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, NotNow):
        return error.answer(request.scope)
    message = str(error.detail)
    if message == HTTPException(error.status_code).detail and error.status_code in _STANDARD:
        message = _STANDARD[error.status_code].format(path=request.url.path, method=request.method)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return problem(error.status_code, message, headers)


def _allowed(request: Request) -> list[str]:
    """Return the methods that are possible at this path: the framework names those of one of its routes only."""

    def fits(method: str) -> bool:
        scope = {**request.scope, "method": method, _ASKS: True}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    methods = [method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if fits(method)]
    return ["GET", "HEAD", *methods[1:]] if methods[:1] == ["GET"] else methods


async def _on_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    more = [f"and {len(faults) - FAULTS_MAX:,} more"] if len(faults) > FAULTS_MAX else []
    return problem(400, "; ".join([*map(_sentence, faults[:FAULTS_MAX]), *more]))


def _sentence(fault: Mapping[str, object]) -> str:
    """Say which parameter is wrong, what it was and what is allowed."""
    place = fault["loc"]
    # The last name: a number behind it is a place in a list.
    names = [each for each in place if isinstance(each, str)] if isinstance(place, tuple) else []
    name = (names[-1] if names else "request")[:100]
    if fault["type"] == "extra_forbidden":
        return f"{name}: unknown parameter"
    return f"{name}: {fault['msg']}, got {fault.get('input')!r:.100}"


async def _on_bug(request: Request, _error: Exception) -> JSONResponse:
    """Hide the cause from the client; the server logs it with its trace."""
    failed = NotNow("The sidecar failed to answer. See its log.", status=500, applied="unknown")
    failed.headers = {}
    return failed.answer(request.scope)
