"""Creates, checks and grows the four topics; each error names the command that fixes it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.wholeness import DECISION
from sidecar.errors import CommandFailed, KafkaFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import (
    Admin,
    Deadline,
    MissingPermission,
    NewTopic,
    Topic,
    await_partitions,
    create_topic,
    describe_cluster,
    describe_topics,
    grow_topic,
)
from sidecar.kafka.admin.foreign import foreign_records
from sidecar.kafka.admin.offsets import committed_of
from sidecar.settings import SETTINGS, Settings

HEADROOM_BYTES = 64 * 1024
"""How much larger a changelog record may be than the input record in it."""
CHANGELOG_BYTES_MIN = 1024 * 1024

BROKER_DEFAULT = -1
_SUGGESTED_PARTITIONS = 4
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
# A broker's answer just after a change may be outdated, so problems are checked twice.
_SECOND_LOOK_S = 1.0

_COMMITTED_S = 2.0
_ABOUT_REPLICAS = frozenset({"INVALID_REPLICATION_FACTOR", "POLICY_VIOLATION"})

STATUS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(_DAY_MS),
    "message.timestamp.type": "LogAppendTime",
    # Only closed segments are compacted and deleted; every instance reads the whole topic at its start.
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": str(10 * 60_000),
}

CHANGELOG_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": str(10 * 60_000),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(_HOUR_MS),
    "delete.retention.ms": str(_DAY_MS),
}

_NAMING = ("BOOTSTRAP_SERVERS", "STREAMS_APP_ID", "STORE_NAME", "INPUT_TOPIC", "DLQ_TOPIC", "REPLICATION_FACTOR")
"""The settings that `topics create` needs to address the same topics."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Facts about the topics, all of which exist and are configured correctly."""

    cluster_id: str
    partitions: int
    """Number of input partitions."""
    usable_partitions: int
    """Partitions that changelog and status have too: fewer than `partitions` only while those may not be grown."""
    input_topic_id: str
    changelog_topic_id: str
    input_bytes_max: int
    """`max.message.bytes` of the topic; so are the next three."""
    dlq_bytes_max: int
    changelog_bytes_max: int
    status_bytes_max: int = CHANGELOG_BYTES_MIN
    policy_dlqs_bytes_max: Mapping[str, int] = field(default_factory=dict)
    """The same of the DLQs of policies."""
    changes: tuple[str, ...] = ()
    """One line for each topic that was created or grown."""
    notes: tuple[str, ...] = ()
    """One line for each thing that works but should be known."""


class Problem(NamedTuple):
    """A problem of a topic."""

    topic: str
    wrong: str
    fix: str
    """The command to run, or what to do."""

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.wrong}; fix it with: {self.fix}"


class Found(NamedTuple):
    """The topics as the cluster describes them; None: the topic does not exist."""

    input: Topic | MissingPermission | None
    dlq: Topic | MissingPermission | None
    changelog: Topic | MissingPermission | None
    status: Topic | MissingPermission | None
    policy_dlqs: Mapping[str, Topic | MissingPermission | None] = {}
    """The DLQs of policies, by name."""

    def by_role(self, settings: Settings) -> list[tuple[str, str, Topic | MissingPermission | None]]:
        """Return role, name and description of each topic; the DLQs of policies have the role `dlq` too."""
        own = (self.input, self.dlq, self.changelog, self.status)
        named = zip(Found._fields, topic_names(settings), own, strict=False)
        return [*named, *(("dlq", name, topic) for name, topic in self.policy_dlqs.items())]


def changelog_config(input_bytes_max: int) -> dict[str, str]:
    """Return the configuration of a changelog for input records of at most `input_bytes_max`."""
    return {**CHANGELOG_CONFIG, "max.message.bytes": str(changelog_bytes_min(input_bytes_max))}


def changelog_bytes_min(input_bytes_max: int) -> int:
    """Return the minimum `max.message.bytes` of the changelog."""
    return max(CHANGELOG_BYTES_MIN, input_bytes_max + HEADROOM_BYTES)


