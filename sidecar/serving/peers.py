"""The HTTP API of other instances, for requests that only the owner of a partition can answer."""

from __future__ import annotations

import http.client
from typing import Final
from urllib.parse import urlsplit

from sidecar.api.messages.listing import FORWARDED
from sidecar.clock import Clock
from sidecar.errors import CommandFailed

WAIT_S: Final = 2.0
"""Longest time without data from an instance."""
ANSWER_S: Final = 4.0
"""Longest time for a whole response."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class HttpPeers:
    """Implements `sidecar.api.messages.listing.Peers` and `sidecar.api.connect.Others`.

    Follows no redirects and uses no proxy.

    Args:
        clock: Measures how long a response takes.
        token: API_TOKEN, which the whole group shares.
    """

    def __init__(self, clock: Clock, token: str | None) -> None:
        self._clock = clock
        self._token = token

    def get(self, url: str, path: str, *, authorised: bool) -> tuple[int, bytes]:
        """Send a GET request; return status and body. Raises CommandFailed when there is no response in time."""
        return self._ask("GET", url, path, self._headers(authorised=authorised))

    def send(self, method: str, url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request that changes something; return status and body. Raises CommandFailed as `get` does."""
        headers = self._headers(authorised=True)
        if body is not None:
            headers["content-type"] = "application/json"
        return self._ask(method, url, path, headers, body)

    def _headers(self, *, authorised: bool) -> dict[str, str]:
        headers = {FORWARDED: "1"}
        if authorised and self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        return headers

    def _ask(
        self, method: str, url: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        try:
            place = urlsplit(url)
            if place.scheme != "http" or not place.hostname:
                raise CommandFailed(f"{url!r} is not an address of an instance")
            connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=WAIT_S)
            try:
                connection.request(method, path, body, headers)
                return self._read(connection.getresponse())
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as cause:
            raise CommandFailed(f"{url} does not answer: {cause}") from cause

    def _read(self, response: http.client.HTTPResponse) -> tuple[int, bytes]:
        until_s = self._clock.monotonic_s() + ANSWER_S
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise CommandFailed(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
            if self._clock.monotonic_s() > until_s:
                raise CommandFailed(f"its answer took longer than {ANSWER_S:g} s")
        return response.status, bytes(body)
