"""The cluster that tests and trials run on: it keeps what it was given, and ends with who started it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker import create_topic, local_cluster, read_committed
from tests.integration.cluster.faults import LONG_S
from tests.integration.messages import Given, send
from tests.integration.operations.test_local_broker import alive, broker_pid
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


@contextmanager
def command(data_dir: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the command on a folder in its own process, and yield it once the nodes answer."""
    arguments = ["-m", "sidecar", "broker", "--nodes", "3", "--port", "0", "--data-dir", str(data_dir)]
    with log.open("w") as notes:
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=notes, text=True)
    try:
        assert process.stdout is not None
        assert len(process.stdout.readline().split(",")) == 3
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_command_starts_a_node_that_was_killed_again_and_ends_all_in_order(tmp_path: Path) -> None:
    data_dir, log = tmp_path / "kafka", tmp_path / "log"
    with command(data_dir, log) as process:
        killed = broker_pid(data_dir / "node-2")
        eventually(lambda: f"node 2: process {killed}" in log.read_text(), LONG_S, "the process is named")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: re.search(r"node 2 answers again: process \d+", log.read_text()), LONG_S, "it is back")
        pids = [broker_pid(data_dir / f"node-{number}") for number in (1, 2, 3)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 0
    assert not any(map(alive, pids))
    assert (data_dir / "node-1" / "topics" / "meta.properties").is_file()


def test_the_nodes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with command(tmp_path / "kafka", tmp_path / "log") as parent:
        pids = [broker_pid(tmp_path / "kafka" / f"node-{number}") for number in (1, 2, 3)]
        parent.kill()
        eventually(lambda: not any(map(alive, pids)), LONG_S, "the nodes of a killed parent end")


def test_what_was_written_is_there_when_the_cluster_starts_again(tmp_path: Path, topic_name: str) -> None:
    with local_cluster(tmp_path) as first:
        create_topic(first.bootstrap_servers, topic_name)
        send(first.bootstrap_servers, topic_name, Given(b"before"))
    with local_cluster(tmp_path) as second:
        assert [each.value for each in read_committed(second.bootstrap_servers, [topic_name])] == [b"before"]


def test_a_cluster_that_stops_leaves_no_process_and_no_folder() -> None:
    with local_cluster() as cluster:
        pids = [node.pid or 0 for node in cluster.nodes]
        folders = [node.data_dir for node in cluster.nodes]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert not any(folder.exists() for folder in folders)
