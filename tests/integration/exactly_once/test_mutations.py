"""The suite can fail: with a mistake made on purpose, the course of events that is meant for it goes wrong."""

from __future__ import annotations

import pytest

from sidecar.cli import EXIT_BUG
from tests.integration import killable
from tests.integration.ledger import Ledger
from tests.integration.scenarios import (
    a_former_owner_commits_after_the_takeover,
    a_former_owner_wakes_up_before_it_fires,
    a_kill_before_the_commit,
    a_steady_stream,
)
from tests.integration.sidecars import Sidecars, Stage

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_without_offsets_a_former_owner_fires_twice(stage: Stage, sidecars: Sidecars) -> None:
    assert a_former_owner_wakes_up_before_it_fires(stage, sidecars, killable.EMPTY_OFFSETS).twice


def test_with_a_target_that_is_taken_too_early_messages_are_forgotten(stage: Stage, sidecars: Sidecars) -> None:
    balance = a_former_owner_commits_after_the_takeover(stage, sidecars, killable.TARGET_EARLY)

    assert balance.fired < 600
    assert balance.pending or balance.lost


def test_applied_before_the_commit_and_believed_afterwards_messages_are_lost(stage: Stage, sidecars: Sidecars) -> None:
    assert a_kill_before_the_commit(stage, sidecars, killable.APPLIED_EARLY, killable.BELIEVED).lost


def test_applied_before_a_commit_that_never_was_messages_fire_all_the_same(stage: Stage, sidecars: Sidecars) -> None:
    """A restarted broker can lose a commit that it had confirmed."""
    a_kill_before_the_commit(stage, sidecars, killable.APPLIED_EARLY).require_right()
    assert "store_not_confirmed" in sidecars.all[0].log


def test_with_the_watermark_off_by_one_messages_are_lost(stage: Stage, sidecars: Sidecars) -> None:
    assert a_steady_stream(stage, sidecars, killable.OFF_BY_ONE).lost


def test_a_mistake_that_breaks_an_invariant_ends_the_instance_before_it_does_harm(
    stage: Stage, sidecars: Sidecars
) -> None:
    ledger = Ledger(stage)
    one = sidecars.make("one", stage)
    one.start(killable.command(mutation=killable.OFF_BY_ONE, sees=True))
    one.await_ready()
    ledger.send(200, (500, 1_000))
    assert one.wait() == EXIT_BUG
    assert "the watermark passes the time of the plan partition=" in one.log
    assert not (one.state_dir / "rocksdb.quarantined").exists()
    one.start(killable.command())
    one.await_ready()
    ledger.await_due()
    ledger.await_ingested()
    ledger.await_pending([one], 0)
    ledger.balance().require_right()
    assert (one.state_dir / "rocksdb.quarantined").is_dir(), "the store may have been wrong too"


def test_as_it_is_nothing_is_lost(stage: Stage, sidecars: Sidecars) -> None:
    """The other two courses of events are tests of their own, in test_two_instances.py."""
    a_kill_before_the_commit(stage, sidecars).require_right()
