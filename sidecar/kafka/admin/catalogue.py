"""Looks up topics in the background; keeps definite answers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sidecar.engine.ports import Origin

REFRESH_S: Final = 30.0
UNKNOWN_S: Final = 1.0
"""How long the answer that a topic does not exist, or may not be described, counts as recent."""
FORBIDDEN_AFTER_S: Final = 3.0
"""Time from the first answer that a topic may not be described to the one that counts."""
FORBIDDEN_MAX: Final = 50_000
"""Most topics whose first such answer is kept; the oldest is dropped, and its time starts again."""
REQUEST_TIMEOUT_S: Final = 5.0
PARTITIONS_MAX: Final = 2**31 - 1
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's own default, taken when the permission to read a topic's configuration is missing."""
ASKED_MAX: Final = 1_000
"""Most topics in one request; there is one request at a time."""


class Catalogue:
    """Facts about topics from definite answers of the broker; used by one thread."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self.origins: dict[str, Origin] = {}
        self.unknown: dict[str, float] = {}
        """Topics that do not exist, and when the broker reported it (monotonic seconds), oldest first."""
        self.forbidden: dict[str, float] = {}
        """Topics that this client may not describe, so that it is unknown whether they exist: by repeated answers, the
        last at this time (monotonic seconds), oldest first. Without topics that were seen before, or are expected."""
        self.denied: set[str] = set()
        """Topics that this client may not write to, or may not describe any more."""
        self.allowed: set[str] = set()
        """Topics that this client may write to, as the broker reports."""
        self.leaderless: set[str] = set()
        """Topics with a partition that has no leader."""
        self.expected: Collection[str] = ()
        """Topics that are known to exist: one of these that may not be described waits for the permission."""
        self._forbidden_since: dict[str, float] = {}
        """Topics that may not be described, and when the broker first reported it."""
        self._wanted: dict[str, None] = {}
        self._asked_at: dict[str, float] = {}
        self._topics: dict[str, Future[Any]] = {}
        self._configs: dict[str, Future[Any]] = {}

    def want(self, names: Iterable[str]) -> None:
        """Look these up at the next `advance`."""
        self._wanted.update(dict.fromkeys(names))

    def invalidate(self, name: str) -> None:
        """Forget what is known about a topic and look it up again."""
        self.origins.pop(name, None)
        self.unknown.pop(name, None)
        self.want((name,))

    def invalidate_permission(self, name: str) -> None:
        """Look up the permission to write to a topic again."""
        self.allowed.discard(name)
        self.want((name,))

    def advance(self, now_s: float) -> None:
        """Process answers and send requests. Never waits."""
        for answers in (self.unknown, self.forbidden):
            while answers and now_s - answers[name := next(iter(answers))] > UNKNOWN_S:
                del answers[name]
        if self._topics:
            self._collect(now_s)
        if not self._topics:
            wanted = (name for name in self._wanted if not self._too_early(name, now_s))
            stale = (name for name, asked_s in self._asked_at.items() if now_s - asked_s > REFRESH_S)
            self._ask(dict.fromkeys([*islice(wanted, ASKED_MAX), *islice(stale, ASKED_MAX)]), now_s)

    def _too_early(self, name: str, now_s: float) -> bool:
        """Return whether another answer would come too early to count."""
        told_s = self._forbidden_since.get(name)
        return told_s is not None and now_s - told_s < FORBIDDEN_AFTER_S and name not in self.expected

    def _ask(self, wanted: Iterable[str], now_s: float) -> None:
        names = list(islice(wanted, ASKED_MAX))
        if not names:
            return
        for name in names:
            self._wanted.pop(name, None)
        self._topics = self._admin.describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S
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
            self._clear_answers(name)
            operations = described.authorized_operations
            if operations:
                may_write = any(AclOperation(each) is AclOperation.WRITE for each in operations)
                (self.allowed if may_write else self.denied).add(name)
            if any(each.leader is None for each in described.partitions):
                self.leaderless.add(name)
            self.origins[name] = Origin(len(described.partitions), self._max_message_bytes(name))
            self._asked_at[name] = now_s
        self._topics = {}
        self._configs = {}

    def _failed(self, name: str, error: KafkaError, now_s: float) -> None:
        code = error.code()
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
            self._clear_answers(name)
            self.origins.pop(name, None)
            self.unknown[name] = now_s
        elif code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.want((name,))  # no definite answer: keep what is known
        elif name in self.origins or name in self.expected:
            # The topic exists: its messages wait for the permission, without checks of unknown limits.
            self._clear_answers(name)
            self.origins.setdefault(name, Origin(PARTITIONS_MAX, MAX_MESSAGE_BYTES_DEFAULT))
            self.denied.add(name)
            self._asked_at[name] = now_s
        elif now_s - self._forbidden_since.setdefault(name, now_s) >= FORBIDDEN_AFTER_S:
            self.forbidden.pop(name, None)
            self.forbidden[name] = now_s
        elif len(self._forbidden_since) > FORBIDDEN_MAX:
            del self._forbidden_since[next(iter(self._forbidden_since))]

    def _clear_answers(self, name: str) -> None:
        for answers in (self.unknown, self.forbidden, self._forbidden_since):
            answers.pop(name, None)
        for names in (self.denied, self.allowed, self.leaderless):
            names.discard(name)

    def _max_message_bytes(self, name: str) -> int:
        try:
            entries = self._configs[name].result()
            return int(entries["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError):
            known = self.origins.get(name)
            return known.max_message_bytes if known else MAX_MESSAGE_BYTES_DEFAULT
