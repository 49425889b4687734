"""Answers the driver's questions at the end of a task, from the state that the micro-batch leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace
from pyspark import TaskContext

from sidecar.clock import SystemClock
from sidecar.errors import SidecarError
from sidecar.spark.reads.line import Line
from sidecar.spark.reads.questions import BoardAddress, PartitionAnswer, Question
from sidecar.spark.reads.reader import answer
from sidecar.spark.state.entries import StoredEntries
from sidecar.spark.stream.placement import key_of, state_partition_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

logger = structlog.get_logger(__name__)

TASK_S: Final = 2.0
"""The longest time that answers delay a task."""
_BATCH: Final = "streaming.sql.batchId"

_lines: dict[BoardAddress, Line] = {}
"""One connection for each driver in a worker process, for all its micro-batches."""


def answer_questions(
    board: BoardAddress, state_partitions: int, handle: StatefulProcessorHandle, state: StoredEntries
) -> None:
    """PartitionAnswer for the input partitions whose state this task has. Never raises: a read stops no micro-batch.

    Args:
        board: Where the driver asks.
        state_partitions: The state partitions of the query.
        handle: Spark's handle of the task's state.
        state: The state of the partition whose key the handle has.
    """
    context = TaskContext.get()
    if context is None:  # Spark calls on the driver too, without a state
        return
    try:
        line = _lines.setdefault(board, Line(board))
        batch = int(context.getLocalProperty(_BATCH) or -1)
        for question in line.questions(batch):
            _answer(line, question, batch, context.partitionId(), state_partitions, handle, state)
    except Exception:
        logger.exception("read_failed", state_partition=context.partitionId())


def _answer(
    line: Line,
    question: Question,
    batch: int,
    here: int,
    state_partitions: int,
    handle: StatefulProcessorHandle,
    state: StoredEntries,
) -> None:
    partitions = [each for each in question.partitions if state_partition_of(each, state_partitions) == here]
    if not partitions:
        return
    clock = SystemClock()
    until_s = clock.monotonic_s() + TASK_S
    client = handle._statefulProcessorApiClient  # noqa: SLF001 - a task's end has no key of its own
    instant_ms, _ = client.get_timestamps("processingtime")
    read = _Reading(client, state, state_partitions, lambda: clock.monotonic_s() >= until_s)
    line.answer([read(question, each, batch, instant_ms) for each in partitions])


class _Reading:
    def __init__(
        self, client: Any, state: StoredEntries, state_partitions: int, out_of_time: Callable[[], bool]
    ) -> None:
        self._client = client
        self._state = state
        self._state_partitions = state_partitions
        self._out_of_time = out_of_time

    def __call__(self, question: Question, partition: int, batch: int, instant_ms: int) -> PartitionAnswer:
        found = PartitionAnswer(number=question.number, partition=partition, batch=batch, instant_ms=instant_ms)
        try:
            self._client.set_implicit_key((key_of(partition, self._state_partitions),))
            try:
                return answer(question.wish, partition, self._state, found, self._out_of_time)
            finally:
                self._client.remove_implicit_key()
        except SidecarError as cause:
            return replace(found, refusal=str(cause))
        except Exception as cause:
            logger.exception("read_failed", partition=partition)
            return replace(found, refusal=f"partition {partition} cannot be read: {cause}")
