"""`retry-sidecar cancel`, `reschedule` and `fire` over a filter: the questions and output around a run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sidecar.cli.instance import Instances, reach
from sidecar.cli.instants import shown_instant
from sidecar.cli.messages.bulk import Actions, Found, Run, TimerReader, interruptible
from sidecar.cli.messages.filters import Filter, filter_options, table
from sidecar.cli.messages.http_control import HttpStream
from sidecar.cli.messages.journal import Journal, Order, new_path
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome, render_control
from sidecar.control.stream import ControlStream
from sidecar.errors import CommandFailed
from sidecar.model import Scope, TimerId
from sidecar.runtime.stop import Stop
from sidecar.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT_S: Final = 60.0
"""Longer than a partition needs to find another owner."""
OPEN_S: Final = 15.0
_REFUSED_SHOWN: Final = 10
_DOING: Final = {ControlKind.CANCEL: "cancelling", ControlKind.RESCHEDULE: "rescheduling", ControlKind.FIRE: "firing"}
_MEANING: Final = {
    Outcome.NOT_PENDING.value: "not pending: fired, cancelled or moved by others meanwhile",
    Outcome.ORIGIN_PAUSED.value: "not fired: the origin is not open",
    Outcome.BAD_REQUEST.value: "refused",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection of the messages, and the options of the run."""

    wanted: Filter
    everything: bool
    dry_run: bool
    yes: bool
    per_second: float | None
    journal: Path | None
    resume: Path | None

    @property
    def is_made(self) -> bool:
        """Whether messages are chosen by anything but their names."""
        return self.everything or not self.wanted.is_empty or self.resume is not None

    @property
    def scope(self) -> Scope | None:
        """What narrows named targets; None when other options are given, which go with a filter only."""
        narrowed = Filter(origin=self.wanted.origin, group=self.wanted.group)
        if self != Choice(narrowed, False, False, False, None, None, None):
            return None
        return Scope(narrowed.origin or "", narrowed.group)


def choice_options(function: F) -> F:
    """Give a command the options for messages that are chosen by a filter; it is called with `choice`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        wanted: Filter,
        everything: bool,
        dry_run: bool,
        yes: bool,
        per_second: float | None,
        journal: Path | None,
        resume: Path | None,
        **kwargs: Any,
    ) -> Any:
        choice = Choice(wanted, everything, dry_run, yes, per_second, journal, resume)
        return function(*args, choice=choice, **kwargs)

    file = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option("--all", "everything", is_flag=True, help="Messages of all origins, whenever they are due."),
        click.option(
            "--dry-run", is_flag=True, help="With a filter: count the messages and show the first ones; change nothing."
        ),
        click.option("--yes", is_flag=True, help="With a filter: do not ask for confirmation."),
        click.option(
            "--per-second",
            "per_second",
            type=click.FloatRange(min=0, min_open=True),
            help="With a filter: maximum number of messages per second.",
        ),
        click.option(
            "--journal",
            type=file,
            help="With a filter: file for the progress.  [default: in the user state folder]",
        ),
        click.option("--resume", type=file, help="Continue an interrupted run; FILE is its journal."),
    )
    for option in reversed(options):
        option(command)
    return filter_options(command)  # type: ignore[return-value]  # the options are click's business


def act_by_filter(
    settings: Settings,
    kind: ControlKind,
    choice: Choice,
    *,
    url: str | None,
    due_ms: int | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Act on what a filter chooses. Raises CommandFailed, with how to go on where it can."""
    _check(kind, choice, due_ms)
    group = None if url is not None else f"{settings.streams_app_id}/{settings.input_topic}"
    patience_s = TIMEOUT_S if timeout_s is None else timeout_s
    clock = SystemClock()
    journal: Journal | None = None
    if choice.resume is not None:
        journal = _resumed(choice.resume, kind, group)
    with reach(settings, url) as instances:
        if journal is None:
            with interruptible() as stop:
                found = _count(TimerReader(instances, choice.wanted, stop, clock, patience_s))
            if choice.dry_run or not found.total:
                _show_found(kind, choice.wanted, found, due_ms, as_json=as_json)
                return
            if not choice.yes:
                _confirm(kind, choice.wanted, found, due_ms)
            order = Order(kind, choice.wanted, due_ms, found.upto, found.total, group)
            journal = Journal.begin(choice.journal or new_path(kind, clock.wall_ms()), order)
        with interruptible() as stop, _actions(settings, instances, journal.order, url, patience_s) as actions:
            _run(journal, actions, instances, stop, patience_s, choice.per_second)
    _show_end(journal, as_json=as_json)


