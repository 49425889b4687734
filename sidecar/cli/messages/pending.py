"""`retry-sidecar pending`: the pending messages of a running sidecar."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sidecar.cli.instance import Reply, address, ask
from sidecar.cli.instants import shown_from
from sidecar.cli.options import SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json
from sidecar.clock import SystemClock
from sidecar.contract.control import EVERY_ORIGIN
from sidecar.errors import CommandFailed
from sidecar.settings import Settings

_TIMEOUT_S = 5.0
_ORIGINS_SHOWN = 20

Summary = Mapping[str, Any]
_Get = Callable[[str], Reply]
"""Asks for a path."""


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar pending --watch")
@click.option("--url", help="Address of the sidecar.  [default: http://HTTP_HOST:HTTP_PORT]")
@click.option("--token", metavar="TOKEN", help="API_TOKEN of the instance.  [default: the setting]")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="With --watch: seconds between refreshes.",
)
@json_option
@settings_options(
    ("http_port", "http_host", "http_advertised_url", "http_tls_cert", "http_tls_key", "http_tls_ca", "api_token")
)
def pending(
    settings: Settings, *, url: str | None, token: str | None, watch: bool, interval_s: float, as_json: bool
) -> None:
    """Show what is pending, by origin, time and partition."""
    where, offered, authorities = settings.http_url, token or settings.api_token, settings.http_tls_ca
    if url is not None:
        where = address(url)

    def get(path: str) -> Reply:
        return ask(where, "GET", path, offered, timeout_s=_TIMEOUT_S, authorities=authorities)

    look, show = functools.partial(_look, get), functools.partial(_show, get)
    try:
        if not watch:
            if as_json:
                print_json(look())
            else:
                console().print(show())
        elif as_json:
            _follow_json(look, interval_s)
        else:
            _follow(show, interval_s)
    except KeyboardInterrupt:
        return


def _look(get: _Get) -> Summary:
    """Return the answer of `GET /pending`. Raises CommandFailed when nothing listens there, or no sidecar."""
    return get("/pending").document("total", "partitions")


def _show(get: _Get) -> RenderableType:
    """Return what is pending, and whether the group fires, as tables. Raises CommandFailed like `_look`."""
    answer = _look(get)
    origins = get("/origins").document("origins")["origins"]
    state = next((each["state"] for each in origins if each["origin"] == EVERY_ORIGIN), "")
    return picture(answer, SystemClock().wall_ms(), state)


def picture(answer: Summary, now_ms: int, group_state: str = "") -> RenderableType:
    """Return the answer as tables.

    Args:
        answer: That of `GET /pending`.
        now_ms: Wall time.
        group_state: `paused` or `stopped`; empty while the group fires.
    """
    head = Text.assemble(
        (f"{answer['total']:,}", "bold"),
        " pending, ",
        (f"{answer['overdue']:,} overdue", "bold red" if answer["overdue"] else ""),
    )
    if answer["next_due_ms"] is not None:
        head.append(f", next due {shown_from(answer['next_due_ms'], now_ms)}")
    if not answer["complete"]:
        head.append("  (not complete: a partition has no owner, or its figures are old)", "yellow")
    if group_state:
        head.append(f"  (the group is {group_state}: nothing fires until `retry-sidecar resume '*'`)", "yellow")
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


def _partitions(answer: Summary, now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("partition", "state", "owner", "pending", "fired up to", "restored"):
        table.add_column(heading, justify="right" if heading in ("partition", "pending") else "left")
    for row in answer["partitions"]:
        table.add_row(
            str(row["partition"]),
            Text(row["state"]),
            Text(row["owner"] or "none"),
            f"{row['pending']:,}",
            "never" if row["watermark_ms"] is None else shown_from(row["watermark_ms"], now_ms),
            f"{row['restored']:.0%}",
        )
    return table


def _follow(show: Callable[[], RenderableType], interval_s: float) -> None:
    # The first look may fail for good, with a clear error; what fails later is shown, and may pass.
    shown = show()
    pause = threading.Event()
    with Live(shown, console=console(), auto_refresh=False) as live:
        while not pause.wait(interval_s):
            try:
                shown = show()
                live.update(shown, refresh=True)
            except CommandFailed as error:
                live.update(Group(shown, "", Text(str(error), "red")), refresh=True)


def _follow_json(look: Callable[[], Summary], interval_s: float) -> None:
    pause = threading.Event()
    while True:
        print_json(look())
        pause.wait(interval_s)
