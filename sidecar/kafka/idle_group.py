"""A consumer group without members, as commands need it that write what its instances write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.offsets import REQUEST_TIMEOUT_S, Committed
from sidecar.kafka.log_reader import LogReader
from sidecar.kafka.probes import describe_group
from sidecar.settings import Settings

WAIT_S: Final = 45.0
"""The transaction of a killed instance is over by then."""


def require_no_members(admin: Admin, settings: Settings, wait_s: float = WAIT_S) -> None:
    """Make sure that no instance is in the group.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: There are members.
    """
    try:
        group = describe_group(admin, settings, Deadline(wait_s))
    except KafkaFailed as error:
        raise CommandFailed(f"the group {settings.group_id} cannot be described: {error}") from error
    if group is not None and group.members:
        hosts = ", ".join(group.hosts)
        raise CommandFailed(
            f"the group {settings.group_id} has {group.members} members ({hosts}): stop all instances first; only one "
            "process may write for it meanwhile. One with an INSTANCE_ID stays a member after its end until its "
            "session is over (CLIENT_SESSION_TIMEOUT_MS)"
        )


def stable_offsets(settings: Settings, partitions: Sequence[int], wait_s: float = WAIT_S) -> dict[int, Committed]:
    """Return the committed offset of each partition that has one, once no transaction is open on them.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The cluster refuses.
    """
    deadline = Deadline(wait_s)
    with LogReader(config.committed_reader(settings), settings.input_topic) as reader:
        while True:
            try:
                return reader.committed(partitions, REQUEST_TIMEOUT_S)
            except KafkaFailed as why:
                if not why.away and why.code != "UNSTABLE_OFFSET_COMMIT":
                    raise CommandFailed(f"the offsets of {settings.group_id} cannot be read: {why}") from why
                if deadline.passed:
                    raise BrokerUnavailable(f"the offsets of {settings.group_id} cannot be read: {why}") from why
                deadline.pause()