def _check(kind: ControlKind, choice: Choice, due_ms: int | None) -> None:
    if choice.resume is not None:
        if not choice.wanted.is_empty or choice.everything or choice.dry_run or choice.journal is not None:
            raise click.UsageError(
                "--resume: the journal determines the messages: remove the filter, --dry-run and --journal"
            )
        if due_ms is not None:
            raise click.UsageError("--resume: the journal determines the due time: remove --due-ms and --delay")
        return
    if choice.everything and not choice.wanted.is_empty:
        raise click.UsageError("--all and a filter: give one of them")
    try:
        render_control(kind, TimerId(0, 0, 0), "checked", due_ms)
    except ValueError as error:
        raise click.UsageError(f"{kind}: {error}") from None
    if not choice.dry_run and not choice.yes and not _somebody_is_there():
        raise click.UsageError(
            "cannot ask for confirmation (stdin is not a terminal): add --yes, or look with --dry-run"
        )


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _resumed(path: Path, kind: ControlKind, group: str | None) -> Journal:
    journal = Journal.read(path)
    order = journal.order
    if order.kind is not kind:
        raise click.UsageError(f"--resume: {path} is of a {order.kind}: retry-sidecar {order.kind} --resume {path}")
    if None not in (group, order.group) and group != order.group:
        raise click.UsageError(
            f"--resume: {path} is of {order.group} (STREAMS_APP_ID/INPUT_TOPIC), and the settings say {group}"
        )
    return journal


def _count(reader: TimerReader) -> Found:
    with _bar("counting") as (bar, task):
        return reader.count(lambda total: bar.update(task, completed=total))


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


@contextmanager
def _actions(
    settings: Settings, instances: Instances, order: Order, url: str | None, timeout_s: float
) -> Iterator[Actions]:
    if url is None:
        with ControlStream(settings, order.kind, order.due_ms) as stream:
            stream.open(deadline_s=OPEN_S)
            yield stream
        return
    calls = HttpStream(instances, order.kind, order.due_ms, deadline_s=timeout_s)
    try:
        yield calls
    finally:
        calls.close()


def _run(
    journal: Journal, actions: Actions, instances: Instances, stop: Stop, patience_s: float, per_second: float | None
) -> None:
    order, clock = journal.order, SystemClock()
    reader = TimerReader(instances, order.wanted, stop, clock, patience_s)
    with _bar(_DOING[order.kind], order.total) as (bar, task):
        bar.update(task, completed=journal.progress.outcomes.total())
        run = Run(
            reader,
            actions,
            journal,
            stop,
            clock,
            timeout_s=patience_s,
            per_second=per_second,
            advanced=lambda done: bar.update(task, completed=done),
        )
        try:
            run.go()
        except CommandFailed as error:
            said = f"{journal.progress.outcomes.total():,} of {order.total:,} messages have an answer"
            how = f"retry-sidecar {order.kind} --resume {journal.path}"
            text = f"{error}: {said}; continue with the same settings: {how}"
            raise CommandFailed(text) from error


def _show_end(journal: Journal, *, as_json: bool) -> None:
    order, progress = journal.order, journal.progress
    refused = dict(list(progress.refused.items())[:_REFUSED_SHOWN])
    gone = max(0, order.total - progress.outcomes.total())
    if as_json:
        answer = {
            "command": order.kind.value,
            "total": order.total,
            "outcomes": dict(progress.outcomes),
            "gone": gone,
            "refused": refused,
            "journal": str(journal.path),
        }
        print_json(answer)
    else:
        for outcome, count in sorted(progress.outcomes.items(), key=lambda item: -item[1]):
            say(f"{count:,} {_MEANING.get(outcome, outcome)}")
        if gone:
            say(f"{gone:,} were gone or done when it came to them")
        for timer, why in refused.items():
            say(f"{timer}: {why}", err=True)
    if progress.refused:
        raise click.exceptions.Exit(1)


@contextmanager
def _bar(what: str, total: int | None = None) -> Iterator[tuple[Progress, Any]]:
    shown = console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=total is None,
        disable=not shown.is_terminal,
    )
    with bar:
        yield bar, bar.add_task(what, total=total)
