"""Decides where a new group begins to read the retry topic, and commits that once.

Without a decision a new group would read from the first record on, and deliver again what another program delivered
long ago. The committed offsets keep the decision: whatever is sent from then on is read, by any instance, after any
restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, SettingsInvalid, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import (
    Admin,
    Deadline,
    Topic,
    describe_topics,
    end_offsets,
    first_offsets,
    has_records,
    offsets_at,
)
from sidecar.kafka.admin.offsets import committed_of
from sidecar.kafka.admin.topics import TopicFacts, grant_command
from sidecar.kafka.errors import failed
from sidecar.settings import Settings

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
LOOK_S: Final = 2.0
"""Longest time to find out whether the retry topic is empty: a partition may have no leader."""


def has_nothing_to_read(admin: Admin, settings: Settings) -> bool:
    """Return whether the retry topic is missing or empty; False without definite answers within LOOK_S."""
    deadline, name = Deadline(LOOK_S), settings.input_topic
    try:
        topic = describe_topics(admin, (name,), deadline)[name]
        if not isinstance(topic, Topic):
            return topic is None
        numbers = range(topic.partitions)
        return first_offsets(admin, name, numbers, deadline) == end_offsets(admin, name, numbers, deadline)
    except (BrokerUnavailable, KafkaFailed, TopicsInvalid):
        return False  # what asks next says why


def place_new_group(
    admin: Admin, settings: Settings, facts: TopicFacts, deadline_s: float, *, was_empty: bool = False
) -> str:
    """Commit where a new group begins; return a line that says so, or the empty text for a group that is not new.

    A group is new if the changelog is empty and no offset of the retry topic is committed. That is asked again once
    the ends are known: whatever is sent while an instance is running is read, whichever of several instances commits.

    Args:
        admin: The admin client.
        settings: The settings, which may have made the decision.
        facts: Of the topics.
        deadline_s: For all questions together.
        was_empty: This process has seen the retry topic missing or empty: all that is on it was sent since, and is
            read.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The cluster refuses.
        TopicsInvalid: The permission to commit is missing.
        SettingsInvalid: The topic is not empty and START_AT is not set.
    """
    deadline, topic = Deadline(deadline_s), settings.input_topic
    numbers = range(facts.partitions)
    try:
        if has_records(admin, settings.changelog_topic, range(facts.usable_partitions), deadline):
            return ""
        with closing(Consumer(_unstable_reader(settings), logger=config.quiet_logger())) as consumer:
            if not _is_new(consumer, topic, len(numbers)):
                return ""
            ends = end_offsets(admin, topic, numbers, deadline)
            firsts = first_offsets(admin, topic, numbers, deadline)
            records = sum(ends[each] - firsts[each] for each in numbers)
            if records and settings.start_at is None and not was_empty:
                raise SettingsInvalid([_question(settings, records)])
            wanted = EARLIEST if was_empty else settings.start_at if records else LATEST
            offsets = _offsets(admin, settings, wanted, firsts, ends, deadline)
            if not _is_new(consumer, topic, len(numbers)) or not _commit(consumer, settings, offsets):
                return ""
    except KafkaFailed:
        return ""  # the partitions that cannot be read show why, and the others run
    skipped = sum(offsets[each] - firsts[each] for each in numbers)
    return (
        f"the group {settings.group_id} begins to read {settings.input_topic} at {wanted}: of {records} records that "
        f"are on it {skipped} stay unread"
    )


def open_question(
    admin: Admin, settings: Settings, partitions: int, changelog_partitions: int, deadline_s: float
) -> str:
    """Return the decision that the first start would ask for; empty when it asks for none. Changes nothing.

    Args:
        admin: The admin client.
        settings: The settings, which may have made the decision.
        partitions: Of the retry topic.
        changelog_partitions: Of the changelog; 0 when it does not exist yet.
        deadline_s: For all questions together.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses.
    """
    deadline, topic, numbers = Deadline(deadline_s), settings.input_topic, range(partitions)
    if settings.start_at is not None:
        return ""
    if changelog_partitions and has_records(admin, settings.changelog_topic, range(changelog_partitions), deadline):
        return ""
    with closing(Consumer(_unstable_reader(settings), logger=config.quiet_logger())) as consumer:
        if not _is_new(consumer, topic, partitions):
            return ""
    ends, firsts = end_offsets(admin, topic, numbers, deadline), first_offsets(admin, topic, numbers, deadline)
    records = sum(ends[each] - firsts[each] for each in numbers)
    return _question(settings, records) if records else ""


def begin_like(admin: Admin, settings: Settings, other_group: str, deadline_s: float) -> str:
    """Begin to read the retry topic where another group stopped; return a line that says so.

    The empty text is returned for a group that has read before, and where the other one has committed nothing.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The cluster refuses.
        TopicsInvalid: The permission to commit is missing.
    """
    deadline, topic = Deadline(deadline_s), settings.input_topic
    numbers = range(admin.partition_count(topic, deadline.left_s))
    theirs = {**config.committed_reader(settings), "group.id": other_group}
    with closing(Consumer(theirs, logger=config.quiet_logger())) as other:
        found = _committed(other, topic, len(numbers))
    if not any(each.offset >= 0 for each in found):
        return ""
    firsts = first_offsets(admin, topic, numbers, deadline)
    offsets = {each.partition: max(each.offset, firsts[each.partition]) for each in found}
    with closing(Consumer(config.committed_reader(settings), logger=config.quiet_logger())) as consumer:
        if not _is_new(consumer, topic, len(numbers)) or not _commit(consumer, settings, offsets):
            return ""
    return f"the group {settings.group_id} begins to read {topic} where the group {other_group} stopped"


def _unstable_reader(settings: Settings) -> config.Config:
    """An open transaction is the work of a group that has been placed: its end is not waited for."""
    return {**config.committed_reader(settings), "isolation.level": "read_uncommitted"}


def _is_new(consumer: Consumer, topic: str, partitions: int) -> bool:
    """Return whether a definite answer says that nothing is committed. Raises BrokerUnavailable."""
    found = _committed(consumer, topic, partitions)
    return bool(found) and all(each.error is None and each.offset < 0 for each in found)


def _committed(consumer: Consumer, topic: str, partitions: int) -> list[TopicPartition]:
    """Return the committed offsets; empty when the cluster refuses, which the partitions say when they start.

    Raises:
        BrokerUnavailable: No answer in time.
    """
    try:
        return committed_of(consumer, [TopicPartition(topic, each) for each in range(partitions)])
    except KafkaException as cause:
        error = failed(cause.args[0])
        if error.away:
            raise BrokerUnavailable(f"the committed offsets cannot be read: {error}") from cause
        return []


def _offsets(
    admin: Admin,
    settings: Settings,
    wanted: str | int | None,
    firsts: Mapping[int, int],
    ends: Mapping[int, int],
    deadline: Deadline,
) -> dict[int, int]:
    if isinstance(wanted, int):
        found = offsets_at(admin, settings.input_topic, ends, wanted, deadline)
        # A partition without a record since then has none to read.
        return {number: ends[number] if offset is None else offset for number, offset in found.items()}
    return dict(firsts) if wanted == EARLIEST else dict(ends)


def _commit(consumer: Consumer, settings: Settings, offsets: Mapping[int, int]) -> bool:
    """Commit for a group without members; return False when another instance has joined it, which has decided.

    Raises:
        BrokerUnavailable: The offsets cannot be committed now.
        CommandFailed: The cluster refuses.
        TopicsInvalid: The permission to commit is missing.
    """
    topic, group = settings.input_topic, settings.group_id
    try:
        consumer.commit(offsets=[TopicPartition(topic, *each) for each in offsets.items()], asynchronous=False)
    except KafkaException as cause:
        error = failed(cause.args[0])
        if error.code in {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"}:
            return False
        if error.denied:
            raise TopicsInvalid(
                f"group {group}: cannot commit where it begins to read {topic}: {error}; fix it with: "
                f"{grant_command(settings, 'Read', f'--topic {topic} --group {group}')}"
            ) from cause
        refused = BrokerUnavailable if error.away else CommandFailed
        raise refused(f"the offsets of a new group cannot be committed: {error}") from cause
    return True


def _question(settings: Settings, records: int) -> str:
    return (
        f"START_AT: is not set, the group {settings.group_id} is new, and {settings.input_topic} has {records} records:"
        f" set it to {LATEST} (they stay unread; right if another program has delivered them), to {EARLIEST} (all are "
        "read, and delivered again if another program has delivered them), or to an instant such as "
        "2026-01-01T08:00:00Z (what was sent since is read), or commit the group's offsets yourself"
    )
