"""`retry-sidecar list`: the single pending messages of the whole group."""

from __future__ import annotations

from collections.abc import Iterator

import click

from sidecar.cli.instance import Instances, reach, where_options
from sidecar.cli.messages.filters import PAGE, Filter, Message, Page, filter_options, read_page, table
from sidecar.cli.options import INSTANCES, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.settings import Settings


@click.command("list", cls=SettingsCommand, epilog="Example: retry-sidecar list --origin orders --due-to 10m")
@filter_options
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Maximum number of messages.")
@click.option("--all", "everything", is_flag=True, help="List all messages, page by page.")
@json_option
@where_options
@settings_options(INSTANCES)
def list_messages(
    settings: Settings, /, *, wanted: Filter, limit: int, everything: bool, as_json: bool, url: str | None
) -> None:
    """List pending messages in due order, without payloads.

    Exit status 1 if a partition has no owner or its owner does not answer; the list then lacks its messages.
    """
    missing: set[int] = set()
    count = 0
    with reach(settings, url) as instances:
        for page in _pages(instances, wanted, None if everything else limit):
            _show(page.messages, as_json=as_json, first=count == 0)
            count += len(page.messages)
            missing.update(page.missing)
            more = page.cursor is not None
    if more and not as_json:
        say(f"{count:,} shown; there may be more: --limit or --all", err=True)
    if not count and not missing and not as_json:
        say("nothing is pending" if wanted.is_empty else f"nothing is pending {wanted}", err=True)
    if missing:
        numbers = ", ".join(map(str, sorted(missing)))
        say(f"not complete: partition {numbers} has no owner now, or it does not answer", err=True)
        raise click.exceptions.Exit(1)


def _pages(instances: Instances, wanted: Filter, limit: int | None) -> Iterator[Page]:
    """Yield pages until there are so many messages, or to the end; at least one."""
    cursor, left = None, limit
    while True:
        page = read_page(instances, wanted, PAGE if left is None else min(PAGE, left), cursor)
        yield page
        cursor = page.cursor
        if left is not None:
            left -= len(page.messages)
        if cursor is None or left == 0:
            return


def _show(messages: list[Message], *, as_json: bool, first: bool) -> None:
    if as_json:
        for each in messages:
            print_json(each)
    elif messages:
        shown = table(messages, SystemClock().wall_ms())
        shown.show_header = first
        console().print(shown)
