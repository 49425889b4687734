"""`retry-sidecar spark`: the engine that runs on Apache Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.table import Table

from sidecar.cli.options import ALL, KAFKA, POLICY, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.process_log import begin_log
from sidecar.cli.spark.options import engine_options, pairs
from sidecar.cli.spark.redrive import redrive
from sidecar.cli.spark.report import report
from sidecar.cli.terminal import console, print_json, say
from sidecar.settings import GROUPS, Settings, advice_for_run
from sidecar.settings.kinds import parse_duration_ms
from sidecar.settings.policy import policy_config

if TYPE_CHECKING:
    from sidecar.spark.jobs.audit import Audit


def _duration(_ctx: click.Context, _param: click.Parameter, given: str) -> int:
    try:
        return parse_duration_ms(given)
    except ValueError:
        raise click.BadParameter(f"{given!r}: allowed is a duration: 250ms, 1s, ...") from None


_NOT_ON_SPARK = ("state_dir", "commit_interval_ms", "punctuation_interval_ms")
_checkpoint_option = click.option(
    "--checkpoint",
    required=True,
    metavar="FOLDER",
    help="State of the query, on any file system that Hadoop supports: file:///…, hdfs://…; s3a://… and others need "
    "their jars: --conf spark.jars.packages=…, see docs/how-to/spark.md.",
)


@click.group()
def spark() -> None:
    """Run the sidecar on Apache Spark, for loads that outgrow one machine.

    Needs the extra: pip install '.[spark]' in the source tree, and a JDK 17 or 21.
    """


@spark.command(
    cls=SettingsCommand,
    epilog="Example: retry-sidecar spark run --checkpoint hdfs:///retry --master 'local[4]' --origin-topics orders",
)
@click.option(
    "--state-partitions",
    type=click.IntRange(1, 10_000),
    help="Tasks that keep the state; fixed with the checkpoint.  [default: cores, or input partitions if fewer]",
)
@click.option(
    "--trigger",
    default="500ms",
    show_default=True,
    callback=_duration,
    metavar="DURATION",
    help="Least time between the starts of two micro-batches.",
)
@click.option(
    "--from-changelog",
    is_flag=True,
    help="Begin a new checkpoint with the state of the embedded engine; stop that engine first.",
)
@click.option(
    "--source",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="The most that one micro-batch reads, about: maxOffsetsPerTrigger=100000 records, "
    "maxBytesPerTrigger=134217728 bytes; repeatable.",
)
@_checkpoint_option
@engine_options
@settings_options([each for each in ALL if each not in _NOT_ON_SPARK], warn=False)
def run(
    settings: Settings,
    *,
    checkpoint: str,
    master: str | None,
    conf: dict[str, str],
    source: dict[str, str],
    state_partitions: int | None,
    trigger: int,
    from_changelog: bool,
) -> None:
    """Run the streaming query until SIGTERM or Ctrl-C.

    Topics, headers, verdicts, dead letters and control records are those of `retry-sidecar run`; `retry-sidecar api`,
    the dashboard and all other commands work on it unchanged.
    """
    begin_log(settings, (*settings.warnings, *advice_for_run(settings)))
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.runtime.stop import Stop  # noqa: PLC0415

    _require_pyspark()
    from sidecar.cli.spark.http import serving  # noqa: PLC0415
    from sidecar.spark.stream import start  # noqa: PLC0415

    options = start.Options(
        from_changelog=from_changelog,
        checkpoint=checkpoint,
        master=master,
        conf=conf,
        source=source,
        state_partitions=state_partitions,
        trigger_ms=trigger,
    )
    stop = Stop()
    stop.listen()
    with serving(settings) as driver:
        start.run(
            settings,
            policy_config(settings),
            replace(options, url=driver.url, board=driver.board),
            stopping=stop.within,
            opened=stop.listen,
            progressed=driver.progressed,
            failed=driver.failed,
            skewed=driver.skewed,
        )


@spark.command(cls=SettingsCommand, epilog="Example: retry-sidecar spark export --checkpoint hdfs:///retry")
@_checkpoint_option
@json_option
@engine_options
@settings_options((*KAFKA, *TOPICS, "given_group_id", *GROUPS["Log"]), warn=False)
def export(
    settings: Settings,
    *,
    checkpoint: str,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Export the state of a stopped query to the changelog, for the embedded engine.

    `retry-sidecar run` continues from there; the checkpoint is out of date afterwards.
    """
    begin_log(settings, (*settings.warnings, *advice_for_run(settings)))
    _require_pyspark()
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.spark.handover.export import export_state  # noqa: PLC0415

    pending = export_state(settings, checkpoint, master, conf)
    if as_json:
        print_json({"topic": settings.changelog_topic, "pending": pending})
    else:
        say(f"{pending} pending messages are in {settings.changelog_topic}: start `retry-sidecar run`")


@spark.command(cls=SettingsCommand, epilog="Example: retry-sidecar spark audit --out hdfs:///audits/today")
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Checkpoint of the Spark engine, which has the state instead of the changelog.",
)
@click.option("--out", metavar="FOLDER", help="Write every message and what became of it there, as Parquet.")
@json_option
@engine_options
@settings_options((*KAFKA, "api_token", *POLICY))
def audit(
    settings: Settings,
    *,
    checkpoint: str | None,
    out: str | None,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Check that each message on the retry topic is in exactly one place.

    A message is pending, fired, dropped, dead-lettered or cancelled. One that is in none of these is lost, one that is
    in two came twice, and one that reached its origin before it was due is early: the command names these and exits
    with status 1. It works for both engines, also while they run; give it the settings that they have.
    """
    _require_pyspark()
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.spark.jobs.audit_inputs import run_audit  # noqa: PLC0415

    found = run_audit(
        settings,
        policy_config(settings),
        checkpoint=checkpoint,
        out=out,
        master=master,
        conf=conf,
    )
    if as_json:
        print_json({"fates": found.counts, "offences": found.offences, "offenders": found.offenders})
    else:
        _show(found)
    raise click.exceptions.Exit(0 if found.clean else 1)


def _show(found: Audit) -> None:
    out = console()
    counts = Table(box=None, pad_edge=False, header_style="bold")
    counts.add_column("messages that are")
    counts.add_column("", justify="right")
    for fate in ("waiting", "pending", "fired", "dropped", "dead-lettered", "cancelled", "lost", "twice", "early"):
        counts.add_row(fate, f"{found.counts.get(fate, 0):,}")
    out.print(counts)
    if found.clean:
        out.print("each message is in exactly one place")
        return
    offenders = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("partition", "offset", "origin", "fate"):
        offenders.add_column(heading)
    for each in found.offenders:
        offenders.add_row(str(each["partition"]), str(each["offset"]), each["origin"] or "", each["fate"])
    out.print(offenders)
    if found.offences > len(found.offenders):
        out.print(f"and {found.offences - len(found.offenders):,} more: --out writes them all")


def _require_pyspark() -> None:
    """Raise CommandFailed without PySpark, before an import that needs it."""
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415 - as in the commands

    require_pyspark()


spark.add_command(report)
spark.add_command(redrive)
