"""The properties of a session, and the process from which its workers are forked."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from sidecar.errors import CommandFailed
from sidecar.spark.s3 import CONF, HADOOP_VERSION
from sidecar.spark.session import BELOW_VERSION, FIRST_VERSION, QUERY, defaults, require_pyspark, require_version
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
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install -e '.[spark]'")
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


@pytest.mark.parametrize("version", ["4.2.1", "4.2.2", "4.2.10", "4.2.2.dev0", "4.2.3-SNAPSHOT"])
def test_each_later_patch_release_of_spark_is_taken(version: str) -> None:
    require_version(version, "PySpark")


def test_a_spark_that_keeps_its_sockets_is_refused_with_the_reason_and_the_command() -> None:
    said = r"PySpark 4.2.0 .* sockets .*: pip install 'pyspark>=4.2.1,<4.3'"
    with pytest.raises(CommandFailed, match=said):
        require_version("4.2.0", "PySpark")


@pytest.mark.parametrize("version", ["3.5.6", "4.1.9", "4.3.0", "4.3.0.dev1", "5.0.0", "unknown"])
def test_another_spark_is_refused(version: str) -> None:
    with pytest.raises(CommandFailed, match=r"allowed is 4.2.1 or later, below 4.3"):
        require_version(version, "Spark")


def test_the_start_takes_the_versions_that_the_package_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    first, below = (".".join(map(str, each)) for each in (FIRST_VERSION, BELOW_VERSION))
    assert f"pyspark>={first},<{below}" in extras["spark"]


def test_the_installed_spark_is_taken_and_has_the_hadoop_of_the_jars_for_s3() -> None:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        pytest.skip("PySpark is not installed: pip install -e '.[spark]'")
    require_pyspark()
    jars = Path(found.origin).parent / "jars"
    assert [each.name for each in jars.glob("hadoop-client-api-*.jar")] == [f"hadoop-client-api-{HADOOP_VERSION}.jar"]
