"""The manifest of a Spark checkpoint, in a file beside it: the application that the checkpoint belongs to."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from py4j.protocol import Py4JJavaError

from sidecar import __version__
from sidecar.errors import CommandFailed, SettingsInvalid, SidecarError
from sidecar.spark.source.offsets import decode_position
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "retry-sidecar.json"
RULES: Final = "retry-sidecar-rules.json"
QUERY: Final = "query"
"""The folder of Spark's own checkpoint; others have a number behind it."""
FORMAT: Final = 1


class Former(NamedTuple):
    """The query before the number of state partitions was changed; its folder is deleted when it is not needed."""

    query: str
    state_partitions: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a checkpoint."""

    format: int = FORMAT
    checkpoint: str
    """The id that the marks in the group's offsets have."""
    cluster_id: str
    app_id: str
    input_topic: str
    input_topic_id: str
    state_partitions: int
    offsets: dict[int, int] = {}
    """The start offsets by partition; EARLIEST is one too."""
    imports: bool = False
    """Whether it begins with the state in the changelog."""
    group_id: str
    """The group that has its marks."""
    query: str = QUERY
    """The folder of Spark's own checkpoint."""
    former: Former | None = None


class Unfinished(NamedTuple):
    """A micro-batch that Spark has planned but not completed: it runs again."""

    batch: int
    now_ms: int
    """The instant of the micro-batch."""


class Kept(msgspec.Struct, frozen=True):
    """The version and rules of the last micro-batches; one that is not complete is completed under the same."""

    version: str
    rules: Rules
    """The rules without the token, which is never written to a file."""


