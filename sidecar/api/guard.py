"""Guards that every request passes before it reaches a route."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.api.auth import CALLER, METRICS, PROBES, Caller, Gate
from sidecar.api.problems import NotNow, problem, too_many

T = TypeVar("T")

BODY_BYTES_MAX: Final = 64 * 1024
AT_WORK_MAX: Final = 50
"""Most requests of strangers, and of readers, that are answered at a time: other connections are left for probes and
operators."""
POLICIES: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
"""Headers of every answer that does not bring its own."""
_BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class RequestShape:
    """Treats `/x/` as `/x` and HEAD as GET without a body, and refuses unexpected request bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if refusal := _body_refusal(scope["method"], Headers(scope=scope)):
            # The body stays unread, so the connection cannot be used again.
            await problem(*refusal, headers={"connection": "close"})(scope, receive, send)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._app({**scope, "method": method, "path": _trimmed(scope)}, receive, send)


def _trimmed(scope: Scope) -> str:
    """Return the path without slashes at its end; one that is written %2F belongs to a name."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path", path.encode()).partition(b"?")[0]
    slashes = len(raw) - len(raw.rstrip(b"/"))
    return path[: len(path) - slashes] or "/"


def _body_refusal(method: str, headers: Headers) -> tuple[int, str] | None:
    """Return status and message when the body that the headers announce is not taken."""
    chunked = "transfer-encoding" in headers
    length = headers.get("content-length", "0")
    if method in _BODILESS_METHODS:
        return (400, f"{method} takes no body.") if chunked or length != "0" else None
    if chunked:
        return 411, "Send the body with a Content-Length."
    if not (length.isascii() and length.isdigit() and int(length[:20]) <= BODY_BYTES_MAX):
        return 413, f"A body may have at most {BODY_BYTES_MAX} bytes."
    return None


class AnswerHeaders:
    """Keeps answers out of caches, frames and other sites' pages, except as they say otherwise themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in POLICIES.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)


class ShutdownResponder:
    """Answers requests that are still running when the server stops with 503: their outcome is unknown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                raise
            text = "The sidecar is stopping. A change may still have been made: ask another instance."
            stopping = NotNow(text, applied="unknown", headers={"connection": "close"})
            await stopping.answer(scope)(scope, receive, send)


class WaitLimit:
    """A bound on a wait, as `asyncio.timeout` is; time in which the whole process stands still does not count.

    Args:
        longest_s: The longest wait.
    """

    STEP_S: Final = 0.25

    def __init__(self, longest_s: float) -> None:
        self._left_s = longest_s
        self._timeout = asyncio.timeout(None)
        self._step: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._begin_step(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self.come()
        await self._timeout.__aexit__(*exc_info)

    def come(self) -> None:
        """End the bound: the turn has come."""
        if self._step is not None:
            self._step.cancel()
            self._step = None

    @property
    def passed(self) -> bool:
        """Whether the turn did not come in time."""
        return self._timeout.expired()

    def _begin_step(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._left_s <= 0:
            self._timeout.reschedule(loop.time())
            return
        step_s = min(self._left_s, self.STEP_S)
        self._left_s -= step_s
        self._step = loop.call_later(step_s, self._begin_step, loop)


class Kind(StrEnum):
    """A kind of requests with a budget of its own."""

    PROBE = "probe"
    METRICS = "metrics"
    OPERATOR = "operator"
    READER = "reader"
    OTHER = "other"
    """Requests of strangers."""


_BOUNDED: Final = frozenset({Kind.METRICS, Kind.READER, Kind.OTHER})
_OF_CALLER: Final = {Caller.OPERATOR: Kind.OPERATOR, Caller.READER: Kind.READER, Caller.STRANGER: Kind.OTHER}


class RateLimiter:
    """Admits requests one after the other, at a rate that uses only a share of one core.

    The loop that fires messages shares the interpreter with the API, so a flood of requests would slow it down. Each
    request waits until the time of those before it is paid off. Probes, metrics, readers and operators have budgets of
    their own, so that a flood of other requests neither makes the sidecar look dead nor keeps an operator out.

    A request enters with its whole body, and one that is refused without its body: whoever sends half of a body holds
    nothing but a connection.

    Args:
        app: What answers.
        gate: Says who asks, and who is refused.
    """

    SHARE: Final = 0.25
    """Share of one core for each budget."""
    OVERHEAD_S: Final = 0.0005
    """Time that the server needs for a request besides the route."""
    WAIT_MAX_S: Final = 2.0

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate
        self._budgets = {kind: Budget() for kind in Kind}
        self._entered = Counter[Kind]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = self._gate.caller(scope)
        CALLER.set(caller)
        app = self._app
        if (refusal := self._gate.refusal(scope, caller)) is not None:
            app = problem(refusal.status, refusal.message, refusal.headers)
        elif (whole := await _with_whole_body(receive)) is not None:
            receive = whole
        else:
            return
        kind = _kind_of(scope["path"], caller)
        if kind in _BOUNDED and self._entered[kind] >= AT_WORK_MAX:
            await too_many().answer(scope)(scope, receive, send)
            return
        self._entered[kind] += 1
        try:
            await self._in_turn(self._budgets[kind], app, (scope, receive, send))
        finally:
            self._entered[kind] -= 1

    async def _in_turn(self, budget: Budget, app: ASGIApp, request: tuple[Scope, Receive, Send]) -> None:
        scope, receive, send = request
        try:
            async with WaitLimit(self.WAIT_MAX_S):
                await budget.wait()
        except TimeoutError:
            await too_many().answer(scope)(scope, receive, send)
            return
        budget.pay(self.OVERHEAD_S / self.SHARE)

        async def pay_and_send(message: Message) -> None:
            # Up to here the route computes; what follows may wait for a slow reader.
            if message["type"] == "http.response.start":
                # A garbage collection that ran meanwhile is no flood: never so much that this one request keeps the
                # next one out.
                budget.pay(min(answering.elapsed_s / self.SHARE, self.WAIT_MAX_S / 2))
            await send(message)

        answering = Metered(app(scope, receive, pay_and_send))
        await answering


def _kind_of(path: str, caller: Caller) -> Kind:
    if path in PROBES:
        return Kind.PROBE
    if path == METRICS:
        return Kind.METRICS
    return _OF_CALLER[caller]


async def _with_whole_body(receive: Receive) -> Receive | None:
    """Return what gives the body of a request as one message, once all of it is there; None if the client has gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_whole() -> Message:
        return messages.pop() if messages else await receive()

    return receive_whole


