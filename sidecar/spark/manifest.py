"""What a Spark checkpoint belongs to, in a file beside it on the same file system."""

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
"""Folder of Spark's own checkpoint."""
FORMAT: Final = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a checkpoint."""

    format: int = FORMAT
    checkpoint: str
    """An id that is written into the group's offsets."""
    cluster_id: str
    app_id: str
    input_topic: str
    input_topic_id: str
    state_partitions: int
    offsets: dict[int, int] = {}
    """Where the input is read from, by partition; EARLIEST is one too."""
    imports: bool = False
    """It begins with what the changelog holds."""
    group_id: str = ""
    """The group that its marks are in; empty in one that a former version began."""


class Unfinished(NamedTuple):
    """A micro-batch that Spark has planned and not completed: it runs again."""

    batch: int
    now_ms: int
    """Its instant."""


class Kept(msgspec.Struct, frozen=True):
    """Under what the last micro-batches were decided; one that is not complete is completed under the same."""

    version: str
    rules: Rules
    """Without the token, which is no file's to hold."""


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
                f"{self.location} (--checkpoint): {cause.java_exception.getMessage()}. Spark brings file: and hdfs: "
                "with it; the jars of another file system are yours to add, for s3a: with "
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
                    f"{self.location} (--checkpoint) holds a checkpoint of something else: name another folder"
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
        """Return whether a micro-batch has come to its end: until then the query begins anew at each start."""
        return self._last("commits") is not None

    def unfinished(self) -> Unfinished | None:
        """Return the micro-batch that was planned and is not complete, None when there is none."""
        planned, done = self._last("offsets"), self._last("commits")
        if planned is None or planned == done:
            return None
        return Unfinished(planned, int(self._planned(planned)[1]["batchTimestampMs"]))

    def plan_empty(self, now_ms: int) -> None:
        """Plan a micro-batch without records, which the next query begins with; none must be unfinished.

        By itself Spark begins with one only in a new checkpoint, or when there are records: what is due would wait for
        these.
        """
        last = self._last("offsets")
        if last is None:
            return
        version, planned, offsets = self._planned(last)
        planned["batchTimestampMs"] = max(now_ms, int(planned["batchTimestampMs"]) + 1)
        content = "\n".join([version, msgspec.json.encode(planned).decode(), *offsets])
        self._write(f"{QUERY}/offsets/{last + 1}", content.encode())

    def _planned(self, batch: int) -> tuple[str, dict[str, Any], list[str]]:
        """Return the version of the log, what it says of a micro-batch, and the offsets of each source."""
        version, planned, *offsets = self._read(f"{self.query}/offsets/{batch}").decode().split("\n")
        return version, msgspec.json.decode(planned), offsets

    def write(self, manifest: Manifest) -> None:
        self._write(FILE, msgspec.json.encode(manifest))

    def kept(self) -> Kept | None:
        """Return under what the last micro-batch was decided, None when this version cannot read it."""
        if not self._fs.exists(self._path(f"{self.location}/{RULES}")):
            return None
        try:
            return msgspec.json.decode(self._read(f"{self.location}/{RULES}"), type=Kept)
        except (msgspec.MsgspecError, SidecarError, Py4JJavaError):
            return None

    def keep(self, rules: Rules) -> None:
        """Write down under what the micro-batches to come are decided; none must be unfinished."""
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
        # Where the new name is taken renaming is refused; a crash in between leaves none, which is known from before.
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
_HAND_BACK: Final = (
    "what waits in it goes on in the embedded engine after `retry-sidecar spark export`, or from there in a new "
    "checkpoint with --from-changelog"
)


def require_same(found: Manifest, wanted: Manifest, location: str, asked_partitions: int | None) -> None:
    """Refuse to go on from a checkpoint of something else.

    Args:
        found: In the folder.
        wanted: As it would be made now.
        location: The folder.
        asked_partitions: What the user gave for the number of state partitions.

    Raises:
        SettingsInvalid: With a line for each thing that differs.
    """
    problems = [
        f"{name}: {getattr(wanted, attribute)}; the checkpoint {location} belongs to {getattr(found, attribute)}: {way}"
        for attribute, name, way in (
            ("cluster_id", "cluster (BOOTSTRAP_SERVERS)", _ANOTHER),
            ("app_id", "STREAMS_APP_ID", _ANOTHER),
            ("input_topic", "INPUT_TOPIC", _ANOTHER),
            ("input_topic_id", "id of the input topic, which was deleted and made anew", _HAND_BACK),
            ("group_id", "GROUP_ID", _ANOTHER),
        )
        if getattr(found, attribute) not in {getattr(wanted, attribute), ""}
    ]
    if asked_partitions is not None and asked_partitions != found.state_partitions:
        problems.append(
            f"--state-partitions {asked_partitions}: the checkpoint {location} was made with {found.state_partitions}, "
            "and its state is spread over as many for ever: leave the option out; to change it, "
            "`retry-sidecar spark export` and begin a new checkpoint with --from-changelog"
        )
    if problems:
        raise SettingsInvalid(problems)
