"""`retry-sidecar health`: the probe of a container, without curl."""

from __future__ import annotations

from typing import Any

import click
import httpx

from sidecar.cli.instance import address, ask
from sidecar.cli.options import SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import print_json
from sidecar.errors import CommandFailed
from sidecar.settings import Settings


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar health --ready --url http://retry-sidecar:8080")
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
@json_option
@settings_options(("http_port", "http_host", "http_advertised_url", "http_tls_cert", "http_tls_key", "http_tls_ca"))
def health(settings: Settings, *, url: str | None, ready: bool, timeout_s: float, as_json: bool) -> None:
    """Check a running sidecar; exit status 0 if it is healthy, 1 with the reasons if not."""
    path, where = "/readyz" if ready else "/livez", address(url or settings.http_url)
    reply = ask(where, "GET", path, None, timeout_s=timeout_s, authorities=settings.http_tls_ca)
    ok = reply.status == httpx.codes.OK
    if as_json:
        print_json({"ok": ok, "url": reply.asked, "status": reply.status, "answer": reply.body})
    if not ok:
        raise CommandFailed(f"{reply.asked} answers {reply.status}: {_reasons(reply.body)}")
    if not as_json:
        click.echo("ready" if ready else "alive")


def _reasons(body: Any) -> str:
    try:
        return "; ".join(body["reasons"]) or "no reason given"
    except (KeyError, TypeError):
        return "no sidecar's answer"
