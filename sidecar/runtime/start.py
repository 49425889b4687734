"""What a process needs from the cluster before its loop runs: usable topics, and a place where a new group begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from sidecar.clock import Clock
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.first_start import place_new_group
from sidecar.kafka.admin.topics import TopicFacts, ensure_topics
from sidecar.kafka.startup_retry import TRY_S, await_brokers, await_topics
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)


def await_cluster(
    admin: Admin,
    settings: Settings,
    clock: Clock,
    stopping: Callable[[float], bool],
    show: Callable[[Sequence[str]], None],
) -> TopicFacts | None:
    """Return the facts of the topics once they can be used and the group has a place; None when asked to stop first.

    Args:
        admin: A client.
        settings: The effective ones.
        clock: The clock of this machine.
        stopping: Waits at most the given seconds and returns whether to stop.
        show: Called with the reasons before each wait.

    Raises:
        BrokerUnavailable: No answer within STARTUP_TIMEOUT.
        CommandFailed: Something is wrong that only other settings mend.
        SettingsInvalid: The start needs a decision, START_AT.
    """
    facts = await_topics(lambda: ensure_topics(admin, settings, TRY_S), settings, clock, stopping, show)
    if facts is None:
        return None
    _log_notes(facts)
    said = await_topics(lambda: place_new_group(admin, settings, facts, TRY_S), settings, clock, stopping, show)
    if said is None:
        return None
    if said:
        logger.info("group_placed", text=said)
    return facts


def await_cluster_for_drain(
    admin: Admin, settings: Settings, clock: Clock, stopping: Callable[[float], bool]
) -> TopicFacts | None:
    """Return the facts of the topics; None when asked to stop first. What is missing has nothing to drain.

    Raises:
        BrokerUnavailable: No answer within STARTUP_TIMEOUT.
        CommandFailed: As in `await_cluster`.
        TopicsInvalid: A topic or a permission is missing or wrong.
    """
    facts = await_brokers(lambda: ensure_topics(admin, settings, TRY_S), settings, clock, stopping)
    if facts is not None:
        _log_notes(facts)
    return facts


def _log_notes(facts: TopicFacts) -> None:
    for line in (*facts.changes, *facts.notes):
        logger.info("topic_noted", text=line)
