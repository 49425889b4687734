"""The configuration of every Kafka client: the operator's properties between our tuning and our guarantees."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer

from sidecar.errors import SettingsInvalid
from sidecar.kafka.tokens import CALLBACK, tokens_of
from sidecar.settings import Settings
from sidecar.settings.client import MASK, PREFIX, is_secret

Config = dict[str, Any]
"""What confluent-kafka's clients take: texts, numbers, booleans, one callback; `logger=` is handed over separately."""

MESSAGE_BYTES_MAX = 1_000_000_000
"""The client library's maximum: the size of a message is limited by its topic only."""

BATCH_BYTES = 1_000_000
"""Batch size of the producer, unless a topic allows less."""

TRANSACTION_TIMEOUT_MS = 20_000
MESSAGE_TIMEOUT_MS = 6_000
"""A running broker answers within it; other messages wait no longer for a topic that gives no answer."""
MESSAGE_TIMEOUT_MAX_MS = 18_000
"""For a large record on a slow link: nearly the whole transaction timeout."""
COMPRESSION = "lz4"
"""Compression of writes, unless configured. A large record that came compressed seldom fits uncompressed."""

# librdkafka warns in the log of each property that has no meaning for a client of the other kind, and of
# those alone it says which kind they belong to: these are the ones its reference marks C and P.
_CONSUMER_ONLY = frozenset(
    """session.timeout.ms heartbeat.interval.ms group.protocol.type group.remote.assignor coordinator.query.interval.ms
    max.poll.interval.ms auto.commit.interval.ms enable.auto.offset.store queued.min.messages
    queued.max.messages.kbytes fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes
    max.partition.fetch.bytes fetch.max.bytes fetch.min.bytes fetch.error.backoff.ms offset.store.method
    enable.partition.eof check.crcs max.poll.records share.acknowledgement.mode offset.store.path
    offset.store.sync.interval.ms consume.callback.max.messages""".split()  # noqa: SIM905  # a table reads better than 25 lines of quotes
)
_PRODUCER_ONLY = frozenset(
    """transaction.timeout.ms enable.gapless.guarantee queue.buffering.max.messages queue.buffering.max.kbytes
    queue.buffering.max.ms linger.ms message.send.max.retries retries queue.buffering.backpressure.threshold
    compression.codec compression.type compression.level batch.num.messages batch.size delivery.report.only.error
    sticky.partitioning.linger.ms request.timeout.ms message.timeout.ms delivery.timeout.ms queuing.strategy
    produce.offset.report partitioner""".split()  # noqa: SIM905  # as above
)

_ALIASES = {
    "linger.ms": "queue.buffering.max.ms",
    "message.timeout.ms": "delivery.timeout.ms",
    "compression.type": "compression.codec",
}
"""Our tuning -> the other name that the operator may have used for it."""


def library_versions() -> dict[str, str]:
    """Return the versions of the client library, by name."""
    return {"confluent-kafka": str(confluent_kafka.__version__), "librdkafka": str(confluent_kafka.libversion()[0])}


def common(settings: Settings, role: str = "client") -> Config:
    """Return the common configuration of all clients.

    Args:
        settings: The effective settings.
        role: What the client is for; the end of its `client.id`, as brokers log it.
    """
    return _client(settings, role, tuning={}, guarantees={}, foreign=frozenset())


