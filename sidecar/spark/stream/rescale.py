"""Another number of state partitions for a checkpoint.

The state of each input partition is copied as it is, block by block, into the first state of a new query folder, under
the key that Spark places in its new state partition; the source continues where the former query stopped. The manifest
names the folder: until it is written nothing has changed, and until a micro-batch of the new folder has completed each
start begins with the copy.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from sidecar.spark.handover.import_export import require_sent
from sidecar.spark.manifest import QUERY, CheckpointFolder, Former, Manifest
from sidecar.spark.marks import MarkedCheckpoint
from sidecar.spark.state.timers import metas, read_state
from sidecar.spark.stream.placement import STEP, key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"

logger = structlog.get_logger(__name__)


def rescaled(
    session: SparkSession,
    folder: CheckpointFolder,
    manifest: Manifest,
    state_partitions: int,
    before: Mapping[int, MarkedCheckpoint],
) -> Manifest:
    """Return the manifest with another number of state partitions, after writing it.

    Args:
        session: A session with as many shuffle partitions as the manifest has state partitions.
        folder: The folder of the checkpoint; no micro-batch is unfinished.
        manifest: The manifest in the folder.
        state_partitions: The new number.
        before: The last checkpoint of each partition in the changelog, with the mark of what was sent.

    Raises:
        CommandFailed: The state does not meet what was sent.
    """
    former = manifest.state_partitions
    if not folder.begun():
        # Nothing was ever planned, so there is nothing to copy.
        folder.write(manifest := replace(manifest, state_partitions=state_partitions))
        session.conf.set(SHUFFLE_PARTITIONS, str(state_partitions))
        return manifest
    require_sent(metas(read_state(session, folder.query)), before)
    number = int(manifest.query.removeprefix(QUERY).removeprefix("-") or 1) + 1
    manifest = replace(
        manifest,
        # The marks of the former number belong to another checkpoint: a process that continues under it is refused.
        checkpoint=str(uuid.uuid4()),
        state_partitions=state_partitions,
        query=f"{QUERY}-{number}",
        former=Former(manifest.query, former),
        offsets=folder.read_to(),
    )
    folder.write(manifest)
    session.conf.set(SHUFFLE_PARTITIONS, str(state_partitions))
    logger.info("state_rescaled", state_partitions=state_partitions, former=former, folder=folder.query)
    return manifest


def copied_state(session: SparkSession, folder: CheckpointFolder, manifest: Manifest, partitions: int) -> DataFrame:
    """Return the entries of the former query's state, under the keys of the new number of state partitions.

    Args:
        session: The session whose executors read.
        folder: The folder of the checkpoint.
        manifest: Its manifest, which names the former query.
        partitions: The number of input partitions.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    assert manifest.former is not None, "there is a former query"
    state = read_state(session, f"{folder.location}/{manifest.former.query}")
    keys = f.array(*[f.lit(key_of(number, manifest.state_partitions)) for number in range(partitions)])
    key = f.element_at(keys, (f.col("key") % STEP).cast("int") + 1).cast("int").alias("key")
    return state.select(key, f.col("cell").alias("record"), "value")
