"""`retry-sidecar spark`: the engine that runs on Apache Spark."""

from __future__ import annotations

import threading
from dataclasses import replace

import click

from sidecar.cli.options import ALL, KAFKA, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.process_log import begin_log
from sidecar.cli.spark.audit import audit
from sidecar.cli.spark.options import engine_options, pairs
from sidecar.cli.spark.redrive import redrive
from sidecar.cli.spark.report import report
from sidecar.cli.terminal import console, print_json, say
from sidecar.settings import GROUPS, Settings, advice_for_run
from sidecar.settings.kinds import parse_duration_ms
from sidecar.settings.policy import policy_config


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
    help="State of the query, on any file system that Hadoop supports: file:///…, hdfs://…, s3a://…; others need their "
    "jars: --conf spark.jars.packages=…, see docs/how-to/spark.md.",
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
    help="Tasks that keep the state; another number than that of the checkpoint spreads its state again.  [default: as "
    "the checkpoint; if it is new, cores, or input partitions if fewer]",
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
    "--restore-marks",
    is_flag=True,
    help="Go on from the state of the checkpoint where the changelog no longer says what was sent, because it was "
    "deleted or cut off; what the last micro-batch sent may come twice.",
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
    restore_marks: bool,
) -> None:
    """Run the streaming query until SIGTERM or Ctrl-C.

    Topics, headers, verdicts, dead letters and control records are those of `retry-sidecar run`; `retry-sidecar api`,
    the dashboard and all other commands work on it unchanged.
    """
    begin_log(settings, (*settings.warnings, *advice_for_run(settings)))
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.runtime.stop import Stop  # noqa: PLC0415

    _require_pyspark()
    from sidecar.spark.session import start_jvm  # noqa: PLC0415

    starting = (settings.streams_app_id, master, conf, [checkpoint])
    threading.Thread(target=start_jvm, args=starting, name="jvm", daemon=True).start()
    from sidecar.cli.spark.http import serving  # noqa: PLC0415
    from sidecar.spark.stream import start  # noqa: PLC0415

    options = start.Options(
        from_changelog=from_changelog,
        restore_marks=restore_marks,
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

        def opened(jvm: int) -> None:
            stop.listen()
            driver.opened(jvm)

        start.run(
            settings,
            policy_config(settings),
            replace(options, url=driver.url, board=driver.board),
            stopping=stop.within,
            opened=opened,
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


@spark.command(epilog="Example: spark-submit --jars $(retry-sidecar spark jars) ...")
@json_option
def jars(*, as_json: bool) -> None:
    """Print the jars for a checkpoint in an S3-compatible store, for spark-submit; downloads them if needed."""
    # Imported here: `--help` needs no download.
    from sidecar.cli.broker import DownloadBar  # noqa: PLC0415
    from sidecar.spark.s3 import HADOOP_VERSION, s3_jars  # noqa: PLC0415

    bar = DownloadBar(console(stderr=True), f"the S3 file system of Apache Hadoop {HADOOP_VERSION}")
    try:
        found = [str(jar) for jar in s3_jars(bar)]
    finally:
        bar.close()
    if as_json:
        print_json({"jars": found})
    else:
        say(",".join(found))


def _require_pyspark() -> None:
    """Raise CommandFailed without PySpark, before an import that needs it."""
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415 - as in the commands

    require_pyspark()


spark.add_command(audit)
spark.add_command(report)
spark.add_command(redrive)
