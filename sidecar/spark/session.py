"""The Spark session, with the configuration that every query of this project needs."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sidecar
from sidecar.devbroker.jars import Quiet
from sidecar.errors import CommandFailed, SettingsInvalid, SidecarError
from sidecar.spark.java import find_java
from sidecar.spark.s3 import CONF as S3_CONF
from sidecar.spark.s3 import s3_jars, uses_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_VERSION: Final = (4, 2, 1)
"""The state server of earlier ones keeps a socket for each state partition and micro-batch (SPARK-58932)."""
BELOW_VERSION: Final = (4, 3)
"""Both bounds are those of the extra in pyproject.toml."""
_PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_FIXED: Final = {
    "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
    # Idle micro-batches fire timers.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # Two tasks for one state partition would fence each other.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
}
_DEFAULTS: Final = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
    # Counting the rows reads each key before it is written.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # The listener receives each progress once, and nothing reads it later.
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    # A chunk or an output part is one row of up to a few MiB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16777216",
    "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch": "16",
    # Between the JVM and its Python workers; ADR 36 has the figures of both ways.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_FILES: Final = {
    # On local files it renames once; the other manager asks programs such as `stat` for each file, and replaces one by
    # deleting it first.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Hive's file system, which comes before it in Spark's class path, keeps a file that exists when another is renamed
    # to it, and the manager takes that for success.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
}
"""The properties of a session that runs on this machine, and whose folders are all on its file system."""
QUERY: Final = {
    # A micro-batch has few and large rows, so code that is made for them is never used often enough.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""The properties of the query, beside those of all sessions."""
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOCAL_QUERY: Final = {
    # On a cluster the package may come with the tasks: too late for it.
    "spark.python.daemon.module": "sidecar.spark.daemon",
    # Else the sink, which has no simple traces, has a daemon of its own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # The compiler of hot code would take a core for minutes, and the collector for large heaps 100 MiB.
    "spark.driver.extraJavaOptions": _JVM,
}
"""The properties of a query whose workers run on this machine."""
_MALLOC_ARENAS: Final = "2"
"""Each thread of the JVM and of a worker else gets memory of its own, which is never given back."""


def require_pyspark() -> None:
    """Raise CommandFailed, with the command that installs it, unless PySpark has a version that the engine runs on."""
    try:
        import pyspark  # noqa: PLC0415 - it is an extra
    except ImportError as cause:
        raise CommandFailed("PySpark is not installed: pip install '.[spark]' in the source tree") from cause
    require_version(pyspark.__version__, "PySpark")


def require_version(version: str, of: str) -> None:
    """Raise CommandFailed unless the engine runs on this version of Spark.

    Args:
        version: The version, such as 4.2.1.
        of: What has it.
    """
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:3])
    if FIRST_VERSION <= numbers < BELOW_VERSION:
        return
    first, below = (".".join(map(str, each)) for each in (FIRST_VERSION, BELOW_VERSION))
    why = "" if numbers >= BELOW_VERSION else " (earlier ones keep sockets until the query has no open files left)"
    raise CommandFailed(
        f"{of} {version} cannot run the engine: allowed is {first} or later, below {below}{why}: "
        f"pip install 'pyspark>={first},<{below}'"
    )


def open_session(
    name: str,
    master: str | None,
    conf: Mapping[str, str],
    state_partitions: int,
    folders: Sequence[str | None] = (),
    *,
    query: bool = False,
) -> SparkSession:
    """Return a new session.

    Args:
        name: The name of the application.
        master: The Spark master; None: the one of spark-submit, or this machine.
        conf: The user's properties; those that the engine rests on are refused.
        state_partitions: The state partitions of the stateful operator.
        folders: The folders that are read and written; their file systems may need jars, which are downloaded.
        query: Whether the session runs the query, not a job.

    Raises:
        CommandFailed: PySpark, a JDK or a jar is missing, or Spark refuses a property; the text says what to do.
        SettingsInvalid: A property in `conf` cannot be set.
    """
    properties = _prepared(name, master, conf, state_partitions, folders, query=query)
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    # At the level `info` it logs each call of the JVM.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder
    for key, value in properties.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Py4JJavaError as cause:
        raise CommandFailed(f"Spark cannot start: {cause.java_exception.toString()}") from cause
    # spark-submit may bring another Spark than that of this Python.
    require_version(session.version, "Spark")
    _expect_no_other_sources(session)
    if query and _on_this_machine(session.sparkContext.master):
        threading.Thread(target=_warm_up, args=(session,), name="warm-up", daemon=True).start()
    # On Kubernetes it is in the image.
    if needs_package(session.sparkContext.master):
        session.sparkContext.addArchive(_packed_package())
    return session


