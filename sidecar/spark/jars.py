"""The jars of Spark's connector to Kafka, downloaded once from Maven Central into the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import platformdirs

from sidecar.devbroker.jars import DownloadProgress, jar_files, locked_jars

SPARK_VERSION: Final = "4.2.0"


def connector_jars(progress: DownloadProgress, folder: Path | None = None) -> tuple[Path, ...]:
    """Return the files, checked against the lock file; needs no network once they are in the cache.

    Raises:
        CommandFailed: A jar cannot be downloaded, or the cache cannot be written.
    """
    cache = folder or platformdirs.user_cache_path("retry-sidecar") / f"spark-{SPARK_VERSION}"
    return jar_files(locked_jars("sidecar.spark", "jars.lock"), progress, cache)
