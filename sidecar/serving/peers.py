"""The HTTP API of other instances, for requests that only the owner of a partition can answer."""

from __future__ import annotations

import ipaddress
import ssl
from typing import Final

import httpx

from sidecar.api.instances import FORWARDED
from sidecar.clock import Clock
from sidecar.contract.signature import tokens_of
from sidecar.errors import CommandFailed

WAIT_S: Final = 2.0
"""Longest time without data from an instance, or from a Spark driver, which answers when a micro-batch ends."""
ANSWER_S: Final = 4.0
"""Longest time for a whole response."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024


class HttpPeers:
    """Implements `sidecar.api.instances.Peers`.

    Follows no redirects and uses no proxy.

    Args:
        clock: Measures how long a response takes.
        token: API_TOKEN, which the whole group shares; its first token is sent.
        tls: Verifies the certificates of instances.
        tls_only: Whether only https addresses are asked, so that the token never travels in clear.
    """

    def __init__(self, clock: Clock, token: str | None, tls: ssl.SSLContext, *, tls_only: bool = False) -> None:
        self._clock = clock
        self._token = token
        # Without a token, anybody who can write to the status topic can put an address there.
        self._loopback_only = token is None
        # Each connection ends with its answer: an instance is asked seldom, and may be another one at the same address.
        self._schemes = {"https"} if tls_only else {"http", "https"}
        self._http = httpx.Client(trust_env=False, verify=tls, limits=httpx.Limits(max_keepalive_connections=0))

    def get(self, url: str, path: str) -> tuple[int, bytes]:
        """Send a GET request; return status and body. Raises CommandFailed when there is no response in time."""
        return self._ask("GET", url, path, self._headers())

    def send(self, method: str, url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request that changes something; return status and body. Raises CommandFailed as `get` does."""
        headers = self._headers()
        if body is not None:
            headers["content-type"] = "application/json"
        return self._ask(method, url, path, headers, body)

    def _headers(self) -> dict[str, str]:
        headers = {FORWARDED: "1", "accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {tokens_of(self._token)[0]}"
        return headers

    def _ask(
        self, method: str, url: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        try:
            place = httpx.URL(url)
            if place.scheme not in self._schemes or not place.host:
                raise CommandFailed(f"{url!r} is not an address of an instance")
            if self._loopback_only and not _is_loopback(place.host):
                raise CommandFailed(f"{url!r} is not asked: set API_TOKEN, which signs the addresses of instances")
            asked = f"{place.scheme}://{place.netloc.decode()}{path}"
            with self._http.stream(method, asked, content=body, headers=headers, timeout=WAIT_S) as response:
                return response.status_code, self._read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as cause:
            raise CommandFailed(f"{url} does not answer: {cause}") from cause

    def _read(self, response: httpx.Response) -> bytes:
        until_s = self._clock.monotonic_s() + ANSWER_S
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise CommandFailed(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
            if self._clock.monotonic_s() > until_s:
                raise CommandFailed(f"its answer took longer than {ANSWER_S:g} s")
        return bytes(body)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
