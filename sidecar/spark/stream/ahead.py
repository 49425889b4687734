"""Sends what a micro-batch handed out ahead, each plan when it is due, while the next micro-batch runs.

What is sent ahead is what the next step of a partition begins with. The mark that is committed with it tells that step
what it need not send again; what is not sent by then, that step sends.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final

from sidecar.clock import Clock, SystemClock
from sidecar.errors import TransactionFailed
from sidecar.settings import Settings
from sidecar.spark.stream.clock_check import ClockCheck
from sidecar.spark.stream.sender import PlanOutput, Sender

STEP_S: Final = 0.02
"""The time between two looks at the clock."""


class ReleaseClock:
    """Tells when an output may be sent: by the wall clock if that agrees with the broker's, else by the micro-batch.

    The instant of the micro-batch was over when its rows came, by the driver's clock. So an output is due at the latest
    when its time since that instant has passed since its row came, and then no clock of this machine is asked.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None, check: ClockCheck | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._check = check
        self._pause = threading.Event()
        self._lock = threading.Lock()

    def released(self, outputs: Sequence[PlanOutput]) -> tuple[list[PlanOutput], list[PlanOutput]]:
        """Return the outputs that may be sent, and the others: of each partition all behind the first that may not."""
        ready: list[PlanOutput] = []
        others: list[PlanOutput] = []
        held: set[int] = set()
        wall_ms = self._wall_ms() if any(output.release_ms for output in outputs) else 0
        monotonic_s = self._clock.monotonic_s()
        for output in outputs:
            due = output.release_ms <= wall_ms or output.release_s <= monotonic_s
            if output.partition not in held and (due or not output.release_ms):
                ready.append(output)
            else:
                held.add(output.partition)
                others.append(output)
        return ready, others

    def wait(self, outputs: Sequence[PlanOutput]) -> None:
        """Wait until the first of the outputs is due, or for a short time."""
        wait_s = min(output.release_s for output in outputs if output.release_ms) - self._clock.monotonic_s()
        self._pause.wait(min(STEP_S, max(0.001, wait_s)))

    def _wall_ms(self) -> int:
        """Return the time of this machine, 0 when it is not to be trusted."""
        with self._lock:  # the threads of several state partitions ask
            if self._check is None:
                self._check = ClockCheck(self._settings, self._clock)
            return 0 if self._check.blocker() is not None else self._clock.wall_ms()


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
        ready, _ = self.clock.released([output for _, output in self._left])
        batches = {id(output): batch for batch, output in self._left}
        sent = {id(output) for output in ready}
        try:
            for batch in sorted({batches[each] for each in sent}):
                self._sender.send_prepared(batch, [each for each in ready if batches[id(each)] == batch])
        except TransactionFailed:
            # The next step of each partition sends the rest, tries again, and says what is wrong if it still is.
            self._left = []
            return True
        self._left = [(batch, output) for batch, output in self._left if id(output) not in sent]
        return bool(ready)
