"""Shutdown of a sidecar, and its errors when it cannot start."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import HANGS, command
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_it_in_order(number: signal.Signals, stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(2_000, (0, 3_000))
    ledger.await_fired(count=500)

    one.signal(number)
    assert one.wait() == 0
    assert "sidecar_stopped" in one.log
    assert "SHUTDOWN_TIMEOUT" not in one.log, "nothing was given up"
    one.start()
    ledger.settle(one)


def test_a_transaction_that_does_not_end_is_given_up_after_the_deadline(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.make("one", stage, SHUTDOWN_TIMEOUT="2s", INSTANCE_ID="one")
    one.start(command(hang_at=Step.OFFSETS_SENT))
    one.await_ready()
    ledger.send(100, (0, 1_000))
    eventually(lambda: HANGS in one.log, 20, "a transaction hangs")

    began_s = SystemClock().monotonic_s()
    assert one.stop() == 0
    assert 2 <= SystemClock().monotonic_s() - began_s < 20, "the setting counts, not its default"
    assert "SHUTDOWN_TIMEOUT" in one.log
    one.start()
    ledger.settle(one)


def test_a_second_signal_ends_it_at_once(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    one.start(command(hang_at=Step.OFFSETS_SENT))
    one.await_ready()
    ledger.send(100, (0, 1_000))
    eventually(lambda: HANGS in one.log, 20, "a transaction hangs")

    one.signal(signal.SIGTERM)
    eventually(lambda: "sidecar_stopping" in one.log, 10, "it has heard the first one")
    one.signal(signal.SIGTERM)
    assert one.wait() == -signal.SIGTERM
    one.start()
    ledger.settle(one)


def test_brokers_that_never_answer_end_it_after_the_startup_timeout(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.make("one", stage, BOOTSTRAP_SERVERS=NOWHERE, STARTUP_TIMEOUT="20s")
    one.start()

    assert one.wait(90) == 1
    assert len([line for line in one.log.splitlines() if "broker_awaited" in line and NOWHERE in line]) >= 2
    assert "no broker answered within STARTUP_TIMEOUT, 20000 ms" in one.log.splitlines()[-1]
    assert "Traceback" not in one.log


def test_sigterm_while_it_waits_for_brokers_ends_it(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.make("one", stage, BOOTSTRAP_SERVERS=NOWHERE)
    one.start()
    eventually(lambda: "broker_awaited" in one.log, 30, "it says what it waits for")
    # The HTTP server is loaded beside that.
    eventually(lambda: one.get("/livez")[0] == 200, 60, "it is alive")
    assert one.get("/readyz")[0] == 503

    assert one.stop() == 0


def test_a_port_in_use_is_named(stage: Stage, sidecars: Sidecars) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one = sidecars.make("one", stage, HTTP_PORT=str(port))
        one.start()

        assert one.wait() == 1
    assert one.log.splitlines()[-1] == (
        f"HTTP_PORT: port {port} at 127.0.0.1 is in use by another program. "
        "Set KAFKA_RETRY_HTTP_PORT to a free port; 0 takes any."
    )


def test_a_state_folder_that_cannot_be_made_is_named(stage: Stage, sidecars: Sidecars, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    one = sidecars.make("one", stage, STATE_DIR=str(file / "state"))
    one.start()

    assert one.wait() == 1
    assert one.log.splitlines()[-1].startswith(f"STATE_DIR {file / 'state'} cannot be written")


def test_a_state_folder_of_another_process_is_named(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.start("one", stage)
    two = sidecars.make("two", stage, STATE_DIR=str(one.state_dir))
    two.start()

    assert two.wait() == 1
    assert str(one.state_dir) in two.log.splitlines()[-1]
    assert "another process" in two.log.splitlines()[-1]
    assert one.ready()
