"""Guards that every request passes before it reaches a route."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.api.problems import problem

T = TypeVar("T")

BODY_BYTES_MAX: Final = 64 * 1024
PROBES: Final = frozenset({"/health", "/livez", "/readyz", "/actuator/health"})
TOO_MANY: Final = "Too many requests at once; try again in a moment."
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


class Unstored:
    """Keeps answers out of every cache, except those that set their own cache header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unstored(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_unstored)


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
            await problem(503, text, {"connection": "close", "retry-after": "1"})(scope, receive, send)


class RateLimiter:
    """Admits requests one after the other, at a rate that uses only a share of one core.

    The loop that fires messages shares the interpreter with the API, so a flood of requests would slow it down. Each
    request waits until the time of those before it is paid off. Probes have a separate budget, so that a flood of other
    requests does not make the sidecar look dead.
    """

    SHARE: Final = 0.25
    """Share of one core for each budget."""
    OVERHEAD_S: Final = 0.0005
    """Time that the server needs for a request besides the route."""
    WAIT_MAX_S: Final = 2.0

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._budgets = {is_probe: Budget() for is_probe in (True, False)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        budget = self._budgets[scope["path"] in PROBES]
        try:
            async with asyncio.timeout(self.WAIT_MAX_S):
                await budget.wait()
        except TimeoutError:
            refusal = problem(503, TOO_MANY, {"retry-after": "1"})
            await refusal(scope, receive, send)
            return
        budget.pay(self.OVERHEAD_S / self.SHARE)

        async def pay_and_send(message: Message) -> None:
            # Up to here the route computes; what follows may wait for a slow reader.
            if message["type"] == "http.response.start":
                # A garbage collection that ran meanwhile is no flood: never so much that this one request keeps the
                # next one out.
                budget.pay(min(answering.elapsed_s / self.SHARE, self.WAIT_MAX_S / 2))
            await send(message)

        answering = Metered(self._app(scope, receive, pay_and_send))
        await answering


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

    Args:
        limiter: Limits the number of threads.
    """

    def __init__(self, limiter: CapacityLimiter) -> None:
        self._limiter = limiter
        self._budget = Budget()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work returns, and raise what it raises; HTTPException when its turn does not come."""
        elapsed_s = 0.0

        def timed() -> T:
            nonlocal elapsed_s
            began_s = time.thread_time()
            try:
                return work()
            finally:
                elapsed_s = time.thread_time() - began_s

        turn = asyncio.timeout(RateLimiter.WAIT_MAX_S)
        try:
            # The place first: who has one waits until the one before has paid.
            async with turn, self._limiter:
                await self._budget.wait()
                turn.reschedule(None)
                try:
                    return await to_thread.run_sync(timed)
                finally:
                    self._budget.pay(elapsed_s / RateLimiter.SHARE)
        except TimeoutError:
            if not turn.expired():
                raise
            raise HTTPException(503, TOO_MANY, {"retry-after": "1"}) from None


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
