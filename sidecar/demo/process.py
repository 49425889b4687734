"""The sidecar as a child process, and its figures over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.metrics import PREFIX

_PREFIX_OF_SETTINGS: Final = "KAFKA_RETRY_"
READY_S = 60.0
_ASK_S = 5.0
_STOP_S = 40.0
_LOOK_AGAIN_S = 0.05
_LOG_LINES = 15

# Ends the sidecar when this process has ended for any reason: the pipe closes with its last writer.
_WATCHDOG = 'read -r pid; read -r _; kill -TERM "$pid"'


class Figures(NamedTuple):
    """The figures of the sidecar, from `GET /pending` and `GET /metrics`."""

    pending: int
    received: int
    fired: int
    dropped: int
    dead_lettered: Mapping[str, int]
    """The dead letters by reason; only reasons that occurred."""
    lateness_p50_ms: float | None
    """An upper bound for half of the deliveries: the upper end of a histogram bucket."""
    lateness_p99_ms: float | None


class SidecarProcess:
    """A child process with `retry-sidecar run`, or with the Spark engine.

    Args:
        settings: The settings by name, without the prefix; those of the environment are ignored.
        folder: An existing folder for its log.
        command: The command of `retry-sidecar`, with its arguments.
        ready_s: The longest time until it is ready.
    """

    def __init__(
        self, settings: Mapping[str, str], folder: Path, command: Sequence[str] = ("run",), ready_s: float = READY_S
    ) -> None:
        self._command = command
        self._ready_s = ready_s
        self.log_path = folder / "sidecar.log"
        self.url = ""
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pause = threading.Event()
        # It runs on this machine: a proxy of the environment does not apply. Each connection ends with its answer.
        self._http = httpx.Client(trust_env=False, timeout=_ASK_S, limits=httpx.Limits(max_keepalive_connections=0))

    def start(self) -> None:
        """Start the sidecar and return when it is ready.

        Raises:
            CommandFailed: It ended, or was not ready in time; the text has the end of its log.
        """
        foreign = {name: text for name, text in os.environ.items() if not name.startswith(_PREFIX_OF_SETTINGS)}
        own = {_PREFIX_OF_SETTINGS + name: text for name, text in self._settings.items()}
        with self.log_path.open("ab") as log:
            # In a new session, so that Ctrl-C in the terminal reaches this process only, which stops the sidecar.
            # -P: no imports from the working folder.
            self._process = subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-P", "-m", "sidecar", *self._command],
                env={**foreign, **own, f"{_PREFIX_OF_SETTINGS}LOG_FORMAT": "json"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(  # noqa: S603 - a constant script
            ["/bin/sh", "-c", _WATCHDOG, "retry-sidecar-demo-watchdog"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.write(f"{self._process.pid}\n".encode())
            self._watchdog.stdin.flush()
        self._await_ready()

    def check(self) -> None:
        """Raise CommandFailed when the sidecar has ended."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            raise CommandFailed(f"the sidecar ended with status {status}; its log says:\n{self._last_log_lines()}")

    def look(self) -> Figures:
        """Return its figures. Raises CommandFailed when it does not answer."""
        self.check()
        try:
            pending = int(self._get("/pending").json()["total"])
            return _figures(pending, self._get("/metrics").text)
        except httpx.HTTPError as error:
            raise CommandFailed(f"the sidecar does not answer at {self.url}: {error}") from error

    def stop(self) -> int | None:
        """Stop the sidecar cleanly; return its exit status, None when it did not run."""
        process, self._process = self._process, None
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _await_ready(self) -> None:
        clock = SystemClock()
        until_s = clock.monotonic_s() + self._ready_s
        while clock.monotonic_s() < until_s:
            self.check()
            self.url = self.url or self._announced_url()
            if self.url and self._is_ready():
                return
            self._pause.wait(_LOOK_AGAIN_S)
        raise CommandFailed(f"the sidecar was not ready within {self._ready_s:g} s:\n{self._last_log_lines()}")

    def _announced_url(self) -> str:
        """Return the URL in its log: it picks a free port itself, so no other process can take it in between."""
        return next((str(line["url"]) for line in self._log_lines() if line.get("event") == "http_listening"), "")

    def _is_ready(self) -> bool:
        try:
            self._get("/readyz")
        except httpx.HTTPError:
            return False
        return True

    def _get(self, path: str) -> httpx.Response:
        """Return a good answer. Raises httpx.HTTPError for any other."""
        return self._http.get(f"{self.url}{path}").raise_for_status()

    def _log_lines(self) -> Iterator[Mapping[str, Any]]:
        for line in self.log_path.read_text("utf-8", errors="replace").splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if isinstance(fields, dict):
                yield fields

    def _last_log_lines(self) -> str:
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join(f"  | {line}" for line in lines) or "  (no log)"


def _figures(pending: int, page: str) -> Figures:
    received: dict[str, int] = {}
    reasons: dict[str, int] = {}
    fired = 0
    buckets: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            match sample.name.removeprefix(PREFIX):
                case "received_total":
                    received[sample.labels["verdict"]] = int(sample.value)
                case "dead_lettered_total" if sample.value:
                    reasons[sample.labels["reason"]] = int(sample.value)
                case "fired_total":
                    fired += int(sample.value)
                case "lateness_seconds_bucket":
                    buckets.append((float(sample.labels["le"]), sample.value))
                case _:
                    pass
    return Figures(
        pending=pending,
        received=sum(received.values()),
        fired=fired,
        dropped=received.get("dropped", 0),
        dead_lettered=reasons,
        lateness_p50_ms=_bound_ms(buckets, 0.50),
        lateness_p99_ms=_bound_ms(buckets, 0.99),
    )


def _bound_ms(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Return the upper end of the quantile's bucket; None without any value."""
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    return next(bound for bound, at_most in buckets if at_most >= share * total) * 1000
