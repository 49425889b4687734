"""What a flood of requests may cost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sidecar.api.guard import Turnstile
from sidecar.clock import SystemClock

COST_S = 0.02


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
        app = Turnstile(costly)
        return await asyncio.gather(*(ask(app) for _ in range(5)))

    began_s = SystemClock().monotonic_s()
    assert asyncio.run(flood()) == [200] * 5
    assert SystemClock().monotonic_s() - began_s >= 4 * COST_S / Turnstile.SHARE


def test_who_would_wait_too_long_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turnstile, "WAIT_MAX_S", 0.1)

    async def flood() -> list[int]:
        app = Turnstile(costly)
        return await asyncio.gather(*(ask(app) for _ in range(12)))

    statuses = asyncio.run(flood())
    assert set(statuses) == {200, 503}
    assert statuses[0] == 200


def test_one_request_alone_never_keeps_the_next_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took: a garbage collection may have run meanwhile."""
    monkeypatch.setattr(Turnstile, "WAIT_MAX_S", 0.7 * COST_S / Turnstile.SHARE)

    async def one_after_the_other() -> list[int]:
        app = Turnstile(costly)
        return [await ask(app) for _ in range(3)]

    assert asyncio.run(one_after_the_other()) == [200] * 3


def test_probes_do_not_wait_behind_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flood() -> tuple[list[str], list[int]]:
        app, order = Turnstile(costly), list[str]()

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

    async def race() -> float:
        app, may_read = Turnstile(costly), asyncio.Event()

        async def send_slowly(message: Any) -> None:
            if message["type"] == "http.response.body":
                await may_read.wait()

        async def nothing() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/pending", "headers": [], "query_string": b""}
        slow = asyncio.create_task(app(scope, nothing, send_slowly))
        began_s = SystemClock().monotonic_s()
        assert await ask(app) == 200
        took_s = SystemClock().monotonic_s() - began_s
        may_read.set()
        await slow
        return took_s

    assert asyncio.run(race()) < Turnstile.WAIT_MAX_S
