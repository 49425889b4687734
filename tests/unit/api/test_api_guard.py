"""The cost of a flood of requests is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sidecar.api.auth import CALLER, Caller, Gate
from sidecar.api.guard import Budget, Metered, PaidThread, RateLimiter
from sidecar.api.messages.changes import ControlDesk
from sidecar.clock import SystemClock
from tests.unit.api_stage import CANCELLED, Desk, Told

COST_S = 0.02
OPEN = Gate(loopback=False, open_reads=True)


class QuickTime(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all tasks wait, and then at once: no machine can stand still in it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector.select = self._pass_over(self._selector.select)  # type: ignore[attr-defined]  # of the base

    def time(self) -> float:
        return self._now_s

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        self._now_s += seconds

    def _pass_over(self, select: Callable[[float | None], Any]) -> Callable[[float | None], Any]:
        def passed(timeout_s: float | None) -> Any:
            self._now_s += timeout_s or 0.0
            return select(timeout_s and 0)

        return passed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse nobody because the machine stands still, where that is not the point."""
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 60.0)


async def costly(scope: Scope, receive: Receive, send: Send) -> None:
    """Use the processor for COST_S, then answer; probes cost nothing."""
    until_s = time.thread_time() + (COST_S if scope["path"] == "/pending" else 0)
    while time.thread_time() < until_s:
        pass
    await PlainTextResponse("done")(scope, receive, send)


async def ask(app: Any, path: str = "/pending") -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sidecar") as client:
        return (await client.get(path)).status_code


def test_a_flood_gets_no_more_than_its_share_of_a_core() -> None:
    async def flood() -> list[int]:
        app = RateLimiter(costly, OPEN)
        return await asyncio.gather(*(ask(app) for _ in range(5)))

    began_s = SystemClock().monotonic_s()
    assert asyncio.run(flood()) == [200] * 5
    assert SystemClock().monotonic_s() - began_s >= 4 * COST_S / RateLimiter.SHARE


def test_a_request_that_would_wait_too_long_gets_a_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 0.1)

    async def flood() -> list[int]:
        app = RateLimiter(costly, OPEN)
        return await asyncio.gather(*(ask(app) for _ in range(12)))

    statuses = asyncio.run(flood())
    assert set(statuses) == {200, 429}
    assert statuses[0] == 200


