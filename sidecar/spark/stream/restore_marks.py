"""`spark run --restore-marks`: writes the marks of a checkpoint again, when the changelog does not have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import asdict

from sidecar.changelog.codec import Engine
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.manifest import CheckpointFolder, Manifest
from sidecar.spark.marks import Mark, MarkedCheckpoint
from sidecar.spark.state.entries import Meta
from sidecar.spark.state.timers import metas, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = structlog.get_logger(__name__)


def restore_marks(
    session: SparkSession,
    folder: CheckpointFolder,
    manifest: Manifest,
    settings: Settings,
    before: Mapping[int, MarkedCheckpoint],
) -> None:
    """Write to the changelog that all of the state was sent, for the partitions of which it says less.

    Args:
        session: A session with as many shuffle partitions as the manifest has state partitions.
        folder: The folder of the checkpoint.
        manifest: Its manifest.
        settings: The settings, which name the changelog.
        before: The last checkpoint of each partition in the changelog; no producer can commit any more.

    Raises:
        CommandFailed: The changelog cannot be written.
    """
    query = folder.query
    if not folder.begun():
        if manifest.former is None:
            return  # the start writes what a new state begins with
        query = f"{folder.location}/{manifest.former.query}"
    standing = metas(read_state(session, query))
    if restored := marked(standing, before, manifest.checkpoint):
        group.write_checkpoints(settings, restored)
    named = ", ".join(map(str, sorted(restored)))
    logger.warning("marks_restored", changelog=settings.changelog_topic, partitions=named)


def marked(
    standing: Mapping[int, Meta], before: Mapping[int, MarkedCheckpoint], checkpoint: str
) -> dict[int, MarkedCheckpoint]:
    """Return the checkpoints to write, which say that the state was sent, and no more.

    Args:
        standing: The position of each partition of the state.
        before: The last checkpoint of each partition in the changelog.
        checkpoint: The id of the Spark checkpoint.
    """
    return {
        number: MarkedCheckpoint(
            **{**asdict(meta.checkpoint), "engine": Engine.SPARK},
            mark=Mark(meta.checkpoint.sequence, checkpoint, next_input_offset=meta.checkpoint.next_input_offset),
        )
        for number, meta in standing.items()
        if before.get(number, MarkedCheckpoint()).reached < meta.checkpoint.sequence
    }
