"""The stateful operator: runs the step of each partition on Spark's state store.

One Spark timer for each partition is enough: it expires when the partition needs its next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from sidecar.contract import dialects_of
from sidecar.errors import invariant
from sidecar.settings import Settings
from sidecar.spark.handover.changelog import take_over
from sidecar.spark.marks import ReplayClosings
from sidecar.spark.state.entries import META, decode_meta, encode
from sidecar.spark.stream.lookup import BrokerLookup
from sidecar.spark.stream.placement import partition_of
from sidecar.spark.stream.step import PartitionSteps, Rules, StepResult
from sidecar.spark.stream.wire import OutputPart, Tally, encode_output_part, encode_tally

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

STATE: Final = "cells"
OUTPUT_SCHEMA: Final = "partition int, payload binary, tally string"


class MapStateEntries:
    """State entries in Spark's map state."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, state_key: bytes) -> bytes | None:
        found = self._state.getValue((state_key,))
        return None if found is None else bytes(found[0])

    def put(self, state_key: bytes, value: bytes) -> None:
        self._state.updateValue((state_key,), (value,))

    def remove(self, state_key: bytes) -> None:
        self._state.removeKey((state_key,))


_lookups: dict[str, BrokerLookup] = {}
"""One client for each cluster in a worker process, for all its micro-batches."""


class WheelProcessor(StatefulProcessor):
    """Runs partition steps.

    Args:
        rules: The rules of the steps.
        settings: The settings of the client that looks topics up.
        replay_closings: The topics that the steps of a replayed micro-batch treat as closed.
    """

    def __init__(self, rules: Rules, settings: Settings, replay_closings: ReplayClosings | None = None) -> None:
        self._rules = rules
        self._settings = settings
        self._replay_closings = replay_closings or ReplayClosings()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = MapStateEntries(handle.getMapState(STATE, "cell binary", "value binary"))
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
        take_over(partition, self._state, zip(initialState["record"], initialState["value"], strict=True))
        meta = decode_meta(self._state.get(META) or b"")
        if not meta.wakes_ms:
            meta.wakes_ms = now_ms + 1
            self._handle.registerTimer(meta.wakes_ms)
            self._state.put(META, encode(meta))

    def close(self) -> None:
        """Keep the client for the next micro-batch."""

    def _step(self, partition: int, chunks: Iterable[bytes], now_ms: int) -> Iterator[pd.DataFrame]:
        self._lookup.now_ms = now_ms
        result = self._steps.step(partition, self._state, chunks, now_ms)
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
        yield from _frames(partition, result)


def _frames(partition: int, result: StepResult) -> Iterator[pd.DataFrame]:
    tally = encode_tally(result.tally) if result.tally != Tally() else None
    for part in result.output_parts:
        yield _frame(partition, part, tally if part.last else None)


def _frame(partition: int, part: OutputPart, tally: str | None) -> pd.DataFrame:
    return pd.DataFrame({"partition": [partition], "payload": [encode_output_part(part)], "tally": [tally]})
