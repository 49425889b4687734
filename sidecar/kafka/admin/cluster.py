"""Admin requests to the cluster. Every call ends at a deadline with an answer or a clear error."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions
from confluent_kafka.cimpl import NewTopic as LibraryTopic

from sidecar.clock import Clock, SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.tokens import require_token
from sidecar.settings import Settings

T = TypeVar("T")

_LOOK_AGAIN_S = 0.1
_SPEC: Any = OffsetSpec
"""Its methods have no types."""


class Deadline:
    """A point in monotonic time that all calls of one piece of work share."""

    def __init__(self, deadline_s: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._until_s = self._clock.monotonic_s() + deadline_s
        self._pause = threading.Event()

    @property
    def left_s(self) -> float:
        """Seconds left; always enough to send a request."""
        return max(0.05, self._until_s - self._clock.monotonic_s())

    @property
    def passed(self) -> bool:
        return self._clock.monotonic_s() >= self._until_s

    def pause(self, pause_s: float = _LOOK_AGAIN_S) -> None:
        """Wait a little, not beyond the deadline."""
        self._pause.wait(min(pause_s, self.left_s))


class _LastError:
    """What a client's library last said of its connections. It is no part of the client: in a cycle with it, a client
    that nobody holds any more would be destroyed by the garbage collector, on whatever thread that runs, and the
    library ends the process when that is the client's own."""

    text: str | None = None

    def __call__(self, error: KafkaError) -> None:
        # This summary comes last and says least.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.text is None:
            self.text = error.str()


class Admin(AdminClient):
    """An admin client that remembers why it cannot reach the brokers.

    Raises:
        BrokerUnavailable: OAUTH_CALLBACK gives no token.
    """

    def __init__(self, settings: Settings, logger: logging.Logger | None = None) -> None:
        require_token(settings)
        self.bootstrap_servers = settings.bootstrap_servers
        self._last_error = _LastError()
        properties: dict[str, Any] = {**config.admin(settings), "error_cb": self._last_error}
        # A caller without a logger shows the errors itself.
        super().__init__(properties, logger=logger or config.quiet_logger())

    @property
    def last_error(self) -> str | None:
        """Why the brokers could not be reached; None: nothing was said."""
        return self._last_error.text

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Return how many partitions a topic has. Raises KafkaFailed."""
        return partition_count(self, topic, timeout_s)


class Topic(NamedTuple):
    """A topic as the cluster describes it."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    """Smallest number of replicas of a partition."""
    operations: frozenset[str]
    """Operations that this user may perform: READ, WRITE, ALTER, ..."""
    config: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        return int(self.config["max.message.bytes"])

    @property
    def cleanup(self) -> frozenset[str]:
        return frozenset(word.strip() for word in self.config["cleanup.policy"].split(",") if word.strip())


class NewTopic(NamedTuple):
    """A topic to be created."""

    name: str
    partitions: int
    """-1: as many as the broker's default is."""
    replicas: int
    """-1: as many as the broker's default is."""
    config: Mapping[str, str] = {}


class MissingPermission(NamedTuple):
    """A topic that this user may not describe."""

    name: str
    operation: str
    """The missing permission: DESCRIBE or DESCRIBE_CONFIGS."""


class Cluster(NamedTuple):
    """The identity of a cluster."""

    cluster_id: str
    controller: str
    """`id at host:port`; brokers may name any broker."""
    brokers: tuple[str, ...]


def unavailable(admin: Admin, said: str) -> BrokerUnavailable:
    """Return the error for a cluster that does not answer, with the last reason that the client library has."""
    admin.poll(0)
    why = admin.last_error or said
    return BrokerUnavailable(
        f"no answer from Kafka at {admin.bootstrap_servers} (BOOTSTRAP_SERVERS): {why}; "
        "check the address, the network and the login"
    )


def answer(admin: Admin, future: concurrent.futures.Future[T], deadline: Deadline) -> T:
    """Return the answer to an admin request.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: A definite answer that is an error.
    """
    try:
        return future.result(deadline.left_s + 1.0)
    except concurrent.futures.TimeoutError as cause:
        raise unavailable(admin, "timed out") from cause
    except KafkaException as cause:
        error = failed(cause.args[0])
        if error.away:
            raise unavailable(admin, str(error)) from cause
        raise error from cause