class Metered:
    """Awaits something, and counts what it computes: not what else runs in this thread while it waits."""

    def __init__(self, awaited: Awaitable[None]) -> None:
        self._steps = awaited.__await__()
        self._before_s = 0.0
        self._began_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Processor time so far; asked for while it computes."""
        return self._before_s + time.thread_time() - self._began_s

    def __await__(self) -> Generator[Any, Any, None]:
        advance: Callable[[Any], Any] = self._steps.send
        given: Any = None
        while True:
            self._began_s = time.thread_time()
            try:
                waits_for = advance(given)
            except StopIteration:
                return
            self._before_s = self.elapsed_s
            try:
                given, advance = (yield waits_for), self._steps.send
            except BaseException as error:  # noqa: BLE001  # a cancellation among others: it is the awaited one's to take
                given, advance = error, self._steps.throw


class PaidThread:
    """Runs work in threads, each once those before it are paid for: the rate limiter sees its own thread only.

    Operators, readers and strangers have places and a budget each.

    Args:
        places: How many of either may run at a time.
        waiting_max: More than so many that wait for a place are refused: their clients would be gone by then.
    """

    def __init__(self, places: int, waiting_max: int = AT_WORK_MAX) -> None:
        self._places = places
        self._waiting_max = waiting_max
        self._lanes: dict[Caller, tuple[CapacityLimiter, Budget]] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work returns, and raise what it raises; NotNow when its turn does not come."""
        elapsed_s = 0.0

        def timed() -> T:
            nonlocal elapsed_s
            began_s = time.thread_time()
            try:
                return work()
            finally:
                elapsed_s = time.thread_time() - began_s

        lane = CALLER.get()
        if lane not in self._lanes:  # a limiter is made where its loop runs
            self._lanes[lane] = CapacityLimiter(self._places), Budget()
        limiter, budget = self._lanes[lane]
        if limiter.statistics().tasks_waiting >= self._waiting_max:
            raise too_many()
        turn = WaitLimit(RateLimiter.WAIT_MAX_S)
        try:
            # The place first: who has one waits until the one before has paid.
            async with turn, limiter:
                await budget.wait()
                turn.come()
                try:
                    return await to_thread.run_sync(timed)
                finally:
                    budget.pay(elapsed_s / RateLimiter.SHARE)
        except TimeoutError:
            if not turn.passed:
                raise
            raise too_many() from None


class Budget:
    """The time at which the next request may enter."""

    def __init__(self) -> None:
        self._queue = asyncio.Lock()
        self._paid_at_s = 0.0

    async def wait(self) -> None:
        """Return when it is this request's turn and all before it are paid for."""
        async with self._queue:
            early_s = self._paid_at_s - asyncio.get_running_loop().time()
            # Sleeping for no time gives the interpreter away too, and the loop that fires has it for a while then.
            if early_s > 0:
                await asyncio.sleep(early_s)

    def pay(self, seconds: float) -> None:
        """Keep the next request out for so long."""
        self._paid_at_s = max(self._paid_at_s, asyncio.get_running_loop().time()) + seconds
