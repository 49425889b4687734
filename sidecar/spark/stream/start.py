"""`spark run`: prepares the cluster and the checkpoint, runs the query, and stops it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from msgspec.structs import replace

from sidecar import log
from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.clock import SystemClock
from sidecar.engine.rows import Identity
from sidecar.engine.wholeness import ChangelogLost, Log, missing
from sidecar.errors import CommandFailed, SettingsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, end_offsets, first_offsets
from sidecar.kafka.admin.first_start import place_new_group
from sidecar.kafka.admin.offsets import Committed, TopicsNow
from sidecar.kafka.admin.topic_watch import TopicWatch
from sidecar.kafka.admin.topics import TopicFacts, ensure_topics
from sidecar.kafka.idle_group import require_no_members
from sidecar.kafka.startup_retry import TRY_S, await_brokers
from sidecar.policy import PolicyConfig
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.handover.import_export import changelog_records, initial_records
from sidecar.spark.manifest import CheckpointFolder, Manifest, new_manifest, require_same
from sidecar.spark.marks import MarkedCheckpoint
from sidecar.spark.open_files import jvm_of
from sidecar.spark.reads.board import Board
from sidecar.spark.reads.questions import BoardAddress
from sidecar.spark.running import Starter, keep_running
from sidecar.spark.session import open_session
from sidecar.spark.source.offsets import EARLIEST
from sidecar.spark.source.options import limits_of
from sidecar.spark.source.stream import Reading
from sidecar.spark.stream.batches import Batches
from sidecar.spark.stream.clock_check import ClockCheck
from sidecar.spark.stream.query import Replay, initial_state, start_query
from sidecar.spark.stream.rescale import SHUFFLE_PARTITIONS, copied_state, rescaled
from sidecar.spark.stream.restore_marks import restore_marks
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


logger = structlog.get_logger(__name__)


T = TypeVar("T")


class _Stopped(Exception):
    """A stop was requested while the start waited for brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line beside the settings."""

    checkpoint: str
    """The folder of the checkpoint, on any file system that Hadoop supports."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    state_partitions: int | None = None
    trigger_ms: int = 500
    from_changelog: bool = False
    restore_marks: bool = False
    """Whether to go on from the state where the changelog does not say what was sent."""
    url: str | None = None
    board: Board | None = None
    """Asks the query for single messages; None: they are not shown."""


def run(
    settings: Settings,
    policy: PolicyConfig,
    options: Options,
    *,
    stopping: Callable[[float], bool],
    opened: Callable[[int], None] = lambda _: None,
    progressed: Callable[[Mapping[str, Any]], None] = lambda _: None,
    failed: Callable[[str], None] = lambda _: None,
    skewed: Callable[[float], None] = lambda _: None,
) -> None:
    """Run until `stopping` returns True.

    What is asked of the brokers at the start is asked again until STARTUP_TIMEOUT, each question by itself: any of them
    may be the one that a login fails at.

    Args:
        settings: The effective settings.
        policy: The policy of these settings.
        options: The options of the command line.
        stopping: Waits at most this many seconds and returns whether to stop.
        opened: Called with the process id of the JVM when the session is open: PySpark has taken over SIGINT by then.
        progressed: Called with the progress of each micro-batch, as in Spark's JSON.
        failed: Called with the reason of each failure of the query, which is restarted.
        skewed: Called with the driver's clock minus the broker's, in seconds, each time that it is measured.

    Raises:
        SidecarError: The query cannot start or continue; the text says what to do.
    """
    refuse_policy_dlqs(settings)
    refuse_order(policy)
    limits = limits_of(options.source)
    config.validate_client_properties(settings)

    def answered(ask: Callable[[], T]) -> T:
        answer = await_brokers(ask, settings, SystemClock(), stopping)
        if answer is None:
            raise _Stopped
        return answer

    with suppress(_Stopped):
        admin = answered(lambda: Admin(settings, log.librdkafka_logger()))
        topics = answered(lambda: group.idle_topics(admin, settings))
        # The checkpoint has the number of state partitions, and reading it takes a session.
        folders = [options.checkpoint]
        session = open_session(settings.streams_app_id, options.master, _plain(options.conf), 1, folders, query=True)
        opened(jvm_of(session))
        try:
            board = None if options.board is None else _listen(options.board, session)
            folder = CheckpointFolder(session, options.checkpoint)
            manifest = answered(lambda: _manifest(session, folder, admin, settings, topics, options))
            if options.restore_marks:
                before = answered(lambda: _sent(settings, manifest, topics))
                _refuse_what_was_exported(before, folder.location)
                restore_marks(session, folder, manifest, settings, before)

            def starter(manifest: Manifest) -> Starter:
                initial = _initial(session, folder, manifest, admin, settings, topics)
                starts = _offsets(manifest, topics)

                def start(rules: Rules, replay: Replay | None) -> StreamingQuery:
                    trigger, count = f"{options.trigger_ms} milliseconds", manifest.state_partitions
                    reading = Reading(
                        settings=settings, rules=rules, state_partitions=count, starts=starts, limits=limits
                    )
                    return start_query(session, reading, manifest, folder, initial, trigger, replay=replay, board=board)

                rules = partial(_rules, settings, policy, admin, manifest, options)
                return Starter(settings, manifest, folder, rules, start)

            clock = answered(lambda: ClockCheck(settings, skewed=skewed))
            if (wanted := _asked(options)) is not None and wanted != manifest.state_partitions:
                if not answered(lambda: starter(manifest).complete(stopping, clock)):
                    return
                before = answered(lambda: group.last_checkpoints(settings, topics.partitions))
                manifest = rescaled(session, folder, manifest, wanted, before)
            batches = Batches(progressed)
            session.streams.addListener(batches)
            first, replaced = answered(lambda: starter(manifest)), _replaced(admin, settings, topics)
            keep_running(first, stopping, batches, clock, replaced, failed)
        finally:
            if options.board is not None:
                options.board.close()
            session.stop()