class CheckpointFolder:
    """The folder of a checkpoint, on any file system that Hadoop knows."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        self._query = QUERY
        jvm: Any = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        context: Any = session._jsc  # noqa: SLF001 - as above
        managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._fs = self._path(self.location).getFileSystem(context.hadoopConfiguration())
            configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
            self._files = managers.create(self._path(self.location), configuration)
        except Py4JJavaError as cause:
            hadoop = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise CommandFailed(
                f"{self.location} (--checkpoint): {cause.java_exception.getMessage()}. There are file:, hdfs: and "
                f"s3a:; add the jars of another one for Hadoop {hadoop} with --conf spark.jars.packages=..., and "
                "under spark-submit those of s3a: with --jars $(retry-sidecar spark jars)"
            ) from cause

    @property
    def query(self) -> str:
        """The folder of Spark's own checkpoint, by the manifest that was read or written last."""
        return f"{self.location}/{self._query}"

    def read(self) -> Manifest | None:
        """Return the manifest, None when the folder has none. Raises CommandFailed."""
        file = self._path(f"{self.location}/{FILE}")
        if not self._fs.exists(file):
            if self._fs.exists(self._path(self.query)):
                raise CommandFailed(
                    f"{self.location} (--checkpoint) has the checkpoint of another query: name another folder"
                )
            return None
        try:
            manifest = msgspec.json.decode(self._read(f"{self.location}/{FILE}"), type=Manifest)
        except msgspec.MsgspecError as cause:
            raise CommandFailed(f"{self.location}/{FILE} cannot be read: {cause}") from cause
        if manifest.format != FORMAT:
            raise CommandFailed(f"{self.location} has format {manifest.format}; this version reads {FORMAT}")
        self._query = manifest.query
        return manifest

    def begun(self) -> bool:
        """Return whether a micro-batch has completed: until then each start begins with the first state."""
        return self._last("commits") is not None

    def unfinished(self) -> Unfinished | None:
        """Return the micro-batch that is planned but not complete, None when there is none."""
        planned, done = self._last("offsets"), self._last("commits")
        if planned is None or planned == done:
            return None
        return Unfinished(planned, int(self._planned(planned)[1]["batchTimestampMs"]))

    def plan_empty(self, now_ms: int) -> None:
        """Plan a micro-batch without records for the start of the next query; none must be unfinished.

        Spark alone begins with a micro-batch only in a new checkpoint, or when there are records: due timers would wait
        for these.
        """
        last = self._last("offsets")
        if last is None:
            return
        version, planned, offsets = self._planned(last)
        planned["batchTimestampMs"] = max(now_ms, int(planned["batchTimestampMs"]) + 1)
        content = "\n".join([version, msgspec.json.encode(planned).decode(), *offsets])
        self._write(f"{self._query}/offsets/{last + 1}", content.encode())

    def _planned(self, batch: int) -> tuple[str, dict[str, Any], list[str]]:
        """Return the version of the log, its entry for a micro-batch, and the offsets of each source."""
        version, planned, *offsets = self._read(f"{self.query}/offsets/{batch}").decode().split("\n")
        return version, msgspec.json.decode(planned), offsets

    def read_to(self) -> dict[int, int]:
        """Return the next offset of each partition behind the last micro-batch that was planned."""
        last = self._last("offsets")
        if last is None:
            return {}
        _, _, (position, *_) = self._planned(last)
        return dict(decode_position(msgspec.json.decode(position)).offsets)

    def write(self, manifest: Manifest) -> None:
        """Write the manifest, whose query this folder then has."""
        self._files.mkdirs(self._path(self.location))
        self._write(FILE, msgspec.json.encode(manifest))
        self._query = manifest.query

    def forget(self, query: str) -> None:
        """Delete the folder of a former query."""
        self._fs.delete(self._path(f"{self.location}/{query}"), True)

    def kept(self) -> Kept | None:
        """Return the version and rules of the last micro-batch, None when this version cannot read them."""
        if not self._fs.exists(self._path(f"{self.location}/{RULES}")):
            return None
        try:
            return msgspec.json.decode(self._read(f"{self.location}/{RULES}"), type=Kept)
        except (msgspec.MsgspecError, SidecarError, Py4JJavaError):
            return None

    def keep(self, rules: Rules) -> None:
        """Write the version and rules of the next micro-batches; none must be unfinished."""
        kept = Kept(__version__, replace(rules, api_token=None))
        if kept != self.kept():
            self._write(RULES, msgspec.json.encode(kept))

    def _last(self, log: str) -> int | None:
        folder = self._path(f"{self.query}/{log}")
        if not self._fs.exists(folder):
            return None
        names = (status.getPath().getName() for status in self._fs.listStatus(folder))
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, path: str) -> bytes:
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def _write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: a reader sees the former content or the new one."""
        file, overwrites = self._path(f"{self.location}/{name}"), True
        stream = self._files.createAtomic(file, overwrites)
        try:
            stream.write(bytearray(content))
        except Py4JJavaError:
            stream.cancel()
            raise
        # The file is there when this returns.
        stream.close()
        if self._read(f"{self.location}/{name}") != content:
            raise CommandFailed(
                f"{self.location}/{name} was not replaced: this file system (spark.hadoop.fs.*.impl) or this manager "
                "(spark.sql.streaming.checkpointFileManagerClass) keeps a file that exists, and would keep old state"
            )


def new_manifest(
    cluster_id: str, app_id: str, input_topic: str, input_topic_id: str, partitions: int, group_id: str
) -> Manifest:
    """Return the manifest of a checkpoint that begins now."""
    return Manifest(
        checkpoint=str(uuid.uuid4()),
        cluster_id=cluster_id,
        app_id=app_id,
        input_topic=input_topic,
        input_topic_id=input_topic_id,
        state_partitions=partitions,
        group_id=group_id,
    )


_ANOTHER: Final = "name another folder with --checkpoint, or the settings that it was made with"
_EXPORT: Final = (
    "`retry-sidecar spark export` hands its pending messages over to the embedded engine, and --from-changelog imports "
    "them from there into a new checkpoint"
)


def require_same(found: Manifest, wanted: Manifest, location: str) -> None:
    """Refuse the checkpoint of another application.

    Args:
        found: The manifest in the folder.
        wanted: The manifest that a new checkpoint would have.
        location: The folder.

    Raises:
        SettingsInvalid: The manifests differ; one line for each difference.
    """
    problems = [
        f"{name}: {getattr(wanted, attribute)}; the checkpoint {location} belongs to {getattr(found, attribute)}: {way}"
        for attribute, name, way in (
            ("cluster_id", "cluster (BOOTSTRAP_SERVERS)", _ANOTHER),
            ("app_id", "STREAMS_APP_ID", _ANOTHER),
            ("input_topic", "INPUT_TOPIC", _ANOTHER),
            ("input_topic_id", "id of the input topic, which was deleted and recreated", _EXPORT),
            ("group_id", "GROUP_ID", _ANOTHER),
        )
        if getattr(found, attribute) != getattr(wanted, attribute)
    ]
    if problems:
        raise SettingsInvalid(problems)
