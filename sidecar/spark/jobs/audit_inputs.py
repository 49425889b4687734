"""`spark audit`: gathers the inputs of the audit on the driver, and runs it in a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from sidecar import log
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Deadline, Topic, describe_cluster, end_offsets, existing_topics
from sidecar.kafka.admin.topics import look
from sidecar.kafka.idle_group import require_no_members
from sidecar.kafka.startup_retry import TRY_S, await_brokers
from sidecar.policy import PolicyConfig
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.handover.import_export import read_changelog
from sidecar.spark.jobs.audit import Audit, AuditInputs, audit, judged, read_topics
from sidecar.spark.jobs.dispositions import Disposition, RecordKind
from sidecar.spark.jobs.job import job_session
from sidecar.spark.jobs.repair import (
    MESSAGE,
    LostMessages,
    Messages,
    Repair,
    RepairOrder,
    Standing,
    forgotten_ms,
    require_idle,
)
from sidecar.spark.manifest import CheckpointFolder
from sidecar.spark.state.timers import watermarks
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Found(NamedTuple):
    """The sidecars' positions and the topics that exist."""

    standing: Standing
    existing: frozenset[str]

    def committed(self) -> dict[int, int]:
        """Return the committed offsets in the input topic, none of a former topic."""
        before, topic_id = self.standing.before, self.standing.topic_id
        known = {number for number, each in before.items() if not each.meets(topic_id)}
        return {number: offset for number, offset in self.standing.committed.items() if number not in known}

    def bases(self) -> dict[int, int]:
        """Return the offset base of each partition."""
        topic_id = self.standing.topic_id
        return {number: each.of_topic(topic_id, 0).offset_base for number, each in self.standing.before.items()}


def run_audit(
    settings: Settings,
    policy: PolicyConfig,
    *,
    checkpoint: str | None,
    out: str | None,
    master: str | None,
    conf: Mapping[str, str],
    repair: RepairOrder | None = None,
) -> tuple[Audit, Repair | None]:
    """Audit all messages that are on the retry topic, and arm the lost ones again if that is wanted.

    Args:
        settings: The effective settings.
        policy: The policy of these settings.
        checkpoint: The checkpoint with the pending timers; None: the changelog has them.
        out: The folder for Parquet; None: nothing is written.
        master: The Spark master, as in `open_session`.
        conf: The user's properties, as in `open_session`.
        repair: The terms of a repair; None: only the audit.

    Raises:
        SidecarError: The audit is not possible; the text says what to do.
    """
    admin = Admin(settings, log.librdkafka_logger())
    found = await_brokers(lambda: _find(admin, settings), settings, SystemClock(), Event().wait)
    assert found is not None, "an event that is never set stops no wait"
    lost = _state_lost(found.standing, settings, checkpoint, repairs=repair is not None)
    if repair is not None:
        require_no_members(admin, settings)
    with job_session(f"{settings.streams_app_id}-audit", master, conf, [checkpoint, out]) as session:
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
        passed = watermarks(found.standing.before)
        placed = (found.committed(), passed, found.bases(), found.existing)
        inputs = AuditInputs(session, settings, rules, admin, *placed, folder, lost)
        dispositions = judged(inputs)
        result = audit(dispositions, out)
        if repair is None:
            return result, None
        return result, _repaired(inputs, found.standing, dispositions, repair)


def _state_lost(standing: Standing, settings: Settings, checkpoint: str | None, *, repairs: bool) -> bool:
    """Return whether there is no state. Raises CommandFailed when it must be named, or is there and to be repaired."""
    if checkpoint is not None:
        if repairs:
            raise CommandFailed(
                f"--repair with --checkpoint {checkpoint}: a repair writes to the changelog. If the checkpoint can be "
                "read, run `retry-sidecar spark export` first; if it is lost, leave --checkpoint out"
            )
        return False
    if standing.state_lost and not repairs and standing.before:
        raise CommandFailed(
            f"the Spark engine has the state, not the changelog {settings.changelog_topic}: name its checkpoint with "
            "--checkpoint. If it is lost, give --repair"
        )
    return standing.state_lost


def _repaired(inputs: AuditInputs, standing: Standing, dispositions: DataFrame, order: RepairOrder) -> Repair:
    """Arm the lost messages, if that is agreed to, and return what was done."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra
    from pyspark.storagelevel import StorageLevel  # noqa: PLC0415 - as above

    admin, settings, now_ms = inputs.admin, inputs.settings, SystemClock().wall_ms()
    lost = dispositions.filter(f.col("fate") == Disposition.LOST.value)
    kinds = {row["kind"]: row["count"] for row in lost.groupBy("kind").count().collect()}
    origins = {row["origin"] for row in lost.filter("origin is not null").select("origin").distinct().collect()}
    forgotten = forgotten_ms(admin, frozenset(origins) | {settings.dlq_topic}, now_ms)
    job = LostMessages(settings, standing, forgotten, now_ms)
    messages = read_topics(inputs, [settings.input_topic], Messages(inputs.rules), MESSAGE)
    changelog = read_changelog(inputs.session, settings, admin)
    timers = job.find(dispositions, messages, changelog).persist(StorageLevel.DISK_ONLY)
    decided = timers.filter("decided").count()
    undecided = timers.count() - decided
    rejected = sum(kinds.values()) - kinds.get(RecordKind.MESSAGE.value, 0)
    chosen = timers if order.even_undecided else timers.filter("decided")
    planned = Repair(decided + undecided * order.even_undecided, undecided * (not order.even_undecided), rejected)
    if not order.agreed(planned):
        return planned
    now = _find(admin, settings).standing
    require_idle(now, standing)
    require_no_members(admin, settings)
    if planned.armed or standing.state_lost:
        job.arm(chosen, changelog)
    return replace(planned, done=True)


def _find(admin: Admin, settings: Settings) -> _Found:
    deadline = Deadline(TRY_S)
    describe_cluster(admin, deadline)
    found = look(admin, settings, deadline)
    if not isinstance(found.input, Topic):
        raise CommandFailed(f"{settings.input_topic} (INPUT_TOPIC) does not exist, or may not be described")
    partitions = found.input.partitions
    ends: Mapping[int, int] = {}
    if isinstance(found.status, Topic):
        ends = end_offsets(admin, settings.status_topic, range(found.status.partitions), deadline)
    committed = {number: each.offset for number, each in group.committed(settings, partitions).items()}
    before = group.last_checkpoints(settings, partitions)
    sent = {number: mark.next_input_offset for number, mark in group.marks(before).items()}
    standing = Standing(found.input.topic_id, partitions, {**committed, **sent}, before, ends)
    return _Found(standing, existing_topics(admin, TRY_S))
