"""`retry-sidecar cancel`, `reschedule` and `fire` over a filter: what it would act on, and the question before it does.

The acting is one control record with the filter, as for any other target: see control.py.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from sidecar.cli.instance import Instances, Unanswered, reach
from sidecar.cli.instants import shown_instant
from sidecar.cli.messages.filters import PAGE, Filter, Message, filter_options, read_page, table
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import Clock, SystemClock
from sidecar.contract.control import ControlKind, render_control
from sidecar.errors import CommandFailed
from sidecar.model import Scope
from sidecar.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

FIRST: Final = 10
PATIENCE_S: Final = 60.0
"""Longer than a partition needs to find another owner."""
AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection of the messages, and how to go about it."""

    wanted: Filter
    everything: bool
    dry_run: bool
    yes: bool

    @property
    def is_made(self) -> bool:
        """Whether messages are chosen by anything but their names."""
        return self.everything or not self.wanted.is_empty

    @property
    def scope(self) -> Scope | None:
        """What narrows named targets; None when other options are given, which go with a filter only."""
        narrowed = Filter(origin=self.wanted.origin, group=self.wanted.group)
        if self != Choice(narrowed, False, False, False):
            return None
        return Scope(narrowed.origin or "", narrowed.group)


class Found(NamedTuple):
    """The messages that match now."""

    total: int
    first: list[Message]


def choice_options(function: F) -> F:
    """Give a command the options for messages that are chosen by a filter; it is called with `choice`."""

    @functools.wraps(function)
    def command(*args: Any, wanted: Filter, everything: bool, dry_run: bool, yes: bool, **kwargs: Any) -> Any:
        return function(*args, choice=Choice(wanted, everything, dry_run, yes), **kwargs)

    options = (
        click.option("--all", "everything", is_flag=True, help="Messages of all origins, whenever they are due."),
        click.option(
            "--dry-run", is_flag=True, help="With a filter: count the messages and show the first ones; change nothing."
        ),
        click.option("--yes", is_flag=True, help="With a filter: do not count and do not ask for confirmation."),
    )
    for option in reversed(options):
        option(command)
    return filter_options(command)  # type: ignore[return-value]  # the options are click's business


def may_act(
    settings: Settings, kind: ControlKind, choice: Choice, *, url: str | None, due_ms: int | None, as_json: bool
) -> bool:
    """Return whether to act on what a filter chooses: not after a dry run, or when nothing matches.

    Raises:
        CommandFailed: No instance lists the messages.
        click.Abort: Whoever was asked said no.
    """
    _check(kind, choice, due_ms)
    if choice.yes and not choice.dry_run:
        return True
    with reach(settings, url) as instances:
        found = _count(instances, choice.wanted, SystemClock())
    if choice.dry_run or not found.total:
        _show_found(kind, choice.wanted, found, due_ms, as_json=as_json)
        return False
    _confirm(kind, choice.wanted, found, due_ms)
    return True


def _check(kind: ControlKind, choice: Choice, due_ms: int | None) -> None:
    if choice.everything and not choice.wanted.is_empty:
        raise click.UsageError("--all and a filter: give one of them")
    try:
        render_control(kind, choice.wanted.target, "checked", due_ms)
    except ValueError as error:
        raise click.UsageError(f"{kind}: {error}") from None
    if not choice.dry_run and not choice.yes and not _somebody_is_there():
        raise click.UsageError(
            "cannot ask for confirmation (stdin is not a terminal): add --yes, or look with --dry-run"
        )


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _count(instances: Instances, wanted: Filter, clock: Clock) -> Found:
    """Return what matches now. Waits for every partition: an incomplete page would skip messages."""
    shown = console(stderr=True)
    columns = (TextColumn("counting"), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    total, first, cursor = 0, list[Message](), None
    until_s, pause = clock.monotonic_s() + PATIENCE_S, threading.Event()
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("counting", total=None)
        while True:
            try:
                page = read_page(instances, wanted, PAGE, cursor)
                numbers = ", ".join(map(str, page.missing))
                reason = f"partition {numbers} has no owner now, or it does not answer: start `retry-sidecar run`"
            except Unanswered as error:
                page, reason = None, str(error)
            if page is not None and not page.missing:
                total += len(page.messages)
                first += page.messages[: FIRST - len(first)]
                bar.update(task, completed=total)
                until_s = clock.monotonic_s() + PATIENCE_S
                if (cursor := page.cursor) is None:
                    return Found(total, first)
            elif clock.monotonic_s() >= until_s:
                raise CommandFailed(reason)
            else:
                pause.wait(AGAIN_S)


def _confirm(kind: ControlKind, wanted: Filter, found: Found, due_ms: int | None) -> None:
    console(stderr=True).print(table(found.first, SystemClock().wall_ms()))
    more = f" and {found.total - len(found.first):,} more" if found.total > len(found.first) else ""
    say(more.strip(), err=True)
    click.confirm(f"{_what(kind, wanted, found.total, due_ms)}?", abort=True, err=True)


def _what(kind: ControlKind, wanted: Filter, total: int, due_ms: int | None) -> str:
    when = "" if due_ms is None else f", to {shown_instant(due_ms)}"
    messages = "message" if total == 1 else "messages"
    return f"{kind} {total:,} {messages} {wanted}{when}"


def _show_found(kind: ControlKind, wanted: Filter, found: Found, due_ms: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"command": kind.value, "total": found.total, "first": found.first})
        return
    if found.first:
        console().print(table(found.first, SystemClock().wall_ms()), "", sep="\n")
    would = "would " if found.total else "nothing to do: "
    say(f"{would}{_what(kind, wanted, found.total, due_ms)}")
