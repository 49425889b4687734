"""A group in memory for the commands: messages that are listed as the API lists them, and acted on as owners do."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidecar.cli.instance import Reply, Unanswered
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.stream import TimerOutcome
from sidecar.model import TimerId

URL = "http://shelf:1"


class Shelf:
    """A fake of `sidecar.cli.instance.ask` and of the actions on timers."""

    def __init__(self, kind: ControlKind = ControlKind.CANCEL, due_ms: int | None = None) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        self.tokens: set[str | None] = set()
        self.missing: deque[list[int]] = deque()
        """What the next pages lack, one after the other."""
        self.replies: dict[tuple[str, str], Reply] = {}
        self.on_page: Callable[[int], None] = lambda page: None
        """Called with the number of a page before it is made."""
        self.on_put: Callable[[TimerId], object] = lambda timer: None
        self.paused: set[str] = set()
        self.silent: set[int] = set()
        """Partitions without an owner."""
        self.in_flight_max = 7
        self.most_in_flight = 0
        self.acted: list[str] = []
        self._kind = kind
        self._due_ms = due_ms
        self.lags = False
        """A page shows what there was at the page before: the list knows of an act later than who reads its outcome."""
        self._before: list[dict[str, Any]] = []
        self._pages = 0
        self._flying: list[TimerId] = []

    def store(self, partition: int, offset: int, due_ms: int, origin: str = "orders", **more: object) -> str:
        """Put a message on the shelf and return its timer id."""
        timer = f"{partition}-{offset}-{due_ms}"
        self.messages[timer] = {
            "id": timer,
            "partition": partition,
            "offset": offset,
            "origin": origin,
            "due_ms": due_ms,
            "stored_due_ms": due_ms,
            "first_due_ms": due_ms,
            "attempt": 1,
            "limit": 6,
            "retry_id": None,
            "deferred": False,
            **more,
        }
        return timer

    # The API

    def ask(
        self,
        url: str,
        method: str,
        path: str,
        token: str | None,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        timeout_s: float = 0,
        authorities: object = None,
    ) -> Reply:
        if url != URL:
            raise Unanswered(f"no sidecar answers at {url}")
        self.asked.append((method, path, query or {}))
        self.tokens.add(token)
        if (reply := self.replies.get((method, path))) is not None:
            return reply
        assert (method, path) == ("GET", "/pending/messages")
        self._pages += 1
        self.on_page(self._pages)
        return Reply(f"{url}{path}", 200, self._page(query or {}), "OK")

    def _page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        missing = self.missing.popleft() if self.missing else []
        after = json.loads(query["cursor"]) if "cursor" in query else [-1, 0, 0]
        now = [dict(each) for each in self.messages.values()]
        shown, self._before = self._before if self.lags else now, now
        found = sorted(
            (each for each in shown if _matches(each, query) and each["partition"] not in missing),
            key=_place,
        )
        rest = [each for each in found if _place(each) > after]
        page = rest[: int(query["limit"])]
        cursor = json.dumps(_place(page[-1])) if len(page) < len(rest) else None
        return {"messages": page, "cursor": cursor, "complete": not missing, "missing": missing}

    # What acts

    @property
    def in_flight(self) -> Sequence[TimerId]:
        return self._flying

    def put(self, timer: TimerId) -> None:
        self._flying.append(timer)
        self.most_in_flight = max(self.most_in_flight, len(self._flying))
        self.on_put(timer)

    def answers(self, timeout_s: float) -> list[TimerOutcome]:
        answered = [timer for timer in self._flying if timer.partition not in self.silent]
        self._flying = [timer for timer in self._flying if timer.partition in self.silent]
        return [self._act(timer) for timer in answered]

    def _act(self, timer: TimerId) -> TimerOutcome:
        self.acted.append(str(timer))
        message = self.messages.get(str(timer))
        if message is None:
            return TimerOutcome(timer, Outcome.NOT_PENDING, "")
        if self._kind is ControlKind.FIRE and message["origin"] in self.paused:
            return TimerOutcome(timer, Outcome.ORIGIN_PAUSED, f"{message['origin']} is paused")
        if self._kind is ControlKind.RESCHEDULE:
            message["due_ms"] = message["stored_due_ms"] = self._due_ms
            return TimerOutcome(timer, Outcome.RESCHEDULED, "")
        del self.messages[str(timer)]
        return TimerOutcome(timer, Outcome.CANCELLED if self._kind is ControlKind.CANCEL else Outcome.FIRED, "")


def _place(message: Mapping[str, Any]) -> list[int]:
    return [message["stored_due_ms"], message["partition"], message["offset"]]


def _matches(message: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    due_ms = int(message["stored_due_ms"])
    return bool(
        query.get("origin", message["origin"]) == message["origin"]
        and int(query.get("partition", message["partition"])) == message["partition"]
        and int(query.get("due_from", 0)) <= due_ms < int(query.get("due_to", 2**63))
    )