def describe_cluster(admin: Admin, deadline: Deadline) -> Cluster:
    """Return the cluster's identity.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: A definite answer that is an error.
    """
    try:
        found = answer(admin, admin.describe_cluster(request_timeout=deadline.left_s), deadline)
    except KafkaFailed as error:
        raise CommandFailed(
            f"Kafka at {admin.bootstrap_servers} (BOOTSTRAP_SERVERS) cannot be described: {error}; "
            "check the address and the broker's log"
        ) from error
    controller = found.controller
    return Cluster(
        found.cluster_id or "",
        "none" if controller is None else f"{controller.id} at {controller.host}:{controller.port}",
        tuple(f"{node.host}:{node.port}" for node in found.nodes),
    )


def describe_topics(
    admin: Admin, names: Sequence[str], deadline: Deadline
) -> dict[str, Topic | MissingPermission | None]:
    """Return each topic; None for one that does not exist, by a definite answer.

    Raises:
        BrokerUnavailable: No answer in time.
        TopicsInvalid: The cluster refuses to describe one, and not because a permission is missing.
    """
    futures = admin.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=deadline.left_s
    )
    found: dict[str, Topic | MissingPermission | None] = {}
    for name in names:
        try:
            described = answer(admin, futures[name], deadline)
        except KafkaFailed as error:
            found[name] = _absence(name, error, "DESCRIBE")
            continue
        found[name] = Topic(
            name,
            str(described.topic_id),
            len(described.partitions),
            min((len(partition.replicas) for partition in described.partitions), default=0),
            frozenset(AclOperation(operation).name for operation in described.authorized_operations or ()),
            {},
        )
    return _with_config(admin, found, deadline)


