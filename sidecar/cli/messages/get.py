"""`retry-sidecar get`: one message, or those of a retry id, with headers and payload."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from rich.table import Table
from rich.text import Text

from sidecar.cli.instance import reach, where_options
from sidecar.cli.instants import shown_from, shown_instant
from sidecar.cli.messages.control import read_targets
from sidecar.cli.messages.filters import Message
from sidecar.cli.options import INSTANCES, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.contract.control import Target
from sidecar.engine.items import target_text
from sidecar.errors import CommandFailed, printable
from sidecar.settings import Settings

_SHOWN_CHARS = 4_000


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar get 2-1841-1767225600000 --payload")
@click.argument("targets", nargs=1, metavar="TARGET", callback=lambda ctx, at, text: read_targets(ctx, at, (text,)))
@click.option(
    "--payload", is_flag=True, help="Show key and value too, in JSON as base64; requires API_TOKEN if it is set."
)
@click.option(
    "--payload-to",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the value to this file, byte for byte.",
)
@json_option
@where_options
@settings_options(INSTANCES)
def get(
    settings: Settings,
    /,
    *,
    targets: Sequence[Target],
    payload: bool,
    path: Path | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Show a pending message with its headers.

    TARGET is a timer id, or id:<retry-id> for all messages with that id. Exit status 1 if none is pending.
    """
    text = target_text(targets[0])
    query = {"payload": "true"} if payload or path is not None else None
    with reach(settings, url) as instances:
        reply = instances.ask("GET", f"/pending/messages/{quote(text, safe='')}", query=query)
    if reply.status == 404 and isinstance(reply.body, dict) and "message" in reply.body:
        raise CommandFailed(str(reply.body["message"]))
    body = reply.document()
    messages = body.get("messages", [body])
    if path is not None:
        _write(path, text, messages)
    for each in messages:
        shown = each if payload else {name: value for name, value in each.items() if name not in ("key", "value")}
        if as_json:
            print_json(shown)
        else:
            console().print(_picture(shown, SystemClock().wall_ms()), "", sep="\n")
    if body.get("truncated"):
        say(f"{text}: more messages have this id than are shown", err=True)
    if missing := body.get("missing"):
        numbers = ", ".join(map(str, missing))
        say(f"not complete: partition {numbers} has no owner now, or it does not answer", err=True)
        raise click.exceptions.Exit(1)


def _write(path: Path, text: str, messages: Sequence[Message]) -> None:
    if len(messages) != 1:
        ids = ", ".join(str(each["id"]) for each in messages[:10])
        raise CommandFailed(f"--payload-to: {text} is {len(messages)} messages; name one by its timer id: {ids}")
    value = messages[0]["value"]
    if value is None:
        raise CommandFailed(f"--payload-to: {messages[0]['id']} has no value (null): nothing was written")
    try:
        path.write_bytes(base64.b64decode(value))
    except OSError as error:
        raise CommandFailed(f"--payload-to: {path}: {error.strerror or error}") from error


def _picture(message: Message, now_ms: int) -> Table:
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in _lines(message, now_ms):
        shown.add_row(Text(printable(name)), Text(printable(text)))
    return shown


def _lines(message: Message, now_ms: int) -> list[tuple[str, str]]:
    lines = [
        ("timer id", str(message["id"])),
        ("origin", str(message["origin"])),
        ("due", shown_from(message["due_ms"], now_ms)),
        ("attempt", f"{message['attempt']} of {message['limit']}"),
        ("came as", f"offset {message['offset']} of partition {message['partition']}"),
    ]
    if message["deferred"]:
        lines.append(("put off to", f"{shown_instant(message['stored_due_ms'])}: its origin is not open"))
    if message["retry_id"] is not None:
        lines.append(("retry-id", str(message["retry_id"])))
    lines += [(f"header {each['name']}", _header(each)) for each in message["headers"]]
    lines += [(name, _content(message[name])) for name in ("key", "value") if name in message]
    return lines


def _header(header: dict[str, Any]) -> str:
    if header.get("value_base64") is not None:
        return f"{header['value_base64']} (base64)"
    return "null" if header["value"] is None else str(header["value"])


def _content(encoded: str | None) -> str:
    if encoded is None:
        return "null"
    content = base64.b64decode(encoded)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text, what = encoded, " (base64)"
    else:
        what = ""
    if len(text) <= _SHOWN_CHARS:
        return text + what
    return f"{text[:_SHOWN_CHARS]}...{what} ({len(content):,} bytes in all: --payload-to FILE or --json)"
