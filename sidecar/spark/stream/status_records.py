"""The records of the status topic that a partition step makes."""

from __future__ import annotations

from sidecar import __version__
from sidecar.contract import status
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import State
from sidecar.spark.state.entries import Stopped
from sidecar.spark.stream.wire import StatusRecord


def signed(token: str | None, topic: str, partition: int, status_record: StatusRecord, now_ms: int) -> StatusRecord:
    """Return a record of the status topic with its signature, if there is a token."""
    headers = status.signed(token, topic, partition, status_record.key, status_record.value, now_ms)
    return StatusRecord(status_record.key, status_record.value, headers)


def stopped_view(partition: int, owner: str, url: str | None, stopped: Stopped, *, listable: bool) -> PartitionView:
    """Return the published view of a partition whose state cannot be read."""
    return PartitionView(
        partition=partition,
        state=State.STOPPED,
        owner=owner,
        url=url,
        reason=stopped.reason,
        listable=listable,
        release=__version__,
    )