def _with_config(
    admin: Admin, found: dict[str, Topic | MissingPermission | None], deadline: Deadline
) -> dict[str, Topic | MissingPermission | None]:
    topics = {name: topic for name, topic in found.items() if isinstance(topic, Topic)}
    if not topics:
        return found
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=deadline.left_s)
    for resource, future in futures.items():
        name = resource.name
        try:
            entries = answer(admin, future, deadline)
        except KafkaFailed as error:
            found[name] = _absence(name, error, "DESCRIBE_CONFIGS")
            continue
        values = {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        found[name] = topics[name]._replace(config=values)
    return found


def _absence(name: str, error: KafkaFailed, operation: str) -> MissingPermission | None:
    if error.code == "UNKNOWN_TOPIC_OR_PART":
        return None
    if error.denied:
        return MissingPermission(name, operation)
    raise TopicsInvalid(
        f"topic {name} cannot be described: {error}; check its name and the broker's log "
        "(the sidecar's own are named by INPUT_TOPIC, DLQ_TOPIC, STREAMS_APP_ID and STORE_NAME)"
    )


def existing_topics(admin: Admin, timeout_s: float) -> frozenset[str]:
    """Return the topics that there are and that this user may describe. Raises BrokerUnavailable."""
    try:
        return frozenset(admin.list_topics(timeout=timeout_s).topics)
    except KafkaException as cause:
        raise unavailable(admin, cause.args[0].str()) from cause


def node_ids(bootstrap_servers: str, timeout_s: float) -> frozenset[int]:
    """Return the ids of the brokers that a cluster without a login shows; empty when none answers. Logs nothing."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return frozenset(admin.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return frozenset()


def partition_count(client: AdminClient | Consumer | Producer, topic: str, timeout_s: float) -> int:
    """Return how many partitions a topic has, by the metadata. Raises KafkaFailed."""
    with translated():
        found = client.list_topics(topic, timeout=timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
    return len(found.partitions)


def first_offsets(admin: Admin, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, int]:
    """Return by partition where the log begins. Raises as `end_offsets`."""
    return _list_offsets(admin, topic, partitions, _SPEC.earliest(), deadline)


def end_offsets(admin: Admin, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, int]:
    """Return by partition the offset behind all that is committed.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: A definite answer that is an error.
    """
    return _list_offsets(admin, topic, partitions, _SPEC.latest(), deadline)


def offsets_at(
    admin: Admin, topic: str, partitions: Iterable[int], at_ms: int, deadline: Deadline
) -> dict[int, int | None]:
    """Return by partition the first committed record that is as late or later, None without one.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: A definite answer that is an error.
    """
    found = _list_offsets(admin, topic, partitions, _SPEC.for_timestamp(at_ms), deadline)
    return {number: offset if offset >= 0 else None for number, offset in found.items()}


def earliest_instants(admin: Admin, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, int | None]:
    """Return by partition the timestamp of the first record, None without records, where earlier ones are deleted.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: A definite answer that is an error.
    """
    deleted = [number for number, first in first_offsets(admin, topic, partitions, deadline).items() if first > 0]
    futures = _ask_offsets(admin, topic, deleted, _SPEC.for_timestamp(0), deadline) if deleted else {}
    found = {number: answer(admin, future, deadline) for number, future in futures.items()}
    return {number: each.timestamp if each.offset >= 0 else None for number, each in found.items()}


def has_records(admin: Admin, topic: str, partitions: Iterable[int], deadline: Deadline) -> bool:
    """Return whether anything was ever written to one of the partitions; one that answers yes is enough.

    Raises:
        BrokerUnavailable: Partitions do not answer in time, and none of the others has records.
        KafkaFailed: A definite answer that is an error, and none of the others has records.
    """
    failure: BrokerUnavailable | KafkaFailed | None = None
    for future in _ask_offsets(admin, topic, partitions, _SPEC.latest(), deadline).values():
        try:
            if answer(admin, future, deadline).offset > 0:
                return True
        except (BrokerUnavailable, KafkaFailed) as error:
            failure = error
    if failure is not None:
        raise failure
    return False


def _list_offsets(
    admin: Admin, topic: str, partitions: Iterable[int], spec: object, deadline: Deadline
) -> dict[int, int]:
    found: dict[int, int] = {}
    wanted = list(partitions)
    while wanted:
        moved = []
        for number, future in _ask_offsets(admin, topic, wanted, spec, deadline).items():
            try:
                offset = answer(admin, future, deadline).offset
            except KafkaFailed as error:
                # A broker does not know yet that it leads a partition that was just created or moved.
                if error.code != "NOT_LEADER_FOR_PARTITION" or deadline.passed:
                    raise
                moved.append(number)
                continue
            if offset != OFFSET_INVALID:  # the library's "unknown", which it gives while a leader moves
                found[number] = offset
            elif deadline.passed:
                raise unavailable(admin, f"the offsets of topic {topic}, partition {number}, are not known")
            else:
                moved.append(number)
        if wanted := moved:
            deadline.pause()
    return found


def _ask_offsets(
    admin: Admin, topic: str, partitions: Iterable[int], spec: object, deadline: Deadline
) -> dict[int, concurrent.futures.Future[Any]]:
    ask: Any = admin.list_offsets
    wanted = {TopicPartition(topic, each): spec for each in partitions}
    futures = ask(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=deadline.left_s)
    return {tp.partition: future for tp, future in futures.items()}


def create_topic(admin: Admin, topic: NewTopic, deadline: Deadline) -> bool:
    """Create a topic; return False when it exists already.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses.
    """
    left_s = deadline.left_s
    new = LibraryTopic(topic.name, topic.partitions, topic.replicas, config=dict(topic.config))
    futures = admin.create_topics([new], operation_timeout=left_s, request_timeout=left_s)
    try:
        answer(admin, futures[topic.name], deadline)
    except KafkaFailed as error:
        if error.code == "TOPIC_ALREADY_EXISTS":
            return False
        raise
    return True


def grow_topic(admin: Admin, name: str, partitions: int, deadline: Deadline) -> None:
    """Add partitions to a topic, unless it has them already.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses.
    """
    left_s = deadline.left_s
    futures = admin.create_partitions(
        [NewPartitions(name, partitions)], operation_timeout=left_s, request_timeout=left_s
    )
    try:
        answer(admin, futures[name], deadline)
    except KafkaFailed as error:
        if error.code != "INVALID_PARTITIONS":
            raise


def await_partitions(admin: Admin, name: str, partitions: int, deadline: Deadline) -> None:
    """Wait until the metadata shows the topic with `partitions` partitions, each with a leader.

    Raises:
        BrokerUnavailable: Not in time.
    """
    while True:
        try:
            shown = admin.list_topics(name, timeout=deadline.left_s).topics[name].partitions
        except KafkaException as error:
            raise unavailable(admin, error.args[0].str()) from error
        if len(shown) >= partitions and all(partition.leader >= 0 for partition in shown.values()):
            return
        if deadline.passed:
            raise BrokerUnavailable(
                f"topic {name} has {len(shown)} of {partitions} partitions, or some without a leader: "
                "check that enough brokers are up"
            )
        deadline.pause()
