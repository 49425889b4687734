"""`retry-sidecar demo`: the whole job on this machine, and a ledger that proves it."""

from __future__ import annotations

import signal

import click
from rich.console import Console

from sidecar import log
from sidecar.cli.broker import DownloadBar
from sidecar.cli.options import json_option
from sidecar.cli.terminal import print_json
from sidecar.demo.plan import Kind
from sidecar.demo.screen import Screen
from sidecar.demo.show import LedgerBroken, Options, run_demo

_PORT = click.IntRange(0, 65535)


@click.command(epilog="Example: retry-sidecar demo --messages 20000 --seconds 20 --keep")
@click.option(
    "--messages",
    default=5000,
    show_default=True,
    type=click.IntRange(len(Kind), 500_000),
    help="Number of messages to send.",
)
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="Spread the messages evenly over this time; the last one comes back up to 20 seconds later.",
)
@click.option("--port", default=0, type=_PORT, help="Port of the broker.  [default: a free one]")
@click.option("--http-port", default=0, type=_PORT, help="Port of the sidecar's HTTP API.  [default: a free one]")
@click.option("--keep", is_flag=True, help="Keep everything running at the end, and print the addresses, until Ctrl-C.")
@click.option("--spark", is_flag=True, help="Run the Spark engine; needs its extra and a JDK.")
@json_option
def demo(*, messages: int, seconds: float, port: int, http_port: int, keep: bool, spark: bool, as_json: bool) -> None:
    """Run Kafka, a sidecar and a failing application on this machine, and check every message with a ledger.

    Starts Apache Kafka, a sidecar and an application that fails on purpose, and sends messages. At the end it compares
    the contents of the topics with what should have happened, and exits with 0 only if they agree. Needs neither Docker
    nor Java, and leaves no files behind. The first start downloads Kafka (45 MB).

    For a cluster whose nodes you can kill, see `retry-sidecar broker --nodes 3`.
    """
    if spark:
        _require_spark()
    # SIGTERM ends the same way as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Broker and clients end together here: that their connections close is nothing to report.
    log.configure(level="error", librdkafka_level="critical")
    console = Console(stderr=as_json, highlight=False)
    bar = DownloadBar(console)
    status = 0
    try:
        with Screen(console) as screen:
            ledger = run_demo(Options(messages, seconds, port, http_port, keep, spark), screen, bar)
    except LedgerBroken as error:
        # What is wrong has been shown with the ledger.
        ledger, status = error.ledger, 1
    finally:
        bar.close()
    if as_json:
        print_json(ledger.as_json())
    raise click.exceptions.Exit(status)


def _require_spark() -> None:
    """Raise CommandFailed, with what to install, before Kafka is started."""
    from sidecar.spark.java import find_java  # noqa: PLC0415 - as in the commands of Spark
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415

    require_pyspark()
    find_java()
