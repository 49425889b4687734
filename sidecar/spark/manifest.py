"""The manifest of a Spark checkpoint, in a file beside it: the application that the checkpoint belongs to."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from py4j.protocol import Py4JJavaError

from sidecar import __version__
from sidecar.errors import CommandFailed, SettingsInvalid, SidecarError
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "retry-sidecar.json"
RULES: Final = "retry-sidecar-rules.json"
QUERY: Final = "query"
"""The folder of Spark's own checkpoint."""
FORMAT: Final = 1


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
    group_id: str = ""
    """The group that has its marks; empty if a former version began the checkpoint."""


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
        jvm: Any = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        context: Any = session._jsc  # noqa: SLF001 - as above
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._fs = self._path(self.location).getFileSystem(context.hadoopConfiguration())
        except Py4JJavaError as cause:
            hadoop = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise CommandFailed(
                f"{self.location} (--checkpoint): {cause.java_exception.getMessage()}. Spark includes file: and hdfs:; "
                "add the jars of another file system, for s3a: with "
                f"--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{hadoop}"
            ) from cause

    @property
    def query(self) -> str:
        return f"{self.location}/{QUERY}"

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

    def former_starts(self, topic: str) -> dict[int, int]:
        """Return where Kafka's Java source of a former version began; empty without one.

        Until a micro-batch has completed, the first one begins there again.
        """
        file = f"{self.query}/sources/0/0"
        if self.begun() or not self._fs.exists(self._path(file)):
            return {}
        # A zero, the version of the format, and JSON.
        content = self._read(file)
        offsets = msgspec.json.decode(content[content.index(b"{") :], type=dict[str, dict[int, int]])
        return offsets.get(topic, {})

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
        self._write(f"{QUERY}/offsets/{last + 1}", content.encode())

    def _planned(self, batch: int) -> tuple[str, dict[str, Any], list[str]]:
        """Return the version of the log, its entry for a micro-batch, and the offsets of each source."""
        version, planned, *offsets = self._read(f"{self.query}/offsets/{batch}").decode().split("\n")
        return version, msgspec.json.decode(planned), offsets

    def write(self, manifest: Manifest) -> None:
        self._write(FILE, msgspec.json.encode(manifest))

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
        file, folder = self._path(f"{self.location}/{name}"), self._path(self.location)
        whole = self._path(folder, f".{uuid.uuid4()}.part")
        stream = self._fs.create(whole, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        # A rename onto an existing file is refused, so that file is deleted first.
        self._fs.delete(file, False)
        self._fs.rename(whole, file)


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


def require_same(found: Manifest, wanted: Manifest, location: str, asked_partitions: int | None) -> None:
    """Refuse the checkpoint of another application.

    Args:
        found: The manifest in the folder.
        wanted: The manifest that a new checkpoint would have.
        location: The folder.
        asked_partitions: The number of state partitions that the user gave.

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
        if getattr(found, attribute) not in {getattr(wanted, attribute), ""}
    ]
    if asked_partitions is not None and asked_partitions != found.state_partitions:
        problems.append(
            f"--state-partitions {asked_partitions}: the checkpoint {location} was made with {found.state_partitions}, "
            "and its state cannot be spread again: leave the option out; to change the number, run "
            "`retry-sidecar spark export` and begin a new checkpoint with --from-changelog"
        )
    if problems:
        raise SettingsInvalid(problems)
