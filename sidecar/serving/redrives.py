"""Redrives that HTTP starts: one at a time in a thread of its own, with a status that any thread can read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from sidecar.api.dlq.bodies import (
    DeadLetterBody,
    RedriveBody,
    RedriveRequest,
    RedriveState,
    SkippedBody,
    read_position,
)
from sidecar.clock import Clock
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.job import RedriveJob
from sidecar.dlq.reader import DlqRecord, run_identity
from sidecar.dlq.redrive import RedriveLimits, Tally, check_origin
from sidecar.errors import AlreadyRunning, SidecarError
from sidecar.settings import Settings

log = structlog.get_logger(__name__)

KEPT_MAX: Final = 100
"""The most redrives whose status is kept."""
PROCESSOR_SHARE: Final = 0.25
"""The share of a core that a redrive uses: the thread that fires messages shares the interpreter with it."""


@dataclass(slots=True)
class _Redrive:
    request: RedriveRequest
    run: str
    topic: str
    began_ms: int
    job: RedriveJob | None = None
    """None while the brokers are asked what there is to do."""
    state: RedriveState = "running"
    ended_ms: int | None = None
    message: str = ""
    stopping: bool = False
    pause: threading.Event = field(default_factory=threading.Event)


class Redrives:
    """Runs redrives, and keeps the status of the last ones.

    Args:
        clock: The clock of this machine.
        shown: Returns a dead letter as JSON shows it.
    """

    def __init__(self, clock: Clock, shown: Callable[[DlqRecord], DeadLetterBody]) -> None:
        self._clock = clock
        self._shown = shown
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Redrive] = OrderedDict()
        self._current: _Redrive | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, settings: Settings, wanted: DeadLetterFilter, request: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Start a redrive; return its status at once, and False when the same one was running already.

        Raises:
            ValueError: The request cannot be meant.
            AlreadyRunning: Another one is running, or the process is stopping.
        """
        check_origin(settings, request.to_origin or "")
        run = request.run or wanted.run_name
        with self._lock:
            if (current := self._current) is not None and current.state == "running":
                if current.run == run and current.request.model_dump() == request.model_dump():
                    return self._body(current), False
                raise AlreadyRunning(
                    f"redrive {current.run} is running on this instance, and one runs at a time: wait until GET "
                    f"/dlq/redrives/{current.run} says that it has ended, or stop it with DELETE"
                )
            if self._closed:
                raise AlreadyRunning("this instance is stopping")
            made = _Redrive(request, run, settings.dlq_topic, self._clock.wall_ms())
            self._current = self._kept[run] = made
            self._kept.move_to_end(run)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            work = (made, settings, wanted)
            self._thread = threading.Thread(target=self._carry_out, args=work, name="redrive", daemon=True)
            self._thread.start()
            return self._body(made), True

    def status(self, run: str) -> RedriveBody | None:
        """Return the status of the last redrive of this name, None when there was none."""
        kept = self._kept.get(run)
        return None if kept is None else self._body(kept)

    def all(self) -> list[RedriveBody]:
        """Return all that are kept, newest first."""
        return [self._body(each) for each in reversed(list(self._kept.values()))]

    def stop(self, run: str) -> RedriveBody | None:
        """Ask a redrive to stop after the transaction at hand; return its status, None when there is none."""
        kept = self._kept.get(run)
        if kept is None:
            return None
        kept.stopping = True
        kept.pause.set()
        return self._body(kept)

    def close(self, deadline_s: float) -> None:
        """Stop the one that runs; after the deadline its thread dies with the process."""
        self._closed = True
        current, thread = self._current, self._thread
        if current is not None and thread is not None:
            self.stop(current.run)
            thread.join(deadline_s)

    def _carry_out(self, redrive: _Redrive, settings: Settings, wanted: DeadLetterFilter) -> None:
        paid_s = time.thread_time()

        def advanced(_remaining: int) -> None:
            nonlocal paid_s
            redrive.pause.wait((time.thread_time() - paid_s) * (1 / PROCESSOR_SHARE - 1))
            paid_s = time.thread_time()

        ended: RedriveState = "failed"
        try:
            job = redrive.job = self._job(redrive, settings, wanted)
            act = job.look if redrive.request.dry_run else job.carry_out
            ended = "done" if act(lambda: redrive.stopping, advanced) else "stopped"
        except SidecarError as cause:
            redrive.message = str(cause)
        except Exception:
            redrive.message = "The sidecar failed to redrive. See its log."
            raise
        finally:
            redrive.ended_ms = self._clock.wall_ms()
            redrive.state = ended
            log.info(
                "redrive_ended",
                run=redrive.run,
                topic=redrive.topic,
                outcome=ended,
                redriven=self._body(redrive).redriven,
                reason=redrive.message,
                dry_run=redrive.request.dry_run,
            )

    def _job(self, redrive: _Redrive, settings: Settings, wanted: DeadLetterFilter) -> RedriveJob:
        request = redrive.request
        terms = RedriveTerms(
            request.delay_ms,
            request.spread_ms,
            request.keep_attempts,
            request.max_redrives,
            request.to_origin or "",
            wanted.named,
        )
        return RedriveJob(
            settings,
            wanted,
            terms,
            RedriveLimits(request.limit, request.per_second),
            run_identity(settings, redrive.run),
            request.died_from,
            request.died_to,
            only=None if request.id is None else read_position(request.id),
            clock=self._clock,
        )

    def _body(self, redrive: _Redrive) -> RedriveBody:
        job, dry_run = redrive.job, redrive.request.dry_run
        tally = Tally() if job is None else job.tally
        sent = 0 if job is None else job.sent
        return RedriveBody(
            run=redrive.run,
            topic=redrive.topic,
            state=redrive.state,
            dry_run=dry_run,
            began_ms=redrive.began_ms,
            ended_ms=redrive.ended_ms,
            read=tally.read,
            redriven=tally.redriven if dry_run else sent,
            filtered=tally.filtered,
            left={why.value: dict(by_reason) for why, by_reason in list(tally.skipped.items())},
            first=[self._shown(each) for each in list(tally.first)],
            first_left=[
                SkippedBody(**self._shown(record).model_dump(), why=skipped.why.value, because=skipped.detail)
                for record, skipped in list(tally.first_skipped)
            ],
            handled_before=0 if job is None else job.handled_before,
            remaining=None if job is None else job.remaining,
            message=redrive.message,
        )
