"""One sidecar in a separate process, as an operator runs it."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.waiting import LateError, until

TREE = Path(__file__).parent.parent
"""The sources of this benchmark."""
_START_S = 60.0
_STOP_S = 40.0


class SidecarProcess:
    """Starts `python -m sidecar run`, or another command that stays up, and ends it with SIGTERM.

    Args:
        bootstrap_servers: of the broker.
        app_id: names the group and the internal topics, so a new one is a new sidecar.
        topic: the retry topic.
        folder: holds the state folder and the log; the same one again is a restart.
        command: What to run of the sidecar; `run` without it.
        tree: The sources of the sidecar.
        settings: Further ones, by name without KAFKA_RETRY_.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        app_id: str,
        topic: str,
        folder: Path,
        *command: str,
        tree: Path = TREE,
        **settings: str,
    ) -> None:
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._tree = tree
        self._command = command or ("run",)
        self.app_id = app_id
        self.topic = topic
        self.group = f"connect-{app_id}"
        self.state_dir = folder / app_id
        self.log_path = folder / f"{app_id}.log"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        # Installed packages have bytecode, so it is written here too.
        unwanted = ("KAFKA_RETRY_", "PYTHONDONTWRITEBYTECODE")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        self._environment = {
            **clean,
            "PYTHONPATH": str(tree),
            "KAFKA_RETRY_BOOTSTRAP_SERVERS": bootstrap_servers,
            "KAFKA_RETRY_STREAMS_APP_ID": app_id,
            "KAFKA_RETRY_INPUT_TOPIC": topic,
            "KAFKA_RETRY_DLQ_TOPIC": "bench-dlq",
            "KAFKA_RETRY_ORIGIN_TOPICS": "bench-origin-*",
            "KAFKA_RETRY_START_AT": "earliest",
            "KAFKA_RETRY_STATE_DIR": str(self.state_dir),
            "KAFKA_RETRY_HTTP_PORT": str(self.port),
            "KAFKA_RETRY_LOG_FORMAT": "json",
            **{f"KAFKA_RETRY_{name}": value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start and return at once."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sidecar", *self._command],
                cwd=self._tree,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        assert self._process is not None, "not started"
        return self._process.pid

    def await_ready(self) -> None:
        """Wait until it is ready to ingest and fire messages."""
        until(lambda: self.get("/readyz")[0] == 200, _START_S, f"{self.app_id} is ready, see {self.log_path}")

    def stop(self) -> None:
        """Stop it cleanly; does nothing when it is not running.

        Raises:
            LateError: it had to be killed.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            status = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise LateError(
                f"{self.app_id} did not end within {_STOP_S:g} s of SIGTERM\n{self._last_lines()}"
            ) from None
        if status:
            raise RuntimeError(f"{self.app_id} ended with status {status}\n{self._last_lines()}")

    def run(self, deadline_s: float) -> float:
        """Run a command that ends by itself; return the processor time that it took.

        Raises:
            LateError: it had to be killed.
            RuntimeError: it failed.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.start()
        process, self._process = self._process, None
        assert process is not None, "not started"
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise LateError(f"{self._command} did not end within {deadline_s:g} s\n{self._last_lines()}") from None
        if status:
            raise RuntimeError(f"{self._command} ended with status {status}\n{self._last_lines()}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON body; status 0 while the port is closed.

        Raises:
            RuntimeError: the process ended by itself.
        """
        self.check()
        connection = self.connect()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except ConnectionError:
            return 0, None
        finally:
            connection.close()

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            RuntimeError: it ended by itself.
        """
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"{self.app_id} ended with status {self._process.returncode}\n{self._last_lines()}")

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the API, not yet open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def pending(self) -> int:
        """Return how many messages wait."""
        status, body = self.get("/pending")
        return int(body["total"]) if status == 200 else -1

    def resident_bytes(self) -> int:
        """Return the resident memory of the process; Linux only."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Return the processor time that all threads have taken so far; Linux only."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _last_lines(self) -> str:
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
