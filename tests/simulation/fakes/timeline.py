"""Simulated time: fibers take the place of threads, and go on one after the other in order of time."""

from __future__ import annotations

import random
from collections.abc import Callable

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

START_MS = 1_770_000_000_000


class Fiber:
    """The work of a simulated thread; it continues when its time has come."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.wakes_s = 0.0
        self.number = 0
        self._greenlet = greenlet(run)

    @property
    def ended(self) -> bool:
        return bool(self._greenlet.dead)

    def go_on(self) -> None:
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def sleep(self) -> None:
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    def kill(self) -> None:
        if not self._greenlet.dead:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw()


class Timeline:
    """The simulated time, and the work that is scheduled in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self._fibers: list[Fiber] = []
        self._current: Fiber | None = None
        self._ticks: list[Callable[[], None]] = []
        self._started = 0

    def now_ms(self) -> int:
        """Return the true wall time."""
        return START_MS + int(self.now_s * 1000)

    def every_step(self, tick: Callable[[], None]) -> None:
        """Have this called whenever time has gone on."""
        self._ticks.append(tick)

    def start(self, run: Callable[[], object], delay_s: float) -> Fiber:
        """Let something run beside the loops."""
        fiber = Fiber(run)
        self._started += 1
        fiber.number = self._started
        fiber.wakes_s = self.now_s + delay_s
        self._fibers.append(fiber)
        return fiber

    def kill(self, fiber: Fiber) -> None:
        """End a fiber wherever it is."""
        if fiber in self._fibers:
            self._fibers.remove(fiber)
        fiber.kill()

    def pause(self, seconds: float) -> None:
        """Let time go on: in a fiber for the others too, elsewhere only for the fibers."""
        if (fiber := self._current) is not None:
            fiber.wakes_s = self.now_s + seconds
            self._current = None
            fiber.sleep()
        else:
            self.advance(seconds)

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let so much time pass, or less when `until` holds earlier; return whether it does."""
        assert self._current is None
        end_s = self.now_s + seconds
        while not until():
            fiber = min(self._fibers, key=lambda each: (each.wakes_s, each.number), default=None)
            if fiber is None or fiber.wakes_s > end_s:
                self._move_to(end_s)
                return until()
            self._move_to(fiber.wakes_s)
            self._run(fiber)
        return True

    def next_wake_s(self) -> float:
        """Return in how many seconds a fiber goes on."""
        return max(0.0, min((each.wakes_s for each in self._fibers), default=float("inf")) - self.now_s)

    def _move_to(self, at_s: float) -> None:
        self.now_s = max(self.now_s, at_s)
        for tick in self._ticks:
            tick()

    def _run(self, fiber: Fiber) -> None:
        self._current = fiber
        try:
            fiber.go_on()
        finally:
            self._current = None
        if fiber.ended and fiber in self._fibers:
            self._fibers.remove(fiber)


class InstanceClock:
    """Implements `sidecar.clock.Clock` of one process."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.ahead_ms = 0
        """How far the wall clock is from the true time."""

    def wall_ms(self) -> int:
        return self._timeline.now_ms() + self.ahead_ms

    def monotonic_s(self) -> float:
        return self._timeline.now_s
