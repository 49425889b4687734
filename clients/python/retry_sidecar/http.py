"""Cancel, reschedule and fire pending messages over HTTP, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

_ANSWER_S: Final = 15.0
"""The longest wait for a response: a sidecar itself waits 5 s for the owner of a partition."""
_PAUSE_S: Final = 0.2
_WAIT_MAX_S: Final = 60.0
"""The longest `Retry-After` that is kept."""
_RETRIED: Final = (http.client.HTTPException, OSError)


class Outcome(StrEnum):
    """The definite result of a change, which the sidecar commits in one transaction with its effect."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    FIRED = "fired"
    NOT_PENDING = "not-pending"
    """No message with this id is pending: it has fired, was cancelled, or never existed."""
    ORIGIN_PAUSED = "origin-paused"
    """Nothing fired, because the origin is paused or closed. The message stays pending."""
    BAD_REQUEST = "bad-request"
    """Refused, as a signed request that reached an owner after 10 minutes; `detail` says why. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a cancel, reschedule or fire."""

    outcome: Outcome
    count: int
    """The number of messages."""
    control_id: str
    detail: str


class SidecarRefused(Exception):
    """A sidecar refused a request, could not carry it out in time, or nothing listens; nothing changed.

    Attributes:
        status: The HTTP status; 0 when nothing listens.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _NotNow(SidecarRefused):
    """Nothing changed, and the request may be repeated.

    Attributes:
        wait_s: What the sidecar asks to wait before.
    """

    def __init__(self, status: int, message: str, wait_s: float) -> None:
        super().__init__(status, message)
        self.wait_s = wait_s


class NoOutcome(Exception):
    """There is no outcome yet; the change may still take effect. Ask again with `Sidecar.outcome`.

    Attributes:
        control_id: The id of the change.
    """

    def __init__(self, control_id: str, message: str) -> None:
        super().__init__(message)
        self.control_id = control_id


class Sidecar:
    """The HTTP API of a sidecar: any instance of the group, or `retry-sidecar api`.

        sidecar = Sidecar("http://retry-sidecar:8080", token=token)
        if sidecar.cancel("id:order-17").outcome is Outcome.CANCELLED:
            ...  # it is never delivered

    Threads can share it. In asyncio: `await asyncio.to_thread(sidecar.cancel, "id:order-17")`.

    Args:
        url: The address, `http` or `https`.
        token: The sidecar's API_TOKEN.
        deadline_s: The longest wait for an outcome, in seconds.
    """

    def __init__(self, url: str = "http://localhost:8080", *, token: str | None = None, deadline_s: float = 30) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"url={url!r}: allowed are addresses such as http://retry-sidecar:8080")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._deadline_s = deadline_s

    def cancel(self, target: str, *, origin: str | None = None) -> Change:
        """Remove pending messages, which are then never delivered to a read_committed consumer.

        Args:
            target: A timer id, or `id:` and a retry id, which stands for all pending messages of that id.
            origin: Only messages that wait for this topic, where several applications may use the same retry id.

        Raises:
            SidecarRefused: Target or token is wrong, nothing listens, or the sidecar has too much to do or reaches no
                broker until the deadline; nothing changed.
            NoOutcome: No outcome within the deadline; the change may still take effect.
        """
        return self._change("DELETE", _path(target), None, origin)

    def reschedule(
        self, target: str, *, due_ms: int | None = None, delay_ms: int | None = None, origin: str | None = None
    ) -> Change:
        """Give pending messages another due time.

        Args:
            target: As in `cancel`.
            due_ms: The due time, in epoch milliseconds UTC.
            delay_ms: The delay from now.
            origin: As in `cancel`.

        Raises:
            ValueError: Not exactly one of the two is given.
            SidecarRefused: As in `cancel`.
            NoOutcome: As in `cancel`.
        """
        if (due_ms is None) == (delay_ms is None):
            raise ValueError(f"due_ms={due_ms} and delay_ms={delay_ms}: allowed is exactly one of them")
        body = {"due_ms": due_ms} if delay_ms is None else {"delay_ms": delay_ms}
        return self._change("PATCH", _path(target), body, origin)

    def fire(self, target: str, *, origin: str | None = None) -> Change:
        """Deliver pending messages now.

        Args:
            target: As in `cancel`.
            origin: As in `cancel`.

        Raises:
            SidecarRefused: As in `cancel`.
            NoOutcome: As in `cancel`.
        """
        return self._change("POST", f"{_path(target)}/fire", None, origin)

    def outcome(self, control_id: str) -> Change | None:
        """Return the outcome of an earlier change; None while there is none, or when it is older than a day.

        Raises:
            SidecarRefused: The id is wrong.
            NoOutcome: No broker answers, or a proxy failed.
            OSError: The sidecar does not answer.
            http.client.HTTPException: What answers is no HTTP server, or ended the connection.
        """
        status, body, wait_s = self._ask("GET", f"/control/{quote(control_id, safe='')}", None)
        if status == 404:
            return None
        return _change(status, body, wait_s, control_id)

    def _change(self, method: str, path: str, body: object, origin: str | None) -> Change:
        until_s = time.monotonic() + self._deadline_s
        # Known before the response, which can be lost. The sidecar finds an id faster that begins with its time.
        control_id = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(8)}"
        query = urlencode({"control_id": control_id} | ({} if origin is None else {"origin": origin}))
        reason = ""
        while True:
            try:
                change = _change(*self._ask(method, f"{path}?{query}", body), control_id)
                break
            except _NotNow as error:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise
                time.sleep(min(left_s, max(_PAUSE_S, error.wait_s)))
            except NoOutcome as error:
                change, reason = None, f": {error}"
                break
            except ConnectionRefusedError as error:
                raise SidecarRefused(0, f"nothing listens at {self._host}:{self._port}: {error}") from error
            except _RETRIED as error:
                change, reason = None, f": the response of {self._host}:{self._port} was lost: {error}"
                break
        while change is None:
            if time.monotonic() >= until_s:
                raise NoOutcome(control_id, f"no outcome of {control_id} within {self._deadline_s:g} s{reason}")
            time.sleep(_PAUSE_S)
            try:
                change = self.outcome(control_id)
            except (SidecarRefused, NoOutcome, *_RETRIED):
                # The change may be accepted: an instance that cannot answer for a while says nothing about it.
                continue
        return change

    def _ask(self, method: str, path: str, body: object) -> tuple[int, dict[str, Any], float]:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_ANSWER_S)
        try:
            content = None if body is None else json.dumps(body)
            headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
            connection.request(method, f"{self._path}{path}", content, headers)
            response = connection.getresponse()
            wait = response.headers.get("Retry-After", "")
            wait_s = min(float(wait), _WAIT_MAX_S) if wait.isascii() and wait.isdigit() else 0.0
            return response.status, _parsed(response.read()), wait_s
        finally:
            connection.close()


def _path(target: str) -> str:
    return f"/pending/messages/{quote(target, safe='')}"


def _parsed(content: bytes) -> dict[str, Any]:
    """Return the body; what is no JSON object, as of a proxy, becomes the message of an error."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"message": content[:200].decode(errors="replace")}


def _change(status: int, body: dict[str, Any], wait_s: float, control_id: str) -> Change | None:
    """Return the outcome in a response; None while partitions have not answered."""
    if "result" not in body:
        text = f"{status}: {body.get('message', 'no message')}"
        if status == 429 or (status >= 500 and body.get("applied") == "no"):
            raise _NotNow(status, text, wait_s)
        # A server that fails may have written the control record before.
        raise SidecarRefused(status, text) if status < 500 else NoOutcome(control_id, text)
    if body["result"] is None:
        return None
    return Change(Outcome(body["result"]), body["count"], body["control_id"], body["detail"])
