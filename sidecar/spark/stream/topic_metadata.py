"""What is known of the origins, and which are closed: kept in the state, so that a turn depends on nothing else.

A turn uses what the turn before learnt. So a micro-batch that Spark runs again, after a crash, decides as it did the
first time, whatever has become of the topics meanwhile; exactly-once rests on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from sidecar.changelog.codec import Closed, Closure
from sidecar.engine.ports import Origin

REFRESH_MS: Final = 15_000
"""An origin that is used is asked for again after so long; so is a closed one."""
UNKNOWN_MS: Final = 5_000
"""For so long the answer that a topic does not exist, or may not be looked at, counts."""
FORBIDDEN_AFTER_MS: Final = 3_000
"""From the first answer that a topic may not be looked at to the one that is believed."""
FORGET_MS: Final = 600_000
"""What was not used for so long is forgotten."""
AGAIN_FIRST_MS: Final = 10_000
AGAIN_MAX_MS: Final = 300_000
"""A topic that refused records is closed for so long, twice as long each time; then what is due is tried again."""


class TopicMetadata(msgspec.Struct, array_like=True, frozen=True):
    """A definite answer of the broker about one topic."""

    partitions: int
    """0: there is no such topic."""
    max_message_bytes: int
    closure: str = ""
    """Why it cannot be written to, empty when it can."""
    asked_ms: int = 0
    used_ms: int = 0
    refused: str = ""
    """Why it took no records, a `Closure`; empty since it has taken some."""
    since_ms: int = 0
    """Since when it has taken none."""
    closed_ms: int = 0
    """For how long it was closed the last time."""
    again_ms: int = 0
    """When it is tried again."""
    doubted_ms: int = 0
    """When it was first said that it may not be looked at, so that nobody can tell whether it exists; else 0."""

    @property
    def closed(self) -> bool:
        """Return whether the broker says that it cannot be written."""
        return not self.partitions or bool(self.closure)


class Lookup(Protocol):
    """Asks the broker."""

    def __call__(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        """Return the facts of those topics that a definite answer came for in time."""
        ...


def known_origins(topics: Mapping[str, TopicMetadata]) -> dict[str, Origin]:
    """Return the topics that exist."""
    return {
        name: Origin(topic.partitions, topic.max_message_bytes) for name, topic in topics.items() if topic.partitions
    }


def missing_topics(topics: Mapping[str, TopicMetadata], now_ms: int) -> frozenset[str]:
    """Return the topics that do not exist, by an answer that is fresh."""
    return frozenset(
        name
        for name, topic in topics.items()
        if not topic.partitions and not topic.doubted_ms and now_ms - topic.asked_ms <= UNKNOWN_MS
    )


def forbidden_topics(topics: Mapping[str, TopicMetadata], now_ms: int) -> frozenset[str]:
    """Return the topics that may not be looked at, by repeated answers, the last of which is fresh."""
    return frozenset(
        name
        for name, topic in topics.items()
        if not topic.partitions
        and topic.doubted_ms
        and topic.asked_ms - topic.doubted_ms >= FORBIDDEN_AFTER_MS
        and now_ms - topic.asked_ms <= UNKNOWN_MS
    )


def closed_origins(topics: Mapping[str, TopicMetadata], before: Mapping[str, Closed], now_ms: int) -> dict[str, Closed]:
    """Return the origins that cannot be fired to, paused ones aside.

    Args:
        facts: As they are known now.
        before: The closed origins of the checkpoint, which say since when.
        now_ms: The instant of the turn.
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
    return Closure(topic.refused) if now_ms < topic.again_ms else None


def refusing(topic: TopicMetadata, why: str, now_ms: int) -> TopicMetadata:
    """Return what is known of a topic that has just refused records: it is closed, and asked for at once."""
    if now_ms - topic.again_ms > AGAIN_MAX_MS:
        topic = msgspec.structs.replace(topic, since_ms=0, closed_ms=0)  # open for so long, this is another closure
    closed_ms = min(2 * topic.closed_ms, AGAIN_MAX_MS) or AGAIN_FIRST_MS
    return msgspec.structs.replace(
        topic,
        asked_ms=0,
        refused=why,
        since_ms=topic.since_ms or now_ms,
        closed_ms=closed_ms,
        again_ms=now_ms + closed_ms,
    )


def to_ask(topics: Mapping[str, TopicMetadata], unresolved: Iterable[str], now_ms: int) -> set[str]:
    """Return the topics to ask the broker for now: those that a record waits for, and what is known for long."""
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
    """Return the facts for the next turn.

    Args:
        facts: Those of this turn.
        answers: What the broker said.
        used: Origins that this turn needed, or of which timers wait.
        sent: Topics that it sends to, and that have not refused any of it: the state is kept only if they take it.
        pending: Origins of which timers wait, so that they are there by all that is known.
        now_ms: The instant of the turn.
    """
    wanted = set(used)
    kept = {}
    for name in {**topics, **answers}:
        topic = _answered(topics.get(name), answers.get(name), taken=name in sent, pending=name in pending)
        if name in wanted:
            kept[name] = msgspec.structs.replace(topic, used_ms=now_ms)
        elif now_ms - topic.used_ms <= (FORGET_MS if topic.partitions else UNKNOWN_MS):
            kept[name] = topic
    return kept


def _answered(
    known: TopicMetadata | None, answer: TopicMetadata | None, *, taken: bool, pending: bool
) -> TopicMetadata:
    """Return a topic's fact: what the broker says of it, and how it has taken records."""
    topic = answer or known
    assert topic is not None, "one of the two has the name"
    if known is None:
        known = TopicMetadata(0, 0)
    if topic.doubted_ms and not known.partitions and not pending:
        # What comes for it is not taken in: nobody can tell whether it exists.
        topic = msgspec.structs.replace(topic, partitions=0, doubted_ms=known.doubted_ms or topic.doubted_ms)
    before = TopicMetadata(0, 0) if taken else known
    return msgspec.structs.replace(
        topic,
        used_ms=known.used_ms,
        refused=before.refused,
        since_ms=before.since_ms,
        closed_ms=before.closed_ms,
        again_ms=before.again_ms,
    )