def start_jvm(name: str, master: str | None, conf: Mapping[str, str], folders: Sequence[str | None]) -> None:
    """Start the JVM of a query whose session is opened later, with the same arguments; do nothing if that fails.

    The JVM takes seconds, in which this process can do other things.
    """
    try:
        properties = _prepared(name, master, {**conf, _SHUFFLE: "1"}, 1, folders, query=True)
    except SidecarError:
        return  # `open_session` meets the same
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    with suppress(PySparkException):
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(properties.items())))  # noqa: SLF001 - its own way


def _prepared(
    name: str,
    master: str | None,
    conf: Mapping[str, str],
    state_partitions: int,
    folders: Sequence[str | None],
    *,
    query: bool,
) -> dict[str, str]:
    """Return the properties of a session, after setting the environment of its JVM; see `open_session`."""
    require_pyspark()
    fixed = {**_FIXED, _SHUFFLE: str(state_partitions)}
    problems = [
        f"--conf {key}={conf[key]}: cannot be set, always {value}"
        for key, value in fixed.items()
        if conf.get(key, value) != value
    ]
    if problems:
        raise SettingsInvalid(problems)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("MALLOC_ARENA_MAX", _MALLOC_ARENAS)
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JVM)
    # The workers need the same libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None and not submitted:
        master = "local[*]"
    named = {"spark.app.name": name} if master is None else {"spark.app.name": name, "spark.master": master}
    properties = {**named, **defaults(master, folders, query=query), **conf, **fixed}
    if uses_s3(folders):
        jars = [*map(str, s3_jars(Quiet())), *filter(None, [conf.get("spark.jars")])]
        properties["spark.jars"] = ",".join(jars)
    return properties


def defaults(master: str | None, folders: Sequence[str | None], *, query: bool) -> dict[str, str]:
    """Return the properties of a session that the user can set otherwise.

    Args:
        master: The Spark master; None: that of spark-submit.
        folders: The folders that are read and written.
        query: Whether the session runs the query, not a job.
    """
    found = dict(_DEFAULTS)
    named = [each for each in folders if each is not None]
    local = master is not None and _on_this_machine(master)
    if local and named and all(each.startswith("file:") for each in named):
        found |= _LOCAL_FILES
    if uses_s3(named):
        found |= S3_CONF
    if query:
        found |= QUERY
    if query and local:
        found |= _LOCAL_QUERY
    return found


def _warm_up(session: SparkSession) -> None:
    """Load RocksDB and start processes of Python, for which the first micro-batch else waits one after the other."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    from sidecar.spark.source.warm_up import read_nothing  # noqa: PLC0415 - as above

    jvm: Any = session._jvm  # noqa: SLF001 - there is no setting for it
    # The session may end meanwhile, and the first micro-batch does without.
    with suppress(Py4JError, PySparkException, TypeError, OSError):
        jvm.org.apache.spark.sql.execution.streaming.state.RocksDBLoader.loadLibrary()
        read_nothing(session)


def _expect_no_other_sources(session: SparkSession) -> None:
    """Spare Spark the search for data sources of installed packages, for which it starts a Python process."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - as above

    jvm: Any = session._jvm  # noqa: SLF001 - there is no setting for it
    # Another Spark that names it otherwise searches.
    with suppress(Py4JError, TypeError):
        manager = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        none = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        getattr(getattr(manager, "MODULE$"), "dataSourceBuilders_$eq")(jvm.scala.Some(none))


def needs_package(master: str) -> bool:
    """Return whether the executors of a master get this package from the driver."""
    return not master.startswith("k8s:") and not _on_this_machine(master)


def _on_this_machine(master: str) -> bool:
    """Return whether the executors are threads of the driver's JVM."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _packed_package() -> str:
    """Return an archive of this package, for executors that have its libraries but not the package.

    They unpack it into a folder on their path, under the name after `#`. Python loads no compiled modules from an
    archive.
    """
    package = Path(sidecar.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="retry-sidecar-"))
    return f"{shutil.make_archive(str(folder / package.name), 'zip', package)}#{package.name}"
