"""`retry-sidecar dlq`: reports on the DLQ, and sends its messages to the retry topic again."""

from __future__ import annotations

import click

from sidecar.cli.dlq.redrive import redrive
from sidecar.cli.dlq.report import report


@click.group(epilog="Example: retry-sidecar dlq report --died-from -24h")
def dlq() -> None:
    """Count dead letters, and send them to the retry topic again."""


dlq.add_command(report)
dlq.add_command(redrive)
