"""Posts a notification to a URL. No error that it returns names the URL, which can hold a token."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

import httpx

RETRY_AFTER_MAX_S: Final = 60.0
"""Longest wait that an answer can ask for."""

for _library in ("httpx", "httpcore"):
    # Their lines name the URL.
    logging.getLogger(_library).setLevel(logging.WARNING)


class Attempt(NamedTuple):
    """The result of one request."""

    error: str = ""
    """Empty: it was accepted."""
    retry_after_s: float = 0.0
    """How long the answer asks to wait."""


def post(url: str, body: bytes, timeout_s: float) -> Attempt:
    """Post JSON once. Follows no redirect, and verifies the certificate of an https URL.

    Args:
        url: The URL; a user and a password in it are sent as HTTP Basic.
        body: The JSON.
        timeout_s: Longest time from the lookup of the host to the status of the answer.
    """
    try:
        return asyncio.run(_post(url, body, timeout_s))
    except TimeoutError:
        return Attempt(f"no answer within {timeout_s:g} s")
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends this attempt and no other
        return Attempt(_named(error))


async def _post(url: str, body: bytes, timeout_s: float) -> Attempt:
    # The library's own timeouts are for single reads: a server that sends a byte now and then never exceeds them.
    async with (
        asyncio.timeout(timeout_s),
        httpx.AsyncClient(follow_redirects=False, timeout=timeout_s) as client,
        client.stream("POST", url, content=body, headers={"content-type": "application/json"}) as response,
    ):
        return _attempt(response)


def _attempt(response: httpx.Response) -> Attempt:
    if 200 <= response.status_code < 300:
        return Attempt()
    asked = response.headers.get("retry-after", "")
    wait_s = min(float(asked), RETRY_AFTER_MAX_S) if asked.isascii() and asked.isdigit() else 0.0
    return Attempt(f"HTTP {response.status_code}", retry_after_s=wait_s)


def _named(error: BaseException) -> str:
    """Return the classes of an error and its causes: their texts can have the host or the path in them."""
    names: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        names.append(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return ", ".join(dict.fromkeys(names))
