"""The whole API without server, store and broker: ports that the test sets, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from sidecar.api.app import Operations, create_app
from sidecar.api.auth import Gate
from sidecar.api.connect import Worker
from sidecar.api.dlq.bodies import (
    DEAD_LETTER_DETAIL_EXAMPLE,
    REDRIVE_EXAMPLE,
    CountsBody,
    DeadLetterBody,
    DeadLetterDetailBody,
    DeadLettersBody,
    DiscardBody,
    DiscardRequest,
    DiscardsBody,
    ListQuery,
    RedriveBody,
    RedriveRequest,
    ScanQuery,
)
from sidecar.api.messages.listing import Entries, MessageBody, MessageDetailBody, Named, Page, Wanted
from sidecar.api.source import Reloaded
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.errors import CommandFailed
from sidecar.metrics import Metrics
from sidecar.model import Scope, TimerId
from tests.unit.api.test_api import Snapshots
from tests.unit.engine.test_view import NOW_MS

ELSEWHERE = "http://10.0.0.2:8080"


@dataclass(frozen=True)
class Told:
    """A result of a control record."""

    outcome: Outcome | None
    count: int = 0
    control_id: str = "c-1"
    target: str = "0-1-2"
    detail: str = ""
    missing: tuple[int, ...] = ()


CANCELLED = Told(Outcome.CANCELLED, 1)


@dataclass
class Desk:
    """Takes control records and answers what the test sets."""

    result: Told | Exception = CANCELLED
    known: dict[str, Told] = field(default_factory=dict)
    acted: list[tuple[ControlKind, Target, int | None]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)

    def act(self, kind: ControlKind, target: Target, due_ms: int | None, scope: Scope, control_id: str | None) -> Told:
        self.acted.append((kind, target, due_ms))
        self.scopes.append(scope)
        self.ids.append(control_id)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def lookup(self, control_id: str) -> Told | None:
        return self.known.get(control_id)


def message(due_ms: int, partition: int = 0, offset: int = 0, origin: str = "orders") -> MessageBody:
    """Return a message that stands at this place."""
    return MessageBody(
        id=str(TimerId(partition, offset, due_ms)),
        partition=partition,
        offset=offset,
        origin=origin,
        due_ms=due_ms,
        stored_due_ms=due_ms,
        first_due_ms=due_ms,
        attempt=0,
        limit=6,
        retry_id=None,
        deferred=False,
    )


@dataclass
class Held:
    """Entries of partitions, in lists; every read raises `trouble` when it is set."""

    messages: list[MessageBody] = field(default_factory=list)
    own: frozenset[int] = frozenset({0, 1})
    trouble: Exception | None = None
    payloads: list[bool] = field(default_factory=list)

    def owned(self) -> frozenset[int]:
        return self.own

    def page(self, partitions: Collection[int], wanted: Wanted) -> Page:
        if self.trouble is not None:
            raise self.trouble
        fits = [
            each
            for each in sorted(self.messages, key=lambda each: each.position)
            if each.partition in partitions
            and wanted.due_from_ms <= each.stored_due_ms < wanted.due_to_ms
            and wanted.origin in {None, each.origin}
            and (wanted.after is None or each.position > wanted.after)
        ]
        shown = fits[: wanted.limit]
        return Page(shown, shown[-1].position if len(fits) > len(shown) else None, len(shown))

    def find(self, timer: TimerId, *, payload: bool) -> MessageDetailBody | None:
        if self.trouble is not None:
            raise self.trouble
        self.payloads.append(payload)
        return next((detail(each) for each in self.messages if each.id == str(timer)), None)

    def named(self, retry_id: bytes, partitions: Collection[int], *, payload: bool) -> Named:
        wanted = retry_id.decode()
        return Named(
            [detail(each) for each in self.messages if each.partition in partitions and each.retry_id == wanted], False
        )


def detail(each: MessageBody) -> MessageDetailBody:
    """Return a message with a header."""
    return MessageDetailBody.model_validate({**each.model_dump(), "headers": [{"name": "trace", "value": "x"}]})


@dataclass
class Neighbours:
    """Other instances: an application each, by URL; what is not there does not answer."""

    clients: dict[str, Client] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def get(self, url: str, path: str) -> tuple[int, bytes]:
        self.asked.append((url, path))
        if url not in self.clients:
            raise CommandFailed(f"{url} does not answer")
        headers = {"x-retry-sidecar-forwarded": "1", "authorization": "Bearer secret"}
        answer = self.clients[url].get(path, headers=headers)
        return answer.status_code, answer.content

    def send(self, method: str, url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        self.asked.append((url, path))
        if url not in self.clients:
            raise CommandFailed(f"{url} does not answer")
        headers = {"x-retry-sidecar-forwarded": "1", "authorization": "Bearer secret"}
        if body is not None:
            headers["content-type"] = "application/json"
        answer = self.clients[url].request(method, path, content=body, headers=headers)
        return answer.status_code, answer.content


@dataclass
class Others:
    """Other instances that are told to change something; they answer with a status, or not at all."""

    answers: dict[str, int | None] = field(default_factory=dict)
    """By URL; 204 unless given."""
    told: list[tuple[str, str, str, bytes | None]] = field(default_factory=list)

    def send(self, method: str, url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        self.told.append((method, url, path, body))
        status = self.answers.get(url, 204)
        if status is None:
            raise CommandFailed(f"{url} does not answer")
        return status, b""


def letter(offset: int, **more: Any) -> DeadLetterDetailBody:
    """Return a dead letter of partition 0 with these fields."""
    fields = {**DEAD_LETTER_DETAIL_EXAMPLE, "id": f"0-{offset}", "offset": offset, **more}
    return DeadLetterDetailBody.model_validate({**fields, "key": "aw==", "value": "dg=="})


@dataclass
class Letters:
    """Dead letters in a list, newest first, and redrives that do nothing; `trouble` is raised when it is set."""

    held: list[DeadLetterDetailBody] = field(default_factory=list)
    trouble: Exception | None = None
    asked: list[ScanQuery] = field(default_factory=list)
    started: list[RedriveRequest] = field(default_factory=list)
    known: dict[str, RedriveBody] = field(default_factory=dict)
    discarded: dict[str, DiscardBody] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    def counts(self, query: ScanQuery) -> CountsBody:
        reasons = [each.reason for each in self._matching(query)]
        by_reason = {reason: reasons.count(reason) for reason in reasons}
        others: dict[str, Any] = {f"by_{kind}": {} for kind in ("origin", "exception", "attempt", "group", "hour")}
        return CountsBody(**self._facts(query), total=len(reasons), by_reason=by_reason, **others)

    def page(self, query: ListQuery) -> DeadLettersBody:
        found = self._matching(query)[: query.limit]
        bare = {"discarded", "headers", "headers_truncated", "key", "value"}
        messages = [DeadLetterBody.model_validate(each.model_dump(exclude=bare)) for each in found]
        return DeadLettersBody(**self._facts(query), messages=messages)

    def find(self, topic: str | None, partition: int, offset: int, *, payload: bool) -> DeadLetterDetailBody | None:
        if self.trouble is not None:
            raise self.trouble
        found = next((each for each in self.held if each.id == f"{partition}-{offset}"), None)
        if found is None:
            return None
        found = found.model_copy(update={"discarded": self.discarded.get(found.id)})
        if payload:
            return found
        return DeadLetterDetailBody.model_validate(found.model_dump(exclude={"key", "value"}))

    def discard(self, request: DiscardRequest, who: str) -> DiscardBody | None:
        if self.trouble is not None:
            raise self.trouble
        if all(each.id != request.id for each in self.held):
            return None
        made = DiscardBody(id=request.id, who=who, why=request.why, at_ms=NOW_MS)
        self.discarded[request.id] = made
        return made

    def take_back(self, topic: str | None, partition: int, offset: int) -> bool:
        if self.trouble is not None:
            raise self.trouble
        return self.discarded.pop(f"{partition}-{offset}", None) is not None

    def discards(self, topic: str | None) -> DiscardsBody:
        if self.trouble is not None:
            raise self.trouble
        return DiscardsBody(topic="dlq", total=len(self.discarded), discards=list(self.discarded.values()))

    def start(self, request: RedriveRequest) -> tuple[RedriveBody, bool]:
        if self.trouble is not None:
            raise self.trouble
        self.started.append(request)
        run = self.run_of(request)
        began = run not in self.known
        fields = {**REDRIVE_EXAMPLE, "run": run, "dry_run": request.dry_run}
        status = self.known.setdefault(run, RedriveBody.model_validate(fields))
        return status, began

    def run_of(self, request: RedriveRequest) -> str:
        return request.run or "13b95c1f4d"

    def redrive(self, run: str) -> RedriveBody | None:
        return self.known.get(run)

    def redrives(self) -> Sequence[RedriveBody]:
        return list(self.known.values())

    def stop(self, run: str) -> RedriveBody | None:
        self.stopped.append(run)
        return self.known.get(run)

    def _matching(self, query: ScanQuery) -> list[DeadLetterDetailBody]:
        if self.trouble is not None:
            raise self.trouble
        self.asked.append(query)
        return [each for each in self.held if not query.reason or each.reason in query.reason]

    def _facts(self, query: ScanQuery) -> dict[str, Any]:
        return {"topic": query.topic or "dlq", "topics": ["dlq"], "read": len(self.held), "unread": 0, "cursor": None}


WORKER = Worker(
    name="kafka-retry",
    instance_id="one",
    topic="retry",
    config={"max.delay": "365d"},
    version="1.2.3",
    others=Others(),
    restart=lambda _: None,
)


class Client:
    """Asks the application itself, as an address of the test's choice."""

    def __init__(
        self,
        source: Snapshots,
        entries: Entries | None = None,
        *,
        desk: Desk | None = None,
        peers: Neighbours | None = None,
        worker: Worker | None = None,
        token: str | None = None,
        read_tokens: tuple[str, ...] = (),
        loopback: bool = True,
        open_reads: bool = False,
        letters: Letters | None = None,
        reload: Callable[[], Reloaded] | None = lambda: Reloaded(["POLICIES"], []),
    ) -> None:
        gate = Gate([] if token is None else [token], read_tokens, loopback=loopback, open_reads=open_reads)
        operations = Operations(
            *(entries or Held(), peers or Neighbours(), desk or Desk(), gate),
            worker or replace(WORKER, others=Others()),
            letters or Letters(),
            reload,
        )
        metrics = Metrics(version="1.2.3", now_ms=lambda: NOW_MS)
        self.app = create_app(source, metrics=metrics, version="1.2.3", operations=operations)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=("10.9.8.7", 4711))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **kwargs))

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.request("GET", path, **kwargs)
