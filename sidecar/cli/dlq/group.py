"""`retry-sidecar dlq`: shows the DLQ, sends its messages to the retry topic again, and discards them."""

from __future__ import annotations

import click

from sidecar.cli.dlq.redrive import redrive
from sidecar.cli.dlq.report import report
from sidecar.cli.dlq.single import discard, get, list_dead_letters


@click.group(epilog="Example: retry-sidecar dlq report --died-from -24h")
def dlq() -> None:
    """Count and show dead letters, send them to the retry topic again, and discard them."""


dlq.add_command(report)
dlq.add_command(list_dead_letters)
dlq.add_command(get)
dlq.add_command(discard)
dlq.add_command(redrive)
