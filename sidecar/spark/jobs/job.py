"""The session of a batch job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sidecar.errors import CommandFailed
from sidecar.spark.session import open_session, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS: Final = 4
_LINES: Final = 3
"""The lines of an error that are shown."""


@contextmanager
def job_session(
    name: str, master: str | None, conf: Mapping[str, str], folders: Sequence[str | None] = ()
) -> Iterator[SparkSession]:
    """Yield a session that ends with the job; see `open_session`.

    Raises:
        CommandFailed: Spark failed.
    """
    require_pyspark()
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - PySpark is an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    session = open_session(name, master, conf, SHUFFLE_PARTITIONS, folders)
    try:
        yield session
    except (PySparkException, Py4JJavaError) as cause:
        raise CommandFailed(f"Spark failed: {said_by(str(cause))}") from cause
    finally:
        session.stop()


def said_by(text: str) -> str:
    """Return the text of a Spark error, without its stack traces."""
    lines = [line.strip(" \t:") for line in text.splitlines()]
    stacks = ("at ", "File ", "...", "Traceback", "^", "An error occurred while calling")
    return "; ".join([line for line in lines if line and not line.startswith(stacks)][:_LINES])
