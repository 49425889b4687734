"""A changelog that is deleted: nothing is wiped, the partitions stop, and a command writes it again from the folder."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.kafka.admin.topics import changelog_config
from tests.broker import create_topic, partitions_of
from tests.integration.ledger import Ledger
from tests.integration.sidecars import ROOT, Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

MESSAGES = 300
WAIT_S = 120.0
DECISION = ("rebuild-changelog", "give-up")


def delete_changelog(stage: Stage) -> None:
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.delete_topics([stage.changelog_topic])[stage.changelog_topic].result(30)
    eventually(lambda: not partitions_of(stage.bootstrap, stage.changelog_topic), WAIT_S, "the changelog is gone")


def make_changelog(stage: Stage) -> None:
    create_topic(stage.bootstrap, stage.changelog_topic, stage.partitions, changelog_config(1_048_588))


def await_decision(sidecar: Sidecar, lines: int) -> None:
    """Wait until so many reasons for not being ready name the decision."""

    def named() -> bool:
        _, body = sidecar.get("/readyz")
        reasons = body["reasons"] if body else []
        return sum(all(word in each for word in DECISION) for each in reasons) == lines

    eventually(named, WAIT_S, "readyz names the decision")


def command(sidecar: Sidecar, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "state", *words],
        cwd=ROOT,
        env=sidecar.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def rebuild(sidecar: Sidecar) -> None:
    done = command(sidecar, "rebuild-changelog")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum("rebuilt" in line for line in done.stdout.splitlines()) == sidecar.stage.partitions, done.stdout


def test_a_changelog_that_is_deleted_twice_is_written_again_and_each_message_fires_once(
    stage: Stage, sidecars: Sidecars
) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(MESSAGES, (25_000, 45_000))
    ledger.await_pending([one], MESSAGES)

    # While it runs.
    delete_changelog(stage)
    make_changelog(stage)
    await_decision(one, stage.partitions)
    refused = command(one, "rebuild-changelog")
    assert refused.returncode == 1
    assert "in use by another process" in refused.stderr
    assert one.stop() == 0
    rebuild(one)
    one.start()
    one.await_ready(WAIT_S)

    # While it does not.
    ledger.send(MESSAGES, (25_000, 45_000), seed=2)
    ledger.await_ingested(WAIT_S)
    assert one.stop() == 0
    delete_changelog(stage)
    one.start()
    await_decision(one, 1)
    assert not partitions_of(stage.bootstrap, stage.changelog_topic), "it is not made again by itself"
    assert one.stop() == 0
    make_changelog(stage)
    one.start()
    await_decision(one, stage.partitions)
    assert one.stop() == 0
    rebuild(one)
    again = command(one, "rebuild-changelog")
    assert "no partition is in it" in again.stdout
    one.start()
    one.await_ready(WAIT_S)
    ledger.settle(one, deadline_s=WAIT_S)


def test_without_the_folder_it_stops_too_until_what_is_lost_is_given_up(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    one = sidecars.start("one", stage)
    ledger.send(MESSAGES, (600_000, 700_000))
    ledger.await_pending([one], MESSAGES)
    assert one.stop() == 0
    delete_changelog(stage)
    make_changelog(stage)
    one.forget_state()
    one.start()
    await_decision(one, stage.partitions)
    assert one.stop() == 0

    shown = command(one, "give-up")
    assert shown.returncode == 1
    assert "nothing was changed" in shown.stderr
    done = command(one, "give-up", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (one.state_dir / "rocksdb.given-up").is_dir()
    one.start()
    one.await_ready(WAIT_S)
    assert one.pending() == 0
    fresh = Ledger(stage)
    fresh.send(10, (0, 1_000), seed=3)
    fresh.await_fired(WAIT_S, count=10)