def create_command(settings: Settings, partitions: int | None = None) -> str:
    """Return the `retry-sidecar topics create` command for the topics of these settings."""
    return _own_command(settings, "topics create", partitions)


def topic_names(settings: Settings) -> tuple[str, str, str, str]:
    """Return the names of the topics that every sidecar has, in the order of `Found`."""
    return settings.input_topic, settings.dlq_topic, settings.changelog_topic, settings.status_topic


def look(admin: Admin, settings: Settings, deadline: Deadline) -> Found:
    """Describe the topics.

    Raises:
        BrokerUnavailable: No answer in time.
        TopicsInvalid: The cluster refuses to describe one, and not because a permission is missing.
    """
    others = settings.dlq_topics[1:]
    topics = describe_topics(admin, (*topic_names(settings), *others), deadline)
    entry, dlq, changelog, status = (topics[name] for name in topic_names(settings))
    return Found(entry, dlq, changelog, status, {name: topics[name] for name in others})


def problems(settings: Settings, found: Found) -> tuple[Problem, ...]:
    """Return everything that keeps a sidecar from working with these topics."""
    return tuple(_problems(settings, found))


def notes(settings: Settings, found: Found) -> tuple[str, ...]:
    """Return what works but should be known."""
    return tuple(_notes(settings, found))


def check_topics(admin: Admin, settings: Settings, deadline_s: float = 15.0) -> tuple[Found, tuple[Problem, ...]]:
    """Check the topics without changing anything; problems are checked twice.

    Raises:
        BrokerUnavailable: No answer within `deadline_s` seconds.
        TopicsInvalid: As in `look`.
    """
    deadline = Deadline(deadline_s)
    found = look(admin, settings, deadline)
    if (foreign := foreign_changelog(settings, found, deadline)) is not None:
        others = (problem for problem in problems(settings, found) if problem.topic != foreign.topic)
        return found, (foreign, *others)
    return _checked(admin, settings, deadline)


def _checked(admin: Admin, settings: Settings, deadline: Deadline) -> tuple[Found, tuple[Problem, ...]]:
    found = look(admin, settings, deadline)
    if problems(settings, found):
        deadline.pause(_SECOND_LOOK_S)
        found = look(admin, settings, deadline)
    return found, problems(settings, found)


def foreign_changelog(settings: Settings, found: Found, deadline: Deadline) -> Problem | None:
    """Return why the changelog cannot be used at all: another program keeps its own state in it.

    A topic with the configuration that a sidecar gives is not read.

    Raises:
        BrokerUnavailable: No answer in time.
    """
    changelog = found.changelog
    if not isinstance(changelog, Topic) or CHANGELOG_CONFIG.items() <= changelog.config.items():
        return None
    said = foreign_records(settings, changelog, deadline)
    if not said:
        return None
    ibm = "; `retry-sidecar migrate ibm` then takes its pending messages over" if "IBM" in said else ""
    return Problem(
        changelog.name,
        f"it is the changelog of another program ({said}), and nothing in it is changed",
        f"another STORE_NAME than {settings.store_name}, such as STORE_NAME=wheel{ibm}",
    )


def ensure_topics(
    admin: Admin,
    settings: Settings,
    deadline_s: float = 30.0,
    partitions: int = BROKER_DEFAULT,
    *,
    new_changelog: bool = False,
) -> TopicFacts:
    """Create missing topics, grow small ones, check the rest, and return when all of them can be used.

    Status is always created, and the changelog unless the group has committed what it had; the input and the DLQ only
    if CREATE_TOPICS is set.

    Args:
        admin: A client with the necessary permissions.
        settings: The effective settings.
        deadline_s: Seconds for everything.
        partitions: Number of partitions of a new input topic and DLQ.
        new_changelog: Create the changelog in any case: a person has decided that.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The cluster cannot be described, or the changelog is another program's.
        TopicsInvalid: A topic or a permission is missing or wrong; one line each, with the command that fixes it.
    """
    deadline = Deadline(deadline_s)
    changes: list[str] = []
    cluster = describe_cluster(admin, deadline)
    found = look(admin, settings, deadline)
    if (foreign := foreign_changelog(settings, found, deadline)) is not None:
        raise CommandFailed(str(foreign))
    outer = ((settings.input_topic, found.input), (settings.dlq_topic, found.dlq), *found.policy_dlqs.items())
    if missing := [name for name, topic in outer if topic is None and settings.create_topics]:
        for name in missing:
            _create(admin, settings, NewTopic(name, partitions, _replicas(settings)), deadline, changes)
        found = look(admin, settings, deadline)
    if isinstance(found.input, Topic):
        if found.changelog is None and not new_changelog:
            _require_first_changelog(settings, found.input)
        _create_internal(admin, settings, found, found.input, deadline, changes)
    wrong = problems(settings, found)
    if changes or wrong:
        found, wrong = _checked(admin, settings, deadline)
    if wrong:
        raise TopicsInvalid("\n".join(str(problem) for problem in wrong))
    facts = _facts(cluster.cluster_id, found)
    return dataclasses.replace(facts, changes=tuple(changes), notes=notes(settings, found))


