"""`retry-sidecar send`: test messages for the retry topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from retry_sidecar import Retry
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sidecar.cli.instants import read_duration
from sidecar.cli.options import KAFKA, TOPICS, SettingsCommand, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed, KafkaFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, describe_topics
from sidecar.kafka.admin.topics import create_command
from sidecar.kafka.writer import Writer, Written
from sidecar.model import TimerId
from sidecar.settings import Settings

_ASK_S = 15.0
_FLUSH_S = 40.0
_LISTED = 1_000
_BAR_FROM = 1_000


class Batch(NamedTuple):
    """The messages to send, and their rate."""

    retry: Retry
    key: str | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    total: int
    per_second: float | None
    verbatim: bool
    """The value is sent as it is; else `{n}` in it is the number of the message."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """The results of the messages, summed as the delivery reports arrive."""

    delivered: int = 0
    failed: int = 0
    first_failure: str = ""
    listed: list[Written] = dataclasses.field(default_factory=list)
    """The first 1,000 that were delivered."""

    def add(self, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            self.failed += 1
            self.first_failure = self.first_failure or str(written)
            return
        self.delivered += 1
        if len(self.listed) < _LISTED:
            self.listed.append(written)


def _pairs(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    pairs = []
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise click.BadParameter(f"{text!r}: must be NAME:VALUE")
        pairs.append((name, value.encode()))
    return tuple(pairs)


@click.command(
    cls=SettingsCommand, epilog="Example: retry-sidecar send --origin orders --delay 20s --count 1000 --per-second 200"
)
@click.option("--origin", required=True, help="Topic to deliver the messages to when they are due.")
@click.option(
    "--delay",
    "delay_ms",
    callback=read_duration,
    metavar="DURATION",
    help="Delay such as 20s or 5m.  [default: the policy's delay]",
)
@click.option("--due-ms", type=click.IntRange(min=0), help="Due time in epoch milliseconds; prints the timer ids.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1), help="Number of messages.")
@click.option(
    "--per-second",
    type=click.FloatRange(min=0, min_open=True),
    help="Maximum number of messages per second.",
)
@click.option("--key", help="Key; {n} in key and value is the number of the message.  [default: no key]")
@click.option("--value", help="Value.  [default: message {n}]")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the value from this file.",
)
@click.option(
    "--header", "headers", multiple=True, callback=_pairs, metavar="NAME:VALUE", help="Header to add; repeatable."
)
@click.option("--exception", help="Class name of the exception.")
@click.option("--attempt", type=click.IntRange(min=0), help="Number of retries so far.")
@click.option("--retry-id", help="Your own id, to find the message by.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object with the first 1,000 messages.")
@settings_options((*KAFKA, *TOPICS))
def send(
    settings: Settings,
    *,
    origin: str,
    delay_ms: int | None,
    due_ms: int | None,
    count: int,
    per_second: float | None,
    key: str | None,
    value: str | None,
    path: Path | None,
    headers: tuple[tuple[str, bytes], ...],
    exception: str | None,
    attempt: int | None,
    retry_id: str | None,
    as_json: bool,
) -> None:
    """Send test messages to the retry topic and wait until the broker has them."""
    if delay_ms is not None and due_ms is not None:
        raise click.UsageError("--delay and --due-ms: give one of them, or none")
    if value is not None and path is not None:
        raise click.UsageError("--value and --file: give one of them, or none")
    retry = Retry(
        origin=origin, due_ms=due_ms, delay_ms=delay_ms, attempt=attempt, exception=exception, retry_id=retry_id
    )
    content = path.read_bytes() if path is not None else (value if value is not None else "message {n}").encode()
    batch = Batch(retry, key, content, headers, count, per_second, verbatim=path is not None)
    config.validate_client_properties(settings)
    _look_before(settings, origin)
    _show(settings, due_ms, _send(settings, batch), as_json=as_json)


def _look_before(settings: Settings, origin: str) -> None:
    """Fail early, and with a reason, where sending would only time out."""
    topics = describe_topics(Admin(settings), (settings.input_topic, origin), Deadline(_ASK_S))
    if topics[settings.input_topic] is None:
        raise TopicsInvalid(f"topic {settings.input_topic}: does not exist; create it with: {create_command(settings)}")
    if topics[origin] is None:
        say(f"note: topic {origin} does not exist: the sidecar will send the messages to the DLQ", err=True)


def _send(settings: Settings, batch: Batch) -> Outcome:
    outcome = Outcome()
    writer = Writer(config.retry_producer(settings))
    notes = console(stderr=True)
    bar = Progress(
        TextColumn("sending"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notes,
        disable=not notes.is_terminal or (batch.total < _BAR_FROM and batch.per_second is None),
    )
    with bar:
        task = bar.add_task("sending", total=batch.total)
        for number in _paced(writer, batch):
            _write(writer, settings.input_topic, batch, number, outcome)
            bar.update(task, completed=outcome.delivered)
        left = writer.flush(_FLUSH_S)
        bar.update(task, completed=outcome.delivered)
    if outcome.failed or left:
        why = outcome.first_failure or "timed out"
        raise CommandFailed(f"{outcome.failed + left} of {batch.total} messages were not delivered: {why}")
    return outcome


def _paced(writer: Writer, batch: Batch) -> Iterator[int]:
    """Yield 1 to count, not faster than the rate; reports are served while waiting."""
    clock = SystemClock()
    start_s = clock.monotonic_s()
    for number in range(1, batch.total + 1):
        if batch.per_second is not None:
            at_s = start_s + (number - 1) / batch.per_second
            while (wait_s := at_s - clock.monotonic_s()) > 0:
                # Wakes early for a report, so what is left is waited for again.
                writer.poll(wait_s)
        yield number


def _write(writer: Writer, topic: str, batch: Batch, number: int, outcome: Outcome) -> None:
    here = str(number)
    key = None if batch.key is None else batch.key.replace("{n}", here).encode()
    value = batch.value if batch.verbatim else batch.value.replace(b"{n}", here.encode())
    headers = [*batch.headers, *batch.retry.headers()]
    while True:
        try:
            writer.write(topic, key, value, headers=headers, report=outcome.add)
        except BufferError:
            writer.poll(0.1)
            continue
        writer.poll(0)
        return


def _show(settings: Settings, due_ms: int | None, outcome: Outcome, *, as_json: bool) -> None:
    timer_ids = [
        None if due_ms is None else str(TimerId(written.partition, written.offset, due_ms))
        for written in outcome.listed
    ]
    if as_json:
        messages = [
            {"partition": written.partition, "offset": written.offset, "timer_id": timer_id}
            for written, timer_id in zip(outcome.listed, timer_ids, strict=True)
        ]
        answer = {"topic": settings.input_topic, "sent": outcome.delivered, "messages": messages}
        print_json(answer)
        return
    for timer_id in timer_ids:
        if timer_id is not None:
            say(timer_id)
    plural = "message" if outcome.delivered == 1 else "messages"
    say(f"{outcome.delivered} {plural} sent to {settings.input_topic}", err=True)
