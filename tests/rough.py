"""Runs a command on a rough machine: all its processes stand still again and again, beside a busy loop on each core.

    python -m tests.rough --stalls 100 --longest 4 -- python -m pytest -q tests/unit

No process of the command can tell a stall from a machine that gives it no time, so a test that turns red here measures
the machine. The stalls are those of a cgroup (version 2) where one can be made, else of SIGSTOP. The exit status is the
command's; whatever it leaves behind is ended.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import psutil

BUSY: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))\n"
ENTER: Final = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
MEAN_PAUSE_S: Final = 4.0
"""Between two stalls."""
END_S: Final = 30.0
"""How long the command may take to end when it is asked to."""


class Stalls(ABC):
    """What makes all processes of a command stand still."""

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command that these stalls reach."""
        return command

    @abstractmethod
    def freeze(self) -> None:
        """Let them stand still."""

    @abstractmethod
    def thaw(self) -> None:
        """Let them go on."""

    @abstractmethod
    def end(self) -> None:
        """End those that are left."""


class CgroupStalls(Stalls):
    """Of a cgroup of version 2, which no process of it can leave or notice."""

    def __init__(self, group: Path) -> None:
        self.group = group

    def command(self, command: Sequence[str]) -> Sequence[str]:
        return ["/bin/sh", "-c", ENTER, str(self.group), *command]

    def freeze(self) -> None:
        (self.group / "cgroup.freeze").write_text("1", encoding="ascii")

    def thaw(self) -> None:
        (self.group / "cgroup.freeze").write_text("0", encoding="ascii")

    def end(self) -> None:
        processes = [psutil.Process(int(pid)) for pid in (self.group / "cgroup.procs").read_text().split()]
        _kill(processes)
        self.group.rmdir()


class SignalStalls(Stalls):
    """Of SIGSTOP, to the command's processes and their children, which then stay stopped until SIGCONT."""

    def __init__(self) -> None:
        self._stopped: dict[int, psutil.Process] = {}
        self._seen: dict[int, psutil.Process] = {}

    def freeze(self) -> None:
        while new := [each for each in self._processes() if each.pid not in self._stopped]:
            for each in new:
                self._stopped[each.pid] = each
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.suspend()

    def thaw(self) -> None:
        for each in self._stopped.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        self._stopped.clear()

    def end(self) -> None:
        _kill([each for each in self._seen.values() if each.is_running()])

    def _processes(self) -> list[psutil.Process]:
        """Return what runs. What a test has stopped itself is not ours to continue."""
        found = psutil.Process().children(recursive=True)
        for known in list(self._seen.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += known.children(recursive=True)
        self._seen.update({each.pid: each for each in found if _spins_not(each)})
        return [each for each in self._seen.values() if each.is_running() and not _stands_still(each)]


def _spins_not(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return BUSY not in process.cmdline()
    return False


def _stands_still(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return True


def _kill(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(processes, END_S)


def own_cgroup() -> Path | None:
    """Make a cgroup of version 2 below that of this process; None where that is not allowed."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return None
    points = [line.split()[4] for line in mounts.read_text().splitlines() if " - cgroup2 " in line]
    paths = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    for point, path in zip(points, paths, strict=False):
        group = Path(point) / path.strip("/") / f"rough-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / "cgroup.freeze").exists() and os.access(group / "cgroup.procs", os.W_OK):
                return group
            group.rmdir()
    return None


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many cores busy; each loop ends with this process."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def run(command: Sequence[str], stalls: Stalls, count: int, longest_s: float, limit_s: float, seed: int) -> int:
    """Run the command to its end, or `limit_s` seconds, and return its exit status."""
    dice, ended = random.Random(seed), threading.Event()
    process = subprocess.Popen(stalls.command(command))

    def rattle() -> None:
        for _ in range(count):
            if ended.wait(dice.uniform(0.0, 2 * MEAN_PAUSE_S)):
                return
            stalls.freeze()
            ended.wait(dice.uniform(0.0, longest_s))
            stalls.thaw()

    rattling = threading.Thread(target=rattle, name="stalls")
    rattling.start()
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"ended after {limit_s:g} s", file=sys.stderr)
        return 1
    finally:
        ended.set()
        rattling.join()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        stalls.end()
        process.wait()


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--stalls", "count", default=100, help="How often all stands still.")
@click.option("--longest", "longest_s", default=4.0, help="Seconds of the longest stall.")
@click.option("--busy", "loops", default=os.cpu_count() or 1, help="How many busy loops run beside it.")
@click.option("--limit", "limit_s", default=5_400.0, help="Seconds after which it is ended.")
@click.option("--seed", default=0, help="Repeats the same stalls; 0 draws one.")
@click.argument("command", nargs=-1, required=True)
def main(count: int, longest_s: float, loops: int, limit_s: float, seed: int, command: tuple[str, ...]) -> None:
    """Run COMMAND on a rough machine."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = seed or random.SystemRandom().randrange(1, 2**31)
    group = own_cgroup()
    stalls = CgroupStalls(group) if group else SignalStalls()
    print(
        f"{count} stalls of up to {longest_s:g} s by {'a cgroup' if group else 'SIGSTOP'}, --seed {seed}",
        file=sys.stderr,
    )
    with busy(loops):
        sys.exit(run(command, stalls, count, longest_s, limit_s, seed))


if __name__ == "__main__":
    main()
