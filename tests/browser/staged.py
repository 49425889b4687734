"""The dashboard over figures, messages and answers that the test sets, served by the real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sin
from typing import Final
from unittest.mock import patch

from sidecar.api.guard import RateLimiter
from sidecar.api.messages.listing import HeaderBody, MessageBody, MessageDetailBody
from sidecar.clock import SystemClock
from sidecar.engine.group.activity import MINUTE_MS, MINUTES, Activity, Minute
from sidecar.engine.group.view import PartitionView
from sidecar.model import TimerId
from sidecar.serving.server import Server
from tests.unit.api.test_api import WELL, Snapshots
from tests.unit.api_stage import Client, Desk, Held, Letters
from tests.unit.engine.test_view import view_of

HOUR_MS: Final = 3_600_000
STOP_S: Final = 5.0


@dataclass
class Live(Snapshots):
    """Snapshots that are of this moment, except those of partitions in `old_ms`."""

    old_ms: dict[int, int] = field(default_factory=dict)

    def views(self) -> Sequence[PartitionView]:
        now_ms = self.now_ms()
        return [replace(view, as_of_ms=now_ms - self.old_ms.get(view.partition, 200)) for view in self.shown]

    def now_ms(self) -> int:
        return SystemClock().wall_ms()


@dataclass
class Detailed(Held):
    """Messages with the headers that the test sets, and a payload."""

    headers: list[HeaderBody] = field(default_factory=list)
    key: str | None = None
    value: str | None = None

    def find(self, timer: TimerId, *, payload: bool) -> MessageDetailBody | None:
        found = super().find(timer, payload=payload)
        if found is None:
            return None
        shown = found.model_copy(update={"headers": self.headers})
        return shown.model_copy(update={"key": self.key, "value": self.value}) if payload else shown


@contextmanager
def serving(
    source: Live,
    held: Held | None = None,
    desk: Desk | None = None,
    *,
    letters: Letters | None = None,
    token: str | None = None,
    open_reads: bool = False,
    port: int = 0,
) -> Iterator[str]:
    """Yield the address of the dashboard."""
    server = Server(
        Client(source, held, desk=desk, letters=letters, token=token, open_reads=open_reads).app,
        host="127.0.0.1",
        port=port,
    )
    server.start()
    try:
        # A machine that stands still is no flood: no file of the page is refused for it.
        with patch.object(RateLimiter, "WAIT_MAX_S", 60.0):
            yield f"{server.url}/ui/"
    finally:
        server.stop(STOP_S)


def a_busy_evening(now_ms: int) -> Live:
    """Return eight partitions of three instances with some 40,000 messages; one origin is paused."""
    shares = {"orders": 9, "payments.settled": 6, "emails": 4, "inventory-sync": 3, "webhooks.partner-a": 2, "audit": 1}
    views = []
    for partition in range(8):
        by_origin = {name: 10 * share * (18 + 2 * ((partition * 7 + share) % 9)) for name, share in shares.items()}
        pending = sum(by_origin.values())
        dues = [now_ms + 400 + round(_delay(at / pending) * 1000) for at in range(0, pending, 10)]
        view = view_of(dues, partition=partition, stored_ms=now_ms - 20_000)
        paused = {"webhooks.partner-a": ("paused", now_ms - 25 * MINUTE_MS)}
        views.append(
            replace(
                view,
                pending=pending,
                slots={place: 10 * count for place, count in view.slots.items()},
                owner=f"retry-sidecar-{partition % 3}",
                by_origin=by_origin,
                deferred_by_origin={"webhooks.partner-a": by_origin["webhooks.partner-a"] // 3},
                closed_origins=paused,
                watermark_ms=now_ms - 40 - 7 * partition,
                next_due_ms=min(dues),
                lag=(partition * 5) % 7,
                activity=_an_hour(now_ms, partition),
            )
        )
    return Live(views, total=8, state=WELL)


def _delay(part: float) -> float:
    """Return seconds until due: a few within the minute, most within the hour, some over the day."""
    if part < 0.06:
        return 60 * part / 0.06
    if part < 0.6:
        return 60 + 3540 * pow((part - 0.06) / 0.54, 2)
    return 3600 + 90_000 * pow((part - 0.6) / 0.4, 2)


def _an_hour(now_ms: int, partition: int) -> Activity:
    minutes = []
    for ago in range(MINUTES):
        fired = round(140 + 60 * sin((ago + 5) / 7) + 13 * ((ago * 31 + partition * 17) % 7))
        trouble = 21 <= ago <= 25
        late = round(fired * (0.5 - abs(ago - 23) * 0.15)) if trouble else 0
        minutes.append(Minute(fired, 4 + ago % 3 if trouble else int((ago + partition) % 11 == 0), max(0, late)))
    return Activity(now_ms // MINUTE_MS, tuple(minutes))


def some_messages(now_ms: int, number: int = 60) -> list[MessageBody]:
    """Return messages of several origins, in due order."""
    origins = ("orders", "payments.settled", "emails", "inventory-sync")
    made = []
    for at in range(number):
        due_ms = now_ms + 2_000 + at * at * 1_700
        made.append(
            MessageBody(
                id=str(TimerId(at % 8, 184_000 + at * 37, due_ms)),
                partition=at % 8,
                offset=184_000 + at * 37,
                origin=origins[(at * 7) % 4],
                due_ms=due_ms,
                stored_due_ms=due_ms,
                first_due_ms=due_ms,
                attempt=at % 4,
                limit=6,
                retry_id=f"order-{4711 + at}" if at % 3 else None,
                deferred=False,
            )
        )
    return made
