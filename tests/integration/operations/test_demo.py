"""`retry-sidecar demo` from the first line to the last, with everything that it starts."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sidecar.devbroker.jars import Quiet, classpath
from sidecar.errors import CommandFailed
from tests.broker import no_broker
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Demo:
    """A demo in its own process."""

    def __init__(self, folder: Path) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sidecar", "demo", "--messages", "600", "--seconds", "1", "--keep", "--json"],
                stdout=out,
                stderr=err,
            )

    def found(self, pattern: str) -> str:
        """Return the first group of a pattern in what it said; empty when it is not there yet."""
        match = re.search(pattern, self.err.read_text())
        return match.group(1) if match else ""

    def stays_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"ended with status {self.process.returncode}:\n{self.err.read_text()}")
        return bool(self.found("(try: retry-sidecar send)"))  # the last line


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    try:
        classpath(Quiet())
    except CommandFailed as error:
        no_broker(str(error))
    demo = Demo(tmp_path)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.send_signal(signal.SIGTERM)
        demo.process.wait(60)


def test_the_ledger_holds_and_what_is_kept_up_answers_until_the_end(demo: Demo) -> None:
    eventually(demo.stays_up, 150, "the demo draws up its ledger")
    url = demo.found(r"(http://\S+)/pending")
    assert demo.found(r"page +(http://\S+)/ui/") == url
    broker = demo.found(r"Kafka broker +127\.0\.0\.1:(\d+)")
    pending = httpx.get(f"{url}/pending", trust_env=False, timeout=60).json()["total"]

    # A terminal's Ctrl-C.
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 0

    ledger = json.loads(demo.out.read_text())
    assert ledger["holds"] is True
    assert ledger["problems"] == []
    assert pending == ledger["pending"] > 0
    assert ledger["in"] == ledger["fired"] + ledger["dead_lettered"] + ledger["dropped"] + ledger["pending"] > 600
    assert set(ledger["dead_lettered_by_reason"]) == {
        "attempts-exhausted",
        "bad-header",
        "delay-out-of-range",
        "fatal",
        "missing-header",
        "origin-not-allowed",
        "origin-unknown",
    }
    assert ledger["lateness_ms"]["p50"] > 0
    for port in (int(broker), int(url.rpartition(":")[2])):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, "something is left behind"
