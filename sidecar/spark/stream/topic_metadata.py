"""Metadata of the topics, and which of them are closed: kept in the state, so that a step depends on nothing else.

A partition step uses what the step before looked up. So a micro-batch that Spark runs again after a crash decides as it
did the first time, even if the topics have changed; exactly-once rests on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from sidecar.changelog.codec import Closed, Closure
from sidecar.engine.ports import Origin

REFRESH_MS: Final = 15_000
"""The age at which the metadata of a topic in use, open or closed, is looked up again."""
UNKNOWN_MS: Final = 5_000
"""The time for which the answer holds that a topic does not exist, or may not be described."""
FORBIDDEN_AFTER_MS: Final = 3_000
"""The time from the first answer that a topic may not be described to the one that decides."""
FORGET_MS: Final = 600_000
"""The time after which the metadata of an unused topic is removed."""
RETRY_FIRST_MS: Final = 10_000
RETRY_MAX_MS: Final = 300_000
"""The first and the longest time for which a topic that refused records is closed; it doubles each time."""


class TopicMetadata(msgspec.Struct, array_like=True, frozen=True):
    """A definite answer of the broker about one topic, and whether the topic accepts records."""

    partitions: int
    """0: there is no such topic."""
    max_message_bytes: int
    closure: str = ""
    """The reason why it cannot be written to, empty when it can."""
    asked_ms: int = 0
    used_ms: int = 0
    refused: str = ""
    """The `Closure` for which it refused records; empty once it has accepted some."""
    since_ms: int = 0
    """The instant since which it has refused all records."""
    closed_ms: int = 0
    """The length of the last closure."""
    retry_ms: int = 0
    """The instant of the next try."""
    forbidden_ms: int = 0
    """The instant of the first answer that it may not be described, so that it is unknown whether it exists; else 0."""

    @property
    def closed(self) -> bool:
        """Return whether the broker says that it cannot be written to."""
        return not self.partitions or bool(self.closure)


class Lookup(Protocol):
    """Asks the broker for topics."""

    def __call__(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        """Return the metadata of the topics for which a definite answer came in time."""
        ...


def known_origins(topics: Mapping[str, TopicMetadata]) -> dict[str, Origin]:
    """Return the topics that exist."""
    return {
        name: Origin(topic.partitions, topic.max_message_bytes) for name, topic in topics.items() if topic.partitions
    }


def missing_topics(topics: Mapping[str, TopicMetadata], now_ms: int) -> frozenset[str]:
    """Return the topics that do not exist, by a fresh answer."""
    return frozenset(
        name
        for name, topic in topics.items()
        if not topic.partitions and not topic.forbidden_ms and now_ms - topic.asked_ms <= UNKNOWN_MS
    )


def forbidden_topics(topics: Mapping[str, TopicMetadata], now_ms: int) -> frozenset[str]:
    """Return the topics that may not be described, by repeated answers, the last of which is fresh."""
    return frozenset(
        name
        for name, topic in topics.items()
        if not topic.partitions
        and topic.forbidden_ms
        and topic.asked_ms - topic.forbidden_ms >= FORBIDDEN_AFTER_MS
        and now_ms - topic.asked_ms <= UNKNOWN_MS
    )


def closed_origins(topics: Mapping[str, TopicMetadata], before: Mapping[str, Closed], now_ms: int) -> dict[str, Closed]:
    """Return the origins that are closed, without the paused ones.

    Args:
        topics: The metadata of all topics.
        before: The closed origins of the checkpoint, with the instants at which they closed.
        now_ms: The instant of the step.
    """
    closed = {}
    for name, topic in topics.items():
        why = _why_closed(topic, now_ms)
        if why is None:
            continue
        known = before.get(name)
        since_ms = topic.since_ms or now_ms
        if known is not None and known.why != Closure.PAUSED:
            since_ms = min(since_ms, known.since_ms)
        closed[name] = Closed(why, since_ms)
    return closed


def _why_closed(topic: TopicMetadata, now_ms: int) -> Closure | None:
    if topic.closed:
        return Closure(topic.closure or Closure.VANISHED)
    return Closure(topic.refused) if now_ms < topic.retry_ms else None


def refusing(topic: TopicMetadata, why: str, now_ms: int) -> TopicMetadata:
    """Return the metadata of a topic that has just refused records: it is closed, and looked up at once."""
    if now_ms - topic.retry_ms > RETRY_MAX_MS:
        topic = msgspec.structs.replace(topic, since_ms=0, closed_ms=0)  # open for so long, this is another closure
    closed_ms = min(2 * topic.closed_ms, RETRY_MAX_MS) or RETRY_FIRST_MS
    return msgspec.structs.replace(
        topic,
        asked_ms=0,
        refused=why,
        since_ms=topic.since_ms or now_ms,
        closed_ms=closed_ms,
        retry_ms=now_ms + closed_ms,
    )


def to_ask(topics: Mapping[str, TopicMetadata], unresolved: Iterable[str], now_ms: int) -> set[str]:
    """Return the topics to ask the broker for now: those that a record waits for, and those with old metadata."""
    stale = {
        name
        for name, topic in topics.items()
        if now_ms - topic.asked_ms >= (REFRESH_MS if topic.partitions else UNKNOWN_MS)
    }
    return {*unresolved, *stale}


def refreshed(
    topics: Mapping[str, TopicMetadata],
    answers: Mapping[str, TopicMetadata],
    used: Iterable[str],
    sent: Collection[str],
    pending: Collection[str],
    now_ms: int,
) -> dict[str, TopicMetadata]:
    """Return the metadata for the next step.

    Args:
        topics: The metadata of this step.
        answers: The broker's answers.
        used: Origins that this step needed, or that have pending timers.
        sent: Topics that it sends to and that have not refused a record: the state is kept only if they accept all.
        pending: Origins with pending timers, which existed when these were stored.
        now_ms: The instant of the step.
    """
    wanted = set(used)
    kept = {}
    for name in {**topics, **answers}:
        topic = _answered(topics.get(name), answers.get(name), accepted=name in sent, pending=name in pending)
        if name in wanted:
            kept[name] = msgspec.structs.replace(topic, used_ms=now_ms)
        elif now_ms - topic.used_ms <= (FORGET_MS if topic.partitions else UNKNOWN_MS):
            kept[name] = topic
    return kept


def _answered(
    known: TopicMetadata | None, answer: TopicMetadata | None, *, accepted: bool, pending: bool
) -> TopicMetadata:
    """Return a topic's metadata: the broker's answer, and whether the topic accepted records."""
    topic = answer or known
    assert topic is not None, "one of the two has the name"
    if known is None:
        known = TopicMetadata(0, 0)
    if topic.forbidden_ms and not known.partitions and not pending:
        # Records for it are not ingested: it is unknown whether it exists.
        topic = msgspec.structs.replace(topic, partitions=0, forbidden_ms=known.forbidden_ms or topic.forbidden_ms)
    before = TopicMetadata(0, 0) if accepted else known
    return msgspec.structs.replace(
        topic,
        used_ms=known.used_ms,
        refused=before.refused,
        since_ms=before.since_ms,
        closed_ms=before.closed_ms,
        retry_ms=before.retry_ms,
    )
