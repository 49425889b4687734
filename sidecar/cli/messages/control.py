"""`retry-sidecar cancel`, `reschedule`, `fire`, `pause`, `resume` and `outcome`: control records and their answers.

They need only the cluster, not HTTP: the owner of a partition answers on the status topic. By --url an instance does
the same. A filter is a target like the others; what it would act on is listed by an instance first: see by_filter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sidecar.cli.instance import Instances, where_options
from sidecar.cli.instants import read_duration, shown_instant
from sidecar.cli.messages.by_filter import Choice, choice_options, may_act
from sidecar.cli.messages.http_control import HttpControl, new_control_id
from sidecar.cli.options import INSTANCES, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.contract.control import EVERY_ORIGIN, ControlKind, Outcome, Target, parse_target, render_control
from sidecar.contract.filter import FILTER_PREFIX
from sidecar.control.client import DEADLINE_S, LOOKUP_DEADLINE_S, ControlClient, ControlResult, Sent
from sidecar.engine.items import target_text
from sidecar.errors import CommandFailed
from sidecar.kafka.config import validate_client_properties
from sidecar.model import ANY_SCOPE, Scope
from sidecar.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

FILTER_TIMEOUT_S: Final = 600.0
"""A filter goes through all that is pending: some 100,000 messages of a partition a second."""
_SECONDS = click.FloatRange(min=0, min_open=True)
_WORDS = {
    Outcome.NOT_PENDING: "not pending: it has fired, was cancelled, or never existed",
    Outcome.ORIGIN_PAUSED: "not fired: its origin is not open",
    Outcome.BAD_REQUEST: "refused",
}
"""The outcomes after which nothing is done, for a person; all others are named as they are."""
_SWITCHED: Final = frozenset({Outcome.PAUSED, Outcome.RESUMED})


def _utf8(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        # A shell hands over bytes that are no text as lone surrogates.
        if (shown := text.encode(errors="replace").decode()) != text:
            raise click.BadParameter(f"{shown!r}: must be UTF-8 text")
    return texts


def read_targets(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the targets of an argument, all read before the first one is acted on; its callback."""
    try:
        return tuple(parse_target(text) for text in _utf8(ctx, parameter, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _answering(function: F) -> F:
    """Give a command the options that all of them share."""
    options = (
        click.option(
            "--timeout",
            "timeout_s",
            type=_SECONDS,
            help=f"Seconds to wait for the answer.  [default: {DEADLINE_S:g}; with a filter {FILTER_TIMEOUT_S:g}]",
        ),
        click.option(
            "--no-wait", is_flag=True, help="Print the control id and exit; `retry-sidecar outcome` looks it up."
        ),
        json_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


_timers = click.argument("targets", nargs=-1, metavar="TARGET...", callback=read_targets)
_origins = click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", callback=_utf8)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar cancel 2-1841-1767225600000 id:order-4711")
@_timers
@choice_options
@_answering
@where_options
@settings_options(INSTANCES)
def cancel(settings: Settings, /, *, targets: Sequence[Target], choice: Choice, **how: Any) -> None:
    """Remove messages before they fire: the named ones, or those that match a filter.

    TARGET is a timer id, or id:<retry-id> for all messages with that id; --origin and --group leave out those of
    others. Exit status 0: the pending messages are never delivered. Exit status 1: a target was not pending or was
    refused, or no answer came in time.

    \b
    With a filter; look first:
      retry-sidecar cancel --origin orders --due-to 1h --dry-run
    """
    _act_on(settings, ControlKind.CANCEL, targets, choice, **how)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar reschedule 2-1841-1767225600000 --delay 10m")
@_timers
@click.option("--due-ms", type=click.IntRange(min=0), help="Due time in epoch milliseconds; a past time fires at once.")
@click.option("--delay", "delay_ms", callback=read_duration, metavar="DURATION", help="Due time from now: 20s, 5m, 1h.")
@choice_options
@_answering
@where_options
@settings_options(INSTANCES)
def reschedule(
    settings: Settings,
    /,
    *,
    targets: Sequence[Target],
    choice: Choice,
    due_ms: int | None,
    delay_ms: int | None,
    **how: Any,
) -> None:
    """Give messages another due time; their timer ids stay the same.

    TARGET is a timer id, or id:<retry-id> for all messages with that id; --origin and --group leave out those of
    others. Exit status 1 if a target was not pending or was refused, or no answer came in time. With a filter, all
    messages become due at the same instant:

    \b
      retry-sidecar reschedule --origin orders --due-to 1h --delay 6h
    """
    if due_ms is not None and delay_ms is None:
        at_ms = due_ms
    elif due_ms is None and delay_ms is not None:
        at_ms = SystemClock().wall_ms() + delay_ms
    else:
        raise click.UsageError("--due-ms and --delay: give one of them")
    _act_on(settings, ControlKind.RESCHEDULE, targets, choice, due_ms=at_ms, **how)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar fire id:order-4711")
@_timers
@choice_options
@_answering
@where_options
@settings_options(INSTANCES)
def fire(settings: Settings, /, *, targets: Sequence[Target], choice: Choice, **how: Any) -> None:
    """Send messages to their origin now, before their due time.

    TARGET is a timer id, or id:<retry-id> for all messages with that id; --origin and --group leave out those of
    others. Exit status 1 if a target was not pending or was refused, its origin is paused, or no answer came in time.

    \b
    With a filter:
      retry-sidecar fire --origin orders --exception 'com.acme.*'
    """
    _act_on(settings, ControlKind.FIRE, targets, choice, **how)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar pause orders payments")
@_origins
@_answering
@where_options
@settings_options(INSTANCES)
def pause(settings: Settings, /, *, topics: Sequence[str], **how: Any) -> None:
    """Stop deliveries to an origin topic until you resume it; other origins continue.

    TOPIC '*' stops deliveries to all origins, including new ones, until you resume '*'.
    """
    _act(settings, ControlKind.PAUSE, topics, **how)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar resume orders payments")
@_origins
@_answering
@where_options
@settings_options(INSTANCES)
def resume(settings: Settings, /, *, topics: Sequence[str], **how: Any) -> None:
    """Continue deliveries to a paused origin topic; deferred messages arrive within 15 minutes, spread over that time.

    TOPIC '*' ends the pause of all origins; origins that you paused by name stay paused.
    """
    _act(settings, ControlKind.RESUME, topics, **how)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar outcome 1767225600000-9f86d081884c7d65")
@click.argument("control_id")
@click.option("--timeout", "timeout_s", default=LOOKUP_DEADLINE_S, show_default=True, type=_SECONDS, help="Seconds.")
@json_option
@where_options
@settings_options(INSTANCES)
def outcome(settings: Settings, *, control_id: str, timeout_s: float, as_json: bool, url: str | None) -> None:
    """Look up the outcome of a control record; outcomes are kept for a day.

    Exit status 1 while a partition has not answered. If nothing was done, the exit status is that of the command that
    sent the record.
    """
    if url is not None:
        found = _by_http(settings, url).lookup(control_id)
    else:
        validate_client_properties(settings)
        with ControlClient(settings) as client:
            found = client.lookup(control_id, deadline_s=timeout_s)
    if found is None:
        raise CommandFailed(
            f"no outcome of control id {control_id} on topic {settings.status_topic}: no sidecar has applied it yet "
            "(is `retry-sidecar run` running?), it was never sent, or it is older than a day"
        )
    if as_json:
        print_json(_as_json(found))
    else:
        _show(found, "")
    if not _is_done(found):
        raise click.exceptions.Exit(1)


def _act_on(
    settings: Settings,
    kind: ControlKind,
    targets: Sequence[Target],
    choice: Choice,
    *,
    timeout_s: float | None,
    no_wait: bool,
    as_json: bool,
    url: str | None,
    due_ms: int | None = None,
) -> None:
    """Act on what is named, or on what a filter chooses."""
    scope = ANY_SCOPE
    if targets:
        if choice.scope is None:
            raise click.UsageError(
                "TARGET takes only --origin and --group of these options: name messages, or choose them by a filter"
            )
        scope = choice.scope
    elif not choice.is_made:
        raise click.UsageError(
            "Missing argument 'TARGET...': name messages, or choose them with --origin, --partition, --due-from, "
            "--due-to or --all"
        )
    else:
        if not may_act(settings, kind, choice, url=url, due_ms=due_ms, as_json=as_json):
            return
        targets = [choice.wanted.target]
        timeout_s = FILTER_TIMEOUT_S if timeout_s is None else timeout_s
    _act(
        settings,
        kind,
        targets,
        timeout_s=timeout_s,
        no_wait=no_wait,
        as_json=as_json,
        url=url,
        due_ms=due_ms,
        scope=scope,
    )


def _act(
    settings: Settings,
    kind: ControlKind,
    targets: Sequence[Target],
    *,
    timeout_s: float | None,
    no_wait: bool,
    as_json: bool,
    url: str | None,
    due_ms: int | None = None,
    scope: Scope = ANY_SCOPE,
) -> None:
    """Act on one target after the other, and show each answer when it is there."""
    _check(kind, targets, due_ms, scope)
    wait_s = DEADLINE_S if timeout_s is None else timeout_s
    if url is not None and no_wait:
        raise click.UsageError("--no-wait and --url: an instance waits for the answer; give one of them")
    done = True

    def show(result: ControlResult) -> None:
        nonlocal done
        done = done and _is_done(result)
        if as_json:
            print_json(_as_json(result))
        else:
            _show(result, f" to {shown_instant(due_ms)}" if due_ms is not None else "")

    if url is not None:
        control = _by_http(settings, url)
        for target in targets:
            control_id = new_control_id()
            with _named_when_cut(target_text(target), control_id):
                result = control.act(kind, target, due_ms=due_ms, deadline_s=wait_s, scope=scope, control_id=control_id)
            show(result)
    else:
        validate_client_properties(settings)
        with ControlClient(settings) as client:
            for target in targets:
                sent = client.send(kind, target, due_ms=due_ms, scope=scope, deadline_s=wait_s)
                if no_wait:
                    _show_sent(sent, as_json=as_json)
                else:
                    show(_wait(client, sent, wait_s))
    if not done:
        raise click.exceptions.Exit(1)


def _by_http(settings: Settings, url: str) -> HttpControl:
    return HttpControl(Instances(lambda: (url,), settings.api_token, authorities=settings.http_tls_ca))


def _check(kind: ControlKind, targets: Iterable[Target], due_ms: int | None, scope: Scope) -> None:
    """Refuse what the sidecar would refuse for its form, before anything is sent."""
    for target in targets:
        try:
            render_control(kind, target, "checked", due_ms, scope)
        except ValueError as error:
            raise click.UsageError(f"{kind} {target_text(target)}: {error}") from None


def _wait(client: ControlClient, sent: Sent, timeout_s: float) -> ControlResult:
    with _named_when_cut(sent.target, sent.control_id, CommandFailed), _bar(sent) as heard:
        return client.wait(sent, deadline_s=timeout_s, heard=heard)


@contextmanager
def _bar(sent: Sent) -> Iterator[Callable[[int], None]]:
    """Show how many partitions have answered a filter, which may take minutes."""
    shown = console(stderr=True)
    hidden = not shown.is_terminal or not sent.target.startswith(FILTER_PREFIX)
    columns = (TextColumn("partitions"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True, disable=hidden) as bar:
        task = bar.add_task("partitions", total=len(sent.offsets))
        yield lambda answered: bar.update(task, completed=answered)


@contextmanager
def _named_when_cut(target: str, control_id: str, *errors: type[Exception]) -> Iterator[None]:
    """Say how to look up an outcome when Ctrl-C or one of these errors ends the wait for it."""
    ends: tuple[type[BaseException], ...] = (KeyboardInterrupt, *errors)
    try:
        yield
    except ends:
        say(f"{target} was sent: {_lookup(control_id)}", err=True)
        raise


def _is_done(result: ControlResult) -> bool:
    nothing_matched = result.outcome is Outcome.NOT_PENDING and result.target.startswith(FILTER_PREFIX)
    return nothing_matched or (result.outcome is not None and result.outcome not in _WORDS)


def _show_sent(sent: Sent, *, as_json: bool) -> None:
    if as_json:
        print_json({"control_id": sent.control_id, "target": sent.target, "outcome": None})
    else:
        say(sent.control_id)


def _show(result: ControlResult, due: str) -> None:
    detail = f" ({result.detail})" if result.detail else ""
    if result.outcome is None:
        partitions = ", ".join(map(str, sorted(result.missing)))
        so_far = f", {_messages(result.count)} so far" if result.answers else ""
        text = (
            f"{result.target}: no answer from partition {partitions} in time{so_far}{detail}: it has no owner now, or "
            f"its owner is busy; the record stays and is applied; {_lookup(result.control_id)}"
        )
        say(text, err=True)
    elif result.outcome is Outcome.NOT_PENDING and _is_done(result):
        say(f"{result.target}: nothing to do: no pending message matches{detail}")
    elif (words := _WORDS.get(result.outcome)) is not None:
        say(f"{result.target}: {words}{detail}; control id {result.control_id}", err=True)
    else:
        pending = " pending" if result.outcome in _SWITCHED else ""
        check = ". Check the name of the topic" if _known(result) is False else ""
        say(f"{result.target}: {result.outcome}{due}, {_messages(result.count)}{pending}{detail}{check}")


def _known(result: ControlResult) -> bool | None:
    """Tell whether the group knows the origin of a pause or resume; None where that is not known, and for all else."""
    if result.outcome not in _SWITCHED:
        return None
    if result.count or result.target == EVERY_ORIGIN:
        return True
    # A resume may have ended a pause.
    return False if result.known is None and result.outcome is Outcome.PAUSED else result.known


def _lookup(control_id: str) -> str:
    return f"look up its outcome with: retry-sidecar outcome {control_id}"


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


def _as_json(result: ControlResult) -> dict[str, object]:
    return {
        "control_id": result.control_id,
        "target": result.target,
        "outcome": result.outcome,
        "count": result.count,
        "detail": result.detail,
        "missing": sorted(result.missing),
        "known": _known(result),
    }
