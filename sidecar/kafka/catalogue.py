"""What the broker says of topics: asked for in the background, answered definitely or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sidecar.engine.ports import Origin

REFRESH_S: Final = 30.0
UNKNOWN_S: Final = 1.0
"""For so long the answer that a topic does not exist is taken as fresh."""
REQUEST_TIMEOUT_S: Final = 5.0
PARTITIONS_MAX: Final = 2**31 - 1
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's own default, taken when the right to read a topic's configuration is missing."""
ASKED_MAX: Final = 500


class Catalogue:
    """Topics by what is definitely known of them; used by one thread."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self.origins: dict[str, Origin] = {}
        self.unknown: dict[str, float] = {}
        """Topics that do not exist, and when that was said (monotonic seconds)."""
        self.denied: set[str] = set()
        """Topics that this client may not write to, or not even look at."""
        self.leaderless: set[str] = set()
        """Topics of which some partition has no leader."""
        self._wanted: set[str] = set()
        self._asked_at: dict[str, float] = {}
        self._topics: dict[str, Future[Any]] = {}
        self._configs: dict[str, Future[Any]] = {}

    def want(self, names: Iterable[str]) -> None:
        """Ask for these at the next `advance`."""
        self._wanted.update(names)

    def forget(self, name: str) -> None:
        """Ask for this one anew before it is taken as known."""
        self.origins.pop(name, None)
        self.unknown.pop(name, None)
        self._wanted.add(name)

    def advance(self, now_s: float) -> None:
        """Take in answers that have come and send questions that are wanted. Never waits."""
        for name, told_s in list(self.unknown.items()):
            if now_s - told_s > UNKNOWN_S:
                del self.unknown[name]
        if self._topics:
            self._collect(now_s)
        if not self._topics:
            stale = (name for name, asked_s in self._asked_at.items() if now_s - asked_s > REFRESH_S)
            self._ask(sorted({*self._wanted, *stale})[:ASKED_MAX], now_s)

    def _ask(self, names: Collection[str], now_s: float) -> None:
        if not names:
            return
        self._wanted.difference_update(names)
        self._topics = self._admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S
        )
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        self._configs = {resource.name: future for resource, future in answers.items()}
        for name in names:
            if name in self.origins:
                self._asked_at[name] = now_s

    def _collect(self, now_s: float) -> None:
        if not all(future.done() for futures in (self._topics, self._configs) for future in futures.values()):
            return
        for name, future in self._topics.items():
            self._asked_at.pop(name, None)
            try:
                described = future.result()
            except KafkaException as cause:
                self._failed(name, cause.args[0], now_s)
                continue
            self.unknown.pop(name, None)
            operations = described.authorized_operations
            if operations and not any(AclOperation(each) is AclOperation.WRITE for each in operations):
                self.denied.add(name)
            else:
                self.denied.discard(name)
            if any(each.leader is None for each in described.partitions):
                self.leaderless.add(name)
            else:
                self.leaderless.discard(name)
            self.origins[name] = Origin(len(described.partitions), self._max_message_bytes(name))
            self._asked_at[name] = now_s
        self._topics = {}
        self._configs = {}

    def _failed(self, name: str, error: KafkaError, now_s: float) -> None:
        code = error.code()
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
            self.origins.pop(name, None)
            self.unknown[name] = now_s
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # It exists: its messages wait for the right, checked against nothing that is not known.
            self.origins.setdefault(name, Origin(PARTITIONS_MAX, MAX_MESSAGE_BYTES_DEFAULT))
            self.denied.add(name)
            self._asked_at[name] = now_s
        else:
            self._wanted.add(name)  # no definite answer: what was known stays known

    def _max_message_bytes(self, name: str) -> int:
        try:
            entries = self._configs[name].result()
            return int(entries["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError):
            known = self.origins.get(name)
            return known.max_message_bytes if known else MAX_MESSAGE_BYTES_DEFAULT