def _require_first_changelog(settings: Settings, entry: Topic) -> None:
    """Raise TopicsInvalid if the group has committed offsets together with a changelog, which is gone."""
    # An open transaction is not waited for: what was committed before it says enough.
    reader: config.Config = {**config.committed_reader(settings), "isolation.level": "read_uncommitted"}
    wanted = [TopicPartition(entry.name, each) for each in range(entry.partitions)]
    with closing(Consumer(reader, logger=config.quiet_logger())) as consumer:
        try:
            found = committed_of(consumer, wanted, _COMMITTED_S)
        except KafkaException:
            return  # the partitions look at it again before they run
    if any(OffsetMark.parse(each.metadata or "") is not None for each in found):
        raise TopicsInvalid(
            f"topic {settings.changelog_topic}: does not exist, and the group {settings.group_id} has committed "
            f"offsets with it: it was deleted, or STORE_NAME was changed. {DECISION}"
        )


def create_origins(
    admin: Admin, settings: Settings, names: Sequence[str], deadline_s: float = 30.0, partitions: int = BROKER_DEFAULT
) -> tuple[str, ...]:
    """Create the origins that are missing; return one line for each.

    Raises:
        BrokerUnavailable: No answer in time.
        TopicsInvalid: One cannot be created; the text says why.
    """
    deadline = Deadline(deadline_s)
    changes: list[str] = []
    for name, topic in describe_topics(admin, names, deadline).items():
        if topic is None:
            _create(admin, settings, NewTopic(name, partitions, _replicas(settings)), deadline, changes)
    return tuple(changes)


def grow_internal(admin: Admin, settings: Settings, deadline_s: float = 15.0) -> TopicFacts:
    """Give changelog and status as many partitions as the input topic has, while the sidecar runs.

    Raises:
        BrokerUnavailable: No answer within `deadline_s` seconds.
        CommandFailed: As in `ensure_topics`.
        TopicsInvalid: As in `ensure_topics`; a missing permission to grow is a note instead.
    """
    never_create = dataclasses.replace(settings, create_topics=False)
    return ensure_topics(admin, never_create, deadline_s)


def _create_internal(
    admin: Admin, settings: Settings, found: Found, entry: Topic, deadline: Deadline, changes: list[str]
) -> None:
    count = entry.partitions
    wanted: tuple[tuple[Topic | MissingPermission | None, str, Mapping[str, str]], ...] = (
        (found.changelog, settings.changelog_topic, changelog_config(entry.max_message_bytes)),
        (found.status, settings.status_topic, STATUS_CONFIG),
    )
    for topic, name, configured in wanted:
        if topic is None:
            new = NewTopic(name, count, _replicas(settings), configured)
            _create(admin, settings, new, deadline, changes)
        elif isinstance(topic, Topic) and topic.partitions < count:
            _grow(admin, topic, count, deadline, changes)


