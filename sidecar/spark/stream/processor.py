"""The stateful operator: gives each partition its turn, with Spark's state store for cells.

One timer for each partition is enough: it is set to when the partition wants its next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from sidecar.contract import dialects_of
from sidecar.settings import Settings
from sidecar.spark.handover.changelog import take_over
from sidecar.spark.marks import Again
from sidecar.spark.state.entries import META, decode_meta, encode
from sidecar.spark.stream.lookup import BrokerLookup
from sidecar.spark.stream.placement import partition_of
from sidecar.spark.stream.step import Rules, Turned, Turns
from sidecar.spark.stream.wire import Delivery, Tally, encode_delivery, encode_tally

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

STATE: Final = "cells"
OUTPUT_SCHEMA: Final = "partition int, payload binary, tally string"


class StateCells:
    """Cells in a map state; read once in a turn."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, cell: bytes) -> bytes | None:
        found = self._state.getValue((cell,))
        return None if found is None else bytes(found[0])

    def put(self, cell: bytes, value: bytes) -> None:
        self._state.updateValue((cell,), (value,))

    def remove(self, cell: bytes) -> None:
        self._state.removeKey((cell,))


_lookups: dict[str, BrokerLookup] = {}
"""One client for each cluster in a worker process, which serves one micro-batch after the other."""


class WheelProcessor(StatefulProcessor):
    """Runs turns.

    Args:
        rules: See there.
        settings: For the client that asks for topics.
        again: What the turns of one micro-batch take for closed.
    """

    def __init__(self, rules: Rules, settings: Settings, again: Again | None = None) -> None:
        self._rules = rules
        self._settings = settings
        self._again = again or Again()

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._cells = StateCells(handle.getMapState(STATE, "cell binary", "value binary"))
        bootstrap = self._settings.bootstrap_servers
        if bootstrap not in _lookups:
            _lookups[bootstrap] = BrokerLookup(self._settings)
        self._lookup = _lookups[bootstrap]
        dialects = dialects_of(self._rules.profiles)
        self._turns = Turns(self._rules, dialects, self._lookup, self._again)

    def handleInputRows(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        chunks = (bytes(payload) for frame in rows for payload in frame["payload"])
        yield from self._turn(partition_of(int(key[0])), chunks, timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(  # noqa: N802 - as above
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        yield from self._turn(partition_of(int(key[0])), [], timerValues.getCurrentProcessingTimeInMs())

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: TimerValues) -> None:  # noqa: N802, N803
        """Take over where the partition begins, and what of the changelog is given; it comes in any number of parts."""
        partition, now_ms = partition_of(int(key[0])), timerValues.getCurrentProcessingTimeInMs()
        take_over(partition, self._cells, zip(initialState["record"], initialState["value"], strict=True))
        meta = decode_meta(self._cells.get(META) or b"")
        if not meta.wakes_ms:
            meta.wakes_ms = now_ms + 1
            self._handle.registerTimer(meta.wakes_ms)
            self._cells.put(META, encode(meta))

    def close(self) -> None:
        """Keep the client for the next micro-batch."""

    def _turn(self, partition: int, chunks: Iterable[bytes], now_ms: int) -> Iterator[pd.DataFrame]:
        self._lookup.now_ms = now_ms
        turned = self._turns.turn(partition, self._cells, chunks, now_ms)
        if turned is None:
            return
        if turned.wakes_ms != turned.woke_ms:
            # What has expired by now has its call in this very micro-batch, and Spark deletes it behind that.
            if turned.woke_ms > now_ms:
                self._handle.deleteTimer(turned.woke_ms)
            self._handle.registerTimer(turned.wakes_ms)
        yield from _frames(partition, turned)


def _frames(partition: int, turned: Turned) -> Iterator[pd.DataFrame]:
    tally = encode_tally(turned.tally) if turned.tally != Tally() else None
    for delivery in turned.deliveries:
        yield _frame(partition, delivery, tally if delivery.last else None)


def _frame(partition: int, delivery: Delivery, tally: str | None) -> pd.DataFrame:
    return pd.DataFrame({"partition": [partition], "payload": [encode_delivery(delivery)], "tally": [tally]})
