"""`retry-sidecar dlq`: what is on the DLQ, and back to the retry topic with it."""

from __future__ import annotations

import click

from sidecar.cli.dlq.redrive import redrive
from sidecar.cli.dlq.report import report


@click.group(epilog="Example: retry-sidecar dlq report --since -24h")
def dlq() -> None:
    """Count what is on the DLQ, and send it to the retry topic again."""


dlq.add_command(report)
dlq.add_command(redrive)
