"""`retry-sidecar round-trip`: one message through the retry topic and back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

import click
from retry_sidecar import Retry

from sidecar.cli.instants import read_duration
from sidecar.cli.options import KAFKA, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import print_json, say
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed, KafkaFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, MissingPermission, describe_topics
from sidecar.kafka.admin.topics import create_command
from sidecar.kafka.log_reader import LogReader, Unread
from sidecar.kafka.writer import Writer, Written
from sidecar.model import Record
from sidecar.settings import Settings

MARK: Final = "retry-sidecar-round-trip"
"""The header by which the command knows its message again; a message of an application has none."""

_LOOK_S: Final = 0.5
_HEARD_S: Final = 5.0
_BATCH: Final = 500


class Trip(NamedTuple):
    """A message that came back."""

    sent: Written
    delivered: Record
    seconds: float
    """From the sending to the reading of the delivery."""


@click.command(
    "round-trip",
    cls=SettingsCommand,
    epilog="Example: retry-sidecar round-trip --origin checks --delay 2s --timeout 60",
)
@click.option("--origin", required=True, help="Topic to deliver the message to; one that no application reads.")
@click.option(
    "--delay", "delay_ms", default="1s", show_default=True, callback=read_duration, metavar="DURATION", help="Delay."
)
@click.option(
    "--timeout",
    "timeout_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Seconds for the whole command.",
)
@json_option
@settings_options((*KAFKA, *TOPICS, "given_group_id"))
def round_trip(settings: Settings, *, origin: str, delay_ms: int, timeout_s: float, as_json: bool) -> None:
    """Send one message and wait until the sidecar delivers it; exit status 1, with the reason, if it does not."""
    if delay_ms >= timeout_s * 1000:
        raise click.UsageError(f"--delay: {delay_ms} ms: must be shorter than --timeout, {timeout_s:g} s")
    if origin in settings.own_topics:
        raise click.UsageError(f"--origin: {origin}: must be none of the sidecar's own topics")
    config.validate_client_properties(settings)
    deadline = Deadline(timeout_s)
    _look_before(settings, origin, deadline)
    trip = _travel(settings, Retry(origin=origin, delay_ms=delay_ms), deadline, timeout_s)
    if as_json:
        sent, delivered = (
            {"topic": topic, "partition": place.partition, "offset": place.offset}
            for topic, place in ((settings.input_topic, trip.sent), (origin, trip.delivered))
        )
        print_json({"sent": sent, "delivered": delivered, "seconds": round(trip.seconds, 3)})
        return
    say(
        f"sent to {settings.input_topic}, partition {trip.sent.partition}, offset {trip.sent.offset}; delivered to "
        f"{origin}, partition {trip.delivered.partition}, offset {trip.delivered.offset}, after {trip.seconds:.1f} s"
    )


def _look_before(settings: Settings, origin: str, deadline: Deadline) -> None:
    admin, names = Admin(settings), (settings.input_topic, origin)
    topics = describe_topics(admin, names, deadline)
    # A broker may not have heard of a new topic yet.
    again = Deadline(min(_HEARD_S, deadline.left_s))
    while None in topics.values() and not again.passed:
        again.pause()
        topics = describe_topics(admin, names, deadline)
    missing = [
        f"topic {name}: does not exist; create it with: {create_command(settings)} --origin {origin}"
        for name, found in topics.items()
        if found is None
    ]
    unseen = [
        f"topic {name}: the permission Describe is missing: {permission} on it gives it"
        for name, permission in ((settings.input_topic, "Write"), (origin, "Read"))
        if isinstance(found := topics[name], MissingPermission) and found.operation == "DESCRIBE"
    ]
    if missing or unseen:
        raise TopicsInvalid("\n".join(missing + unseen))


def _travel(settings: Settings, retry: Retry, deadline: Deadline, timeout_s: float) -> Trip:
    token = uuid.uuid4().hex.encode()
    try:
        with LogReader(config.delivery_reader(settings, "round-trip"), retry.origin) as reader:
            partitions = range(reader.partition_count(deadline.left_s))
            # From here on, and before the message is sent: what was there is nobody's answer.
            reader.start({each: reader.bounds(each, deadline.left_s).end for each in partitions})
            clock = SystemClock()
            start_s = clock.monotonic_s()
            sent = _send(settings, retry, token, deadline)
            delivered = _await(reader, lambda record: (MARK, token) in (record.headers or ()), deadline)
            if delivered is not None:
                return Trip(sent, delivered, clock.monotonic_s() - start_s)
    except KafkaFailed as error:
        raise CommandFailed(f"topic {retry.origin}: cannot be read: {error}") from error
    cause = f" ({reader.error})" if reader.error else ""
    raise CommandFailed(
        f"the message at offset {sent.offset} of partition {sent.partition} of {settings.input_topic} was not "
        f"delivered to {retry.origin} within {timeout_s:g} s{cause}: see whether an instance is ready "
        "(`retry-sidecar health --ready`), whether the message is pending "
        f"(`retry-sidecar list --origin {retry.origin}`), and whether ORIGIN_TOPICS allows {retry.origin}: if it does "
        f"not, the message is on {settings.dlq_topic}"
    )


def _send(settings: Settings, retry: Retry, token: bytes, deadline: Deadline) -> Written:
    results: list[Written | KafkaFailed] = []
    writer = Writer(config.retry_producer(settings))
    headers = [(MARK, token), *retry.headers()]
    writer.write(settings.input_topic, None, b"round trip", headers=headers, report=results.append)
    writer.flush(deadline.left_s)
    match results:
        case [Written() as written]:
            return written
        case [KafkaFailed() as error]:
            raise CommandFailed(f"topic {settings.input_topic}: cannot be written: {error}") from error
        case _:
            raise CommandFailed(f"topic {settings.input_topic}: the brokers did not confirm the message in time")


def _await(reader: LogReader, is_ours: Callable[[Record], bool], deadline: Deadline) -> Record | None:
    """Return the delivery; None if time ran out. Raises KafkaFailed."""
    while not deadline.passed:
        for item in reader.read(_BATCH, min(_LOOK_S, deadline.left_s)):
            if isinstance(item, Record) and is_ours(item):
                return item
            if isinstance(item, Unread) and item.error.denied:
                raise item.error
    return None
