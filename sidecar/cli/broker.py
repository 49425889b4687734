"""`retry-sidecar broker`: a real Kafka on this machine, without Docker."""

from __future__ import annotations

import signal
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from sidecar.cli.terminal import console, say
from sidecar.devbroker.jars import KAFKA_VERSION
from sidecar.devbroker.local_broker import HOST, LocalBroker
from sidecar.errors import CommandFailed

_EXAMPLE = """\b
Example:
  retry-sidecar broker --port 9092 --data-dir ./kafka-data
"""


class DownloadBar:
    """A progress bar of what is downloaded; shows nothing while nothing is. Implements DownloadProgress."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[file]}", style="dim"),
            console=console,
        )
        self._console = console
        self._bar: TaskID | None = None
        self._left = 0
        self._shown = False

    def begin(self, files: int, bytes_total: int) -> None:
        """Say what is downloaded and show an empty bar."""
        size = f"{files} files, {bytes_total / 1e6:.0f} MB"
        self._console.print(f"Downloading Apache Kafka {KAFKA_VERSION} from Maven Central, once: {size}")
        self._left = files
        self._bar = self._progress.add_task("Kafka", total=bytes_total, file="")
        self._progress.start()
        self._shown = True

    def received(self, bytes_count: int) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._progress.advance(self._bar, bytes_count)

    def finished(self, file: str) -> None:
        """Show the file's name; after the last one the bar stands still."""
        if self._bar is None:
            return
        self._left -= 1
        self._progress.update(self._bar, file=file if self._left else "done")
        if not self._left:
            self.close()

    def close(self) -> None:
        """Give the terminal back; may be called more than once."""
        if self._shown:
            self._shown = False
            self._progress.stop()


@click.command(epilog=_EXAMPLE)
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port on 127.0.0.1; 0 picks a free one.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the topics, kept for the next start.  [default: a temporary folder]",
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder and print its path.")
def broker(port: int, data_dir: Path | None, *, keep: bool) -> None:
    """Run a real Apache Kafka broker on this machine until Ctrl-C, for trials and development.

    Needs neither Docker nor Java. The first start downloads Kafka (45 MB); later ones need no network.
    Listens on 127.0.0.1 only, without authentication.
    """
    # SIGTERM ends the same way as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Errors and progress go to stderr: stdout has the address and nothing else.
    notes = console(stderr=True)
    bar = DownloadBar(notes)
    local = LocalBroker(port, data_dir, keep=keep, progress=bar)
    try:
        with local:
            _serve(local, notes)
    except KeyboardInterrupt:
        notes.print("stopped")
    except CommandFailed as error:
        raise click.ClickException(str(error)) from error
    finally:
        bar.close()
    if keep or data_dir is not None:
        notes.print(f"data is kept in {local.data_dir}", soft_wrap=True)


def _serve(local: LocalBroker, notes: Console) -> None:
    """Say where the broker is and stay until it ends, which it never should, or a signal comes."""
    say(local.bootstrap_servers)
    notes.print(f"Apache Kafka {KAFKA_VERSION} answers on {HOST}:{local.port}. Ctrl-C stops it.")
    notes.print(f"log: {local.log_path}", soft_wrap=True)
    while (status := local.wait(timeout_s=3600)) is None:
        pass
    raise CommandFailed(f"the broker ended by itself with status {status}; its log says:\n{local.last_log_lines()}")