def _create(admin: Admin, settings: Settings, topic: NewTopic, deadline: Deadline, changes: list[str]) -> None:
    try:
        created = create_topic(admin, topic, deadline)
    except KafkaFailed as error:
        if error.denied:
            raise TopicsInvalid(
                f"topic {topic.name}: does not exist, and the permission to create it is missing ({error}); "
                f"a user with it must run: {create_command(settings)}"
            ) from error
        factor = f"; set another REPLICATION_FACTOR ({_shown_factor(settings)})"
        hint = factor if error.code in _ABOUT_REPLICAS else ""
        raise TopicsInvalid(f"topic {topic.name}: cannot be created: {error}{hint}") from error
    # One that somebody else made has the number of partitions that they gave it.
    await_partitions(admin, topic.name, max(1, topic.partitions) if created else 1, deadline)
    if created:
        shown = "the broker's default of" if topic.partitions < 0 else str(topic.partitions)
        changes.append(f"topic {topic.name} created with {shown} partitions")


def _grow(admin: Admin, topic: Topic, count: int, deadline: Deadline, changes: list[str]) -> None:
    try:
        grow_topic(admin, topic.name, count, deadline)
    except KafkaFailed as error:
        if error.denied:
            return
        raise TopicsInvalid(f"topic {topic.name}: cannot be grown to {count} partitions: {error}") from error
    await_partitions(admin, topic.name, count, deadline)
    changes.append(f"topic {topic.name} grown from {topic.partitions} to {count} partitions")


def _facts(cluster_id: str, found: Found) -> TopicFacts:
    """Return the facts of topics without problems."""
    entry, dlq, changelog, status = (topic for topic in found[:4] if isinstance(topic, Topic))
    others = {name: topic.max_message_bytes for name, topic in found.policy_dlqs.items() if isinstance(topic, Topic)}
    return TopicFacts(
        cluster_id=cluster_id,
        partitions=entry.partitions,
        usable_partitions=min(entry.partitions, changelog.partitions, status.partitions),
        input_topic_id=entry.topic_id,
        changelog_topic_id=changelog.topic_id,
        input_bytes_max=entry.max_message_bytes,
        dlq_bytes_max=dlq.max_message_bytes,
        changelog_bytes_max=changelog.max_message_bytes,
        status_bytes_max=status.max_message_bytes,
        policy_dlqs_bytes_max=others,
    )


def _problems(settings: Settings, found: Found) -> Iterator[Problem]:
    for role, name, topic in found.by_role(settings):
        if topic is None:
            if name == settings.input_topic:
                yield Problem(name, "does not exist", create_command(settings, _SUGGESTED_PARTITIONS))
            elif role == "dlq":
                yield Problem(name, "does not exist", create_command(dataclasses.replace(settings, dlq_topic=name)))
            elif found.input is not None:
                yield Problem(name, "does not exist", create_command(settings))
        elif isinstance(topic, MissingPermission):
            permission = "Describe" if topic.operation == "DESCRIBE" else "DescribeConfigs"
            grant = grant_command(settings, permission, f"--topic {name}")
            yield Problem(name, f"the permission {permission} is missing", grant)
    entry = found.input if isinstance(found.input, Topic) else None
    if isinstance(found.changelog, Topic):
        yield from _changelog_problems(settings, entry, found.changelog)
    if isinstance(found.status, Topic):
        yield from _status_problems(settings, entry, found.status)


def _changelog_problems(settings: Settings, entry: Topic | None, changelog: Topic) -> Iterator[Problem]:
    yield from _count_problems(settings, entry, changelog)
    if changelog.cleanup != {"compact"}:
        wrong = f"cleanup.policy is {changelog.config['cleanup.policy']!r}: anything but compact loses pending messages"
        yield Problem(changelog.name, wrong, configure_command(settings, changelog.name, "cleanup.policy=compact"))
    if entry is not None and changelog.max_message_bytes < (least := changelog_bytes_min(entry.max_message_bytes)):
        wrong = (
            f"max.message.bytes is {changelog.max_message_bytes}, but {entry.name} takes {entry.max_message_bytes}: "
            f"it must be {least} at least"
        )
        yield Problem(changelog.name, wrong, configure_command(settings, changelog.name, f"max.message.bytes={least}"))


