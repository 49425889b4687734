"""What a process needs from the cluster before its loop runs: usable topics, and a place where a new group begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from sidecar import log
from sidecar.clock import Clock
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.first_start import has_nothing_to_read, place_new_group
from sidecar.kafka.admin.topics import TopicFacts, ensure_topics
from sidecar.kafka.startup_retry import TRY_S, await_brokers, await_topics
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)


def await_cluster(
    settings: Settings,
    clock: Clock,
    stopping: Callable[[float], bool],
    show: Callable[[Sequence[str]], None],
    *,
    drains: bool = False,
) -> tuple[Admin, TopicFacts] | None:
    """Return a client and the facts of the topics once they can be used and the group has a place.

    Args:
        settings: The effective ones.
        clock: The clock of this machine.
        stopping: Waits at most the given seconds and returns whether to stop; None is returned then.
        show: Called with the reasons before each wait.
        drains: The process only fires what is pending: it has nothing to wait for without topics.

    Raises:
        BrokerUnavailable: No answer within STARTUP_TIMEOUT.
        CommandFailed: Something is wrong that only other settings mend.
        SettingsInvalid: The start needs a decision, START_AT.
        TopicsInvalid: A drain lacks a topic or a permission.
    """
    was_empty = False

    def ensure() -> TopicFacts:
        nonlocal was_empty
        # First of all: until the topics can be used, messages may be sent.
        was_empty = was_empty or has_nothing_to_read(admin, settings)
        return ensure_topics(admin, settings, TRY_S)

    made = await_topics(lambda: Admin(settings, log.librdkafka_logger()), settings, clock, stopping, show)
    if made is None:
        return None
    admin = made
    if drains:
        facts = await_brokers(ensure, settings, clock, stopping)
    else:
        facts = await_topics(ensure, settings, clock, stopping, show)
    if facts is None:
        return None
    for line in (*facts.changes, *facts.notes):
        logger.info("topic_noted", text=line)
    if drains:
        return admin, facts
    usable = facts

    def place() -> str:
        return place_new_group(admin, settings, usable, TRY_S, was_empty=was_empty)

    said = await_topics(place, settings, clock, stopping, show)
    if said is None:
        return None
    if said:
        logger.info("group_placed", text=said)
    return admin, facts
