"""The options that all commands of Spark have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sidecar.cli.terminal import console

if TYPE_CHECKING:
    from sidecar.cli.broker import DownloadBar

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add the options for the Spark application to a command: `master`, `source`, `conf`."""
    options = (
        click.option(
            "--master", help="Spark master: local[2], spark://host:7077, ...  [default: the one of spark-submit]"
        ),
        click.option(
            "--source",
            multiple=True,
            callback=_pairs,
            metavar="NAME=VALUE",
            help="An option of Spark's Kafka source: maxOffsetsPerTrigger, kafka.<Java property>, ...; repeatable.",
        ),
        click.option(
            "--conf", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A property of Spark; repeatable."
        ),
    )
    for option in reversed(options):
        option(function)
    return function


def _pairs(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{each!r}: allowed is NAME=VALUE")
        pairs[name] = value
    return pairs


def with_progress(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a job that shows its progress on a terminal."""
    return {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), **conf}


@contextmanager
def downloads() -> Iterator[DownloadBar]:
    """Show the progress of downloads."""
    # Imported here: `--help` needs no librdkafka.
    from sidecar.cli.broker import DownloadBar  # noqa: PLC0415

    bar = DownloadBar(console(stderr=True))
    try:
        yield bar
    finally:
        bar.close()
