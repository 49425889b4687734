"""`retry-sidecar dlq list`, `get` and `discard`: single dead letters, as HTTP has them."""

from __future__ import annotations

import getpass
import re
import socket
from typing import Any, Final

import click
from pydantic import ValidationError
from rich.text import Text

from sidecar.api.dlq.bodies import (
    LIMIT,
    LIMIT_MAX,
    POSITION_PATTERN,
    DeadLetterBody,
    DeadLetterDetailBody,
    DiscardRequest,
    ListQuery,
    read_position,
)
from sidecar.cli.dlq.filter import NONE, dead_letter_options, died_from_ms, died_to_ms, table
from sidecar.cli.instants import shown_instant
from sidecar.cli.options import DEAD_LETTERS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.contract.redrive import REASON_CHARS_MAX
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.errors import CommandFailed, printable
from sidecar.kafka.config import validate_client_properties
from sidecar.serving.dead_letters import KafkaDeadLetters
from sidecar.settings import Settings

_DETAIL_CHARS: Final = 200


def _position(_ctx: click.Context, _parameter: click.Parameter, text: str | tuple[str, ...]) -> str | tuple[str, ...]:
    for each in (text,) if isinstance(text, str) else text:
        if not re.fullmatch(POSITION_PATTERN, each):
            raise click.BadParameter(f"{each!r}: must be <partition>-<offset> on the DLQ, such as 0-17")
    return text


def _dead_letters(settings: Settings) -> KafkaDeadLetters:
    validate_client_properties(settings)
    return KafkaDeadLetters(settings, SystemClock())


def _query(**fields: Any) -> ListQuery:
    """Return the query. Raises UsageError for what HTTP would refuse, too."""
    try:
        return ListQuery(**fields)
    except ValidationError as cause:
        fault = cause.errors()[0]
        if not fault["loc"]:
            raise click.UsageError(fault["msg"].removeprefix("Value error, ")) from None
        option = str(fault["loc"][0]).replace("_", "-")
        raise click.BadParameter(fault["msg"], param_hint=f"--{option}") from None


@click.command("list", cls=SettingsCommand, epilog="Example: retry-sidecar dlq list --reason fatal --died-from -1h")
@dead_letter_options
@click.option("--key", metavar="TEXT", help="Only messages with this record key.")
@click.option("--retry-id", metavar="TEXT", help="Only messages with this `retry-id`.")
@click.option(
    "--limit", default=LIMIT, show_default=True, type=click.IntRange(min=1), help="Maximum number of dead letters."
)
@json_option
@settings_options(DEAD_LETTERS)
def list_dead_letters(
    settings: Settings, *, wanted: DeadLetterFilter, key: str | None, retry_id: str | None, limit: int, as_json: bool
) -> None:
    """List single dead letters, newest first, without headers and payloads.

    Discarded ones are left out. The user needs the permissions Read and DescribeConfigs on the DLQ.
    """
    dead_letters, cursor, found = _dead_letters(settings), None, list[DeadLetterBody]()
    died_from, died_to = died_from_ms(wanted), died_to_ms(wanted)
    while True:
        query = _query(
            reason=list(wanted.reasons),
            origin=list(wanted.origins),
            exception=list(wanted.exceptions),
            group=list(wanted.groups),
            key=key,
            retry_id=retry_id or None,
            limit=min(LIMIT_MAX, limit - len(found)),
            cursor=cursor,
            died_from=died_from,
            died_to=died_to,
        )
        page = dead_letters.page(query)
        found += page.messages
        if as_json:
            for each in page.messages:
                print_json(each.model_dump())
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            break
    if as_json:
        return
    shown = table(("id", "died", "reason", "origin", "exception", "detail"), ())
    for each in found:
        detail = each.detail if len(each.detail) <= _DETAIL_CHARS else f"{each.detail[:_DETAIL_CHARS]}…"
        row = (each.id, shown_instant(each.died_ms), each.reason, each.origin, each.exception, detail)
        shown.add_row(*(Text(printable(cell) or NONE) for cell in row))
    console().print(shown)
    if cursor is not None:
        say(f"the newest {len(found):,}; --limit shows more", err=True)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar dlq get 0-17 --payload")
@click.argument("position", metavar="ID", callback=_position)
@click.option("--payload", is_flag=True, help="Show key and value too, in base64.")
@json_option
@settings_options(DEAD_LETTERS)
def get(settings: Settings, *, position: str, payload: bool, as_json: bool) -> None:
    """Show a dead letter with its headers, and who has discarded it.

    ID is its partition and offset on the DLQ, <partition>-<offset>. Exit status 1 if the DLQ has no such record.
    """
    found = _dead_letters(settings).find(None, *read_position(position), payload=payload)
    if found is None:
        raise CommandFailed(f"{settings.dlq_topic} has no record {position}: it was deleted, or never existed")
    if as_json:
        print_json(found.model_dump(exclude_unset=True))
    else:
        _show(found, payload=payload)


