"""The stateful operator: runs the step of each partition on Spark's state store.

One Spark timer for each partition is enough: it expires when the partition needs its next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from sidecar.clock import SystemClock
from sidecar.contract import dialects_of
from sidecar.errors import invariant
from sidecar.interpreter import collect_rarely
from sidecar.settings import Settings
from sidecar.spark.handover.changelog import take_over
from sidecar.spark.handover.copy import asks_for_timer, copied
from sidecar.spark.marks import ReplayClosings
from sidecar.spark.open_files import of_worker
from sidecar.spark.reads.questions import BoardAddress
from sidecar.spark.reads.task import answer_questions
from sidecar.spark.state.entries import META, decode_meta, encode
from sidecar.spark.state.map_state import AccessTimes, entries_of
from sidecar.spark.stream.lookup import BrokerLookup
from sidecar.spark.stream.placement import partition_of
from sidecar.spark.stream.step import PartitionSteps, Rules, StepResult
from sidecar.spark.stream.wire import Tally, encode_tally, rows_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

STATE: Final = "cells"
_CLOCK: Final = SystemClock()
OUTPUT_SCHEMA: Final = "partition int, payload string, tally string"


_lookups: dict[str, BrokerLookup] = {}
"""One client for each cluster in a worker process, for all its micro-batches."""


class WheelProcessor(StatefulProcessor):
    """Runs partition steps.

    Args:
        rules: The rules of the steps.
        settings: The settings of the client that looks topics up.
        replay_closings: The topics that the steps of a replayed micro-batch treat as closed.
        board: Where the driver asks for single messages; None: nobody asks.
        copies: Whether the initial state is the entries of a former query, not changelog records.
    """

    def __init__(
        self,
        rules: Rules,
        settings: Settings,
        replay_closings: ReplayClosings | None = None,
        board: BoardAddress | None = None,
        *,
        copies: bool = False,
    ) -> None:
        self._rules = rules
        self._board = board
        self._settings = settings
        self._replay_closings = replay_closings or ReplayClosings()
        self._copies = copies

    def init(self, handle: StatefulProcessorHandle) -> None:
        collect_rarely()
        self._handle = handle
        self._told = False
        self._state = entries_of(handle.getMapState(STATE, "cell binary", "value binary"), _CLOCK.monotonic_s)
        bootstrap = self._settings.bootstrap_servers
        if bootstrap not in _lookups:
            _lookups[bootstrap] = BrokerLookup(self._settings)
        self._lookup = _lookups[bootstrap]
        dialects = dialects_of(self._rules.profiles)
        self._steps = PartitionSteps(self._rules, dialects, self._lookup, self._replay_closings)

    def handleInputRows(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        chunks = (bytes(payload) for frame in rows for payload in frame["payload"])
        yield from self._step(partition_of(int(key[0])), chunks, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(  # noqa: N802 - as above
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        yield from self._step(partition_of(int(key[0])), [], timerValues.getCurrentProcessingTimeInMs())

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: TimerValues) -> None:  # noqa: N802, N803
        """Store the partition's first checkpoint and the given changelog records, in any number of parts."""
        partition, now_ms = partition_of(int(key[0])), timerValues.getCurrentProcessingTimeInMs()
        records = zip(initialState["record"], initialState["value"], strict=True)
        if self._copies:
            self._state.write(changes := copied(records, now_ms + 1))
            if asks_for_timer(changes):
                self._handle.registerTimer(now_ms + 1)
            return
        take_over(partition, self._state, records)
        meta = decode_meta(self._state.get(META) or b"")
        if not meta.wakes_ms:
            meta.wakes_ms = now_ms + 1
            self._handle.registerTimer(meta.wakes_ms)
            self._state.put(META, encode(meta))

    def close(self) -> None:
        """Answer what the driver asks; the client is kept for the next micro-batch."""
        if self._board is not None:
            answer_questions(self._board, self._rules.state_partitions, self._handle, self._state)

    def _step(self, partition: int, chunks: Iterable[bytes], now_ms: int) -> Iterator[pd.DataFrame]:
        self._lookup.now_ms = now_ms
        before, began_s = replace(self._state.times), _CLOCK.monotonic_s()
        result = self._steps.step(partition, self._state, chunks, now_ms)
        step_s = _CLOCK.monotonic_s() - began_s
        if result is None:
            return
        # Spark deletes the timer that expired when the call is over: one for the same instant would go with it.
        invariant(
            result.wakes_ms > now_ms,
            "a partition step is to wake at an instant that is over",
            partition=partition,
            wakes_ms=result.wakes_ms,
            now_ms=now_ms,
        )
        if result.wakes_ms != result.woke_ms:
            # An expired timer is called in this micro-batch, and Spark deletes it afterwards.
            if result.woke_ms > now_ms:
                self._handle.deleteTimer(result.woke_ms)
            self._handle.registerTimer(result.wakes_ms)
        if result.tally != Tally() and not self._told:
            self._told = True
            result = replace(result, tally=structs.replace(result.tally, open_files=of_worker()))
        yield from _frames(partition, result, self._state.times.since(before), step_s)


def _frames(partition: int, result: StepResult, times: AccessTimes, step_s: float) -> Iterator[pd.DataFrame]:
    encode_s = 0.0
    for part in result.output_parts:
        began_s = _CLOCK.monotonic_s()
        *firsts, last = rows_of(part)
        encode_s += _CLOCK.monotonic_s() - began_s
        for row in firsts:
            yield _frame(partition, row, None)
        tally = None
        if part.last and result.tally != Tally():
            tally = encode_tally(_timed(result.tally, times, step_s, encode_s))
        yield _frame(partition, last, tally)


def _frame(partition: int, row: str, tally: str | None) -> pd.DataFrame:
    # A third of a second that the driver, which asks for the kinds of state in a process of its own, does without.
    import pandas as pd  # noqa: PLC0415

    return pd.DataFrame({"partition": [partition], "payload": [row], "tally": [tally]})


def _timed(tally: Tally, times: AccessTimes, step_s: float, encode_s: float) -> Tally:
    parts_s = {
        "read": times.read_s,
        "plan": step_s - times.read_s - times.write_s,
        "write": times.write_s,
        "encode": encode_s,
    }
    spent_us = {name: round(1_000_000 * part_s) for name, part_s in parts_s.items()}
    return structs.replace(tally, spent_us=spent_us, round_trips=times.round_trips)
