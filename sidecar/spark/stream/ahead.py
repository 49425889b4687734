"""Sends what a micro-batch handed out ahead, each plan when it is due, while the next micro-batch runs.

What is sent ahead is what the next step of a partition begins with. The mark that is committed with it tells that step
what it need not send again; what is not sent by then, that step sends.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final

from sidecar.errors import TransactionFailed
from sidecar.settings import Settings
from sidecar.spark.stream.clock_check import ClockCheck
from sidecar.spark.stream.horizon import AHEAD_MS_MAX
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.sender import Sender

STEP_S: Final = 0.02
"""The time between two looks at the clock."""


class ReleaseClock:
    """Tells when an output may be sent: when the broker's clock has passed its due.

    The wall clocks of this machine and of the driver, whose instants decide what a step sends, are not asked. So one
    that is ahead makes nothing early: what is decided too soon waits here.

    Args:
        settings: The settings of the client that measures.
        check: Measures the broker's clock.
    """

    def __init__(self, settings: Settings, check: ClockCheck | None = None) -> None:
        self._settings = settings
        self._check = check
        self._pause = threading.Event()
        self._lock = threading.Lock()

    def released(self, outputs: Sequence[PlanOutput]) -> tuple[list[PlanOutput], list[PlanOutput]]:
        """Return the outputs that may be sent, and the others: of each partition all behind the first that may not.

        Raises:
            TransactionFailed: The broker's clock is not known, or so far behind that the driver's was wrong.
        """
        ready: list[PlanOutput] = []
        others: list[PlanOutput] = []
        held: set[int] = set()
        passed_ms = self._passed_ms() if any(output.release_ms for output in outputs) else 0
        for output in outputs:
            if output.partition not in held and output.release_ms <= passed_ms:
                ready.append(output)
            else:
                self._require_near(output, passed_ms)
                held.add(output.partition)
                others.append(output)
        return ready, others

    def wait(self, outputs: Sequence[PlanOutput]) -> None:
        """Wait until the first of the outputs is due, or for a short time."""
        wait_ms = min(output.release_ms for output in outputs if output.release_ms) - self._passed_ms()
        self._pause.wait(min(STEP_S, max(0.001, wait_ms / 1000)))

    def _require_near(self, output: PlanOutput, passed_ms: int) -> None:
        off_ms = output.release_ms - passed_ms
        if off_ms > self._settings.max_clock_skew_ms + AHEAD_MS_MAX:
            said = (
                f"a micro-batch sends what is due {off_ms / 1000:.0f} s after the broker's clock: the driver's clock "
                "was that far ahead. It is sent when it is due"
            )
            raise TransactionFailed(said, unknown=False, replace=False)

    def _passed_ms(self) -> int:
        """Return an instant that the broker's clock has passed. Raises TransactionFailed."""
        with self._lock:  # the threads of several state partitions ask
            if self._check is None:
                self._check = ClockCheck(self._settings)
            if passed_ms := self._check.passed_ms():
                return passed_ms
        said = f"{self._settings.status_topic} does not answer, so the broker's clock is not known"
        raise TransactionFailed(said, unknown=False, replace=False)


class Ahead:
    """Sends ahead for one state partition, in a thread that ends with the last output.

    Only the thread uses the sender between `begin` and `pause`.
    """

    def __init__(self, sender: Sender, clock: ReleaseClock) -> None:
        self.clock = clock
        self._sender = sender
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._left: list[tuple[int, PlanOutput]] = []
        """What is not sent, each with its micro-batch."""

    def pause(self) -> None:
        """Return when nothing is sent any more: a transaction that is open is committed first."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    def begin(self, batch: int, outputs: Sequence[PlanOutput], stepped: Collection[int]) -> None:
        """Send outputs from now on.

        Args:
            batch: Their micro-batch.
            outputs: In the order of each partition.
            stepped: The partitions that had a step: what was handed out before for these is over.
        """
        self.pause()
        handed = [(number, output) for number, output in self._left if output.partition not in stepped]
        handed += [(batch, output) for output in outputs]
        try:
            self._left = self._sender.prepare(handed) if handed else []
        except TransactionFailed:
            self._left = []  # as after any failure, see `send_released`
        if self._left:
            self._start()

    def _start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._left and not self._stopped.is_set():
            if not self.send_released():
                self.clock.wait([output for _, output in self._left])

    def send_released(self) -> bool:
        """Send what is due; return whether there was anything. After a failure nothing is left."""
        batches = {id(output): batch for batch, output in self._left}
        try:
            ready, _ = self.clock.released([output for _, output in self._left])
            sent = {id(output) for output in ready}
            for batch in sorted({batches[each] for each in sent}):
                self._sender.send_prepared(batch, [each for each in ready if batches[id(each)] == batch])
        except TransactionFailed:
            # The next step of each partition sends the rest, tries again, and says what is wrong if it still is.
            self._left = []
            return True
        self._left = [(batch, output) for batch, output in self._left if id(output) not in sent]
        return bool(ready)