def _listen(board: Board, session: SparkSession) -> BoardAddress | None:
    """Listen where executors reach this driver; None when no port is asked for and none can be used.

    Raises:
        CommandFailed: The port that is asked for cannot be used.
    """
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "localhost"
    bind = conf.get("spark.driver.bindAddress") or host
    port = int(conf.get(READS_PORT) or 0)
    try:
        return board.listen(host, bind, port)
    except CommandFailed as cause:
        if port:
            raise
        # The query is worth more than its reads.
        logger.warning("messages_not_shown", reason=str(cause))
        return None


def _replaced(admin: Admin, settings: Settings, topics: TopicFacts) -> Callable[[], str | None]:
    """Return what tells why the query must be restarted when the input topic has become another one."""
    watch = TopicWatch(partial(TopicsNow, admin), SystemClock(), settings.input_topic, settings.changelog_topic)

    def replaced() -> str | None:
        same = watch.topic_ids()[0] in {"", topics.input_topic_id}
        return None if same else "the input topic was deleted and recreated"

    return replaced


def refuse_order(policy: PolicyConfig) -> None:
    """Raise SettingsInvalid if messages of any origin have to keep the order of their key."""
    ordered = [each.name or "general setting" for each in (policy, *policy.by_origin) if each.order_by_key]
    if ordered:
        where = ", ".join(ordered)
        raise SettingsInvalid([f"ORDER=key ({where}): the Spark engine keeps no order per key: allowed is none"])


READS_PORT: Final = "spark.retrySidecar.reads.port"
"""The property with the port at which executors answer reads; 0: any free one."""


def _manifest(
    session: SparkSession,
    folder: CheckpointFolder,
    admin: Admin,
    settings: Settings,
    topics: TopicFacts,
    options: Options,
) -> Manifest:
    """Return the manifest of the checkpoint, a new one where there is none. Raises SettingsInvalid, CommandFailed."""
    count = _asked(options) or max(1, min(topics.partitions, session.sparkContext.defaultParallelism))
    here = new_manifest(
        topics.cluster_id,
        settings.streams_app_id,
        settings.input_topic,
        topics.input_topic_id,
        count,
        settings.group_id,
    )
    manifest = folder.read()
    if manifest is not None:
        require_same(manifest, here, options.checkpoint)
    else:
        place_new_group(admin, settings, topics, TRY_S)
        manifest = _begin(admin, settings, topics, here, options)
        # Before the fence: after a crash in between the next start continues with this manifest.
        folder.write(manifest)
    session.conf.set(SHUFFLE_PARTITIONS, str(manifest.state_partitions))
    if manifest.former is not None and folder.begun():
        folder.forget(manifest.former.query)
    return manifest


