"""The processes of a query keep no sockets: as many are open after many micro-batches as before."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import psutil
import pytest
from confluent_kafka import Producer

from tests.integration.messages import native, scrape
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.spark.queries import WAIT_S, command
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

BATCHES = 50
WARM = 10
STATE_PARTITIONS = 2
PROCESSES = {"driver", "driver-jvm", "executor-jvm", "worker"}


def sockets(pid: int) -> int:
    """Return the number of sockets that a process has open."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(each.readlink()).startswith("socket:")
    return found


def jvm_of(one: Sidecar) -> int:
    (found,) = [each for each in psutil.Process(one.pid).children(recursive=True) if each.name() == "java"]
    return int(found.pid)


@contextmanager
def messages(stage: Stage) -> Iterator[None]:
    """Send a few messages ten times a second, so that each micro-batch has records and due timers."""
    stopped = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": stage.bootstrap})
        headers = native(stage, b"m", 700)
        while not stopped.wait(0.1):
            for number in range(stage.partitions):
                producer.produce(stage.input_topic, b"value", b"key", number, headers=list(headers))
            producer.flush(WAIT_S)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        stopped.set()
        sending.join()


def open_files(one: Sidecar, name: str = "open_files") -> dict[str, int]:
    """Return what the driver shows of its own and its executors' processes."""
    lines = re.findall(rf'^retry_sidecar_{name}{{process="([a-z-]+)"}} ([0-9.e+]+)$', scrape(one), re.MULTILINE)
    return {process: int(float(value)) for process, value in lines}


def test_a_query_keeps_no_socket_of_a_micro_batch(java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("only Linux shows the files of a process, in /proc")
    one = sidecars.make("one", stage)
    one.start(command("run", tmp_path, "--state-partitions", str(STATE_PARTITIONS)))
    one.await_ready(WAIT_S)
    jvm, seen = jvm_of(one), dict[int, int]()

    def looked_at(until: int) -> bool:
        _, health = one.get("/health")
        batch = 0 if health is None else health["details"].get("micro_batch", 0)
        seen[batch] = sockets(jvm)
        return bool(batch >= until)

    with messages(stage):
        first = WARM + eventually(lambda: looked_at(1) and max(seen), WAIT_S, "it runs")
        eventually(lambda: looked_at(first), WAIT_S, "it is warm")
        seen.clear()
        eventually(lambda: looked_at(first + BATCHES), WAIT_S, "it has run for long enough")
        eventually(lambda: len(open_files(one)) == len(PROCESSES), WAIT_S, "all processes are counted")
        shown, most = open_files(one), open_files(one, "open_files_max")
    counted = [number for _, number in sorted(seen.items())]
    fifth = len(counted) // 5
    # One for each state partition and micro-batch would be twice as many as there were micro-batches.
    assert median(counted[-fifth:]) - median(counted[:fifth]) < BATCHES / 2, counted

    assert shown.keys() == most.keys() == PROCESSES
    assert all(0 < shown[process] < most[process] for process in shown)
    assert shown["driver-jvm"] >= sockets(jvm) / 2
    assert one.stop(60) == 0
