"""Sidecars in processes of their own, as operators run them: settings by environment, own state folders, real signals.

    def test_something(stage: Stage, sidecars: Sidecars) -> None:
        one = sidecars.start("one", stage)          # waits until /readyz says 200
        one.kill()
        two = sidecars.start("two", stage, COMMIT_INTERVAL_MS="10")

The fixtures `stage` (topics of the test's own on the shared broker) and `sidecars` (ends every process that the test
leaves, and shows what each logged when the test fails) are in conftest.py.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.broker import create_topic, unique
from tests.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
READY_S: Final = 60.0
END_S: Final = 90.0
LOG_LINES: Final = 60
ANSWER_S: Final = 30.0
"""Longest silence of an instance that answers."""
LOG_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}

Command = Sequence[str]
PLAIN: Final[Command] = ("-m", "sidecar", "run")
API: Final[Command] = ("-m", "sidecar", "api")


@dataclass(frozen=True, slots=True)
class Stage:
    """The topics of one application on a broker, under unique names."""

    bootstrap: str
    app_id: str
    partitions: int = 4

    @property
    def input_topic(self) -> str:
        return f"{self.app_id}-retry"

    @property
    def dlq_topic(self) -> str:
        return f"{self.app_id}-dlq"

    @property
    def origin(self) -> str:
        """Stamped by the broker, so that its timestamps say when a message really came back."""
        return f"{self.app_id}-orders"

    @property
    def changelog_topic(self) -> str:
        return f"{self.app_id}-retry-queue-changelog"

    @property
    def status_topic(self) -> str:
        return f"{self.app_id}-status"

    @property
    def group_id(self) -> str:
        return f"connect-{self.app_id}"

    @property
    def flags(self) -> list[str]:
        """The flags by which a command means the same topics."""
        flags = {
            "--bootstrap-servers": self.bootstrap,
            "--streams-app-id": self.app_id,
            "--input-topic": self.input_topic,
            "--dlq-topic": self.dlq_topic,
        }
        return [text for flag in flags.items() for text in flag]


def set_stage(bootstrap: str, partitions: int = 4, origins: Sequence[str] = ()) -> Stage:
    """Create input, DLQ, the origin and further origins; the sidecar makes the rest."""
    stage = Stage(bootstrap, unique("app"), partitions)
    create_topic(bootstrap, stage.input_topic, partitions)
    create_topic(bootstrap, stage.dlq_topic)
    for origin in (stage.origin, *origins):
        create_topic(bootstrap, origin, 2, LOG_APPEND_TIME)
    return stage


class Sidecar:
    """One instance: its state folder, its log, and the process while there is one.

    Args:
        name: of folder and log file.
        stage: its topics.
        folder: where both are.
        settings: by name without KAFKA_RETRY_, over what the stage says; HTTP_PORT is a free one.
    """

    def __init__(self, name: str, stage: Stage, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.stage = stage
        self.state_dir = folder / name
        self.log_path = folder / f"{name}.log"
        own = {
            "BOOTSTRAP_SERVERS": stage.bootstrap,
            "STREAMS_APP_ID": stage.app_id,
            "INPUT_TOPIC": stage.input_topic,
            "DLQ_TOPIC": stage.dlq_topic,
            "ORIGIN_TOPICS": f"{stage.app_id}-*",
            # Tests send before they start.
            "START_AT": "earliest",
            "STATE_DIR": str(self.state_dir),
            # 0 takes any free port; which one it is stands in the log, so that no two processes race for it.
            "HTTP_PORT": "0",
            **settings,
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_RETRY_")}
        self.environment = {**clean, **{f"KAFKA_RETRY_{name}": value for name, value in own.items()}}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._port = 0

    # Life

    def start(self, command: Command = PLAIN) -> None:
        """Start the process and return at once."""
        assert not self.running, f"{self.name} runs already"
        self._port = 0
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status of the last process; None while it runs, or when there was none."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def await_ready(self, deadline_s: float = READY_S) -> None:
        """Wait until /readyz says 200."""
        eventually(self.ready, deadline_s, f"{self.name} is ready")

    def wait(self, deadline_s: float = END_S) -> int:
        """Wait for the end and return the exit status: negative for the signal that ended it."""
        assert self._process is not None, f"{self.name} was never started"
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {deadline_s:g} s") from None

    def stop(self, deadline_s: float = END_S) -> int:
        """Ask for the end with SIGTERM and return the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(deadline_s)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        """Stop the whole process with SIGSTOP; it knows nothing of it."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on with SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        assert self.running, f"{self.name} does not run: status {self._process and self._process.returncode}"
        os.kill(self.pid, number)

    def frozen(self) -> bool:
        """Tell whether the process is stopped by SIGSTOP; Linux only."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return fields[0] == "T"

    def forget_state(self) -> None:
        """Delete the state folder, as a new machine has none; a sidecar killed while it started has not made it yet."""
        assert not self.running
        if self.state_dir.exists():
            shutil.rmtree(self.state_dir)

    def end(self) -> None:
        """Leave no process behind, whatever it is doing."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_S)

    # What it says

    @property
    def log(self) -> str:
        """All it has logged since its last start."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def recoveries(self, partition: int) -> int:
        """Return how often a partition has recovered since the last start."""
        return len(re.findall(rf"partition_restored .*\bpartition={partition} ", self.log))

    def last_lines(self) -> str:
        """Return the end of the log over all starts, for a person."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""
        return "\n".join(f"  {self.name} | {line}" for line in text.splitlines()[-LOG_LINES:])

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON body; status 0 without an answer.

        Raises:
            AssertionError: the process has ended.
        """
        assert self.running, f"{self.name} ended with status {self._process and self._process.returncode}"
        if not self._port:
            _, _, rest = self.log.partition("url=http://127.0.0.1:")
            digits = rest.split(maxsplit=1)[0] if rest else ""
            self._port = int(digits) if digits.isdigit() else 0
        if not self._port:
            return 0, None
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        try:
            # Of several tokens the first one is sent, as instances do among themselves.
            token = self.environment.get("KAFKA_RETRY_API_TOKEN", "").partition(",")[0]
            connection.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def call(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Return status and JSON body of a call, None for no body; it is there to answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        given = {**headers} if body is None else {**headers, "content-type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), given)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def change(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Return status and body of a call that changes what waits, with its outcome however late that comes.

        An answer of 202 says that an owner has not answered within 5 s: then the outcome is looked up.
        """
        status, said = self.call(method, path, body, headers)
        if status != 202:
            return status, said

        def told() -> Any:
            found, answer = self.call("GET", f"/control/{quote(said['control_id'], safe='')}", None, headers)
            return answer if found == 200 and answer["result"] is not None else None

        late = eventually(told, READY_S, f"{method} {path} has its outcome")
        return {"not-pending": 404, "origin-paused": 409}.get(late["result"], 200), late

    @property
    def port(self) -> int:
        """The port of its HTTP server; known once it listens."""
        self.get("/livez")
        return self._port

    def ready(self) -> bool:
        """Tell whether /readyz says 200."""
        return self.get("/readyz")[0] == 200

    def pending(self) -> int:
        """Return how many messages wait in the partitions that it owns; -1 while it does not answer."""
        own = self._own_partitions()
        return -1 if own is None else sum(int(each["pending"]) for each in own)

    def group(self) -> dict[str, Any] | None:
        """Return what it says of the whole group; None while it does not answer."""
        status, body = self.get("/pending")
        return body if status == 200 else None

    def overdue(self) -> int:
        """Return how many wait though they were due before this second; -1 while it does not answer."""
        status, body = self.get("/pending")
        return int(body["overdue"]) if status == 200 else -1

    def partitions(self) -> dict[int, str]:
        """Return the state of each partition that it owns."""
        return {each["partition"]: each["state"] for each in self._own_partitions() or ()}

    def _own_partitions(self) -> list[dict[str, Any]] | None:
        _, health = self.get("/health")
        group = self.group()
        if health is None or group is None:
            return None
        return [each for each in group["partitions"] if each["owner"] == health["details"].get("instance_id")]


class Sidecars:
    """Starts instances, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Sidecar] = []

    def make(self, name: str, stage: Stage, **settings: str) -> Sidecar:
        """Return an instance that is not started yet."""
        assert name not in {each.name for each in self.all}, f"there is a {name} already"
        made = Sidecar(name, stage, self.folder, settings)
        self.all.append(made)
        return made

    def start(self, name: str, stage: Stage, **settings: str) -> Sidecar:
        """Start an instance and return when it is ready."""
        made = self.make(name, stage, **settings)
        made.start()
        made.await_ready()
        return made

    def end(self) -> None:
        """End all and print what they logged: pytest shows it when the test failed."""
        for each in self.all:
            each.end()
        for each in self.all:
            print(each.last_lines())