def _asked(options: Options) -> int | None:
    """Return the number of state partitions that the user gave."""
    return options.state_partitions or int(options.conf.get(SHUFFLE_PARTITIONS, 0)) or None


def _initial(
    session: SparkSession,
    folder: CheckpointFolder,
    manifest: Manifest,
    admin: Admin,
    settings: Settings,
    topics: TopicFacts,
) -> DataFrame:
    """Return the first state of the query, after fencing out the embedded engine."""
    before = group.last_checkpoints(settings, topics.partitions)
    if folder.begun():
        _refuse_what_was_exported(before, folder.location)
        checkpoints: Mapping[int, Checkpoint] = {0: Checkpoint(engine=Engine.SPARK)}
        return initial_state(session, initial_records(checkpoints), manifest.state_partitions)
    if manifest.former is not None:
        _refuse_what_was_exported(before, folder.location)
        return copied_state(session, folder, manifest, topics.partitions)
    checkpoints = _first_checkpoints(manifest, topics, before)
    with ThreadPoolExecutor(1, "fence") as pool:
        fenced = pool.submit(group.fence, settings, checkpoints, before)
        # Both take most of a second.
        initial = initial_state(session, initial_records(checkpoints), manifest.state_partitions)
        fenced.result()
    # An instance that joined since would have stopped at the fence, or committed behind it.
    require_no_members(admin, settings)
    if not manifest.imports:
        return initial
    blocks = changelog_records(session, settings, admin, checkpoints, manifest.state_partitions)
    return initial.unionByName(blocks)


def refuse_policy_dlqs(settings: Settings) -> None:
    """Raise CommandFailed when a policy has a DLQ of its own: Spark's sink knows one DLQ."""
    if others := settings.dlq_topics[1:]:
        raise CommandFailed(
            f"dlq_topic of a policy ({', '.join(others)}): the Spark engine writes all dead letters to DLQ_TOPIC; take "
            "dlq_topic out of POLICIES and ORIGIN_POLICIES, or use retry-sidecar run"
        )


def _sent(settings: Settings, manifest: Manifest, topics: TopicFacts) -> dict[int, MarkedCheckpoint]:
    """Return the last checkpoints once no former producer can commit. Raises BrokerUnavailable."""
    group.settle(settings, manifest.state_partitions)
    return group.last_checkpoints(settings, topics.partitions)


def _plain(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name != SHUFFLE_PARTITIONS}


def _rules(settings: Settings, policy: PolicyConfig, admin: Admin, manifest: Manifest, options: Options) -> Rules:
    # This also adds partitions to the status topic and the changelog when the input has grown.
    topics = ensure_topics(admin, settings)
    return Rules(
        policy=policy,
        profiles=settings.dialects,
        app_id=settings.streams_app_id,
        status_topic=settings.status_topic,
        owner=f"spark-{manifest.checkpoint[:8]}",
        url=options.url,
        listable=options.board is not None and options.board.listening and options.url is not None,
        origin_timeout_ms=settings.origin_timeout_ms,
        dlq_max_message_bytes=topics.dlq_bytes_max,
        api_token=settings.api_token,
        input_topic_id=topics.input_topic_id,
        input_partitions=topics.partitions,
        state_partitions=manifest.state_partitions,
        query_began_ms=SystemClock().wall_ms(),
    )


def _begin(admin: Admin, settings: Settings, topics: TopicFacts, manifest: Manifest, options: Options) -> Manifest:
    """Return the manifest of a new checkpoint, with its start offsets.

    Raises:
        BrokerUnavailable: No answer in time.
        ChangelogLost: The changelog to import lacks what was committed.
        CommandFailed: Another state exists.
    """
    # The offsets first: they are known when no transaction of the group is open any more.
    found = group.committed(settings, topics.partitions)
    before = group.last_checkpoints(settings, topics.partitions)
    _refuse_what_is_not_ours(settings, before, options)
    offsets = {number: each.offset for number, each in found.items()}
    if options.from_changelog:
        _refuse_what_lacks_something(admin, settings, topics, found, before)
        for number, (_, metadata) in found.items():
            # Brokers may have rolled back the changelog or the offset alone.
            if (mark := OffsetMark.parse(metadata)) is not None:
                checkpoint = before.get(number, Checkpoint())
                offsets[number] = mark.next_offset(checkpoint, topics.input_topic_id)
        taken = {number: each.next_input_offset for number, each in before.items() if each.next_input_offset}
        offsets = {**taken, **offsets}
        for number, each in before.items():
            if not each.meets(topics.input_topic_id):
                offsets.pop(number, None)  # of a former topic of this name: this one is read from its start
    # Kept, so that a query that is killed in its first micro-batch begins there again.
    unread = [number for number in range(topics.partitions) if number not in offsets]
    firsts = first_offsets(admin, settings.input_topic, unread, Deadline(TRY_S)) if unread else {}
    return replace(manifest, offsets={**firsts, **offsets}, imports=options.from_changelog)


