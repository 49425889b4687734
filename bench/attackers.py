"""Clients that mean harm, each as fast as it is answered, in a process of their own."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sidecar.clock import SystemClock

HALF_SENT: Final = 100
HALF_SENT_PER_S: Final = 40
PATH_BYTES: Final = 70_000
YAML_NAMES: Final = ("origin.policies", "policies", "exception.policies", "backoff", "custom.headers")
YAML_BRACKETS: Final = 4_000
"""In each of the five: 20 kB. A longer value is not looked into."""
GLOB: Final = "*a" * 200 + "b"
TIMEOUT_S: Final = 10.0
_VALIDATE = "/connector-plugins/RetrySidecar/config/validate"
_CLOCK = SystemClock()
_HELD = deque[socket.socket]()
"""The connections that are held open; they end with the process."""

Answers = Counter[str]
"""How often each status was answered; `closed` without one."""


class Attack(NamedTuple):
    """What one client does again and again, and how many do it."""

    what: str
    clients: int
    once: Callable[[int, Answers], None]


def assail(name: str, port: int, seconds: int) -> None:
    """Attack for so long; print a line when it begins, and then one with what was answered."""
    attack = ATTACKS[name]
    answers = [Answers() for _ in range(attack.clients)]
    end_s = _CLOCK.monotonic_s() + seconds

    def client(answered: Answers) -> None:
        while _CLOCK.monotonic_s() < end_s:
            attack.once(port, answered)

    threads = [threading.Thread(target=client, args=(each,)) for each in answers]
    for thread in threads:
        thread.start()
    print("begins", flush=True)
    for thread in threads:
        thread.join()
    total = sum(answers, Answers())
    print(", ".join(f"{count} answered {status}" for status, count in sorted(total.items())), flush=True)


def _request(
    port: int, answers: Answers, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        answer.read()
        answers[str(answer.status)] += 1
    except (OSError, http.client.HTTPException):
        answers["closed"] += 1
    finally:
        connection.close()


def _half_sent(port: int, answers: Answers) -> None:
    """Open one more connection with half a request, and close the oldest of too many."""
    method, path = ("PATCH", "/pending/messages/0-0-1") if answers.total() % 2 else ("PUT", _VALIDATE)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    try:
        client = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        _HELD.append(client)
        client.sendall(f"{head}Content-Length: 50\r\n\r\n".encode())
        answers["nothing yet"] += 1
    except OSError:
        answers["closed"] += 1
    if len(_HELD) > HALF_SENT:
        _HELD.popleft().close()
    threading.Event().wait(1 / HALF_SENT_PER_S)


def _yaml(port: int, answers: Answers) -> None:
    _request(port, answers, "PUT", _VALIDATE, _YAML_BOMB, {"content-type": "application/json"})


def _headers(port: int, answers: Answers) -> None:
    _request(port, answers, "GET", "/pending/messages/id:bomb")


def _globs(port: int, answers: Answers) -> None:
    _request(port, answers, "GET", f"/pending/messages?limit=1000&exception={GLOB}")


def _paths(port: int, answers: Answers) -> None:
    _request(port, answers, "GET", "/" + "x" * PATH_BYTES)


def _metrics(port: int, answers: Answers) -> None:
    _yaml(port, answers)
    _request(port, answers, "GET", "/metrics")


def _slow_readers(port: int, answers: Answers) -> None:
    """Ask for much over one connection and read nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
            answers["not read"] += 1
            threading.Event().wait(1 / HALF_SENT_PER_S)
    except OSError:
        answers["closed"] += 1


_YAML_BOMB: Final = json.dumps(dict.fromkeys(YAML_NAMES, "[" * YAML_BRACKETS)).encode()
ATTACKS: Final[Mapping[str, Attack]] = {
    "bodies": Attack("100 half-sent bodies, 40 new ones a second", 1, _half_sent),
    "yaml": Attack("20 kB of nested YAML to validate, two clients", 2, _yaml),
    "headers": Attack("24 messages of 60,000 headers are asked for, two clients", 2, _headers),
    "globs": Attack("a glob of 200 parts over texts of 900 kB, two clients", 2, _globs),
    "paths": Attack("paths of 70 kB, two clients", 2, _paths),
    "flood": Attack("validations and /metrics, eight clients", 8, _metrics),
    "unread": Attack("50 requests for /metrics at once, no answer read, four clients", 4, _slow_readers),
}
"""By the name of its figure."""

if __name__ == "__main__":
    assail(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
