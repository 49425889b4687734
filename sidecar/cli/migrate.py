"""`retry-sidecar migrate`: takes over what waits in the state of another retry program."""

from __future__ import annotations

import click
from rich.table import Table

from sidecar.cli.dlq.filter import bar
from sidecar.cli.instants import shown_instant
from sidecar.cli.options import KAFKA, POLICY, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.kafka.config import validate_client_properties
from sidecar.migrate.ibm import Found, IbmMigration, Source
from sidecar.settings import Settings
from sidecar.settings.kinds import is_topic_name

_LINES = 20
"""The most unreadable records that are named."""


def _topic(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not is_topic_name(text):
        raise click.BadParameter(f"{text!r}: must be 1 to 249 characters out of a-z, A-Z, 0-9, '.', '_', '-'")
    return text


@click.group(epilog="Example: retry-sidecar migrate ibm --store-name wheel --dry-run")
def migrate() -> None:
    """Take over the pending messages of another retry program."""


@migrate.command(cls=SettingsCommand, epilog="Example: retry-sidecar migrate ibm --store-name wheel --dry-run")
@click.option("--from-app-id", callback=_topic, help="Its STREAMS_APP_ID.  [default: STREAMS_APP_ID]")
@click.option("--from-store", callback=_topic, default="retry-queue", show_default=True, help="Its STORE_NAME.")
@click.option("--from-topic", callback=_topic, help="Its INPUT_TOPIC.  [default: INPUT_TOPIC]")
@click.option(
    "--exception",
    default="",
    metavar="CLASS",
    help="Exception class of the messages, unknown to its store.  [default: the first of RETRIABLE_EXCEPTION]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be taken over, and change nothing.")
@json_option
@settings_options((*KAFKA, "given_group_id", *POLICY))
def ibm(
    settings: Settings,
    *,
    from_app_id: str | None,
    from_store: str,
    from_topic: str | None,
    exception: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over the pending messages of IBM's kafka-retry, each once.

    Stop IBM's program first. Every message that waits in its changelog goes to the retry topic with the time it was
    due, and is tombstoned in IBM's changelog in the same transaction: after a kill the same command continues, and
    nothing comes twice. If both programs have the same retry topic, the sidecar's group begins where IBM's stopped.
    Values that are not IBM's stay, are named, and make the exit status 1.

    The user needs these permissions: Read and Write on IBM's changelog and the retry topic; Read on GROUP_ID; Describe
    on IBM's group and GROUP_ID-restore; Write on the transactional id STREAMS_APP_ID-migrate-ibm. The commands for
    kafka-acls are in docs/how-to/security.md.
    """
    validate_client_properties(settings)
    source = Source(from_app_id or settings.streams_app_id, from_store, from_topic or settings.input_topic)
    migration = IbmMigration(settings, source, exception)
    found = migration.look()
    if not dry_run:
        done = 0
        with bar("moving", found.by_origin.total()) as shown:

            def moved(count: int) -> None:
                nonlocal done
                done += count
                shown(found.by_origin.total() - done)

            found = migration.carry_out(moved)
    if as_json:
        print_json(found.to_json(dry_run=dry_run))
    else:
        _show(found, source, dry_run=dry_run)
    if found.unreadable:
        raise click.exceptions.Exit(1)


def _show(found: Found, source: Source, *, dry_run: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("origin", overflow="fold")
    table.add_column("would be taken over" if dry_run else "taken over", justify="right")
    for origin, count in sorted(found.by_origin.items()):
        table.add_row(origin, f"{count:,}")
    table.add_row("in all", f"{found.by_origin.total():,}")
    console().print(table)
    if found.first_due_ms is not None and found.last_due_ms is not None:
        say(f"due from {shown_instant(found.first_due_ms)} to {shown_instant(found.last_due_ms)}")
    for reason, count in sorted(found.refused.items()):
        say(f"{count:,} of them go to the DLQ: {reason}")
    if found.began:
        say(found.began)
    for place in found.unreadable[:_LINES]:
        say(f"{source.changelog_topic}, {place}: not a value of IBM's kafka-retry; it stays there", err=True)
    if len(found.unreadable) > _LINES:
        say(f"and {len(found.unreadable) - _LINES:,} more", err=True)
