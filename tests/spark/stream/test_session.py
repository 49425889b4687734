"""The properties of a session, and the process from which its workers are forked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.spark.s3 import CONF
from sidecar.spark.session import QUERY, defaults
from tests.integration.sidecars import ROOT

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DAEMON = "spark.python.daemon.module"


def test_a_checkpoint_on_local_files_is_written_without_other_programs() -> None:
    assert "FileSystemBased" in defaults("local[2]", ["file:///checkpoint"], query=True)[MANAGER]
    assert "FileSystemBased" in defaults("local", [None, "file:/checkpoint", "file:/out"], query=False)[MANAGER]


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://host", None])
def test_spark_chooses_how_executors_on_other_machines_write(master: str | None) -> None:
    assert MANAGER not in defaults(master, ["file:/checkpoint"], query=True)


@pytest.mark.slow
def test_a_file_of_a_local_checkpoint_is_replaced_and_what_warms_the_session_up_works(
    java: Path, tmp_path: Path
) -> None:
    """A start does not say that it was not warmed up."""
    script = (
        "import sys, threading; from sidecar.spark.manifest import *; from sidecar.spark.session import open_session;"
        "from sidecar.spark.source.warm_up import read_nothing;"
        "session = open_session('replace', 'local[1]', {'spark.driver.memory': '512m'}, 1, sys.argv[1:], query=True);"
        "folder = CheckpointFolder(session, sys.argv[1]);"
        "[folder.write(new_manifest('cluster', 'app', 'retry', 'id', count, 'group')) for count in (1, 2)];"
        # Two threads that register a source at once may find each other's.
        "[each.join() for each in threading.enumerate() if each.name == 'warm-up'];"
        "read_nothing(session); print(folder.read().state_partitions); session.stop()"
    )
    command = [sys.executable, "-c", script, f"file://{tmp_path}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert said.stdout.strip() == "2", said.stderr
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("folders", [[], [None], ["/checkpoint"], ["hdfs:///a"], ["file:/a", "hdfs:///b"]])
def test_spark_chooses_how_other_file_systems_are_written(folders: list[str | None]) -> None:
    """A path without a scheme is on whatever file system the cluster has by default."""
    assert MANAGER not in defaults("local[2]", folders, query=True)


def test_a_checkpoint_in_s3_is_written_as_s3_needs_it() -> None:
    assert defaults(None, ["s3a://bucket/a", "file:/out"], query=True).items() >= CONF.items()


def test_only_workers_on_this_machine_are_forked_from_a_process_that_has_the_package() -> None:
    assert defaults("local[2]", [], query=True)[DAEMON] == "sidecar.spark.daemon"
    for master in ("spark://host:7077", "k8s://host", "local-cluster[2,1,512]", None):
        assert DAEMON not in defaults(master, [], query=True)


def test_code_is_made_for_the_many_rows_of_jobs() -> None:
    assert not QUERY.keys() & defaults("local[2]", ["file:/a"], query=False).keys()


def test_the_process_that_is_forked_has_one_thread() -> None:
    """A fork copies only the thread that forks, and the locks that others hold."""
    pytest.importorskip("pyspark")
    script = "import os; from sidecar.spark.daemon import preload; preload(); print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert said.stdout.strip() == "1"
