"""The notifier: one notification in an interval, bounded attempts and queues, and nobody who hands over waits."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.clock import SystemClock
from sidecar.engine.ports import Outgoing
from sidecar.errors import SettingsInvalid
from sidecar.metrics import Metrics
from sidecar.model import ANY_PARTITION, Headers, Reason
from sidecar.notify import notifier as module
from sidecar.notify.notifier import WAITING_BYTES_MAX, WAITING_MAX, Notifier, Post, open_notifier, webhook
from sidecar.notify.summary import Source
from sidecar.notify.template import DEFAULT, Template
from sidecar.notify.webhook import Attempt
from sidecar.settings import Settings
from tests.unit.notify import server
from tests.unit.notify.server import TOKEN, WAIT_S, Answer, Hook
from tests.unit.notify.test_summary import dead
from tests.waiting import eventually

ONE = [(Reason.FATAL, Outgoing("dlq", ANY_PARTITION, b"key", b"payload", dead(), 0, b""))]
HOUR_S = 3600.0


def letters(count: int, headers: Headers | None = None) -> list[tuple[Reason, Outgoing]]:
    return [(Reason.FATAL, ONE[0][1]._replace(headers=headers or dead()))] * count


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(module, "STOP_S", WAIT_S)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with server.webhook() as made:
        yield made


@contextmanager
def notifying(post: Post, interval_s: float = 0.01) -> Iterator[tuple[Notifier, Callable[[str, str], float]]]:
    """Yield a started notifier, and what reads the counter of an outcome."""
    metrics = Metrics(version="1", now_ms=lambda: 0)
    notifier = Notifier(
        post, Template(DEFAULT), Source("kafka-retry", "sidecar-0", "dlq"), interval_s, SystemClock(), metrics
    )

    def counted(name: str, outcome: str) -> float:
        return metrics.registry.get_sample_value(f"retry_sidecar_notify_{name}_total", {"outcome": outcome}) or 0.0

    notifier.start()
    try:
        yield notifier, counted
    finally:
        notifier.stop()


def test_dead_letters_are_announced_in_one_notification_without_payload(hook: Hook) -> None:
    with notifying(webhook(hook.url), HOUR_S) as (notifier, counted):
        notifier.add(ONE)
        notifier.add(letters(2))
    (request,) = hook.requests
    assert counted("dead_letters", "announced") == 3
    assert (request.body["count"], request.body["by_reason"]) == (3, {"fatal": 3})
    assert (request.body["app_id"], request.body["instance"], request.body["dlq_topic"]) == (
        *("kafka-retry", "sidecar-0", "dlq"),
    )
    assert request.body["from_ms"] <= request.body["until_ms"]
    assert "payload" not in str(request.body)
    assert notifier.details()["error"] is None
    assert notifier.details()["last_accepted_ms"] > 0


def test_a_refused_notification_is_sent_again_and_the_first_failure_is_logged(hook: Hook) -> None:
    for status in (500, 503, 429):
        hook.answers.put(Answer(status))
    with capture_logs() as lines, notifying(webhook(hook.url)) as (notifier, counted):
        notifier.add(ONE)
        eventually(lambda: counted("dead_letters", "announced") == 1, WAIT_S, "it is announced")
    assert [line["event"] for line in lines] == ["notification_failed", "notification_accepted"]
    assert lines[0]["reason"] == "HTTP 500"
    assert (counted("requests", "failed"), counted("requests", "accepted")) == (3, 1)
    assert [request.body["count"] for request in hook.requests] == [1] * 4


@pytest.mark.parametrize("status", [500, 404, 302])
def test_what_was_not_accepted_is_in_the_next_notification_however_often(hook: Hook, status: int) -> None:
    for _ in range(20):
        hook.answers.put(Answer(status))
    with capture_logs() as lines, notifying(webhook(hook.url)) as (notifier, counted):
        notifier.add(letters(4))
        eventually(lambda: len(hook.requests) >= 10, WAIT_S, "it is refused ten times")
        assert notifier.details()["error"] == f"HTTP {status}"
        notifier.add(letters(1, dead(origin="payments")))
        eventually(lambda: counted("dead_letters", "announced") == 5, WAIT_S, "all are announced")
        assert notifier.details()["error"] is None
    first, accepted = hook.requests[0].body, hook.requests[-1].body
    assert (first["count"], first["by_origin"]) == (4, {"orders": 4})
    assert (accepted["count"], accepted["by_origin"]) == (5, {"orders": 4, "payments": 1})
    assert accepted["from_ms"] == first["from_ms"]
    assert counted("dead_letters", "dropped") == 0
    assert len(hook.requests) == 21
    assert [line["event"] for line in lines] == ["notification_failed", "notification_accepted"]


def test_a_webhook_that_is_down_for_long_lets_nothing_grow() -> None:
    sizes: list[int] = []
    counts: list[int] = []
    up = threading.Event()

    def refuse(body: bytes, _timeout_s: float) -> Attempt:
        sizes.append(len(body))
        counts.append(json.loads(body)["count"])
        return Attempt() if up.is_set() else Attempt("HTTP 500")

    with notifying(refuse) as (notifier, counted):
        for round_number in range(30):
            notifier.add([each for n in range(100) for each in letters(1, dead(exception=f"{round_number}-{n}-" * 90))])
            eventually(lambda: counts and counts[-1] == 100 * (round_number + 1), WAIT_S, "the round")  # noqa: B023
        up.set()
        eventually(lambda: counted("dead_letters", "announced") == 3_000, WAIT_S, "all are announced")
    assert max(sizes) < 20_000


def test_while_the_webhook_hangs_nobody_waits_and_the_rest_is_counted_by_reason() -> None:
    entered, go_on = threading.Event(), threading.Event()
    bodies: list[dict[str, Any]] = []

    def hang(body: bytes, _timeout_s: float) -> Attempt:
        bodies.append(json.loads(body))
        entered.set()
        assert go_on.wait(WAIT_S)
        return Attempt()

    with notifying(hang) as (notifier, counted):
        notifier.add(ONE)
        assert entered.wait(WAIT_S)
        for _ in range(3):
            notifier.add(letters(WAITING_MAX))  # returns, though nothing is sent
        go_on.set()
        eventually(lambda: counted("dead_letters", "announced") == 1 + 3 * WAITING_MAX, WAIT_S, "all are announced")
    assert [(body["count"], body["examined"]) for body in bodies] == [(1, 1), (3 * WAITING_MAX, WAITING_MAX)]


def test_what_waits_is_bounded_in_bytes() -> None:
    big: Headers = [("big", b"x" * (WAITING_BYTES_MAX // 4)), *dead()]
    examined: list[int] = []

    def accept(body: bytes, _timeout_s: float) -> Attempt:
        examined.append(json.loads(body)["examined"])
        return Attempt()

    with notifying(accept, HOUR_S) as (notifier, _):
        notifier.add(letters(10, big))
    assert examined == [3]


def test_what_is_left_at_the_end_is_announced_with_one_attempt() -> None:
    timeouts: list[float] = []

    def refuse(_body: bytes, timeout_s: float) -> Attempt:
        timeouts.append(timeout_s)
        return Attempt("HTTP 500")

    with notifying(refuse, HOUR_S) as (notifier, counted):
        notifier.add_reasons({"fatal": 2, "too-large": 1})
    assert timeouts == [module.STOP_S]
    assert counted("dead_letters", "dropped") == 3


def test_the_wait_doubles_up_to_a_minute_and_heeds_what_the_answer_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 1.0)
    answers = itertools.chain([Attempt("HTTP 429", retry_after_s=30)], [Attempt("HTTP 500")] * 7, [Attempt()] * 9)
    metrics = Metrics(version="1", now_ms=lambda: 0)
    notifier = Notifier(
        lambda _body, _timeout_s: next(answers), Template(DEFAULT), Source("a", "i", "d"), 1, SystemClock(), metrics
    )
    waits: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            if len(waits) == 10:
                self.set()
            return self.is_set()

    monkeypatch.setattr(notifier, "_stopping", Stopping())
    notifier.add(ONE)
    notifier.start()
    eventually(lambda: len(waits) >= 9, WAIT_S, "the attempts")
    notifier.add(ONE)
    notifier.stop()
    assert waits[:9] == [1, 30, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_no_log_line_has_the_url(hook: Hook) -> None:
    hook.answers.put(Answer(403))
    with capture_logs() as lines, notifying(webhook(hook.url)) as (notifier, counted):
        notifier.add(ONE)
        eventually(lambda: counted("dead_letters", "announced") == 1, WAIT_S, "it is announced")
    assert TOKEN not in str(lines) + str(notifier.details())


def test_without_a_url_there_is_no_notifier(tmp_path: Path) -> None:
    metrics = Metrics(version="1", now_ms=lambda: 0)
    assert open_notifier(Settings(), "i", SystemClock(), metrics) is None
    wrong = Settings(notify_url="http://localhost/", notify_template=tmp_path / "gone.json")
    with pytest.raises(SettingsInvalid, match="NOTIFY_TEMPLATE"):
        open_notifier(wrong, "i", SystemClock(), metrics)
