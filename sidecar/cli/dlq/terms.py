"""The options that set the terms of a redrive, and the output that shows its result."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

from sidecar.cli.dlq.filter import dead_letter_table
from sidecar.cli.instants import read_duration
from sidecar.cli.options import json_option
from sidecar.cli.terminal import console, print_json, say
from sidecar.contract.redrive import MAX_REDRIVES, RedriveTerms, SkipReason
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import RunIdentity
from sidecar.dlq.redrive import Tally, check_origin
from sidecar.errors import printable
from sidecar.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_SINGLE: Final = frozenset({SkipReason.MALFORMED, SkipReason.TOO_LARGE})
"""The reasons whose detail differs from message to message."""
_RUN_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


def terms_options(function: F) -> F:
    """Add the options of the terms to a command, which receives `terms`; used below `dead_letter_options`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        wanted: DeadLetterFilter,
        to_origin: str,
        delay_ms: int | None,
        spread_ms: int | None,
        keep_attempts: bool,
        max_redrives: int,
        **kwargs: Any,
    ) -> Any:
        terms = RedriveTerms(delay_ms or 0, spread_ms or 0, keep_attempts, max_redrives, to_origin, wanted.named)
        return function(*args, wanted=wanted, terms=terms, **kwargs)

    options = (
        click.option("--to-origin", default="", metavar="TOPIC", help="Send them to this origin instead of their own."),
        click.option("--delay", "delay_ms", metavar="DURATION", callback=read_duration, help="Due this long from now."),
        click.option(
            "--spread",
            "spread_ms",
            metavar="DURATION",
            callback=read_duration,
            help="Spread the due times evenly over this time.",
        ),
        click.option("--keep-attempts", is_flag=True, help="Continue counting attempts where they were, not from 0."),
        click.option(
            "--max-redrives",
            default=MAX_REDRIVES,
            show_default=True,
            type=click.IntRange(min=1),
            help="Skip messages that were redriven this many times before: the guard against loops.",
        ),
    )
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]  # click passes the other options


def run_options(function: F) -> F:
    """Add the options of a run to a command: `run_name`, `restart`, `dry_run`, `yes`, `as_json`."""
    options = (
        click.option("--run", "run_name", metavar="NAME", help="The run to continue.  [default: made from the filter]"),
        click.option(
            "--restart", is_flag=True, help="Start the run from --died-from again: sends again what was sent."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Print how many would be sent and show the first; change nothing."
        ),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        json_option,
    )
    for option in reversed(options):
        option(function)
    return function


def check(settings: Settings, terms: RedriveTerms, run_name: str | None, *, yes: bool, dry_run: bool) -> None:
    """Raise UsageError for options that contradict each other or the settings."""
    try:
        check_origin(settings, terms.to_origin)
    except ValueError as mistake:
        raise click.UsageError(f"--to-origin: {mistake}") from None
    if run_name is not None and not _RUN_NAME.fullmatch(run_name):
        raise click.UsageError(f"--run: {run_name!r}: allowed are 1 to 100 characters of a-z A-Z 0-9 . _ -")
    if not dry_run and not yes and not sys.stdin.isatty():
        raise click.UsageError("stdin is not a terminal, so no confirmation is possible: give --yes or --dry-run")


def confirm(settings: Settings, found: Tally) -> None:
    """Show what would be sent and ask; raises Abort."""
    out = console(stderr=True)
    out.print(dead_letter_table(found.first))
    for line in _lines_of_skipped(found):
        out.print(line)
    messages = "message" if found.redriven == 1 else "messages"
    click.confirm(f"send {found.redriven:,} {messages} to {settings.input_topic} again?", abort=True, err=True)


def show(settings: Settings, run: RunIdentity, tally: Tally, *, as_json: bool, dry_run: bool) -> None:
    """Print what was sent, or would be."""
    if as_json:
        print_json(tally.to_json(run, dry_run=dry_run))
        return
    if dry_run and tally.first:
        console().print(dead_letter_table(tally.first), "", sep="\n")
    did = "would be sent" if dry_run else "sent"
    say(f"{tally.redriven:,} {did} to {settings.input_topic} again, of {tally.read:,} read; run {run.name}")
    for line in _lines_of_skipped(tally):
        say(line)
    for record, skipped in tally.first_skipped:
        if skipped.why in _SINGLE:
            say(f"{record.partition}-{record.offset}: {skipped.why}: {printable(skipped.detail)}", err=True)


def _lines_of_skipped(tally: Tally) -> Iterator[str]:
    """Yield a line for each kind of skipped message, with what would redrive it."""
    if tally.filtered:
        yield f"{tally.filtered:,} do not match the filter"
    hints = {
        SkipReason.DISCARDED: "were discarded: take that back with `dlq discard --undo`",
        SkipReason.WOULD_DIE_AGAIN: "would only die again: name the reason with --reason, or fix them with --to-origin",
        SkipReason.LOOP_GUARD: "were redriven as often as --max-redrives allows",
        SkipReason.TRUNCATED: "are incomplete on the DLQ: they can never be redriven",
        SkipReason.MALFORMED: "have headers that cannot be read, so they would only die again",
        SkipReason.NOT_A_DEAD_LETTER: "were not written by a sidecar",
        SkipReason.TOO_LARGE: "are too large for the retry topic",
    }
    for why, by_reason in tally.skipped.items():
        named = ", ".join(f"{printable(reason)} {count:,}" for reason, count in by_reason.most_common() if reason)
        yield f"{by_reason.total():,} stay: they {hints[why]}" + (f" ({named})" if named else "")
