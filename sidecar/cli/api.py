"""`retry-sidecar api`: the HTTP API alone."""

from __future__ import annotations

import click

from sidecar.cli.options import INSTANCES, SettingsCommand, settings_options
from sidecar.cli.process_log import begin_log
from sidecar.settings import GROUPS, Settings


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar api --bootstrap-servers kafka:9092 --http-port 8090")
@settings_options((*INSTANCES, *GROUPS["HTTP API"], *GROUPS["Log"]), warn=False)
def api(settings: Settings) -> None:
    """Serve the HTTP API of the whole group until SIGTERM or Ctrl-C. It owns no partition and needs no state folder.

    BOOTSTRAP_SERVERS, STREAMS_APP_ID, INPUT_TOPIC and API_TOKEN must be the same as those of the sidecars.
    """
    begin_log(settings, settings.warnings)
    # Here and not above: `--help` needs neither librdkafka nor a web server.
    from sidecar.runtime import api_only  # noqa: PLC0415

    raise click.exceptions.Exit(api_only.serve(settings))
