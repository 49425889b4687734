"""What a Spark checkpoint belongs to, in a file beside it on the same file system."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sidecar.errors import CommandFailed, SettingsInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "retry-sidecar.json"
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


class CheckpointFolder:
    """The folder of a checkpoint, on any file system that Hadoop knows."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        jvm: Any = session._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        context: Any = session._jsc  # noqa: SLF001 - as above
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(self.location).getFileSystem(context.hadoopConfiguration())

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
        stream = self._fs.open(file)
        try:
            content = bytes(stream.readAllBytes())
        finally:
            stream.close()
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except msgspec.MsgspecError as cause:
            raise CommandFailed(f"{self.location}/{FILE} can not be read: {cause}") from cause
        if manifest.format != FORMAT:
            raise CommandFailed(f"{self.location} has format {manifest.format}; this version reads {FORMAT}")
        return manifest

    def begun(self) -> bool:
        """Return whether a micro-batch has come to its end: until then the query begins anew at each start."""
        commits = self._path(f"{self.query}/commits")
        return bool(self._fs.exists(commits)) and any(
            status.getPath().getName().isdigit() for status in self._fs.listStatus(commits)
        )

    def write(self, manifest: Manifest) -> None:
        stream = self._fs.create(self._path(f"{self.location}/{FILE}"), True)
        try:
            stream.write(bytearray(msgspec.json.encode(manifest)))
        finally:
            stream.close()


def new_manifest(cluster_id: str, app_id: str, input_topic: str, input_topic_id: str, partitions: int) -> Manifest:
    """Return the manifest of a checkpoint that begins now."""
    return Manifest(
        checkpoint=str(uuid.uuid4()),
        cluster_id=cluster_id,
        app_id=app_id,
        input_topic=input_topic,
        input_topic_id=input_topic_id,
        state_partitions=partitions,
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
        )
        if getattr(found, attribute) != getattr(wanted, attribute)
    ]
    if asked_partitions is not None and asked_partitions != found.state_partitions:
        problems.append(
            f"--state-partitions {asked_partitions}: the checkpoint {location} was made with {found.state_partitions}, "
            "and its state is spread over as many for ever: leave the option out; to change it, "
            "`retry-sidecar spark export` and begin a new checkpoint with --from-changelog"
        )
    if problems:
        raise SettingsInvalid(problems)
