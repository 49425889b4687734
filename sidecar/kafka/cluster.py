"""What is asked of the cluster outside the data path. Every call ends at a deadline with an answer or a clear error."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from sidecar.clock import Clock, SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.settings import Settings

T = TypeVar("T")

_LOOK_AGAIN_S = 0.1
_AWAY = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._AUTHENTICATION,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
    }
)
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class Deadline:
    """A point in monotonic time that all calls of one piece of work share."""

    def __init__(self, deadline_s: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._until_s = self._clock.monotonic_s() + deadline_s
        self._pause = threading.Event()

    @property
    def left_s(self) -> float:
        """Seconds left; never so few that a call cannot even be sent."""
        return max(0.05, self._until_s - self._clock.monotonic_s())

    @property
    def passed(self) -> bool:
        return self._clock.monotonic_s() >= self._until_s

    def pause(self, pause_s: float = _LOOK_AGAIN_S) -> None:
        """Wait a little, not beyond the deadline."""
        self._pause.wait(min(pause_s, self.left_s))


class Admin(AdminClient):
    """An admin client that remembers why it cannot reach the brokers."""

    def __init__(self, settings: Settings, logger: logging.Logger | None = None) -> None:
        self.bootstrap_servers = settings.bootstrap_servers
        self.last_error: str | None = None
        properties: dict[str, Any] = {**config.admin(settings), "error_cb": self._remember}
        # Whoever gives no logger shows the errors itself.
        super().__init__(properties, logger=logger or config.quiet_logger())

    def _remember(self, error: KafkaError) -> None:
        # The sum of all others comes last, and says least.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last_error is None:
            self.last_error = error.str()


class Topic(NamedTuple):
    """A topic as the cluster describes it."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    """Replicas of the partition that has fewest."""
    operations: frozenset[str]
    """What we may do with it: READ, WRITE, ALTER, ..."""
    config: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        return int(self.config["max.message.bytes"])

    @property
    def cleanup(self) -> frozenset[str]:
        return frozenset(word.strip() for word in self.config["cleanup.policy"].split(",") if word.strip())


class NoRight(NamedTuple):
    """A topic that may not be described."""

    name: str
    operation: str
    """The right that is missing: DESCRIBE or DESCRIBE_CONFIGS."""


class Cluster(NamedTuple):
    """Who answers."""

    cluster_id: str
    controller: str
    """`id at host:port`; brokers name any of themselves."""
    brokers: tuple[str, ...]


def is_away(error: KafkaError) -> bool:
    """Tell whether an error means that no broker answered, so that trying again later may help."""
    return error.code() in _AWAY


def is_refused(error: KafkaError) -> bool:
    """Tell whether a right is missing."""
    return error.code() in _REFUSED


def unavailable(admin: Admin, said: str) -> BrokerUnavailable:
    """Return the error for a cluster that does not answer, with the last reason that the client library has."""
    admin.poll(0)
    why = admin.last_error or said
    return BrokerUnavailable(
        f"no answer from Kafka at {admin.bootstrap_servers} (BOOTSTRAP_SERVERS): {why}; "
        "check the address, the network and the login"
    )


def answer(admin: Admin, future: concurrent.futures.Future[T], deadline: Deadline) -> T:
    """Return what an admin call answers.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaException: A definite answer that is an error.
    """
    try:
        return future.result(deadline.left_s + 1.0)
    except concurrent.futures.TimeoutError as error:
        raise unavailable(admin, "timed out") from error
    except KafkaException as error:
        if is_away(error.args[0]):
            raise unavailable(admin, error.args[0].str()) from error
        raise


def describe_cluster(admin: Admin, deadline: Deadline) -> Cluster:
    """Return the cluster's identity.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: A definite answer that is an error.
    """
    try:
        found = answer(admin, admin.describe_cluster(request_timeout=deadline.left_s), deadline)
    except KafkaException as error:
        raise CommandFailed(
            f"Kafka at {admin.bootstrap_servers} (BOOTSTRAP_SERVERS) cannot be described: {error.args[0].str()}; "
            "check the address and the broker's log"
        ) from error
    controller = found.controller
    return Cluster(
        found.cluster_id or "",
        "none" if controller is None else f"{controller.id} at {controller.host}:{controller.port}",
        tuple(f"{node.host}:{node.port}" for node in found.nodes),
    )


def describe_topics(admin: Admin, names: Sequence[str], deadline: Deadline) -> dict[str, Topic | NoRight | None]:
    """Return each topic; None for one that does not exist, by a definite answer.

    Raises:
        BrokerUnavailable: No answer in time.
        TopicsInvalid: The cluster refuses to describe one, and not because a right is missing.
    """
    futures = admin.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=deadline.left_s
    )
    found: dict[str, Topic | NoRight | None] = {}
    for name in names:
        try:
            described = answer(admin, futures[name], deadline)
        except KafkaException as error:
            found[name] = _absence(name, error.args[0], "DESCRIBE")
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
    admin: Admin, found: dict[str, Topic | NoRight | None], deadline: Deadline
) -> dict[str, Topic | NoRight | None]:
    topics = {name: topic for name, topic in found.items() if isinstance(topic, Topic)}
    if not topics:
        return found
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=deadline.left_s)
    for resource, future in futures.items():
        name = resource.name
        try:
            entries = answer(admin, future, deadline)
        except KafkaException as error:
            found[name] = _absence(name, error.args[0], "DESCRIBE_CONFIGS")
            continue
        values = {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        found[name] = topics[name]._replace(config=values)
    return found


def _absence(name: str, error: KafkaError, operation: str) -> NoRight | None:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return None
    if is_refused(error):
        return NoRight(name, operation)
    raise TopicsInvalid(
        f"topic {name} cannot be described: {error.str()}; check its name and the broker's log "
        "(the sidecar's own are named by INPUT_TOPIC, DLQ_TOPIC, STREAMS_APP_ID and STORE_NAME)"
    )


def list_offsets(admin: Admin, wanted: Iterable[TopicPartition], spec: object, deadline: Deadline) -> dict[int, int]:
    """Return by partition the offset that is asked for, among committed records.

    Args:
        admin: Asks.
        wanted: Partitions of one topic.
        spec: Which offset of each, made by OffsetSpec.
        deadline: For the answers of all.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaException: A definite answer that is an error.
    """
    ask: Any = admin.list_offsets
    futures = ask(
        dict.fromkeys(wanted, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=deadline.left_s
    )
    return {tp.partition: answer(admin, future, deadline).offset for tp, future in futures.items()}


def create_topic(admin: Admin, topic: NewTopic, deadline: Deadline) -> bool:
    """Create a topic; returns False when somebody else was quicker.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaException: The cluster refuses; `is_refused` tells a missing right.
    """
    left_s = deadline.left_s
    futures = admin.create_topics([topic], operation_timeout=left_s, request_timeout=left_s)
    try:
        answer(admin, futures[topic.topic], deadline)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def grow_topic(admin: Admin, name: str, partitions: int, deadline: Deadline) -> None:
    """Give a topic more partitions; somebody else may have been quicker.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaException: The cluster refuses; `is_refused` tells a missing right.
    """
    left_s = deadline.left_s
    futures = admin.create_partitions(
        [NewPartitions(name, partitions)], operation_timeout=left_s, request_timeout=left_s
    )
    try:
        answer(admin, futures[name], deadline)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.INVALID_PARTITIONS:
            raise


def await_partitions(admin: Admin, name: str, partitions: int, deadline: Deadline) -> None:
    """Return when the metadata shows the topic with so many partitions, each with a leader.

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
