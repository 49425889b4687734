"""The asyncio form of handlers with retries, without a client library."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from retry_sidecar.consumed import AnyMessage, Consumed
from retry_sidecar.progress import DELIVERY_TIMEOUT_S, REMEMBERED_MAX, Progress, Result, RetryNotDelivered
from retry_sidecar.record import RetryRecord, retry_record

M = TypeVar("M", bound=AnyMessage)


class AsyncRetrying(ABC, Generic[M]):
    """Sends what a handler cannot handle to the retry topic, and commits a message when it is handled or safe there.

        @retrying
        async def handle(message): ...

        async with retrying:  # commits once, when the block ends
            for message in batch:
                await handle(message)

    Without the `async with`, each call of the handler waits for its own confirmation and commit. In a block, handlers
    may run at the same time: offsets are committed up to the first message that is not done. Deliveries for other
    consumer groups and repeats are skipped.

    Args:
        group: The consumer's group.
        topic: The retry topic.
        retry_on: The errors that send a message to the retry topic. Any other leaves the handler's call, its message
            is not committed, and all further calls raise RetryingStopped.
        delay_ms: Returns the delay of a message that failed, in milliseconds; None: the policy's delay.
        qualified_names: Whether `retry-exception` has the module before the class name.
        remember: The number of timer ids by which repeats are recognised; 0: repeats are not skipped.
        delivery_timeout_s: The longest wait for a confirmation of the retry topic, in seconds.
    """

    def __init__(
        self,
        *,
        group: str,
        topic: str = "retry",
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        delay_ms: Callable[[M, BaseException], int | None] | None = None,
        qualified_names: bool = True,
        remember: int = REMEMBERED_MAX,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._group = group
        self._topic = topic
        self._retry_on = retry_on
        self._delay_ms = delay_ms
        self._qualified_names = qualified_names
        self._timeout_s = delivery_timeout_s
        self._progress = Progress(group, remember)
        self._sent: list[asyncio.Future[Any]] = []
        self._settling = asyncio.Lock()
        self._in_block = False

    def __call__(self, handler: Callable[[M], Awaitable[object]]) -> Callable[[M], Awaitable[Result]]:
        """Return the handler with retries; its calls return the result of the message.

        A call raises what the handler raises beside `retry_on`, RetryNotDelivered, RetryingStopped, and the library's
        error when the commit fails: what is not committed is read again.
        """

        @functools.wraps(handler)
        async def handle(message: M) -> Result:
            result = await self._take(message, handler)
            if not self._in_block:
                await self._settle()
            return result

        return handle

    async def __aenter__(self) -> Self:
        if self._in_block:
            raise RuntimeError("this block is within another one of the same object: blocks cannot be nested")
        self._in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for confirmations, then commit; also when the block fails, for the messages that are done.

        Raises:
            RetryNotDelivered: The retry topic did not confirm; nothing of the block is committed.
        """
        self._in_block = False
        await self._settle()

    async def _take(self, message: M, handler: Callable[[M], Awaitable[object]]) -> Result:
        self._check(message)
        came = Consumed.of(message)
        if (skipped := self._progress.begin(came)) is not None:
            return skipped
        try:
            result = await self._handle(message, handler)
        except BaseException as error:
            self._progress.stop(f"{came.topic}-{came.partition}@{came.offset} failed with {type(error).__name__}")
            raise
        self._progress.finish(came)
        return result

    async def _handle(self, message: M, handler: Callable[[M], Awaitable[object]]) -> Result:
        try:
            await handler(message)
        except self._retry_on as error:
            delay_ms = None if self._delay_ms is None else self._delay_ms(message, error)
            record = retry_record(
                message, error, delay_ms=delay_ms, group=self._group, qualified_names=self._qualified_names
            )
            self._sent.append(await self._send(self._topic, record))
            return Result.SENT_BACK
        return Result.HANDLED

    async def _settle(self) -> None:
        async with self._settling:
            # Both are read before the wait: another handler may send back a message meanwhile.
            sent, offsets = list(self._sent), self._progress.offsets()
            if sent:
                await self._confirm(sent)
                del self._sent[: len(sent)]
            if offsets:
                await self._commit(offsets)
                self._progress.committed(offsets)

    async def _confirm(self, sent: list[asyncio.Future[Any]]) -> None:
        flushed = asyncio.ensure_future(self._flush())
        try:
            done, late = await asyncio.wait([flushed, *sent], timeout=self._timeout_s)
        finally:
            flushed.cancel()
        why = next((str(error) for each in done if (error := _error_of(each)) is not None), "")
        if late:
            why = why or f"no confirmation within {self._timeout_s:g} s"
        if why:
            text = f"a message did not reach {self._topic}: {why}"
            self._progress.stop(text)
            raise RetryNotDelivered(text)

    def _check(self, message: M) -> None:
        """Raise what a message stands for that is an error and no message."""

    @abstractmethod
    async def _send(self, topic: str, record: RetryRecord) -> asyncio.Future[Any]:
        """Hand a record to the producer; the future ends when the broker has it."""

    @abstractmethod
    async def _flush(self) -> None:
        """Let the producer send what it holds."""

    @abstractmethod
    async def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit the next offsets by topic and partition."""


def _error_of(sent: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError("cancelled") if sent.cancelled() else sent.exception()
