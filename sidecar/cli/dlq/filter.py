"""The options that filter dead letters, and the tables and progress bars that show them."""

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
_DETAIL_CHARS: Final = 200


def died_from_ms(wanted: DeadLetterFilter) -> int | None:
    """Return the instant from which dead letters match, None for any."""
    return None if wanted.died_from is None else parse_instant_ms(wanted.died_from, SystemClock().wall_ms())


def died_to_ms(wanted: DeadLetterFilter) -> int | None:
    """Return the instant before which dead letters match, None for any."""
    return None if wanted.died_to is None else parse_instant_ms(wanted.died_to, SystemClock().wall_ms())


def dead_letter_options(function: F) -> F:
    """Add the filter's options to a command, which receives `wanted`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        reasons: tuple[str, ...],
        origins: tuple[str, ...],
        exceptions: tuple[str, ...],
        groups: tuple[str, ...],
        died_from: str | None,
        died_to: str | None,
        **kwargs: Any,
    ) -> Any:
        return function(
            *args, wanted=DeadLetterFilter(reasons, origins, exceptions, groups, died_from, died_to), **kwargs
        )

    options = (
        click.option(
            "--reason",
            "reasons",
            metavar="GLOB",
            multiple=True,
            callback=_read_reasons,
            help="Only dead letters with this reason; repeatable, as the other filters are. One of: "
            f"{', '.join(Reason)}, or a glob.",
        ),
        click.option("--origin", "origins", metavar="GLOB", multiple=True, help="Only messages for this topic."),
        click.option(
            "--exception",
            "exceptions",
            metavar="GLOB",
            multiple=True,
            help="Only messages that failed with this class.",
        ),
        click.option(
            "--group", "groups", metavar="GLOB", multiple=True, help="Only messages that failed in this group."
        ),
        click.option(
            "--died-from",
            metavar="INSTANT",
            callback=_checked_instant,
            help="Start at the first that died then or later: epoch ms, ISO 8601 (UTC unless it says otherwise), or a "
            "duration from now such as -2h.  [default: the beginning]",
        ),
        click.option(
            "--died-to",
            metavar="INSTANT",
            callback=_checked_instant,
            help="Stop before the first that died then or later.  [default: the end at the time of the start]",
        ),
    )
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]  # click passes the other options


def _read_reasons(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for each in given:
        globs = Globs([each])
        if not any(globs.matches(reason) for reason in Reason):
            raise click.BadParameter(f"{each!r} matches no reason: allowed are {', '.join(Reason)} and globs of these")
    return given


def _checked_instant(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    read_instant(ctx, parameter, text)
    return text


def dead_letter_table(records: Iterable[DlqRecord]) -> Table:
    """Return dead letters as a table."""
    shown = table(("partition-offset", "died", "origin", "exception", "came from", "detail"), ())
    for record in records:
        dead_letter = record.dead_letter
        came_from = NONE if dead_letter.came_from is None else "{}-{}-{}".format(*dead_letter.came_from)
        detail = (
            dead_letter.detail if len(dead_letter.detail) <= _DETAIL_CHARS else f"{dead_letter.detail[:_DETAIL_CHARS]}…"
        )
        where = f"{record.partition}-{record.offset}"
        row = (where, shown_instant(record.timestamp_ms), dead_letter.origin, dead_letter.exception, came_from, detail)
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
    """Show the progress of a command on a terminal; yields a function to call with what remains."""
    shown = console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as progress:
        task: TaskID = progress.add_task(what, total=total)
        yield lambda left: progress.update(task, completed=total - left)
