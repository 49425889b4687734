"""A sidecar whose topics are missing stays up, says how to create them, and goes on by itself."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.broker import create_topic, unique
from tests.integration.messages import Given, World, native
from tests.integration.sidecars import END_S, LOG_APPEND_TIME, PLAIN, ROOT, Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 60.0


@pytest.fixture
def bare(bootstrap: str) -> Stage:
    """Names of topics that do not exist."""
    return Stage(bootstrap, unique("app"), partitions=4)


def reasons(sidecar: Sidecar) -> list[str]:
    """Return why it is not ready once it waits for topics."""

    def awaited() -> Any:
        status, body = sidecar.get("/readyz")
        return status == 503 and [each for each in body["reasons"] if each.startswith("topic ")]

    found: list[str] = eventually(awaited, WAIT_S, "it says which topics are missing")
    return found


def test_topics_created_by_the_command_that_it_shows_make_it_ready(bare: Stage, sidecars: Sidecars) -> None:
    one = sidecars.make("one", bare)
    one.start()
    entry, dlq = reasons(one)
    assert entry.startswith(f"topic {bare.input_topic}: does not exist; fix it with: retry-sidecar topics create ")
    assert dlq.startswith(f"topic {bare.dlq_topic}: does not exist; fix it with: retry-sidecar topics create ")
    assert one.get("/livez")[0] == 200
    assert one.log.count("topics_awaited") == 1

    _, _, command = entry.partition("fix it with: ")
    program, *words = shlex.split(command)
    assert program == "retry-sidecar"
    subprocess.run([sys.executable, "-m", "sidecar", *words], cwd=ROOT, check=True, timeout=WAIT_S)
    one.await_ready(WAIT_S)

    create_topic(bare.bootstrap, bare.origin, 1, LOG_APPEND_TIME)
    world = World(bare, one)
    world.send(Given(headers=native(bare, b"first", 1)))
    assert len(world.fired(b"first")) == 1
    assert one.stop() == 0


def test_what_is_sent_before_it_sees_the_new_topics_is_read_without_a_decision(bare: Stage, sidecars: Sidecars) -> None:
    """The DLQ comes last, so whatever the pace, messages are on the retry topic at the first look that can succeed."""
    one = sidecars.make("one", bare, START_AT="")
    one.start()
    reasons(one)
    create_topic(bare.bootstrap, bare.input_topic, bare.partitions)
    create_topic(bare.bootstrap, bare.origin, 1, LOG_APPEND_TIME)
    world = World(bare, one)
    world.send(Given(headers=native(bare, b"early", 1)))
    create_topic(bare.bootstrap, bare.dlq_topic, 1)
    one.await_ready(WAIT_S)
    assert len(world.fired(b"early")) == 1
    assert one.stop() == 0


def test_sigterm_while_it_waits_for_topics_ends_it(bare: Stage, sidecars: Sidecars) -> None:
    one = sidecars.make("one", bare)
    one.start()
    reasons(one)
    one.signal(signal.SIGTERM)
    assert one.wait(END_S) == 0
    assert "Traceback" not in one.log


def test_a_drain_has_nothing_to_wait_for(bare: Stage, sidecars: Sidecars) -> None:
    one = sidecars.make("one", bare)
    one.start((*PLAIN, "--drain"))
    assert one.wait(WAIT_S) == 1
    assert f"topic {bare.input_topic}: does not exist" in one.log
