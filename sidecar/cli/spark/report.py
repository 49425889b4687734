"""`retry-sidecar spark report`: retries and dead letters of the whole history, as tables, charts and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from sidecar.cli.dlq.filter import table
from sidecar.cli.instants import read_instant
from sidecar.cli.options import KAFKA, POLICY, SettingsCommand, json_option, settings_options
from sidecar.cli.spark.options import engine_options, with_progress
from sidecar.cli.spark.page import page, shown_name, topics
from sidecar.cli.terminal import console, print_json
from sidecar.clock import SystemClock
from sidecar.dlq.count import OTHERS, shown_hour
from sidecar.errors import CommandFailed
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config
from sidecar.spark.jobs.report import Dimension, Kind, NameCounts, Report

_LATEST: Final = 20
"""Hours on the console."""
_WORDS: Final = {Kind.RETRY: ("retry", "retries"), Kind.DEAD: ("dead letter", "dead letters")}


def _file(_ctx: click.Context, _param: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and not given.parent.is_dir():
        raise click.BadParameter(f"{given}: there is no folder {given.parent}")
    return given


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar spark report --since -7d --html report.html")
@click.option(
    "--since",
    "since_ms",
    metavar="INSTANT",
    callback=read_instant,
    help="Start of each partition, by the records' timestamps: epoch ms, ISO 8601, or a duration from now such as "
    "-7d.  [default: the beginning]",
)
@click.option(
    "--until",
    "until_ms",
    metavar="INSTANT",
    callback=read_instant,
    help="End of each partition, exclusive.  [default: the end at the time of the start]",
)
@click.option(
    "--top",
    "most",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1_000),
    help="Show this many names of each kind, the most frequent ones; --out has all.",
)
@click.option("--out", metavar="FOLDER", help="Write one row for each combination there, as Parquet.")
@click.option(
    "--html",
    metavar="FILE",
    callback=_file,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a self-contained page with charts.",
)
@json_option
@engine_options
@settings_options((*KAFKA, *POLICY))
def report(
    settings: Settings,
    *,
    since_ms: int | None,
    until_ms: int | None,
    most: int,
    out: str | None,
    html: Path | None,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Count retries and dead letters by origin, exception, attempt and hour, and dead letters by reason too.

    A retry is a record of the retry topic that becomes a timer by the present settings: each attempt is one. The
    exception is the one that the sender named; a dead letter without one has a name for its reason. An attempt is the
    number of retries made before. Reads the committed records of the retry topic and the DLQ, and changes nothing. The
    user needs the permissions Read and DescribeConfigs on both.
    """
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.kafka.config import validate_client_properties  # noqa: PLC0415
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415

    validate_client_properties(settings)
    require_pyspark()
    from sidecar.spark.jobs.report_job import Scope, run_report  # noqa: PLC0415

    now_ms = SystemClock().wall_ms()
    scope = Scope(since_ms=since_ms, until_ms=until_ms, most=most, out=out, now_ms=now_ms)
    found = run_report(settings, policy_config(settings), scope, master=master, conf=with_progress(conf))
    if html is not None:
        try:
            html.write_text(page(found, settings, now_ms), encoding="utf-8")
        except OSError as cause:
            raise CommandFailed(f"--html: {html} cannot be written: {cause.strerror}") from cause
    if as_json:
        print_json(to_json(found, settings))
    else:
        _show(found, settings)


def to_json(found: Report, settings: Settings) -> dict[str, Any]:
    """Return the report as JSON; records without a name count under the empty name."""

    def names(dimension: Dimension, these: NameCounts) -> dict[str, Any]:
        texts = [(shown_hour(int(name)) if dimension is Dimension.HOUR and name else name) for name, _ in these.shown]
        counts = [count for _, count in these.shown]
        listed = [{"name": name, "count": count} for name, count in zip(texts, counts, strict=True)]
        return {"names": listed, "other_names": these.other_names, "others": these.others}

    return {
        kind.value: {
            "topic": topic,
            "total": found.totals.get(kind, 0),
            **{f"by_{each.value}": names(each, by_kind[kind]) for each, by_kind in found.by.items() if kind in by_kind},
        }
        for kind, topic in topics(settings).items()
    }


def _show(found: Report, settings: Settings) -> None:
    out = console()
    for kind, topic in topics(settings).items():
        total = found.totals.get(kind, 0)
        one, many = _WORDS[kind]
        out.print(f"{topic}: {total:,} {one if total == 1 else many}", "", sep="\n")
        if total:
            out.print(Columns(list(_tables(found, kind)), padding=(0, 6)), "", sep="\n")


def _tables(found: Report, kind: Kind) -> Iterator[RenderableType]:
    for dimension, by_kind in found.by.items():
        if (names := by_kind.get(kind)) is None:
            continue
        shown = table((dimension.value,), ("count",))
        # The latest hours matter most.
        listed = names.shown[-_LATEST:] if dimension is Dimension.HOUR else names.shown
        for name, count in listed:
            shown.add_row(Text(shown_name(dimension, name)), f"{count:,}")
        if hidden := names.shown[: len(names.shown) - len(listed)]:
            names = names._replace(
                other_names=names.other_names + len(hidden),
                others=names.others + sum(count for _, count in hidden),
            )
        if names.other_names:
            shown.add_row(f"{OTHERS}: {names.other_names:,}", f"{names.others:,}")
        yield shown
