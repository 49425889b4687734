"""`retry-sidecar run`: the sidecar itself, or its effective settings."""

from __future__ import annotations

from typing import Any

import click

from sidecar.cli.instants import read_duration
from sidecar.cli.options import SettingsCommand, reread, settings_options
from sidecar.cli.process_log import begin_log
from sidecar.cli.terminal import console, print_json, say
from sidecar.settings import Settings, advice_for_run, rows


@click.command(
    cls=SettingsCommand, epilog="Example: retry-sidecar run --bootstrap-servers kafka:9092 --delays 20s,1m,5m"
)
@click.option("--show-settings", is_flag=True, help="Print the effective settings and where each came from, then stop.")
@click.option("--json", "as_json", is_flag=True, help="With --show-settings: print JSON.")
@click.option(
    "--drain",
    is_flag=True,
    help="Fire pending messages as they become due, ingest nothing, and exit when nothing is pending. Use "
    "it to rebuild the topics or to retire a sidecar. Stop the other instances first. Offsets do not "
    "move: a later run ingests the rest. Control records are not read, so messages of paused origins "
    "never drain: exit status 1 if only those are left.",
)
@click.option(
    "--drain-timeout",
    "drain_timeout_ms",
    callback=read_duration,
    metavar="DURATION",
    help="With --drain: give up after this time, with exit status 1.",
)
@settings_options(warn=False)
def run(settings: Settings, *, show_settings: bool, as_json: bool, drain: bool, drain_timeout_ms: int | None) -> None:
    """Run the sidecar until SIGTERM or Ctrl-C."""
    if drain_timeout_ms is not None and not drain:
        raise click.UsageError("--drain-timeout goes with --drain")
    warnings = (*settings.warnings, *advice_for_run(settings))
    if show_settings:
        for warning in warnings:
            say(f"warning: {warning}", err=True)
        _show(settings, as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json goes with --show-settings; for log lines in JSON use --log-format json")
    begin_log(settings, warnings)
    # Here and not above: showing the settings needs neither librdkafka nor RocksDB.
    from sidecar.runtime import main as runtime  # noqa: PLC0415

    how: dict[str, Any] = {"drain": True, "drain_timeout_ms": drain_timeout_ms} if drain else {}
    raise click.exceptions.Exit(runtime.run(settings, reread=reread(), **how))


def _show(settings: Settings, *, as_json: bool) -> None:
    if as_json:
        print_json({"settings": [row._asdict() for row in rows(settings)]})
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, value, origin in rows(settings):
        table.add_row(name, value, origin, style="dim" if origin == "default" else None)
    console().print(table)
