"""Control calls by HTTP, for clients that can reach an instance but not the cluster."""

from __future__ import annotations

import secrets
import threading
from typing import Any, Final
from urllib.parse import quote

import msgspec

from sidecar.cli.instance import Instances, Reply, Unanswered
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.contract.filter import MessageFilter
from sidecar.control.client import ControlResult
from sidecar.engine.items import target_text
from sidecar.model import ANY_SCOPE, Scope

AGAIN_S: Final = 0.5
_CALLS: Final = {
    ControlKind.CANCEL: ("DELETE", ""),
    ControlKind.RESCHEDULE: ("PATCH", ""),
    ControlKind.FIRE: ("POST", "/fire"),
    ControlKind.PAUSE: ("PUT", "/pause"),
    ControlKind.RESUME: ("PUT", "/resume"),
}


def new_control_id() -> str:
    """Return an id that has its creation time, so that little must be read to find its outcome."""
    return f"{SystemClock().wall_ms()}-{secrets.token_hex(8)}"


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
        control_id: str | None = None,
    ) -> ControlResult:
        """Return the outcome, or what is known of it at the deadline.

        What an instance has not applied is sent again. What it may have applied is looked up, and sent again under the
        same id, which acts once.

        Raises:
            Unanswered: No instance answers in time.
            CommandFailed: It is refused: the token, the address, or no sidecar at all.
        """
        clock, pause = SystemClock(), threading.Event()
        until_s = clock.monotonic_s() + deadline_s
        control_id = new_control_id() if control_id is None else control_id
        method, suffix = _CALLS[kind]
        text = target_text(target)
        path = f"/origins/{text}" if kind.is_for_origins else f"/pending/messages/{quote(text, safe='')}"
        body: dict[str, Any] | None = None if due_ms is None else {"due_ms": due_ms}
        if isinstance(target, MessageFilter):
            method, path, suffix = "POST", "/pending/messages", f"/{kind}"
            body = {"filter": msgspec.to_builtins(target) or {"due_from": 0}} | (body or {})
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
