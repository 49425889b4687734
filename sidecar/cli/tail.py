"""`retry-sidecar tail`: the deliveries of an origin topic, as its consumers see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from sidecar.cli.instants import shown_instant, shown_span
from sidecar.cli.options import KAFKA, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import print_json, say
from sidecar.contract.dialects.native import ATTEMPT, EXCEPTION, GROUP, RETRY_ID, TIMER_ID, WAS_DUE_MS
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.log_reader import LogReader, Unread
from sidecar.model import Record
from sidecar.settings import Settings

LAST_MAX: Final = 10_000

_POLL_S: Final = 0.5
_CALL_S: Final = 15.0
_BATCH: Final = 500
_SHOWN: Final = (ATTEMPT, RETRY_ID, GROUP, EXCEPTION, TIMER_ID)


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar tail orders --last 10")
@click.argument("origin")
@click.option(
    "--last",
    default=0,
    show_default=True,
    type=click.IntRange(0, LAST_MAX),
    help="Begin so many records before the end of each partition; by default with what comes from now on.",
)
@click.option("--count", default=0, type=click.IntRange(0), help="End after so many lines; by default with Ctrl-C.")
@click.option("--all", "every", is_flag=True, help="Show records that the sidecar did not deliver, too.")
@json_option
@settings_options(KAFKA)
def tail(settings: Settings, *, origin: str, last: int, count: int, every: bool, as_json: bool) -> None:
    """Show what the sidecar delivers to ORIGIN: committed records only, as consumers must read it."""
    config.validate_client_properties(settings)
    shown = 0
    try:
        with LogReader(config.delivery_reader(settings, "tail"), origin) as reader:
            for record in _records(reader, last):
                headers = dict(record.headers or ())
                if not every and TIMER_ID not in headers:
                    continue
                if as_json:
                    print_json(_as_json(record, headers))
                else:
                    say(_as_line(record, headers))
                shown += 1
                if shown == count:
                    return
    except KafkaFailed as error:
        raise CommandFailed(f"topic {origin}: cannot be read: {error}") from error
    except KeyboardInterrupt:
        return


def _records(reader: LogReader, last: int) -> Iterator[Record]:
    """Yield records as they come. Raises KafkaFailed."""
    bounds = {each: reader.bounds(each, _CALL_S) for each in range(reader.partition_count(_CALL_S))}
    reader.start({number: max(each.start, each.end - last) for number, each in bounds.items()})
    while True:
        for item in reader.read(_BATCH, _POLL_S):
            if isinstance(item, Record):
                yield item
            elif isinstance(item, Unread) and not item.error.away:
                raise item.error


def _late_ms(record: Record, headers: dict[str, bytes | None]) -> int | None:
    """Return how long after its due a delivery was fired; None for a record without that header."""
    due = headers.get(WAS_DUE_MS) or b""
    return record.timestamp_ms - int(due) if due.isdigit() else None


def _as_line(record: Record, headers: dict[str, bytes | None]) -> str:
    late_ms = _late_ms(record, headers)
    words = [
        shown_instant(record.timestamp_ms),
        f"{record.partition}-{record.offset}",
        "" if late_ms is None else f"late={shown_span(late_ms)}",
        *(f"{name}={_text(headers[name]) or ''}" for name in _SHOWN if name in headers),
        "" if record.key is None else f"key={_text(record.key)}",
    ]
    return "  ".join(filter(None, words))


def _as_json(record: Record, headers: dict[str, bytes | None]) -> dict[str, object]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "late_ms": _late_ms(record, headers),
        "key": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers or ()],
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
