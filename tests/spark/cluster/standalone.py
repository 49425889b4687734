"""A standalone cluster of Spark on this machine: master, workers and executors in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.integration.sidecars import ROOT
from tests.spark.cluster.trap import Trap
from tests.waiting import eventually

START_S: Final = 60.0
LOST_S: Final = 15
"""The time without a heartbeat after which the master takes a worker for lost."""
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
LOG_LINES: Final = 25
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_TRAP: Final = Path(__file__).parent / "trap"


class Worker:
    """A worker of the cluster, with the executors that it started.

    Args:
        name: The name of its folder and its log.
        process: Its process.
        log_path: Its log.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run on it; one that has ended is none."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [each for each in children if _is_executor(each)]

    def tree(self) -> list[psutil.Process]:
        """Return all its processes: its own first, then executors and their Python workers."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End it with all its processes at once, as a machine that loses power does."""
        _signal_all(self.tree(), signal.SIGKILL)
        self._process.wait(START_S)

    def freeze(self) -> None:
        """Stop all its processes, as a machine that stands still does."""
        _signal_all(self.tree(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all its processes go on, the innermost first: they write before anybody can tell them not to."""
        _signal_all(reversed(self.tree()), signal.SIGCONT)


class StandaloneCluster:
    """Starts the master; `add_worker` starts workers, of one core each.

    Args:
        folder: Where logs and the executors' folders are.
        java_home: A JDK that Spark runs on.
    """

    def __init__(self, folder: Path, java_home: Path) -> None:
        import pyspark

        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self.trap = Trap(folder / "trap")
        options = f"-Dspark.worker.timeout={LOST_S} -Dspark.master.rest.enabled=false"
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_MASTER_OPTS": options,
            "SPARK_WORKER_OPTS": options,
            # The Python of the executors finds the trap as its sitecustomize.
            "PYTHONPATH": f"{_TRAP}:{ROOT}",
            Trap.VARIABLE: str(self.trap.folder),
        }
        self.workers: list[Worker] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._master_log = folder / "master.log"
        self._start("org.apache.spark.deploy.master.Master", self._master_log, ["--port", "0", "--webui-port", "0"])
        found = eventually(lambda: _MASTER.findall(_text(self._master_log)), START_S, "the master runs")
        self.url = str(found[0])

    def add_worker(self) -> Worker:
        """Start a worker, and return it when the master knows it."""
        name = f"worker-{len(self.workers)}"
        log = self._folder / f"{name}.log"
        own = ["--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        places = ["--work-dir", str(self._folder / name), self.url]
        process = self._start("org.apache.spark.deploy.worker.Worker", log, [*own, *places])
        worker = Worker(name, process, log)
        self.workers.append(worker)
        eventually(lambda: "Successfully registered with master" in _text(log), START_S, f"{name} is registered")
        return worker

    def executors(self) -> list[psutil.Process]:
        """Return all executors that run."""
        return [each for worker in self.workers for each in worker.executors()]

    def worker_of(self, pid: int) -> Worker:
        """Return the worker that a process belongs to."""
        return next(worker for worker in self.workers if pid in {each.pid for each in worker.tree()})

    def options(self) -> list[str]:
        """Return the options of `spark run` that name this cluster, with short time-outs."""
        conf = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.memory": "768m",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.heartbeatInterval": "2s",
            "spark.network.timeout": f"{LOST_S}s",
            "spark.network.timeoutInterval": "2s",
            # Else a task asks an executor that stands still four times for what it has shuffled.
            "spark.shuffle.io.maxRetries": "1",
        }
        return ["--master", self.url, *(text for name, value in conf.items() for text in ("--conf", f"{name}={value}"))]

    def end(self) -> None:
        """End all processes, frozen ones too, and print the ends of their logs."""
        for worker in self.workers:
            _signal_all(worker.tree(), signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait(START_S)
        for path in (self._master_log, *(each.log_path for each in self.workers)):
            for line in _text(path).splitlines()[-LOG_LINES:]:
                print(f"  {path.stem} | {line}")

    def _start(self, name: str, log_path: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [self._home / "bin" / "spark-class", name, "--host", "127.0.0.1", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


def _is_executor(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(EXECUTOR in each for each in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _signal_all(processes: Sequence[psutil.Process] | reversed[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