def test_one_request_alone_never_keeps_the_next_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took: a garbage collection may have run meanwhile."""
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 1.0)
    monkeypatch.setattr(Metered, "elapsed_s", 60.0)

    async def one_after_the_other() -> list[int]:
        app = RateLimiter(costly, OPEN)
        return [await ask(app) for _ in range(3)]

    with asyncio.Runner(loop_factory=QuickTime) as runner:
        assert runner.run(one_after_the_other()) == [200] * 3


def test_probes_do_not_wait_behind_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flood() -> tuple[list[str], list[int]]:
        app, order = RateLimiter(costly, OPEN), list[str]()

        async def named(path: str) -> int:
            status = await ask(app, path)
            order.append(path)
            return status

        statuses = await asyncio.gather(*(named("/pending") for _ in range(4)), named("/livez"))
        return order, statuses

    order, statuses = asyncio.run(flood())
    assert statuses == [200] * 5
    assert order.index("/livez") <= 1


def test_a_slow_reader_does_not_make_others_pay() -> None:
    """Time that passes after the answer has begun is the reader's own."""

    async def race() -> None:
        app, may_read = RateLimiter(costly, OPEN), asyncio.Event()

        async def send_slowly(message: Any) -> None:
            if message["type"] == "http.response.body":
                await may_read.wait()

        async def nothing() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/pending", "headers": [], "query_string": b""}
        slow = asyncio.create_task(app(scope, nothing, send_slowly))
        async with asyncio.timeout(60):
            assert await ask(app) == 200, "who would wait for too long gets 429"
        may_read.set()
        await slow

    asyncio.run(race())


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was paid, in order, in seconds that the next request waits."""
    sums: list[float] = []
    monkeypatch.setattr(Budget, "pay", lambda _, seconds: sums.append(seconds))
    return sums


def test_who_waits_does_not_pay_for_what_others_compute_meanwhile(paid: list[float]) -> None:
    async def race() -> None:
        waits, may_answer = asyncio.Event(), asyncio.Event()

        async def waiting_or_costly(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/control":
                waits.set()
                await may_answer.wait()
            await costly(scope, receive, send)

        app = RateLimiter(waiting_or_costly, OPEN)
        waiting = asyncio.create_task(ask(app, "/control"))
        await waits.wait()
        assert await ask(app, "/pending") == 200
        may_answer.set()
        assert await waiting == 200

    asyncio.run(race())
    entered, again, computed, waited = paid
    assert entered == again == RateLimiter.OVERHEAD_S / RateLimiter.SHARE
    assert computed >= COST_S / RateLimiter.SHARE > waited


def test_what_is_cancelled_while_it_waits_can_still_answer() -> None:
    """The farewell of a server that stops is an answer to a cancellation."""

    async def stopped() -> int:
        waits = asyncio.Event()

        async def late(scope: Scope, receive: Receive, send: Send) -> None:
            waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await PlainTextResponse("the sidecar stops", 503)(scope, receive, send)

        asking = asyncio.create_task(ask(RateLimiter(late, OPEN)))
        await waits.wait()
        asking.cancel()
        return await asking

    assert asyncio.run(stopped()) == 503


def test_what_lookups_compute_in_their_threads_is_paid_before_the_next_ones() -> None:
    class Costly(Desk):
        def lookup(self, control_id: str) -> Told | None:
            until_s = time.thread_time() + COST_S
            while time.thread_time() < until_s:
                pass
            return CANCELLED

    async def flood() -> list[int]:
        desk = ControlDesk(Costly())
        return [answer.status_code for answer in await asyncio.gather(*(desk.lookup(f"c-{n}") for n in range(5)))]

    began_s = SystemClock().monotonic_s()
    assert asyncio.run(flood()) == [200] * 5
    # Two may run at a time.
    assert SystemClock().monotonic_s() - began_s >= 3 * COST_S / RateLimiter.SHARE


def test_time_in_which_the_process_stands_still_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 2.0)
    monkeypatch.setattr(RateLimiter, "OVERHEAD_S", 0.1)

    async def stopped_meanwhile(loop: QuickTime) -> list[int]:
        app = RateLimiter(costly, OPEN)
        asking = [asyncio.create_task(ask(app, "/openapi.json")) for _ in range(4)]
        await asyncio.sleep(0.2)
        loop.stand_still(3_600.0)
        return await asyncio.gather(*asking)

    with asyncio.Runner(loop_factory=QuickTime) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, QuickTime)
        assert runner.run(stopped_meanwhile(loop)) == [200] * 4


def test_who_waits_too_long_is_refused_although_the_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 2.0)
    monkeypatch.setattr(RateLimiter, "OVERHEAD_S", 0.3)

    async def flood() -> list[int]:
        app = RateLimiter(costly, OPEN)
        return await asyncio.gather(*(ask(app, "/openapi.json") for _ in range(8)))

    with asyncio.Runner(loop_factory=QuickTime) as runner:
        assert set(runner.run(flood())) == {200, 429}


@pytest.mark.parametrize("flooding", [Caller.STRANGER, Caller.READER])
def test_what_others_compute_in_threads_keeps_an_operator_out_of_nothing(flooding: Caller) -> None:
    def work() -> str:
        until_s = time.thread_time() + COST_S
        while time.thread_time() < until_s:
            pass
        return "done"

    async def as_caller(who: Caller, thread: PaidThread, order: list[Caller]) -> None:
        CALLER.set(who)
        assert await thread.run(work) == "done"
        order.append(who)

    async def race() -> list[Caller]:
        thread, order = PaidThread(1), list[Caller]()
        flood = [asyncio.create_task(as_caller(flooding, thread, order)) for _ in range(6)]
        await asyncio.sleep(0)
        await asyncio.create_task(as_caller(Caller.OPERATOR, thread, order))
        done = list(order)
        await asyncio.gather(*flood)
        return done

    assert asyncio.run(race()).count(flooding) <= 2


def test_what_a_thread_computes_is_paid_in_full(paid: list[float]) -> None:
    """However long it took: a validation of a few kilobytes can take most of a second."""

    def costs() -> None:
        until_s = time.thread_time() + 0.3
        while time.thread_time() < until_s:
            pass

    async def run_costly() -> None:
        await PaidThread(1).run(costs)

    asyncio.run(run_costly())
    assert paid[0] >= 0.3 / RateLimiter.SHARE
