"""`retry-sidecar version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from sidecar import __version__
from sidecar.cli.options import json_option
from sidecar.cli.terminal import print_json, say
from sidecar.engine import hot
from sidecar.kafka.config import library_versions


@click.command(epilog="Example: retry-sidecar version --json")
@json_option
def version(*, as_json: bool) -> None:
    """Show the versions of the program and its libraries."""
    versions = {
        "retry-sidecar": __version__,
        "python": platform.python_version(),
        **library_versions(),
        "rocksdict": _installed("rocksdict"),
        "hot-path": hot.KIND,
    }
    if as_json:
        print_json(versions)
    else:
        for name, text in versions.items():
            say(f"{name:<16}{text}")


def _installed(distribution: str) -> str:
    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "not installed"
