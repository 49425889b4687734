"""The broker that demo and tests run on: start, crash, restart, end, and its download."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from sidecar.cli.broker import broker as broker_command
from sidecar.devbroker.jars import Quiet, cache_folder, classpath, locked_jars
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.errors import BrokerUnavailable, CommandFailed
from tests.broker import create_topic, read_committed
from tests.waiting import eventually

pytestmark = pytest.mark.broker

_COMMAND = [sys.executable, "-c", "from sidecar.cli.broker import broker; broker()"]


def _send(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended but was not waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def broker_pid(data_dir: Path) -> int:
    """Find the broker's process by its settings file."""
    wanted = str(data_dir / "server.properties").encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if wanted in arguments and b"kafka.Kafka" in arguments:
                return int(entry.name)
    raise AssertionError(f"no broker runs on {data_dir}")


@contextmanager
def _command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in its own process; yields it and the address that it printed."""
    process = subprocess.Popen([*_COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_what_was_written_is_there_after_a_crash_and_after_a_restart_on_the_same_address(
    own_broker: LocalBroker, topic_name: str
) -> None:
    address = own_broker.bootstrap_servers
    create_topic(address, topic_name, partitions=2)
    _send(address, topic_name, b"before the crash")
    own_broker.kill()
    assert not own_broker.running
    own_broker.start()
    _send(address, topic_name, b"before the restart")
    own_broker.restart()
    assert own_broker.bootstrap_servers == address
    assert {record.value for record in read_committed(address, [topic_name])} == {
        b"before the crash",
        b"before the restart",
    }


def test_stop_ends_the_process_and_deletes_the_temporary_folder(own_broker: LocalBroker) -> None:
    pid = own_broker.pid
    assert pid is not None
    assert own_broker.data_dir.is_dir()
    own_broker.stop()
    assert not alive(pid)
    assert not own_broker.data_dir.exists()
    assert own_broker.pid is None


def test_the_broker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with _command("--port", "0", "--data-dir", str(tmp_path)) as (parent, address):
        assert address.startswith("127.0.0.1:")
        pid = broker_pid(tmp_path)
        parent.kill()
        eventually(lambda: not alive(pid), 60, "the broker of a killed parent ends")


def test_sigterm_ends_the_command_in_order_and_a_given_folder_stays(tmp_path: Path) -> None:
    with _command("--port", "0", "--data-dir", str(tmp_path)) as (command, _):
        pid = broker_pid(tmp_path)
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
        assert not alive(pid)
    assert (tmp_path / "topics" / "meta.properties").is_file()


def test_a_port_in_use_is_one_clear_line_and_exit_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(broker_command, ["--port", str(port)])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: port {port} on 127.0.0.1 is in use by another process; choose another one with --port\n"
    )


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = LocalBroker(data_dir=tmp_path, properties={"num.io.threads": "many"})
    with pytest.raises(CommandFailed, match=r"Invalid value many for configuration num\.io\.threads"):
        broker.start()


def test_a_broker_that_ends_early_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broker = LocalBroker(data_dir=tmp_path, properties={"metric.reporters": "no.such.Reporter"})
    with pytest.raises(BrokerUnavailable, match=r"(?s)ended early.*no\.such\.Reporter"):
        broker.start()
    assert not broker.running


def test_a_data_folder_in_use_is_refused_and_its_broker_goes_on(own_broker: LocalBroker) -> None:
    second = LocalBroker(data_dir=own_broker.data_dir)
    with pytest.raises(CommandFailed, match=f"{own_broker.data_dir} is in use by another broker"):
        second.start()
    create_topic(own_broker.bootstrap_servers, "still-here")


class _Seen:
    """Remembers what was announced for download."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []

    def begin(self, files: int, bytes_total: int) -> None:
        self.announced.append((files, bytes_total))

    def received(self, bytes_count: int) -> None:
        raise AssertionError("nothing can be received")

    def finished(self, file: str) -> None:
        raise AssertionError("nothing can be finished")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every download to a port where nothing listens."""
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def complete_cache() -> None:
    """Fill the user's cache while there is a network."""
    classpath(Quiet())


@pytest.fixture
def copied_cache(complete_cache: None, tmp_path: Path) -> Path:
    """A complete cache for this test only."""
    for jar in locked_jars():
        copy = tmp_path / jar.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((cache_folder() / jar.path).read_bytes())
    (tmp_path / "complete").write_bytes((cache_folder() / "complete").read_bytes())
    return tmp_path


@pytest.mark.usefixtures("no_network")
def test_a_complete_cache_needs_no_network(copied_cache: Path) -> None:
    seen = _Seen()
    jars = classpath(seen, copied_cache).split(os.pathsep)
    assert len(jars) == len(locked_jars())
    assert all(Path(jar).is_file() for jar in jars)
    assert seen.announced == []


@pytest.mark.usefixtures("no_network")
def test_an_interrupted_download_is_noticed_and_only_what_is_missing_is_asked_for(copied_cache: Path) -> None:
    broken = next(jar for jar in locked_jars() if "kafka-clients" in jar.coordinate)
    content = (copied_cache / broken.path).read_bytes()
    (copied_cache / broken.path).write_bytes(content[: len(content) // 2])
    (copied_cache / "complete").unlink()
    seen = _Seen()
    with pytest.raises(CommandFailed, match=r"kafka-clients.*cannot be downloaded"):
        classpath(seen, copied_cache)
    assert seen.announced == [(1, len(content))]


@pytest.mark.usefixtures("no_network")
def test_a_jar_with_the_right_size_and_the_wrong_content_is_not_accepted(copied_cache: Path) -> None:
    broken = locked_jars()[0]
    content = (copied_cache / broken.path).read_bytes()
    (copied_cache / broken.path).write_bytes(bytes(len(content)))
    (copied_cache / "complete").unlink()
    with pytest.raises(CommandFailed, match=broken.coordinate):
        classpath(_Seen(), copied_cache)
