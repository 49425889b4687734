"""Control calls by HTTP, for clients that can reach an instance but not the cluster."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final
from urllib.parse import quote

from sidecar.cli.instance import Instances, Reply, Unanswered
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.control.client import ControlResult
from sidecar.control.stream import TimerOutcome
from sidecar.engine.items import target_text
from sidecar.model import ANY_SCOPE, Scope, TimerId

AT_A_TIME: Final = 32
"""The number of calls that an instance works on at a time."""
AGAIN_S: Final = 0.5
_CALLS: Final = {
    ControlKind.CANCEL: ("DELETE", ""),
    ControlKind.RESCHEDULE: ("PATCH", ""),
    ControlKind.FIRE: ("POST", "/fire"),
    ControlKind.PAUSE: ("PUT", "/pause"),
    ControlKind.RESUME: ("PUT", "/resume"),
}


class HttpControl:
    """Acts on targets through an instance. Any number of threads may share it."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def act(
        self,
        kind: ControlKind,
        target: Target,
        *,
        due_ms: int | None,
        deadline_s: float,
        scope: Scope = ANY_SCOPE,
        ended: threading.Event | None = None,
    ) -> ControlResult:
        """Return the outcome, or what is known of it at the deadline.

        What an instance has not applied is sent again. What it may have applied is looked up, and sent again under the
        same id, which acts once.

        Raises:
            Unanswered: No instance answers in time.
            CommandFailed: It is refused: the token, the address, or no sidecar at all.
        """
        clock, pause = SystemClock(), ended or threading.Event()
        until_s = clock.monotonic_s() + deadline_s
        control_id = f"{clock.wall_ms()}-{secrets.token_hex(8)}"
        method, suffix = _CALLS[kind]
        text = target_text(target)
        path = f"/origins/{text}" if kind.is_for_origins else f"/pending/messages/{quote(text, safe='')}"
        body = None if due_ms is None else {"due_ms": due_ms}
        given = {"control_id": control_id, "origin": scope.origin or None, "group": scope.group}
        query = {name: value for name, value in given.items() if value is not None}
        result: ControlResult | None = None
        may_act = False
        while True:
            try:
                if may_act and (found := self.lookup(result.control_id if result else control_id)) is not None:
                    result = found
                elif result is None:
                    result = _result(self._instances.ask(method, f"{path}{suffix}", query=query, body=body), text)
                wait_s, error = AGAIN_S, None
            except Unanswered as cause:
                wait_s, error = max(AGAIN_S, cause.wait_s), cause
            may_act = may_act or result is not None or (error is not None and error.unknown)
            if result is not None and result.outcome is not None:
                return result
            # At the deadline once more: what was sent may have its outcome meanwhile.
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0 or pause.wait(min(wait_s, left_s)):
                break
        if result is not None:
            return result
        again = f"it may be applied: look it up with: retry-sidecar outcome {control_id}" if may_act else "not applied"
        raise Unanswered(f"{kind} {text}: {again}: {error}", unknown=may_act)

    def lookup(self, control_id: str) -> ControlResult | None:
        """Return the outcome of a control record, None while it is unknown. Raises CommandFailed."""
        reply = self._instances.ask("GET", f"/control/{quote(control_id, safe='')}")
        if reply.status == 404 and isinstance(reply.body, dict) and "error_code" in reply.body:
            return None
        return _result(reply, "")


def _result(reply: Reply, target: str) -> ControlResult:
    body: Any = reply.body
    if reply.status == 400 and isinstance(body, dict):
        return ControlResult("", target, Outcome.BAD_REQUEST, 0, str(body.get("message", "")), {}, ())
    try:
        outcome = None if body["result"] is None else Outcome(body["result"])
        missing = tuple(map(int, body["missing"]))
        texts = str(body["control_id"]), str(body["target"]), outcome, int(body["count"]), str(body["detail"])
        return ControlResult(*texts, {}, missing, known=body.get("known"))
    except (KeyError, TypeError, ValueError):
        raise reply.refusal() from None


class HttpStream:
    """Acts on timers, a few at a time; as `kafka.control_stream.ControlStream`, which is many times as fast."""

    in_flight_max = AT_A_TIME

    def __init__(self, instances: Instances, kind: ControlKind, due_ms: int | None, *, deadline_s: float) -> None:
        self._control = HttpControl(instances)
        self._kind = kind
        self._due_ms = due_ms
        self._deadline_s = deadline_s
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="control")
        self._asked: dict[Future[TimerOutcome], TimerId] = {}
        self._failed: set[Future[TimerOutcome]] = set()
        self._ended = threading.Event()

    @property
    def in_flight(self) -> Sequence[TimerId]:
        """Timers that were sent and have no answer yet."""
        return list(self._asked.values())

    def put(self, timer: TimerId) -> None:
        """Start the call for a timer; returns at once."""
        self._asked[self._pool.submit(self._act, timer)] = timer

    def answers(self, timeout_s: float) -> list[TimerOutcome]:
        """Return the outcomes that have come, waiting so long for the first one.

        Raises:
            CommandFailed: All calls that are left have failed.
        """
        pending = [future for future in self._asked if future not in self._failed]
        if not self._asked:
            self._ended.wait(timeout_s)  # the rate allows no more for now
        elif not pending:
            next(iter(self._failed)).result()
        done, _ = wait(pending, timeout_s, FIRST_COMPLETED)
        self._failed |= {future for future in done if future.exception() is not None}
        good = done - self._failed
        for future in good:
            del self._asked[future]
        return [future.result() for future in good]

    def close(self) -> None:
        """Start no more calls, and wait for those under way."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)

    def _act(self, timer: TimerId) -> TimerOutcome:
        """Ask until there is an outcome. Raises CommandFailed."""
        result = self._control.act(
            self._kind, timer, due_ms=self._due_ms, deadline_s=self._deadline_s, ended=self._ended
        )
        if result.outcome is None:
            numbers = ", ".join(map(str, result.missing))
            raise Unanswered(f"{timer}: no answer from partition {numbers} in time", unknown=True)
        return TimerOutcome(timer, result.outcome, result.detail)
