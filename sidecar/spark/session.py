"""The Spark session, with the configuration that every query of this project needs."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sidecar
from sidecar.devbroker.jars import Quiet
from sidecar.errors import CommandFailed, SettingsInvalid
from sidecar.spark.java import find_java
from sidecar.spark.s3 import CONF as S3_CONF
from sidecar.spark.s3 import s3_jars, uses_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_VERSION: Final = "4.2.0"
_PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
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


def require_pyspark() -> None:
    """Raise CommandFailed, with the command that installs it, unless PySpark has the version that this one is for."""
    try:
        import pyspark  # noqa: PLC0415 - it is an extra
    except ImportError as cause:
        raise CommandFailed("PySpark is not installed: pip install '.[spark]' in the source tree") from cause
    if pyspark.__version__ != SPARK_VERSION:
        raise CommandFailed(
            f"PySpark {pyspark.__version__} is installed; this version is for {SPARK_VERSION}: "
            "pip install '.[spark]' in the source tree"
        )


def open_session(
    name: str, master: str | None, conf: Mapping[str, str], state_partitions: int, folders: Iterable[str | None] = ()
) -> SparkSession:
    """Return a new session.

    Args:
        name: The name of the application.
        master: The Spark master; None: the one of spark-submit, or this machine.
        conf: The user's properties; those that the engine rests on are refused.
        state_partitions: The state partitions of the stateful operator.
        folders: The folders that are read and written; their file systems may need jars, which are downloaded.

    Raises:
        CommandFailed: PySpark, a JDK or a jar is missing, or Spark refuses a property; the text says what to do.
        SettingsInvalid: A property in `conf` cannot be set.
    """
    require_pyspark()
    fixed = {**_FIXED, "spark.sql.shuffle.partitions": str(state_partitions)}
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
    # The workers need the same libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    # At the level `info` it logs each call of the JVM.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif not submitted:
        builder = builder.master("local[*]")
    properties = {**_DEFAULTS, **conf, **fixed}
    if uses_s3(folders):
        jars = [*map(str, s3_jars(Quiet())), *filter(None, [conf.get("spark.jars")])]
        properties = {**S3_CONF, **properties, "spark.jars": ",".join(jars)}
    for key, value in properties.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Py4JJavaError as cause:
        raise CommandFailed(f"Spark cannot start: {cause.java_exception.toString()}") from cause
    _expect_no_other_sources(session)
    # On Kubernetes it is in the image.
    if needs_package(session.sparkContext.master):
        session.sparkContext.addArchive(_packed_package())
    return session


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
    return re.fullmatch(r"k8s:.*|local(\[.*\])?", master) is None


def _packed_package() -> str:
    """Return an archive of this package, for executors that have its libraries but not the package.

    They unpack it into a folder on their path, under the name after `#`. Python loads no compiled modules from an
    archive.
    """
    package = Path(sidecar.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="retry-sidecar-"))
    return f"{shutil.make_archive(str(folder / package.name), 'zip', package)}#{package.name}"