def input_consumer(settings: Settings, static_id: str | None = None) -> Config:
    """Return the configuration of the group member that reads the retry topic.

    Args:
        settings: The effective settings.
        static_id: The instance id if the operator has set one: makes the membership static.
    """
    guarantees: Config = {
        **_reading(settings.group_id),
        "partition.assignment.strategy": "cooperative-sticky",
    }
    if static_id is not None:
        guarantees["group.instance.id"] = static_id
    tuning: Config = {
        **_FETCHING,
        "session.timeout.ms": 12_000,
        "heartbeat.interval.ms": 1_000,
        "max.poll.interval.ms": 300_000,
    }
    return _client(settings, "input", tuning=tuning, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def changelog_reader(settings: Settings) -> Config:
    """Return the configuration of the consumer that restores; it is assigned manually and never commits."""
    guarantees = _reading(f"{settings.group_id}-restore")
    # A partition that joins waits for the answer that the others wait for.
    tuning: Config = {**_FETCHING, "fetch.wait.max.ms": 10}
    return _client(settings, "restore", tuning=tuning, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def status_reader(settings: Settings) -> Config:
    """Return the configuration of the status topic's consumer; it is assigned manually and never commits."""
    guarantees: Config = {
        **_reading(f"{settings.group_id}-status"),
        # A truncated or recreated log is read from its start.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    return _client(settings, "status-reader", tuning=_FETCHING, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def committed_reader(settings: Settings) -> Config:
    """Return the configuration of a consumer that only reads the group's stable committed offsets."""
    return _client(settings, "committed", tuning={}, guarantees=_reading(settings.group_id), foreign=_PRODUCER_ONLY)


def checkpoint_reader(settings: Settings) -> Config:
    """Return the configuration of the consumer of the changelog's last checkpoints; it is assigned manually.

    Its group is the sidecar's, whose metadata a transaction needs. It never commits.
    """
    guarantees: Config = {
        **_reading(settings.group_id),
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    tuning: Config = {**_FETCHING, "fetch.wait.max.ms": 10}
    return _client(settings, "checkpoints", tuning=tuning, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def dead_letter_reader(settings: Settings, group_id: str) -> Config:
    """Return the configuration of the DLQ's consumer; it is assigned manually and never commits.

    Args:
        settings: The effective settings.
        group_id: The group whose offsets a transaction commits, or any.
    """
    guarantees: Config = {
        **_reading(group_id),
        # Records that retention deletes while reading are skipped.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    return _client(settings, "dead-letters", tuning=_FETCHING, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def range_reader(settings: Settings) -> Config:
    """Return the configuration of a consumer of ranges of offsets; it is assigned manually and never commits."""
    guarantees: Config = {**_reading(f"{settings.group_id}-ranges"), "enable.partition.eof": True}
    tuning: Config = {
        **_FETCHING,
        # What is fetched behind the end of a range is fetched for nothing.
        "queued.min.messages": 4_000,
        "queued.max.messages.kbytes": 4_096,
        # The next range waits for the answer that the last one has asked for.
        "fetch.wait.max.ms": 10,
    }
    return _client(settings, "ranges", tuning=tuning, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def origin_reader(settings: Settings) -> Config:
    """Return the configuration of the consumer that searches origins; it is assigned manually and never commits.

    Its group is that of the restores, for which the sidecar has the permission.
    """
    return {**range_reader(settings), "group.id": changelog_reader(settings)["group.id"]}


def delivery_reader(settings: Settings, name: str) -> Config:
    """Return the configuration of a consumer of deliveries; it is assigned manually and never commits.

    Args:
        settings: The settings.
        name: What reads them.
    """
    guarantees = _reading(f"{settings.group_id}-{name}")
    return _client(settings, name, tuning=_FETCHING, guarantees=guarantees, foreign=_PRODUCER_ONLY)


def transactional_producer(
    settings: Settings,
    transactional_id: str,
    batch_bytes: int = BATCH_BYTES,
    message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
) -> Config:
    """Return the configuration of the producer of deliveries, dead letters and the changelog.

    Args:
        settings: The effective settings.
        transactional_id: Application id and instance id; a later producer with the same one fences the earlier.
        batch_bytes: At most the smallest `max.message.bytes` of the topics written: brokers check whole batches.
            The operator's own `batch.size` can only lower it.
        message_timeout_ms: Longest time until a record is written.
    """
    tuning: Config = {
        **_SENDING,
        "message.timeout.ms": message_timeout_ms,
        "compression.type": COMPRESSION,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "queue.buffering.max.kbytes": 65_536,
        "linger.ms": 5,
    }
    asked = settings.client.get("batch.size", "")
    guarantees: Config = {
        **_WRITING,
        "transactional.id": transactional_id,
        "batch.size": min(int(asked), batch_bytes) if asked.isdecimal() else asked or batch_bytes,
    }
    return _client(settings, "transactions", tuning=tuning, guarantees=guarantees, foreign=_CONSUMER_ONLY)


def transaction_timeout_s(settings: Settings) -> float:
    """Return the transaction timeout, after which the broker aborts an open transaction and fences its producer."""
    return float(transactional_producer(settings, "")["transaction.timeout.ms"]) / 1000


def compresses(settings: Settings) -> bool:
    """Return whether transactional writes are compressed."""
    properties = transactional_producer(settings, "")
    return properties.get("compression.codec", properties.get("compression.type")) != "none"


def status_producer(settings: Settings) -> Config:
    """Return the configuration of the producer of status records, whose delivery measures the broker's clock."""
    # No lingering: the time between produce() and the delivery report bounds the error of the measurement.
    tuning: Config = {**_SENDING, "queue.buffering.max.kbytes": 1_024, "linger.ms": 0}
    # A record that came twice changes nothing, and one request at a time keeps their order. An idempotent producer asks
    # for its id half a second after its start, and nothing fires before a record is delivered.
    guarantees: Config = {**_WRITING, "enable.idempotence": False, "max.in.flight.requests.per.connection": 1}
    return _client(settings, "status", tuning=tuning, guarantees=guarantees, foreign=_CONSUMER_ONLY)


def retry_producer(settings: Settings) -> Config:
    """Return the configuration of a producer that sends into the retry topic."""
    tuning: Config = {**_SENDING, "message.timeout.ms": 30_000, "linger.ms": 5}
    return _client(settings, "send", tuning=tuning, guarantees=_WRITING, foreign=_CONSUMER_ONLY)


def admin(settings: Settings) -> Config:
    """Return the configuration of an admin client."""
    return _client(settings, "admin", tuning={}, guarantees={}, foreign=_CONSUMER_ONLY | _PRODUCER_ONLY)


def quiet_logger(name: str = "quiet") -> logging.Logger:
    """Return a logger that drops everything, for callers that show errors in another way."""
    logger = logging.Logger(name)
    logger.addHandler(logging.NullHandler())
    return logger


def validate_client_properties(settings: Settings) -> None:
    """Validate the operator's properties with the client library, without a broker.

    Raises:
        SettingsInvalid: One line for each unknown property or invalid value, or OAUTH_CALLBACK is no function.
    """
    tokens_of(settings)
    problems = dict.fromkeys(_overridden(settings, {**_reading(""), **_WRITING}))
    if problems:
        raise SettingsInvalid(tuple(problems))
    if not settings.client_properties.keys() - {"bootstrap.servers"}:
        return  # there is nothing to ask the library, and three clients cost as much as a restore
    for configure, client in (
        (input_consumer, _try_consumer),
        (lambda given: transactional_producer(given, "checked"), _try_producer),
        (admin, _try_producer),
    ):
        problems.update(dict.fromkeys(_refused(settings, configure(settings), client)))
    if problems:
        raise SettingsInvalid(tuple(problems))


_FETCHING: Config = {
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
}

_SENDING: Config = {
    "message.timeout.ms": MESSAGE_TIMEOUT_MS,
    # An unknown topic fails after this, and with it the transaction.
    "topic.metadata.propagation.max.ms": 1_000,
    "message.max.bytes": MESSAGE_BYTES_MAX,
}

_WRITING: Config = {
    "acks": "all",
    "enable.idempotence": True,
    # The partitioner of Java's producers: a key must return to the partition that it came from.
    "partitioner": "murmur2_random",
    "delivery.report.only.error": False,
}

_PREAMBLE = re.compile(r"Failed to create (?:consumer|producer): ")

_WRAPPER_WORDS = frozenset({"logger", "default.topic.config", CALLBACK})
"""Keys that the Python client uses itself: objects, never text."""


def _reading(group_id: str) -> Config:
    return {
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": False,
    }


def _client(
    settings: Settings,
    role: str,
    *,
    tuning: Mapping[str, str | int | float | bool],
    guarantees: Mapping[str, str | int | float | bool],
    foreign: frozenset[str],
) -> Config:
    given = {name: value for name, value in settings.client_properties.items() if name not in foreign}
    ours = {name: value for name, value in tuning.items() if _ALIASES.get(name) not in given}
    return {
        "client.id": f"{settings.streams_app_id}-{role}",
        # A topic that gains partitions is noticed within this time.
        "topic.metadata.refresh.interval.ms": 10_000,
        # A broker that returns is found soon. A client also waits half of the first one before its second connection.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 2_000,
        "log.connection.close": False,
        **ours,
        **given,
        **({} if (tokens := tokens_of(settings)) is None else {CALLBACK: tokens}),
        "allow.auto.create.topics": False,
        **guarantees,
    }


def _refused(settings: Settings, config: Config, client: Callable[[Config], None]) -> Iterator[str]:
    """Yield a line for each property of the operator that the client refuses."""
    # A client with a callback waits for its first token.
    config = {**_without(config, CALLBACK), "bootstrap.servers": "", "log_level": 0}
    given = [name for name in settings.client_properties if name in config and name != "bootstrap.servers"]
    while (said := _verdict(config, client)) is not None:
        # The library names one mistake at a time, and often by another name: the culprit is the property
        # without which the error changes.
        culprit = next((name for name in given if _verdict(_without(config, name), client) != said), None)
        if culprit is None:
            yield f"client properties: {_masked(settings, said)}"
            return
        yield _line(settings, culprit, said)
        given.remove(culprit)
        config = _without(config, culprit)


def _without(config: Config, name: str) -> Config:
    return {key: value for key, value in config.items() if key != name}


def _verdict(config: Config, client: Callable[[Config], None]) -> str | None:
    """Return the library's error for a configuration, None when it is valid."""
    try:
        client(config)
    except KafkaException as error:
        return _PREAMBLE.sub("", str(error.args[0].str()))
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _overridden(settings: Settings, guarantees: Config) -> Iterator[str]:
    """Yield a line for each property that the operator may not set because a guarantee depends on it."""
    for name in settings.client:
        if name in guarantees:
            yield _line(settings, name, f"cannot be set: always {str(guarantees[name]).lower()}")
        elif name in _WRAPPER_WORDS:
            yield _line(settings, name, "is not a librdkafka property")


def _line(settings: Settings, name: str, said: str) -> str:
    shown = MASK if is_secret(name) else repr(settings.client_properties[name])
    setting = f"{PREFIX}{name.upper().replace('.', '_')}"
    origin = settings.origins.get(f"client.{name}")
    where = f" (from {origin})" if origin else ""
    return f"{setting}: {shown}: {_masked(settings, said)}{where}"


def _masked(settings: Settings, said: str) -> str:
    text = " ".join(said.split())
    for secret in settings.secrets:
        text = text.replace(secret, MASK)
    return text


def _try_consumer(config: Config) -> None:
    Consumer(config, logger=quiet_logger()).close()


def _try_producer(config: Config) -> None:
    Producer(config, logger=quiet_logger()).flush(0)
