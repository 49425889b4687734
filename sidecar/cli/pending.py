"""`retry-sidecar pending`: what waits, asked of a running sidecar."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sidecar.cli.options import settings_options
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.settings import Settings

_WIDTH = 600
_TIMEOUT_S = 5.0
_ORIGINS_SHOWN = 20
# A sidecar is near: a proxy of the environment is for the world outside, and would be asked for localhost too.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # an address to ask, not to listen on

Answer = Mapping[str, Any]


@click.command(epilog="Example: retry-sidecar pending --watch")
@click.option("--url", help="Address of the sidecar.  [default: http://HTTP_HOST:HTTP_PORT]")
@click.option("--watch", is_flag=True, help="Go on showing until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="With --watch: seconds between two looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line for each look.")
@settings_options()
def pending(settings: Settings, *, url: str | None, watch: bool, interval_s: float, as_json: bool) -> None:
    """Show what waits, by origin, by time and by partition."""
    address = _address(settings, url)
    try:
        if not watch:
            answer = ask(address, settings.api_token)
            if as_json:
                click.echo(json.dumps(answer, indent=2))
            else:
                _console().print(picture(answer, SystemClock().wall_ms()))
        elif as_json:
            _follow_json(address, settings.api_token, interval_s)
        else:
            _follow(address, settings.api_token, interval_s)
    except KeyboardInterrupt:
        return


def ask(address: str, token: str | None) -> Answer:
    """Return the answer of `GET /pending`.

    Raises:
        CommandFailed: Nothing listens there, or what does is no sidecar.
    """
    request = urllib.request.Request(f"{address}/pending")  # noqa: S310  # _address lets http and https through only
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandFailed(f"{address}/pending answers {error.code}: {_message(error)}") from error
    except OSError as error:
        why = getattr(error, "reason", error)
        raise CommandFailed(
            f"nothing answers at {address} ({why}): start `retry-sidecar run`, or say where it listens with --url "
            "or --http-host and --http-port"
        ) from error
    except ValueError as error:
        raise CommandFailed(f"{address}/pending is no JSON: something else than a sidecar listens there") from error
    if not isinstance(answer, dict) or "total" not in answer or "partitions" not in answer:
        raise CommandFailed(f"{address}/pending has no total: something else than a sidecar listens there")
    return answer


def picture(answer: Answer, now_ms: int) -> RenderableType:
    """Return the answer as tables."""
    head = Text.assemble(
        (f"{answer['total']:,}", "bold"),
        " pending, ",
        (f"{answer['overdue']:,} overdue", "bold red" if answer["overdue"] else ""),
    )
    if answer["next_due_ms"] is not None:
        head.append(f", next due {_when(answer['next_due_ms'], now_ms)}")
    if not answer["complete"]:
        head.append("  (not complete: a partition has no owner, or its figures are old)", "yellow")
    by_size = sorted(answer["by_origin"].items(), key=lambda item: -item[1])
    shown, rest = by_size[:_ORIGINS_SHOWN], by_size[_ORIGINS_SHOWN:]
    if rest:
        shown.append((f"{len(rest)} more", sum(count for _, count in rest)))
    origins = _two_columns("origin", "pending", shown)
    spans = _two_columns("due within", "about", answer["due_within"].items())
    return Group(head, "", Columns([origins, spans], padding=(0, 6)), "", _partitions(answer, now_ms))


def _two_columns(first: str, second: str, rows: Any) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    table.add_column(second, justify="right")
    for name, count in rows:
        table.add_row(Text(name), f"{count:,}")
    return table


def _partitions(answer: Answer, now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("partition", "state", "owner", "pending", "fired up to", "restored"):
        table.add_column(heading, justify="right" if heading in ("partition", "pending") else "left")
    for row in answer["partitions"]:
        table.add_row(
            str(row["partition"]),
            Text(row["state"]),
            Text(row["owner"] or "none"),
            f"{row['pending']:,}",
            _when(row["watermark_ms"], now_ms),
            f"{row['restored']:.0%}",
        )
    return table


def _when(at_ms: int | None, now_ms: int) -> str:
    """Return an instant with its distance from now."""
    if at_ms is None:
        return "never"
    try:
        shown = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):
        return f"{at_ms} ms"
    distance = _distance(abs(at_ms - now_ms))
    return f"{shown} (in {distance})" if at_ms > now_ms else f"{shown} ({distance} ago)"


def _distance(span_ms: int) -> str:
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if span_ms >= 2 * unit_ms:
            return f"{span_ms // unit_ms} {unit}"
    return f"{span_ms / 1000:.1f} s"


def _follow(address: str, token: str | None, interval_s: float) -> None:
    # The first look may fail for good, with a clear error; what fails later is shown, and may pass.
    shown = picture(ask(address, token), SystemClock().wall_ms())
    pause = threading.Event()
    with Live(shown, console=_console(), auto_refresh=False) as live:
        while not pause.wait(interval_s):
            try:
                shown = picture(ask(address, token), SystemClock().wall_ms())
                live.update(shown, refresh=True)
            except CommandFailed as error:
                live.update(Group(shown, "", Text(str(error), "red")), refresh=True)


def _follow_json(address: str, token: str | None, interval_s: float) -> None:
    pause = threading.Event()
    while True:
        click.echo(json.dumps(ask(address, token)))
        pause.wait(interval_s)


def _address(settings: Settings, url: str | None) -> str:
    if url is None:
        host = _ANYWHERE.get(settings.http_host, settings.http_host)
        return f"http://[{host}]:{settings.http_port}" if ":" in host else f"http://{host}:{settings.http_port}"
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url: {url!r}: must look like http://localhost:8080")
    return url.rstrip("/").removesuffix("/pending")


def _message(error: urllib.error.HTTPError) -> str:
    try:
        body = json.load(error)
        return str(body["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _console() -> Console:
    # Names stay whole where the output is no terminal.
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else _WIDTH)