def _refuse_what_lacks_something(
    admin: Admin,
    settings: Settings,
    topics: TopicFacts,
    found: Mapping[int, Committed],
    before: Mapping[int, MarkedCheckpoint],
) -> None:
    """Raise ChangelogLost if the changelog cannot have all that the embedded engine committed."""
    identity = Identity(topics.cluster_id, topics.changelog_topic_id, settings.changelog_topic)
    deadline, numbers = Deadline(TRY_S), range(topics.usable_partitions)
    firsts = first_offsets(admin, settings.changelog_topic, numbers, deadline)
    ends = end_offsets(admin, settings.changelog_topic, numbers, deadline)
    for number in numbers:
        mark = OffsetMark.parse(found[number].metadata) if number in found else None
        changelog = Log(identity, firsts[number], ends[number])
        if why := missing(before.get(number, Checkpoint()), changelog, mark):
            raise ChangelogLost(f"partition {number}: {why}")


def _first_checkpoints(
    manifest: Manifest, topics: TopicFacts, before: Mapping[int, MarkedCheckpoint]
) -> dict[int, Checkpoint]:
    """Return the first checkpoint of each partition; the same at each start until a micro-batch has completed."""
    checkpoints: dict[int, Checkpoint] = {}
    for number in range(topics.partitions):
        known = before.get(number, MarkedCheckpoint()) if manifest.imports else MarkedCheckpoint()
        next_offset = max(0, manifest.offsets.get(number, 0))
        here = known.of_topic(topics.input_topic_id, next_offset)
        checkpoints[number] = replace(
            here,
            engine=Engine.SPARK,
            next_input_offset=next_offset,
            highest_input_offset=max(next_offset, here.highest_input_offset),
            mark=None,
        )
    return checkpoints


def _offsets(manifest: Manifest, topics: TopicFacts) -> dict[int, int]:
    return {**dict.fromkeys(range(topics.partitions), EARLIEST), **manifest.offsets}


def _refuse_what_was_exported(before: Mapping[int, Checkpoint], checkpoint: str) -> None:
    if any(each.engine is Engine.EMBEDDED for each in before.values()):
        raise CommandFailed(
            f"the state of {checkpoint} was exported to the embedded engine, so this checkpoint is out of date. To "
            "return to Spark, name a new folder with --checkpoint and give --from-changelog"
        )


def _refuse_what_is_not_ours(
    settings: Settings,
    before: Mapping[int, MarkedCheckpoint],
    options: Options,
) -> None:
    """Refuse a new checkpoint where an old one, or the embedded engine, has state."""
    embedded = [number for number, each in before.items() if each.engine is Engine.EMBEDDED]
    if embedded and not options.from_changelog:
        raise CommandFailed(
            f"the changelog {settings.changelog_topic} has the state of the embedded engine: import it with "
            "--from-changelog"
        )
    if options.from_changelog and len(embedded) < len(before):
        raise CommandFailed(
            f"the changelog {settings.changelog_topic} was imported before, and has nothing newer: "
            "`retry-sidecar spark export` writes the state of a checkpoint to it"
        )
    marked = [mark for mark in group.marks(before).values() if mark.sequence]
    if marked and not options.from_changelog:
        raise CommandFailed(
            f"the changelog {settings.changelog_topic} has marks of the Spark checkpoint {marked[0].checkpoint}, and "
            f"{options.checkpoint} is another one: name that checkpoint. If it is lost, run `retry-sidecar spark audit "
            "--repair`, then start with --from-changelog"
        )
