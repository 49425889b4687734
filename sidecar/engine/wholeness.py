"""Whether a changelog has everything that was committed to it: what lacks something must replace nothing.

A changelog that was deleted and made anew, or that ends earlier than before, looks like a short one. Three witnesses
know better: the rows of the store, the mark of the group's committed offset, and the checkpoints themselves, which name
the topic that their writer had read to its end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.rows import Identity, Meta
from sidecar.errors import PartitionStopped

DECISION: Final = (
    "Nothing was deleted. Stop all instances; then write the changelog again from the state folder of the instance "
    "that had this partition (`retry-sidecar state rebuild-changelog`), or go on without what is lost "
    "(`retry-sidecar state give-up`)"
)


class Log(NamedTuple):
    """The changelog of a partition as it is now."""

    identity: Identity
    start: int
    end: int
    """Uncommitted records included."""


class ChangelogLost(PartitionStopped):
    """The changelog lacks what was committed: a person decides how the partition goes on."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the changelog lacks what was committed: {why}. {DECISION}")


def missing(found: Checkpoint, log: Log, mark: OffsetMark | None) -> str:
    """Return why a changelog cannot be whole; empty when nothing speaks against it.

    What brokers roll back, changelog and offsets together or one of them alone, leaves its records in the log, aborted:
    that is no loss of the log.

    Args:
        found: The last checkpoint in the log.
        log: The log.
        mark: Of the group's committed offset.
    """
    topic_id = log.identity.changelog_topic_id
    if found.sequence and found.changelog_topic_id not in {"", topic_id}:
        return f"the topic was deleted and made anew while an instance used it (its id is {topic_id} now)"
    if mark is None or mark.sequence <= found.sequence:
        return ""
    committed = f"the group's committed offset belongs to transaction {mark.sequence} of this partition"
    if mark.changelog_topic_id not in {"", topic_id}:
        return f"{committed}, in a topic with the id {mark.changelog_topic_id}, and the topic has the id {topic_id} now"
    if not found.sequence and (log.start or not log.end):
        return f"{committed}, and the topic has no checkpoint"
    return ""


def replaces(found: Checkpoint, log: Log, standing: Meta) -> bool:
    """Return whether a log has everything that the rows of a store stand for, so that they may be wiped.

    Args:
        found: The last checkpoint in the log.
        log: The log.
        standing: Of the rows.
    """
    topic_id = log.identity.changelog_topic_id
    if found.sequence and found.changelog_topic_id not in {"", topic_id}:
        return False
    if standing.changelog_topic_id == topic_id and standing.changelog_offset <= log.end:
        # The rows are of a transaction that was rolled back, or so old that the log's start has passed them.
        return bool(found.sequence) or (not log.start and log.end > 0)
    return found.has(standing.changelog_topic_id, standing.changelog_offset) or found.follows(standing.checkpoint)


def why_not(log: Log, standing: Meta) -> str:
    """Return why a log does not replace the rows of a store."""
    topic_id = log.identity.changelog_topic_id
    rows = f"the state folder has the partition up to transaction {standing.checkpoint.sequence}"
    if standing.changelog_topic_id != topic_id:
        return f"{rows}, in a topic with the id {standing.changelog_topic_id}, and the topic has the id {topic_id} now"
    if standing.changelog_offset > log.end:
        return f"{rows}, at offset {standing.changelog_offset}, and the log ends at {log.end}"
    return f"{rows}, and the topic has no checkpoint"
