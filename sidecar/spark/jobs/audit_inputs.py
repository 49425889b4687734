"""`spark audit`: gathers the inputs of the audit on the driver, and runs it in a session."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import NamedTuple

from sidecar import log
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Deadline, Topic, describe_cluster, existing_topics
from sidecar.kafka.admin.topics import look
from sidecar.kafka.startup_retry import TRY_S, await_brokers
from sidecar.policy import PolicyConfig
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.jobs.audit import Audit, AuditInputs, audit
from sidecar.spark.jobs.job import job_session
from sidecar.spark.manifest import CheckpointFolder
from sidecar.spark.stream.step import Rules
from sidecar.spark.timers import watermarks


class _Standing(NamedTuple):
    """The positions of the sidecars."""

    committed: Mapping[int, int]
    watermarks: Mapping[int, bytes]
    bases: Mapping[int, int]
    existing: frozenset[str]
    """The topics that exist."""


def run_audit(
    settings: Settings,
    policy: PolicyConfig,
    *,
    checkpoint: str | None,
    out: str | None,
    master: str | None,
    conf: Mapping[str, str],
) -> Audit:
    """Audit all messages that are on the retry topic.

    Args:
        settings: The effective settings.
        policy: The policy of these settings.
        checkpoint: The checkpoint with the pending timers; None: the changelog has them.
        out: The folder for Parquet; None: nothing is written.
        master: The Spark master, as in `open_session`.
        conf: The user's properties, as in `open_session`.

    Raises:
        SidecarError: The audit is not possible; the text says what to do.
    """
    admin = Admin(settings, log.librdkafka_logger())
    standing = await_brokers(lambda: _standing(admin, settings), settings, SystemClock(), Event().wait)
    assert standing is not None, "an event that is never set stops no wait"
    with job_session(f"{settings.streams_app_id}-audit", master, conf) as session:
        folder = None
        if checkpoint is not None:
            checkpoint_folder = CheckpointFolder(session, checkpoint)
            if checkpoint_folder.read() is None:
                raise CommandFailed(f"{checkpoint} (--checkpoint) holds no checkpoint")
            folder = checkpoint_folder.query
        rules = Rules(
            policy=policy,
            profiles=settings.dialects,
            app_id=settings.streams_app_id,
            status_topic=settings.status_topic,
            owner="audit",
            api_token=settings.api_token,
        )
        return audit(AuditInputs(session, settings, rules, admin, *standing, folder), out)


def _standing(admin: Admin, settings: Settings) -> _Standing:
    deadline = Deadline(TRY_S)
    describe_cluster(admin, deadline)
    found = look(admin, settings, deadline)
    if not isinstance(found.input, Topic):
        raise CommandFailed(f"{settings.input_topic} (INPUT_TOPIC) does not exist, or may not be described")
    partitions = found.input.partitions
    committed = group.committed(settings, partitions)
    checkpoints = group.last_checkpoints(settings, partitions)
    topics = existing_topics(admin, TRY_S)
    replaced = {number for number, each in checkpoints.items() if not each.meets(found.input.topic_id)}
    return _Standing(
        {number: offset for number, (offset, _) in committed.items() if number not in replaced},
        watermarks(checkpoints),
        {number: each.of_topic(found.input.topic_id, 0).offset_base for number, each in checkpoints.items()},
        topics,
    )
