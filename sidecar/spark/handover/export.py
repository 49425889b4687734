"""`spark export`: hands the state of a stopped query over to the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

import structlog

from sidecar import log
from sidecar.changelog.codec import Engine
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.idle_group import require_no_members
from sidecar.kafka.startup_retry import await_brokers
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.handover.import_export import export
from sidecar.spark.manifest import CheckpointFolder, new_manifest, require_same
from sidecar.spark.session import open_session

logger = structlog.get_logger(__name__)


def export_state(
    settings: Settings,
    checkpoint: str,
    master: str | None,
    conf: Mapping[str, str],
) -> int:
    """Write the pending messages of a checkpoint to the changelog, and return their number.

    The embedded engine continues from there, and the checkpoint is out of date.

    Raises:
        SidecarError: The export is not possible; the text says what to do.
    """
    admin = Admin(settings, log.librdkafka_logger())
    topics = await_brokers(lambda: group.idle_topics(admin, settings), settings, SystemClock(), Event().wait)
    assert topics is not None, "an event that is never set stops no wait"
    before = group.last_checkpoints(settings, topics.partitions)
    if any(each.engine is Engine.EMBEDDED for each in before.values()):
        raise CommandFailed(f"the changelog {settings.changelog_topic} belongs to the embedded engine already")
    session = open_session(settings.streams_app_id, master, conf, 1, [checkpoint])
    try:
        folder = CheckpointFolder(session, checkpoint)
        found = folder.read()
        if found is None:
            raise CommandFailed(f"{checkpoint} (--checkpoint) holds no checkpoint")
        here = new_manifest(
            topics.cluster_id,
            settings.streams_app_id,
            settings.input_topic,
            found.input_topic_id,  # the engine that continues handles a topic that was deleted and recreated
            found.state_partitions,
            settings.group_id,
        )
        require_same(found, here, checkpoint)
        session.conf.set("spark.sql.shuffle.partitions", str(found.state_partitions))
        group.settle(settings, found.state_partitions)
        before = group.last_checkpoints(settings, topics.partitions)
        pending, checkpoints = export(session, settings, admin, folder.query, before)
        require_no_members(admin, settings)
        group.write_checkpoints(settings, checkpoints)
        logger.info("state_exported", changelog=settings.changelog_topic, pending=pending)
        return pending
    finally:
        session.stop()
