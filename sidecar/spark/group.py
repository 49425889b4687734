"""The driver's requests to the cluster before a query starts: the group's members, offsets and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from msgspec.structs import replace

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Engine, encode_checkpoint
from sidecar.clock import SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import TopicFacts, ensure_topics
from sidecar.kafka.idle_group import require_no_members
from sidecar.kafka.log_reader import LogReader
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.startup_retry import TRY_S
from sidecar.kafka.writer import Writer, Written
from sidecar.settings import Settings
from sidecar.spark.checkpoints import CheckpointReader
from sidecar.spark.marks import Mark, MarkedCheckpoint
from sidecar.spark.stream.sender import INIT_TIMEOUT_S, transactional_id

WAIT_S: Final = 30.0
CALL_S: Final = 10.0
SETTLED_AT_ONCE: Final = 8


def idle_topics(admin: Admin, settings: Settings) -> TopicFacts:
    """Return the properties of the topics, once no instance reads them.

    Raises:
        BrokerUnavailable: No answer in time; on a new broker the group's coordinator is some seconds behind the topics.
        CommandFailed: The group has members.
        TopicsInvalid: A topic has other properties than it needs.
    """
    topics = ensure_topics(admin, settings, TRY_S)
    require_no_members(admin, settings, TRY_S)
    return topics


def settle(settings: Settings, state_partitions: int) -> None:
    """Settle the transactions of a killed process, so that offsets can be read. Raises BrokerUnavailable."""

    def one(number: int) -> None:
        properties = config.transactional_producer(settings, transactional_id(settings, number))
        producer = TransactionalProducer({**properties, "logger": config.quiet_logger()}, SystemClock())
        try:
            producer.init(INIT_TIMEOUT_S)
        finally:
            producer.close()

    try:
        with ThreadPoolExecutor(SETTLED_AT_ONCE) as pool:
            list(pool.map(one, range(state_partitions)))
    except TransactionFailed as cause:
        raise BrokerUnavailable(f"the transactions of an earlier run cannot be settled: {cause}") from cause


def committed(settings: Settings, partitions: int) -> dict[int, Committed]:
    """Return what is committed for each partition that has an offset. Raises BrokerUnavailable."""
    deadline = Deadline(WAIT_S)
    # Being read_committed, it waits for open transactions.
    with _reader(config.input_consumer(settings), settings.input_topic) as reader:
        while True:
            try:
                return reader.committed(range(partitions), min(CALL_S, deadline.left_s))
            except KafkaFailed as error:
                if deadline.passed:
                    raise BrokerUnavailable(
                        f"the offsets of {settings.group_id} cannot be read ({error}): does a "
                        "transaction stay open because another query or instance is running?"
                    ) from error
                deadline.pause()


def last_checkpoints(settings: Settings, partitions: int) -> dict[int, MarkedCheckpoint]:
    """Return the last checkpoint in each partition of the changelog that has one. Raises BrokerUnavailable."""
    try:
        with CheckpointReader(settings) as reader:
            return reader.last(range(partitions), WAIT_S)
    except KafkaFailed as error:
        topic = settings.changelog_topic
        raise BrokerUnavailable(f"the last checkpoints of the changelog {topic} cannot be read: {error}") from error


def _reader(properties: Mapping[str, Any], topic: str) -> LogReader:
    """Return a reader. Raises BrokerUnavailable: there is no token for its login."""
    try:
        return LogReader(properties, topic)
    except KafkaFailed as error:
        raise BrokerUnavailable(f"topic {topic} cannot be read: {error}") from error


def marks(checkpoints: Mapping[int, MarkedCheckpoint]) -> dict[int, Mark]:
    """Return the marks of the partitions that have one."""
    return {number: each.mark for number, each in checkpoints.items() if each.mark is not None}


def fence(settings: Settings, checkpoints: Mapping[int, Checkpoint], before: Mapping[int, MarkedCheckpoint]) -> None:
    """Write checkpoints of this engine to the changelog: an instance of the embedded engine stops at them.

    Args:
        settings: The settings, which name the changelog.
        checkpoints: What each partition begins with.
        before: What the changelog has; one of this engine stays, as its mark says what an earlier start has sent.
    """
    fences = {
        number: replace(each, engine=Engine.SPARK)
        for number, each in checkpoints.items()
        if number not in before or before[number].engine is not Engine.SPARK
    }
    write_checkpoints(settings, fences)


def write_checkpoints(settings: Settings, checkpoints: Mapping[int, Checkpoint]) -> None:
    """Write checkpoints to the changelog.

    Raises:
        BrokerUnavailable: No answer in time; they may be written.
        CommandFailed: A definite answer that is an error.
    """
    writer = Writer({**config.retry_producer(settings), "linger.ms": 0})
    problems: list[KafkaFailed] = []

    def report(written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            problems.append(written)

    for partition, checkpoint in checkpoints.items():
        value = encode_checkpoint(checkpoint)
        writer.write(settings.changelog_topic, CHECKPOINT_KEY, value, partition=partition, report=report)
    if writer.flush(WAIT_S) or problems:
        said = problems[0] if problems else "no answer"
        refused = BrokerUnavailable if all(each.away for each in problems) else CommandFailed
        raise refused(f"the changelog {settings.changelog_topic} cannot be written: {said}")
