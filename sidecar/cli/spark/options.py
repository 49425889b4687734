"""The options that all commands of Spark have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """Add the options for the Spark application to a command: `master`, `conf`."""
    options = (
        click.option(
            "--master", help="Spark master: local[2], spark://host:7077, ...  [default: the one of spark-submit]"
        ),
        click.option(
            "--conf", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A property of Spark; repeatable."
        ),
    )
    for option in reversed(options):
        option(function)
    return function


def pairs(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping. Raises BadParameter."""
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{each!r}: allowed is NAME=VALUE")
        found[name] = value
    return found


def with_progress(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a job that shows its progress on a terminal."""
    return {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), **conf}
