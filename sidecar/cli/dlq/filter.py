"""Which dead letters a command is about, as options; and how they look to a person and to a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sidecar.cli.instants import parse_instant_ms, read_instant, shown_instant
from sidecar.cli.terminal import console
from sidecar.clock import SystemClock
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord
from sidecar.errors import printable
from sidecar.model import Reason
from sidecar.policy.globs import Globs

F = TypeVar("F", bound=Callable[..., Any])

NONE: Final = "(none)"
OTHERS: Final = "(others)"
"""Names beyond as many as are kept."""
_DETAIL_CHARS: Final = 200


def since_ms(wanted: DeadLetterFilter) -> int | None:
    """Return the instant from which letters are meant, None for any."""
    return None if wanted.since is None else parse_instant_ms(wanted.since, SystemClock().wall_ms())


def until_ms(wanted: DeadLetterFilter) -> int | None:
    """Return the instant before which letters are meant, None for any."""
    return None if wanted.until is None else parse_instant_ms(wanted.until, SystemClock().wall_ms())


def dead_letter_options(function: F) -> F:
    """Give a command the filter's options; it is called with `wanted`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        reasons: tuple[str, ...],
        origins: tuple[str, ...],
        exceptions: tuple[str, ...],
        groups: tuple[str, ...],
        since: str | None,
        until: str | None,
        **kwargs: Any,
    ) -> Any:
        return function(*args, wanted=DeadLetterFilter(reasons, origins, exceptions, groups, since, until), **kwargs)

    options = (
        click.option(
            "--reason",
            "reasons",
            metavar="GLOB",
            multiple=True,
            callback=_read_reasons,
            help="Only what died for this reason; repeatable, as the other filters are. One of: "
            f"{', '.join(Reason)}, or a glob.",
        ),
        click.option("--origin", "origins", metavar="GLOB", multiple=True, help="Only what was for this topic."),
        click.option(
            "--exception", "exceptions", metavar="GLOB", multiple=True, help="Only what failed by this class."
        ),
        click.option("--group", "groups", metavar="GLOB", multiple=True, help="Only what failed in this group."),
        click.option(
            "--since",
            metavar="INSTANT",
            callback=_checked_instant,
            help="From the first that died then or later: epoch ms, ISO 8601 (UTC unless it says otherwise), or a "
            "duration from now such as -2h.  [default: from the beginning]",
        ),
        click.option(
            "--until",
            metavar="INSTANT",
            callback=_checked_instant,
            help="Up to, without, the first that died then or later.  [default: to the end as it is at the start]",
        ),
    )
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]  # the options that it takes besides are click's business


def _read_reasons(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for each in given:
        globs = Globs([each])
        if not any(globs.matches(reason) for reason in Reason):
            raise click.BadParameter(f"{each!r} is met by no reason: there are {', '.join(Reason)}")
    return given


def _checked_instant(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    read_instant(ctx, parameter, text)
    return text


def dead_letter_table(records: Iterable[DlqRecord]) -> Table:
    """Return dead letters as a table."""
    shown = table(("partition-offset", "died", "origin", "exception", "came from", "detail"), ())
    for record in records:
        said = record.dead_letter
        came_from = NONE if said.came_from is None else "{}-{}-{}".format(*said.came_from)
        detail = said.detail if len(said.detail) <= _DETAIL_CHARS else f"{said.detail[:_DETAIL_CHARS]}…"
        where = f"{record.partition}-{record.offset}"
        row = (where, shown_instant(record.timestamp_ms), said.origin, said.exception, came_from, detail)
        shown.add_row(*(Text(printable(cell) or NONE) for cell in row))
    return shown


def table(left: Iterable[str], right: Iterable[str]) -> Table:
    """Return an empty table whose first columns are text and whose last are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in left:
        made.add_column(heading, overflow="fold")
    for heading in right:
        made.add_column(heading, justify="right")
    return made


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a command has come on a terminal; yields what is told how much is left."""
    shown = console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as progress:
        task: TaskID = progress.add_task(what, total=total)
        yield lambda left: progress.update(task, completed=total - left)
