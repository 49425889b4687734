"""A group in memory for the commands: messages that are listed as the API lists them, and answers that are set."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from sidecar.cli.instance import Reply, Unanswered

URL = "http://shelf:1"


class Shelf:
    """A fake of `sidecar.cli.instance.ask`."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        self.tokens: set[str | None] = set()
        self.missing: deque[list[int]] = deque()
        """What the next pages lack, one after the other."""
        self.replies: dict[tuple[str, str], Reply] = {}
        self.bodies: list[object] = []
        """What came with requests that change something."""

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
        if body is not None:
            self.bodies.append(body)
        if (reply := self.replies.get((method, path))) is not None:
            return reply
        assert (method, path) == ("GET", "/pending/messages")
        return Reply(f"{url}{path}", 200, self._page(query or {}), "OK")

    def _page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        missing = self.missing.popleft() if self.missing else []
        after = json.loads(query["cursor"]) if "cursor" in query else [-1, 0, 0]
        found = sorted(
            (each for each in self.messages.values() if _matches(each, query) and each["partition"] not in missing),
            key=_place,
        )
        rest = [each for each in found if _place(each) > after]
        page = rest[: int(query["limit"])]
        cursor = json.dumps(_place(page[-1])) if len(page) < len(rest) else None
        return {"messages": page, "cursor": cursor, "complete": not missing, "missing": missing}


def _place(message: Mapping[str, Any]) -> list[int]:
    return [message["stored_due_ms"], message["partition"], message["offset"]]


def _matches(message: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    due_ms = int(message["stored_due_ms"])
    return bool(
        query.get("origin", message["origin"]) == message["origin"]
        and int(query.get("partition", message["partition"])) == message["partition"]
        and int(query.get("due_from", 0)) <= due_ms < int(query.get("due_to", 2**63))
    )
