"""`retry-sidecar health`: the probe of a container, without curl."""

from __future__ import annotations

import http.client
import json
from typing import Final
from urllib.parse import urlsplit

import click

from sidecar.cli.options import settings_options
from sidecar.errors import CommandFailed
from sidecar.settings import Settings

_OK: Final = 200


@click.command(epilog="Example: retry-sidecar health --ready --url http://retry-sidecar:8080")
@click.option("--url", help="Address of the sidecar.  [default: http://HTTP_HOST:HTTP_PORT]")
@click.option("--ready", is_flag=True, help="Ask /readyz (it ingests and fires) instead of /livez.")
@click.option(
    "--timeout",
    "timeout_s",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds to wait for the answer.",
)
@settings_options()
def health(settings: Settings, *, url: str | None, ready: bool, timeout_s: float) -> None:
    """Check a running sidecar; exit status 0 if it is healthy, 1 with the reasons if not."""
    address = url or settings.http_url
    path = "/readyz" if ready else "/livez"
    status, body = _ask(address, path, timeout_s)
    if status != _OK:
        raise CommandFailed(f"{address}{path} answers {status}: {_reasons(body)}")
    click.echo("ready" if ready else "alive")


def _ask(address: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    place = urlsplit(address)
    if place.scheme != "http" or not place.hostname:
        raise CommandFailed(f"--url: {address!r} is not allowed: it must look like http://host:8080")
    try:
        # http.client asks no proxy of the environment: a sidecar is near.
        connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=timeout_s)
        try:
            connection.request("GET", place.path.rstrip("/") + path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as cause:
        raise CommandFailed(f"no sidecar answers at {address}: {cause}") from cause


def _reasons(body: bytes) -> str:
    try:
        return "; ".join(json.loads(body)["reasons"]) or "no reason given"
    except (ValueError, KeyError, TypeError):
        return "no sidecar's answer"
