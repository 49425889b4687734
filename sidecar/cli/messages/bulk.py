"""Cancel, reschedule and fire over a filter: page by page, with a journal, so that it can go on where it stopped.

What is acted on is fixed before anything is done: the messages that match then. In each partition a message that
comes later has a higher offset than all of them, so a run never acts on what its own work brings back.

The list is gone through in due order until nothing of it is left to act on: what moves meanwhile to where the list has
been, because it is put off or somebody else reschedules it, is met in the next round. At most ROUNDS_MAX.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from sidecar.cli.instance import Instances, Unanswered
from sidecar.cli.messages.filters import PAGE, Filter, Message, Page, read_page
from sidecar.cli.messages.journal import Journal
from sidecar.clock import Clock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.stream import TimerOutcome
from sidecar.errors import CommandFailed
from sidecar.model import TimerId
from sidecar.runtime.stop import Stop

ROUNDS_MAX: Final = 5
POLL_S: Final = 0.1
AGAIN_S: Final = 0.5
WRITE_EVERY_S: Final = 0.5
GRACE_S: Final = 5.0
"""After Ctrl-C the answers that are under way are awaited so long."""
FIRST: Final = 10

_REFUSED: Final = frozenset({Outcome.ORIGIN_PAUSED, Outcome.BAD_REQUEST})


class Actions(Protocol):
    """Acts on timers, several at a time."""

    @property
    def in_flight_max(self) -> int: ...

    @property
    def in_flight(self) -> Sequence[TimerId]: ...

    def put(self, timer: TimerId) -> None: ...

    def answers(self, timeout_s: float) -> list[TimerOutcome]: ...


class Found(NamedTuple):
    """The messages that match before anything is done."""

    total: int
    first: list[Message]
    upto: dict[int, int]
    """By partition, the greatest offset."""


class Interrupted(CommandFailed):
    """Ctrl-C or SIGTERM stopped the run."""


class TimerReader:
    """Reads whole pages: waits for partitions that have no owner for the moment.

    Args:
        instances: Whom to ask.
        wanted: Which messages.
        stop: Says that it should end.
        clock: Measures the wait.
        patience_s: The time that a page may stay incomplete.
    """

    def __init__(self, instances: Instances, wanted: Filter, stop: Stop, clock: Clock, patience_s: float) -> None:
        self._instances = instances
        self._wanted = wanted
        self._stop = stop
        self._clock = clock
        self._patience_s = patience_s

    def page(self, cursor: str | None) -> Page:
        """Return the page behind a cursor. Waits for every partition: an incomplete page would skip messages.

        Raises:
            Interrupted: A signal asked it to stop.
            CommandFailed: No page in time.
        """
        until_s = self._clock.monotonic_s() + self._patience_s
        pause = threading.Event()
        while not self._stop.asked:
            try:
                page = read_page(self._instances, self._wanted, PAGE, cursor)
                if not page.missing:
                    return page
                numbers = ", ".join(map(str, page.missing))
                reason = f"partition {numbers} has no owner now, or it does not answer: start `retry-sidecar run`"
            except Unanswered as error:
                reason = str(error)
            if self._clock.monotonic_s() >= until_s:
                raise CommandFailed(reason)
            pause.wait(AGAIN_S)
        raise Interrupted("interrupted")

    def count(self, seen: Callable[[int], None]) -> Found:
        """Return what matches now. Raises as `page`."""
        total, first, upto, cursor = 0, list[Message](), dict[int, int](), None
        while True:
            page = self.page(cursor)
            total += len(page.messages)
            first += page.messages[: FIRST - len(first)]
            for each in page.messages:
                upto[each["partition"]] = max(upto.get(each["partition"], 0), each["offset"])
            seen(total)
            if (cursor := page.cursor) is None:
                return Found(total, first, upto)


class Run:
    """Carries out an order.

    Args:
        reader: Reads the messages that match the order's filter.
        actions: Performs the order's kind of action, with its due time.
        journal: The journal of this run.
        stop: Asks the run to end.
        clock: Measures waits and the rate.
        timeout_s: Longest time without any answer while some are awaited.
        per_second: Most actions in a second; None for as many as there can be.
        advanced: Called with the number of answered messages after each change.
    """

    def __init__(
        self,
        reader: TimerReader,
        actions: Actions,
        journal: Journal,
        stop: Stop,
        clock: Clock,
        *,
        timeout_s: float,
        per_second: float | None,
        advanced: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._actions = actions
        self._journal = journal
        self._order = journal.order
        self._progress = journal.progress
        self._stop = stop
        self._clock = clock
        self._timeout_s = timeout_s
        self._per_second = per_second
        self._advanced = advanced
        self._sent = 0
        # An outcome can be read a moment before the list knows of it.
        self._latest: frozenset[TimerId] = frozenset()
        self._began_s = clock.monotonic_s()
        self._written_s = self._began_s

    def go(self) -> None:
        """Act on all messages; the journal records the progress, whatever happens.

        Raises:
            Interrupted: A signal asked it to stop.
            CommandFailed: It cannot go on now.
        """
        progress = self._progress
        try:
            while not progress.finished:
                page = self._reader.page(progress.cursor)
                timers = [timer for each in page.messages if (timer := self._meant(each)) is not None]
                self._act_on(timers)
                self._latest = frozenset(timers) or self._latest
                progress.cursor = page.cursor
                if page.cursor is None:
                    progress.round += 1
                    progress.finished = not progress.acted or progress.round >= ROUNDS_MAX
                    progress.acted = 0
                self._journal.write()
        except BaseException:
            self._journal.write()
            raise

    def _meant(self, message: Message) -> TimerId | None:
        """Return the timer to act on, None for one that came later or is done."""
        order = self._order
        if message["offset"] > order.upto.get(message["partition"], -1) or message["id"] in self._progress.refused:
            return None
        if order.kind is ControlKind.RESCHEDULE and message["due_ms"] == order.due_ms:
            return None
        timer = TimerId.parse(message["id"])
        return None if timer in self._latest else timer

    def _act_on(self, timers: Sequence[TimerId]) -> None:
        actions, waiting = self._actions, deque(timers)
        heard_s = self._clock.monotonic_s()
        while waiting or actions.in_flight:
            if self._stop.asked:
                self._await_rest()
                raise Interrupted("interrupted")
            if not actions.in_flight:
                heard_s = self._clock.monotonic_s()
            for _ in range(min(len(waiting), self._room())):
                actions.put(waiting.popleft())
                self._sent += 1
            if self._take_in(actions.answers(POLL_S)):
                heard_s = self._clock.monotonic_s()
            elif self._clock.monotonic_s() - heard_s >= self._timeout_s and actions.in_flight:
                numbers = ", ".join(map(str, sorted({timer.partition for timer in actions.in_flight})))
                raise CommandFailed(
                    f"no answer from partition {numbers} for {self._timeout_s:g} s: it has no owner now, or its owner "
                    f"is busy; {len(actions.in_flight)} records were sent and will be applied"
                )

    def _room(self) -> int:
        room = self._actions.in_flight_max - len(self._actions.in_flight)
        if self._per_second is not None:
            room = min(room, int((self._clock.monotonic_s() - self._began_s) * self._per_second) + 1 - self._sent)
        return max(0, room)

    def _await_rest(self) -> None:
        until_s = self._clock.monotonic_s() + GRACE_S
        while self._actions.in_flight and self._clock.monotonic_s() < until_s:
            self._take_in(self._actions.answers(POLL_S))

    def _take_in(self, answers: Sequence[TimerOutcome]) -> bool:
        progress = self._progress
        for timer, outcome, detail in answers:
            progress.outcomes[outcome.value] += 1
            progress.acted += 1
            if outcome in _REFUSED:
                progress.refused[str(timer)] = detail or outcome.value
        if answers:
            self._advanced(progress.outcomes.total())
        if self._clock.monotonic_s() - self._written_s >= WRITE_EVERY_S:
            self._written_s = self._clock.monotonic_s()
            self._journal.write()
        return bool(answers)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Yield what SIGINT and SIGTERM ask to stop; they mean what they meant before afterwards."""
    before: dict[signal.Signals, Any] = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    stop = Stop()
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
