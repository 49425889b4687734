"""`/ui/`: the dashboard, static files of this package. The browser gets the figures from this API."""

from __future__ import annotations

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

FOLDER: Final = "static"
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
HEADERS: Final = {
    # No inline script or style, no other source, no framing; and text never becomes markup.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Revalidated each time, so that a page never mixes two versions; unchanged files cost a 304.
    "cache-control": "no-cache",
}


class _File(NamedTuple):
    content: bytes
    content_type: str
    etag: str


def ui_routes() -> APIRouter:
    """Return the routes; the files are read once, here."""
    router = APIRouter(include_in_schema=False)
    files = dict(_files(resources.files(__package__) / FOLDER, ""))

    @router.get("/ui")
    async def page(request: Request) -> Response:
        # The routes see no trailing slash, but the page's own addresses are relative to it.
        if not request.scope["raw_path"].partition(b"?")[0].endswith(b"/"):
            return RedirectResponse("ui/", 307)
        return _answer(request, files[INDEX])

    @router.get("/ui/{name:path}")
    async def file(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return _answer(request, files[name])

    return router


def _answer(request: Request, file: _File) -> Response:
    headers = {**HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "content-type": file.content_type})


def _files(folder: Traversable, prefix: str) -> list[tuple[str, _File]]:
    found: list[tuple[str, _File]] = []
    for each in folder.iterdir():
        name = prefix + each.name
        if each.is_dir():
            found += _files(each, f"{name}/")
        else:
            content = each.read_bytes()
            kind = TYPES[each.name if each.name in TYPES else "." + each.name.rpartition(".")[2]]
            found.append((name, _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')))
    return found
