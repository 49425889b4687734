"""`make test-rough` lets a command and all that it starts stand still, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.rough import CgroupStalls, SignalStalls, Stalls, own_cgroup, run
from tests.waiting import eventually

WAIT_S = 60.0
PARENT = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
threading.Event().wait()
"""
CHILD = "import threading; threading.Event().wait()"


@pytest.fixture(params=["cgroup", "signals"])
def stalls(request: pytest.FixtureRequest) -> Stalls:
    if request.param == "signals":
        return SignalStalls()
    group = own_cgroup()
    if group is None:
        pytest.skip("no cgroup of version 2 can be made here: it takes root, or a folder that is delegated")
    return CgroupStalls(group)


def stands_still(stalls: Stalls, process: psutil.Process) -> bool:
    if isinstance(stalls, CgroupStalls):
        return "frozen 1" in (stalls.group / "cgroup.events").read_text()
    return bool(process.status() == psutil.STATUS_STOPPED)


def lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_children_in_sessions_of_their_own_stand_still_too_and_end_with_it(stalls: Stalls, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = subprocess.Popen(stalls.command([sys.executable, "-c", PARENT, str(file), CHILD]))
    eventually(lambda: file.exists() and file.read_text(), WAIT_S, "the child runs")
    both = [psutil.Process(parent.pid), psutil.Process(int(file.read_text()))]
    for _ in range(2):
        stalls.freeze()
        eventually(lambda: all(stands_still(stalls, each) for each in both), WAIT_S, "both stand still")
        stalls.thaw()
        eventually(lambda: not any(stands_still(stalls, each) for each in both), WAIT_S, "both go on")
    stalls.end()
    parent.wait(WAIT_S)
    eventually(lambda: not any(map(lives, both)), WAIT_S, "both have ended")


def test_the_exit_status_is_the_commands_and_a_command_that_does_not_end_is_ended() -> None:
    assert run([sys.executable, "-c", "raise SystemExit(3)"], SignalStalls(), 5, 0.1, WAIT_S, 1) == 3
    assert run([sys.executable, "-c", CHILD], SignalStalls(), 5, 0.1, 0.5, 1) == 1