def _show(dead_letter: DeadLetterDetailBody, *, payload: bool) -> None:
    came = dead_letter.came_from
    rows: list[tuple[str, str | None]] = [
        ("id", dead_letter.id),
        ("died", shown_instant(dead_letter.died_ms)),
        ("reason", dead_letter.reason),
        ("detail", dead_letter.detail),
        ("origin", dead_letter.origin),
        ("exception", dead_letter.exception),
        ("group", dead_letter.group),
        ("attempt", None if dead_letter.attempt is None else str(dead_letter.attempt)),
        ("redrives", None if dead_letter.redrives is None else str(dead_letter.redrives)),
        ("came from", None if came is None else f"{came.topic}-{came.partition}-{came.offset}"),
    ]
    if (discard := dead_letter.discarded) is not None:
        rows.append(("discarded", f"{shown_instant(discard.at_ms)} by {discard.who}: {discard.why}"))
    for each in dead_letter.headers:
        value = each.value if each.value_base64 is None else f"{each.value_base64} (base64)"
        rows.append((f"header {each.name}", "null" if value is None else value))
    if payload:
        rows += [("key", dead_letter.key or "null"), ("value", dead_letter.value or "null")]
    shown = table(("", ""), ())
    shown.show_header = False
    for name, value in rows:
        shown.add_row(Text(printable(name)), Text(printable(value or "") or NONE))
    console().print(shown)
    if dead_letter.headers_truncated:
        say("there are more headers than shown", err=True)


@click.command(cls=SettingsCommand, epilog='Example: retry-sidecar dlq discard 0-17 0-21 --why "test orders"')
@click.argument("positions", metavar="ID...", nargs=-1, callback=_position)
@click.option("--why", help=f"The reason, for people; at most {REASON_CHARS_MAX} characters.")
@click.option("--undo", is_flag=True, help="Take discards back.")
@click.option("--list", "listed", is_flag=True, help="Show what is discarded, with who and why.")
@json_option
@settings_options(DEAD_LETTERS)
def discard(
    settings: Settings, *, positions: tuple[str, ...], why: str | None, undo: bool, listed: bool, as_json: bool
) -> None:
    """Discard dead letters: lists and counts leave them out, and redrives skip them.

    ID is the partition and offset on the DLQ, <partition>-<offset>. The records stay on the DLQ. The topic
    STREAMS_APP_ID-discards, which the first discard creates, has who discarded which one, and why. Exit status 1 if one
    is not there.

    The user needs these permissions: Read and DescribeConfigs on the DLQ; Read and Write on STREAMS_APP_ID-discards.
    """
    if listed + undo + (why is not None) != 1 or listed is bool(positions):
        raise click.UsageError("give IDs with --why, IDs with --undo, or --list alone")
    if why is not None and not 0 < len(why) <= REASON_CHARS_MAX:
        raise click.UsageError(f"--why: has {len(why)} characters: allowed are 1 to {REASON_CHARS_MAX}")
    dead_letters = _dead_letters(settings)
    if listed:
        _show_discards(dead_letters, as_json=as_json)
        return
    missing = [each for each in positions if not _act(dead_letters, each, why, as_json=as_json)]
    if missing:
        lacks = "are not discarded" if undo else f"are not on {settings.dlq_topic}"
        raise CommandFailed(f"these {lacks}: {', '.join(missing)}")


def _act(dead_letters: KafkaDeadLetters, position: str, why: str | None, *, as_json: bool) -> bool:
    """Discard a dead letter, or without a reason take that back; return whether there was anything to do."""
    if why is None:
        there = dead_letters.take_back(None, *read_position(position))
        if as_json:
            print_json({"id": position, "taken_back": there})
        elif there:
            say(f"{position}: taken back")
        return there
    made = dead_letters.discard(DiscardRequest(id=position, why=why), f"{getpass.getuser()}@{socket.gethostname()}")
    if made is not None:
        if as_json:
            print_json(made.model_dump())
        else:
            say(f"{position}: discarded")
    return made is not None


def _show_discards(dead_letters: KafkaDeadLetters, *, as_json: bool) -> None:
    found = dead_letters.discards(None)
    if as_json:
        for each in found.discards:
            print_json(each.model_dump())
        return
    shown = table(("id", "discarded", "by", "why"), ())
    for each in found.discards:
        shown.add_row(*(Text(printable(cell)) for cell in (each.id, shown_instant(each.at_ms), each.who, each.why)))
    console().print(shown)
    if found.total > len(found.discards):
        say(f"the latest {len(found.discards):,} of {found.total:,}", err=True)
