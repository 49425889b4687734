"""`retry-sidecar broker`: a real Kafka on this machine, without Docker."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from sidecar.cli.options import json_option
from sidecar.cli.terminal import console, print_json, say
from sidecar.devbroker.jars import KAFKA_VERSION
from sidecar.devbroker.local_broker import HOST, LocalBroker
from sidecar.devbroker.local_cluster import NODES, LocalCluster
from sidecar.errors import CommandFailed

_LAST_PORT = 65_535
_LOOK_S = 1.0
_AWAY_S = 10.0
"""The time that a node of several stays away: longer than the others take to notice."""

_EXAMPLE = """\b
Example:
  retry-sidecar broker --port 9092 --data-dir ./kafka-data
"""


class DownloadBar:
    """A progress bar of what is downloaded; shows nothing while nothing is. Implements DownloadProgress.

    Args:
        console: The terminal.
        what: What is downloaded, with its version.
    """

    def __init__(self, console: Console, what: str = f"Apache Kafka {KAFKA_VERSION}") -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[file]}", style="dim"),
            console=console,
        )
        self._console = console
        self._what = what
        self._bar: TaskID | None = None
        self._left = 0
        self._shown = False

    def begin(self, files: int, bytes_total: int) -> None:
        """Say what is downloaded and show an empty bar."""
        size = f"{files} files, {bytes_total / 1e6:.0f} MB"
        self._console.print(f"Downloading {self._what} from Maven Central, once: {size}")
        self._left = files
        self._bar = self._progress.add_task("jars", total=bytes_total, file="")
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
    help="Port on 127.0.0.1; further nodes have the next ones. 0 picks free ones.",
)
@click.option(
    "--nodes",
    default="1",
    show_default=True,
    type=click.Choice(["1", str(NODES)]),
    help="One broker, or a cluster of three: replication 3, min.insync.replicas 2, about 250 MB each.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the topics, kept for the next start.  [default: a temporary folder]",
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder and print its path.")
@json_option
def broker(port: int, nodes: str, data_dir: Path | None, *, keep: bool, as_json: bool) -> None:
    """Run a real Apache Kafka on this machine until Ctrl-C, for trials and development.

    Needs neither Docker nor Java. The first start downloads Kafka (45 MB); later ones need no network.
    Listens on 127.0.0.1 only, without authentication.

    With `--nodes 3` it prints the process id of each node: kill one and see what happens. It starts again after 10 s.
    """
    # SIGTERM ends the same way as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Errors and progress go to stderr: stdout has the address and nothing else.
    notes = console(stderr=True)
    bar = DownloadBar(notes)
    several = int(nodes) > 1
    if several and port > _LAST_PORT - NODES + 1:
        raise click.BadParameter(
            f"{NODES} nodes need a port each; at most {_LAST_PORT - NODES + 1}", param_hint="--port"
        )
    local = (LocalCluster if several else LocalBroker)(port, data_dir, keep=keep, progress=bar)
    brokers = local.nodes if isinstance(local, LocalCluster) else [local]
    try:
        with local:
            if as_json:
                print_json(
                    {
                        "bootstrap_servers": local.bootstrap_servers,
                        "nodes": [
                            {"node": each.node_id, "process": each.pid, "log": str(each.log_path)} for each in brokers
                        ],
                    }
                )
            else:
                say(local.bootstrap_servers)
            _introduce(brokers, notes)
            _serve(brokers, notes)
    except KeyboardInterrupt:
        notes.print("stopped")
    except CommandFailed as error:
        raise click.ClickException(str(error)) from error
    finally:
        bar.close()
    for each in brokers:
        if each.keep:
            notes.print(f"data is kept in {each.data_dir}", soft_wrap=True)


def _introduce(brokers: Sequence[LocalBroker], notes: Console) -> None:
    ports = ", ".join(f"{HOST}:{each.port}" for each in brokers)
    verb = "answers" if len(brokers) == 1 else "answer"
    notes.print(f"Apache Kafka {KAFKA_VERSION} {verb} on {ports}. Ctrl-C stops it.")
    for each in brokers:
        node = f"node {each.node_id}: process {each.pid}, " if len(brokers) > 1 else ""
        notes.print(f"{node}log: {each.log_path}", soft_wrap=True)


def _serve(brokers: Sequence[LocalBroker], notes: Console) -> None:
    """Stay until a signal comes. A node of several that ends is started again; one that is alone must not end."""
    while True:
        for each in brokers:
            status = each.wait(timeout_s=_LOOK_S)
            if status is None:
                continue
            if len(brokers) == 1:
                log = each.last_log_lines()
                raise CommandFailed(f"the broker ended by itself with status {status}; its log says:\n{log}")
            notes.print(f"node {each.node_id} ended with status {status}; it starts again in {_AWAY_S:.0f} s")
            threading.Event().wait(_AWAY_S)
            each.start()
            notes.print(f"node {each.node_id} answers again: process {each.pid}")
