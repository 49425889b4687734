"""`retry-sidecar dlq report`: counts the dead letters by their headers."""

from __future__ import annotations

from collections import Counter
from typing import Final

import click
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from sidecar.cli.dlq.filter import NONE, bar, dead_letter_options, dead_letter_table, died_from_ms, died_to_ms, table
from sidecar.cli.interrupt import Interrupted, interruptible
from sidecar.cli.options import DEAD_LETTERS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json
from sidecar.contract import dialects_of
from sidecar.dlq.count import KINDS, Count, sorted_names
from sidecar.dlq.discards import DiscardLog, discard_of
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import KafkaDeadLetterReader, offset_ranges
from sidecar.errors import printable
from sidecar.interpreter import tune_interpreter
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.config import validate_client_properties
from sidecar.settings import Settings

_ROWS: Final = 20


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar dlq report --died-from -24h --examples 3")
@dead_letter_options
@click.option(
    "--examples",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1_000),
    help="Show this many of each reason, the first ones, with detail and coordinates but without payload.",
)
@json_option
@settings_options(DEAD_LETTERS)
def report(settings: Settings, *, wanted: DeadLetterFilter, examples: int, as_json: bool) -> None:
    """Count dead letters by reason, origin, exception, attempt, group and hour of their death.

    Reads committed records up to the end at the time of the start; changes nothing. The user needs the permissions Read
    and DescribeConfigs on the DLQ.
    """
    validate_client_properties(settings)
    tune_interpreter()
    count, admin = Count(wanted, examples), Admin(settings)
    discards = DiscardLog(settings, admin).read()
    found = offset_ranges(settings, admin, died_from_ms(wanted), died_to_ms(wanted))
    dialects = dialects_of(settings.dialects)
    reader = KafkaDeadLetterReader(settings, found, f"{settings.group_id}-dlq-report", dialects)
    try:
        with interruptible() as stop, bar("reading the DLQ", reader.remaining) as shown:
            while not reader.done:
                if stop.asked:
                    raise Interrupted("interrupted")
                count.add(each for each in reader.read() if discard_of(discards, each) is None)
                shown(reader.remaining)
    finally:
        reader.close()
    if as_json:
        print_json(count.to_json(settings.dlq_topic))
    else:
        _show(settings, count, wanted)


def _show(settings: Settings, count: Count, wanted: DeadLetterFilter) -> None:
    out = console()
    dead_letters = "dead letter" if count.total == 1 else "dead letters"
    out.print(f"{settings.dlq_topic}: {count.total:,} {dead_letters} {wanted}, of {count.read:,} read")
    if not count.total:
        return
    parts: list[RenderableType] = [
        Columns([_table(kind, count.by[kind]) for kind in pair], padding=(0, 6)) for pair in (KINDS[:2], KINDS[3:5])
    ]
    parts[1:1] = [_table("exception", count.by["exception"])]
    parts.append(_table("hour", count.by["hour"]))
    for reason, first in count.first.items():
        parts.append(Group(Text(f"{printable(reason) or NONE}, the first {len(first)}:"), dead_letter_table(first)))
    for part in parts:
        out.print("", part, sep="\n")


def _table(kind: str, counter: Counter[str]) -> RenderableType:
    shown = table((kind,), ("records",))
    rows = list(sorted_names(kind, counter).items())
    # The latest hours matter most.
    kept = rows[-_ROWS:] if kind == "hour" else rows[:_ROWS]
    for name, number in kept:
        shown.add_row(Text(printable(name) or NONE), f"{number:,}")
    if len(rows) > _ROWS:
        rest = sum(counter.values()) - sum(number for _, number in kept)
        shown.add_row(f"{len(rows) - _ROWS} more", f"{rest:,}")
    return shown