def _status_problems(settings: Settings, entry: Topic | None, status: Topic) -> Iterator[Problem]:
    yield from _count_problems(settings, entry, status)
    if status.cleanup != {"compact", "delete"}:
        wrong = f"cleanup.policy is {status.config['cleanup.policy']!r}: it must be compact,delete"
        yield Problem(status.name, wrong, configure_command(settings, status.name, "cleanup.policy=[compact,delete]"))
    kind = status.config["message.timestamp.type"]
    if kind != "LogAppendTime":
        wrong = f"message.timestamp.type is {kind}: it must be LogAppendTime, the broker's clock is read from it"
        fix = configure_command(settings, status.name, "message.timestamp.type=LogAppendTime")
        yield Problem(status.name, wrong, fix)


def _count_problems(settings: Settings, entry: Topic | None, topic: Topic) -> Iterator[Problem]:
    """Partition p of an internal topic belongs to input partition p, so there must be no more of them."""
    if entry is None or topic.partitions == entry.partitions:
        return
    counts = f"has {topic.partitions} partitions, the input topic {entry.name} has {entry.partitions}"
    if topic.partitions > entry.partitions:
        fix = (
            f"kafka-topics.sh --bootstrap-server {shlex.quote(settings.bootstrap_servers)} --alter "
            f"--topic {entry.name} --partitions {topic.partitions}"
        )
        yield Problem(topic.name, f"{counts}: they must be equal, and partitions cannot be taken away", fix)
    elif "ALTER" in topic.operations:
        yield Problem(topic.name, f"{counts}: they must be equal", create_command(settings))


def _notes(settings: Settings, found: Found) -> Iterator[str]:
    entry, main, changelog, status = (topic if isinstance(topic, Topic) else None for topic in found[:4])
    for topic in (changelog, status):
        if entry and topic and topic.partitions < entry.partitions and "ALTER" not in topic.operations:
            yield (
                f"topic {topic.name}: has {topic.partitions} partitions, the input topic {entry.name} has "
                f"{entry.partitions}, and the permission Alter is missing: partitions from {topic.partitions} on stay "
                f"unready until a user with it runs: {create_command(settings)}"
            )
    if entry and "compact" in entry.cleanup:
        yield (
            f"topic {entry.name}: is compacted: of messages with the same key only the newest may reach the sidecar; "
            f"fix it with: {configure_command(settings, entry.name, 'cleanup.policy=delete')}"
        )
    for dlq in (main, *found.policy_dlqs.values()):
        if not isinstance(dlq, Topic) or entry is None or dlq.max_message_bytes >= entry.max_message_bytes:
            continue
        yield (
            f"topic {dlq.name}: max.message.bytes is {dlq.max_message_bytes}, {entry.name} takes "
            f"{entry.max_message_bytes}: larger dead letters lose their value; fix it with: "
            f"{configure_command(settings, dlq.name, f'max.message.bytes={entry.max_message_bytes + HEADROOM_BYTES}')}"
        )


def _replicas(settings: Settings) -> int:
    return settings.replication_factor or BROKER_DEFAULT


def _shown_factor(settings: Settings) -> str:
    return "the broker's default" if settings.replication_factor is None else f"now {settings.replication_factor}"


def _own_command(settings: Settings, command: str, partitions: int | None) -> str:
    defaults = Settings()
    words = ["retry-sidecar", *command.split()]
    for setting in SETTINGS:
        value = getattr(settings, setting.attribute)
        if setting.name in _NAMING and value != getattr(defaults, setting.attribute):
            words += [setting.flag, setting.show(value)]
    if partitions is not None:
        words += ["--partitions", str(partitions)]
    return shlex.join(words)


def configure_command(settings: Settings, topic: str, config: str) -> str:
    """Return the command that sets a configuration of a topic."""
    server = shlex.quote(settings.bootstrap_servers)
    return (
        f"kafka-configs.sh --bootstrap-server {server} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {shlex.quote(config)}"
    )


def grant_command(settings: Settings, permission: str, resources: str) -> str:
    """Return the command that grants a permission on resources, given as the command's own options."""
    server = shlex.quote(settings.bootstrap_servers)
    return (
        f"kafka-acls.sh --bootstrap-server {server} --add --allow-principal User:<this user> "
        f"--operation {permission} {resources}"
    )
