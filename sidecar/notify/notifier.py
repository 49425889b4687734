"""Sends the notifications: a thread of its own, which the loop only hands headers to."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar.clock import Clock
from sidecar.engine.ports import Outgoing
from sidecar.metrics import Metrics
from sidecar.model import Headers, Reason
from sidecar.notify.summary import Source, Summary
from sidecar.notify.template import Template, read_template
from sidecar.settings import Settings

if TYPE_CHECKING:
    from sidecar.notify.webhook import Attempt

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 10_000
"""Most dead letters that wait to be examined."""
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of their header values."""
BACKOFF_S: Final = 1.0
"""Wait after the first attempt that fails; each further one is twice as long, up to BACKOFF_MAX_S."""
BACKOFF_MAX_S: Final = 60.0
DOUBLINGS_MAX: Final = 10
ATTEMPT_S: Final = 10.0
"""Longest time for one attempt."""
STOP_S: Final = 3.0
"""Longest time for the last notification when the process ends."""
ACCEPTED: Final = "accepted"
FAILED: Final = "failed"
ANNOUNCED: Final = "announced"
DROPPED: Final = "dropped"

Post = Callable[[bytes, float], "Attempt"]
"""Sends a body once; the second argument is the longest time in seconds."""


def webhook(url: str) -> Post:
    """Return what posts to a URL."""

    def post(body: bytes, timeout_s: float) -> Attempt:
        # Loaded when there is something to send: it takes as long as the rest of the start.
        from sidecar.notify import webhook  # noqa: PLC0415

        return webhook.post(url, body, timeout_s)

    return post


class Notifier:
    """Announces dead letters, at most one notification in an interval.

    Args:
        post: Sends one.
        template: Its JSON.
        source: Who announces.
        interval_s: Least time between two notifications.
        clock: The clock.
        metrics: Count attempts, and dead letters by whether they were announced.
    """

    def __init__(
        self, post: Post, template: Template, source: Source, interval_s: float, clock: Clock, metrics: Metrics
    ) -> None:
        self._post = post
        self._template = template
        self._source = source
        self._interval_s = interval_s
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._waiting: deque[Headers] = deque()
        self._waiting_bytes = 0
        self._reasons = Counter[str]()
        self._some = threading.Event()
        self._stopping = threading.Event()
        self._since_ms = 0
        self._summary = Summary()
        self._from_ms = 0
        self._error = ""
        self._accepted_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # Called by the loop; none of these waits

    def add(self, dead_letters: Sequence[tuple[Reason, Outgoing]]) -> None:
        """Take the dead letters of a committed transaction."""
        with self._lock:
            self._begin()
            for reason, dead_letter in dead_letters:
                self._reasons[reason.value] += 1
                size = sum(len(value) for _, value in dead_letter.headers if value)
                if len(self._waiting) < WAITING_MAX and self._waiting_bytes + size <= WAITING_BYTES_MAX:
                    self._waiting.append(dead_letter.headers)
                    self._waiting_bytes += size
        self._some.set()

    def add_reasons(self, by_reason: Mapping[str, int]) -> None:
        """Take dead letters of which only the reasons are known."""
        with self._lock:
            self._begin()
            self._reasons.update(by_reason)
        self._some.set()

    def _begin(self) -> None:
        if not self._reasons:
            self._since_ms = self._clock.wall_ms()

    def details(self) -> dict[str, Any]:
        """Return for /health when a notification was last accepted, and why the last attempt failed, if it did."""
        return {"last_accepted_ms": self._accepted_ms, "error": self._error or None}

    def stop(self) -> None:
        """Send what is left, once, and end the thread; wait at most STOP_S."""
        self._stopping.set()
        self._some.set()
        self._thread.join(STOP_S)

    # The thread

    def _run(self) -> None:
        failures, wait_s, last = 0, self._interval_s, False
        while not last:
            if not failures:
                self._some.wait()
            self._stopping.wait(wait_s)
            self._some.clear()
            last = self._stopping.is_set()
            asked_s = self._announce(STOP_S if last else ATTEMPT_S)
            if asked_s is None:
                failures, wait_s = 0, self._interval_s
            else:
                wait_s = max(min(BACKOFF_S * 2**failures, BACKOFF_MAX_S), asked_s)
                failures = min(failures + 1, DOUBLINGS_MAX)
        if left := self._summary.count:
            self._metrics.notify_dead_letters.labels(DROPPED).inc(left)
            log.error("notification_dropped", dead_letters=left, reason=self._error)

    def _collect(self) -> None:
        """Add what was handed over to what no notification has announced yet."""
        with self._lock:
            waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
            reasons, self._reasons, since_ms = self._reasons, Counter(), self._since_ms
        if not self._summary.count:
            self._from_ms = since_ms
        self._summary.by_reason.update(reasons)
        while waiting:
            self._summary.examine(waiting.popleft())

    def _announce(self, timeout_s: float) -> float | None:
        """Send once all that is not announced yet; return None, or how long the answer that refused it asks to wait."""
        self._collect()
        count = self._summary.count
        if not count:
            return None
        from_ms, until_ms = self._from_ms, self._clock.wall_ms()
        fields = self._summary.fields(self._source, _iso(from_ms), _iso(until_ms), from_ms, until_ms)
        attempt = self._post(self._template.render(fields), timeout_s)
        self._metrics.notify_requests.labels(FAILED if attempt.error else ACCEPTED).inc()
        self._note(attempt.error)
        if attempt.error:
            return attempt.retry_after_s
        self._metrics.notify_dead_letters.labels(ANNOUNCED).inc(count)
        self._summary = Summary()
        return None

    def _note(self, error: str) -> None:
        """Log the first failure and the first success after it."""
        before, self._error = self._error, error
        if not error:
            self._accepted_ms = self._clock.wall_ms()
        if error and not before:
            log.warning("notification_failed", reason=error)
        elif before and not error:
            log.info("notification_accepted")


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def open_notifier(settings: Settings, instance: str, clock: Clock, metrics: Metrics) -> Notifier | None:
    """Return the notifier of these settings, started; None without NOTIFY_URL. Raises SettingsInvalid."""
    if settings.notify_url is None:
        return None
    for outcome in (ACCEPTED, FAILED):
        metrics.notify_requests.labels(outcome)
    for outcome in (ANNOUNCED, DROPPED):
        metrics.notify_dead_letters.labels(outcome)
    notifier = Notifier(
        webhook(settings.notify_url),
        read_template(settings.notify_template),
        Source(settings.streams_app_id, instance, settings.dlq_topic),
        settings.notify_interval_ms / 1000,
        clock,
        metrics,
    )
    notifier.start()
    return notifier
