"""`retry-sidecar spark`: the engine that runs on Apache Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import click
import structlog
from rich.console import Console

from sidecar import log
from sidecar.cli.options import settings_options
from sidecar.settings import Settings, advice_for_run
from sidecar.settings.kinds import parse_duration_ms

LOOK_S: Final = 0.1


def _pairs(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{each!r}: allowed is NAME=VALUE")
        pairs[name] = value
    return pairs


def _duration(_ctx: click.Context, _param: click.Parameter, given: str) -> int:
    try:
        return parse_duration_ms(given)
    except ValueError:
        raise click.BadParameter(f"{given!r}: allowed is a duration: 250ms, 1s, ...") from None


_ENGINE: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    click.option(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="State of the query, on any file system that Hadoop knows: file:///…, hdfs://…, s3a://…",
    ),
    click.option(
        "--master",
        help="Where it runs: local[2], spark://host:7077, ...  [default: as spark-submit says]",
    ),
    click.option(
        "--conf", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A property of Spark; repeatable."
    ),
)


@click.group()
def spark() -> None:
    """Run the sidecar on Apache Spark, for those who outgrow one machine.

    Needs the extra: pip install 'retry-sidecar[spark]', and a JDK 17 or 21.
    """


@spark.command(
    epilog="Example: retry-sidecar spark run --checkpoint hdfs:///retry --master 'local[4]' --origin-topics orders"
)
@click.option(
    "--source",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="An option of Spark's Kafka source: maxOffsetsPerTrigger, kafka.<property of Java's client>, ...; repeatable.",
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
@settings_options(warn=False)
def run(
    settings: Settings,
    *,
    checkpoint: str,
    master: str | None,
    conf: dict[str, str],
    source: dict[str, str],
    state_partitions: int | None,
    trigger: int,
) -> None:
    """Run the streaming query until it is told to stop (SIGTERM or Ctrl-C).

    Topics, headers, verdicts, dead letters and control records are those of `retry-sidecar run`; `retry-sidecar api`,
    the page and all other commands work on it unchanged.
    """
    _log(settings)
    # Here and not above: `--help` needs neither librdkafka nor PySpark.
    from sidecar.cli.broker import DownloadBar  # noqa: PLC0415
    from sidecar.cli.spark_http import serving  # noqa: PLC0415
    from sidecar.clock import SystemClock  # noqa: PLC0415
    from sidecar.runtime.main import policy_config  # noqa: PLC0415
    from sidecar.runtime.stop import Stop  # noqa: PLC0415
    from sidecar.spark import start  # noqa: PLC0415

    options = start.Options(
        checkpoint=checkpoint,
        master=master,
        conf=conf,
        source=source,
        state_partitions=state_partitions,
        trigger_ms=trigger,
    )
    stop, pause, clock = Stop(), threading.Event(), SystemClock()
    stop.listen()

    def stopping(seconds: float) -> bool:
        until_s = clock.monotonic_s() + seconds
        while not stop.asked and (left_s := until_s - clock.monotonic_s()) > 0:
            pause.wait(min(LOOK_S, left_s))
        return stop.asked

    bar = DownloadBar(Console(stderr=True, highlight=False))
    try:
        with serving(settings) as driver:
            start.run(
                settings,
                policy_config(settings),
                options,
                stopping=stopping,
                opened=stop.listen,
                progressed=driver.progressed,
                downloads=bar,
            )
    finally:
        bar.close()


def _log(settings: Settings) -> None:
    log.configure(
        level=settings.log_level,
        form=settings.log_format,
        librdkafka_level=settings.log_level_apache,
        secrets=settings.secrets,
    )
    for warning in (*settings.warnings, *advice_for_run(settings)):
        structlog.get_logger(__name__).warning("setting_doubted", text=warning)


for _option in reversed(_ENGINE):
    _option(run)
