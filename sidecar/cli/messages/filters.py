"""Filters that select messages, as options and as parameters of the API; and the table that shows messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click
from rich.table import Table
from rich.text import Text

from sidecar.cli.instance import Instances, Unanswered
from sidecar.cli.instants import read_instant, shown_from, shown_instant
from sidecar.contract.filter import MessageFilter
from sidecar.errors import printable
from sidecar.model import DUE_MS_MAX

F = TypeVar("F", bound=Callable[..., Any])
Message = Mapping[str, Any]

PAGE: Final = 1_000
"""Messages of one page, as many as the API gives."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Messages by where they go, where they are and when they are looked at next; None: any."""

    origin: str | None = None
    partition: int | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    """Exclusive."""
    exception: str | None = None
    group: str | None = None
    key: str | None = None
    headers: tuple[str, ...] = ()
    """Each `name:value`."""

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def query(self, limit: int, cursor: str | None) -> dict[str, str | list[str]]:
        """Return the parameters of `GET /pending/messages`."""
        given = {
            "origin": self.origin,
            "partition": self.partition,
            "due_from": self.due_from_ms,
            "due_to": self.due_to_ms,
            "exception": self.exception,
            "group": self.group,
            "key": self.key,
            "limit": limit,
            "cursor": cursor,
        }
        query: dict[str, str | list[str]] = {name: str(value) for name, value in given.items() if value is not None}
        return query | ({"header": list(self.headers)} if self.headers else {})

    @property
    def target(self) -> MessageFilter:
        """Return it as the target of a control record."""
        return MessageFilter(
            origin=self.origin,
            partition=self.partition,
            due_from=0 if self.due_from_ms is None else self.due_from_ms,
            due_to=DUE_MS_MAX if self.due_to_ms is None else self.due_to_ms,
            exception=self.exception,
            group=self.group,
            key=self.key,
            header=self.headers,
        )

    def __str__(self) -> str:
        parts = [] if self.origin is None else [f"for {self.origin}"]
        if self.partition is not None:
            parts.append(f"in partition {self.partition}")
        if self.due_from_ms is not None:
            parts.append(f"due from {shown_instant(self.due_from_ms)}")
        if self.due_to_ms is not None:
            parts.append(f"due before {shown_instant(self.due_to_ms)}")
        named = {"exception": self.exception, "group": self.group, "key": self.key}
        parts += [f"with {name} {value!r}" for name, value in named.items() if value is not None]
        parts += [f"with header {each!r}" for each in self.headers]
        return ", ".join(parts) or "of all origins"


class Page(NamedTuple):
    """A part of a list."""

    messages: list[Message]
    cursor: str | None
    """For the next page; None after the last one."""
    missing: list[int]
    """Partitions whose messages are not in it: they have no owner, or it does not answer."""


def read_page(instances: Instances, wanted: Filter, limit: int, cursor: str | None) -> Page:
    """Return a page. Raises CommandFailed."""
    reply = instances.ask("GET", "/pending/messages", query=wanted.query(limit, cursor))
    body = reply.document("messages", "cursor", "complete", "missing")
    missing = list(body["missing"])
    if not body["complete"] and not missing:
        raise Unanswered(f"{reply.asked}: how many partitions there are is not known yet; try again in a second")
    return Page(list(body["messages"]), body["cursor"], missing)


def filter_options(function: F) -> F:
    """Give a command the filter's options; it is called with `wanted`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        origin: str | None,
        partition: int | None,
        due_from_ms: int | None,
        due_to_ms: int | None,
        exception: str | None,
        group: str | None,
        key: str | None,
        headers: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        if due_from_ms is not None and due_to_ms is not None and due_from_ms > due_to_ms:
            raise click.UsageError("--due-from must not be after --due-to")
        for each in headers:
            if not each.partition(":")[0] or ":" not in each:
                raise click.UsageError(f"--header: {each!r} is not allowed: it must be NAME:VALUE, such as tenant:acme")
        wanted = Filter(origin, partition, due_from_ms, due_to_ms, exception, group, key, headers)
        return function(*args, wanted=wanted, **kwargs)

    options = (
        click.option("--origin", metavar="TOPIC", help="Only messages for this topic."),
        click.option("--partition", type=click.IntRange(min=0), help="Only this partition of the retry topic."),
        click.option(
            "--due-from",
            "due_from_ms",
            metavar="INSTANT",
            callback=read_instant,
            help="Only messages due at or after this time: epoch ms, ISO 8601 (UTC by default), now, or a "
            "duration from now such as 10m or -2h.",
        ),
        click.option(
            "--due-to",
            "due_to_ms",
            metavar="INSTANT",
            callback=read_instant,
            help="Only messages due before this time. A deferred message is due at its next attempt.",
        ),
        click.option("--exception", metavar="CLASS", help="Only messages with this exception, a name or a glob."),
        click.option("--group", metavar="GROUP", help="Only messages of this consumer group, a name or a glob."),
        click.option("--key", metavar="TEXT", help="Only messages with this record key."),
        click.option(
            "--header",
            "headers",
            metavar="NAME:VALUE",
            multiple=True,
            help="Only messages with this header. Repeat it for messages that have all of them.",
        ),
    )
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]  # the options that it takes besides are click's business


def table(messages: Iterable[Message], now_ms: int) -> Table:
    """Return messages as a table."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("timer id", "origin", "due", "retry-id"):
        shown.add_column(heading, overflow="fold")
    shown.add_column("attempt", justify="right")
    for each in messages:
        due = shown_from(each["due_ms"], now_ms)
        if each["deferred"]:
            due += f", put off to {shown_instant(each['stored_due_ms'])}"
        row = (each["id"], each["origin"], due, each["retry_id"] or "", f"{each['attempt']} of {each['limit']}")
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    return shown
