"""The jars by which Spark uses S3-compatible stores, downloaded once from Maven Central into the user's cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import platformdirs

from sidecar.devbroker.jars import DownloadProgress, jar_files, locked_jars

HADOOP_VERSION: Final = "3.5.0"
SCHEME: Final = "s3a:"
CONF: Final = {
    # A file of the checkpoint is there whole or not at all: it is uploaded under its name, or aborted. Renaming would
    # copy it.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
}
"""The properties of a session that has a checkpoint there; the user's come before them."""


def uses_s3(folders: Iterable[str | None]) -> bool:
    """Return whether one of the folders is in an S3-compatible store."""
    return any(each is not None and each.startswith(SCHEME) for each in folders)


def s3_jars(progress: DownloadProgress, folder: Path | None = None) -> tuple[Path, ...]:
    """Return the files, checked against the lock file; needs no network once they are in the cache.

    Raises:
        CommandFailed: A jar cannot be downloaded, or the cache cannot be written.
    """
    cache = folder or platformdirs.user_cache_path("retry-sidecar") / f"hadoop-aws-{HADOOP_VERSION}"
    return jar_files(locked_jars("sidecar.spark", "s3.lock"), progress, cache)
