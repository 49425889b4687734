"""The limits of each topic, and their effect on batches and on messages to the operator."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sidecar.engine.ports import Origin
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.model import Reason, StoredOffset
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.transaction.failures import DLQ_AGAIN_S, Failures
from sidecar.runtime.transaction.limits import Limits
from sidecar.settings import Settings, load
from tests.clocks import HandClock

SETTINGS = Settings()
FACTS = TopicFacts("cluster", 2, 2, "input", "changelog", 1_048_588, 300_000, 1_114_124, 200_000)


@pytest.fixture
def catalogue() -> Mock:
    return Mock(origins={})


@pytest.fixture
def limits(catalogue: Mock) -> Limits:
    return Limits(SETTINGS, catalogue, FACTS)


def plan(*, fired: str = "", dead_letters: int = 0, dlq: str = "dlq", control_outcomes: int = 0) -> Mock:
    return Mock(
        partition_plans=[
            Mock(
                fired={fired: 1} if fired else {},
                dead_letters=[(Reason.FATAL, Mock(topic=dlq))] * dead_letters,
                control_outcomes=[1] * control_outcomes,
            )
        ]
    )


def test_a_batch_fits_the_smallest_topic_that_is_written_to(limits: Limits, catalogue: Mock) -> None:
    catalogue.origins["small"] = Origin(1, 50_000)
    assert limits.new_batch_bytes(singly=False) == 1_000_000
    for made, batch_bytes in (
        (plan(dead_letters=1), 300_000),
        (plan(control_outcomes=1), 200_000),
        (plan(fired="small"), 50_000),
    ):
        assert limits.unfit(made, singly=False)
        assert limits.new_batch_bytes(singly=False) == batch_bytes
        assert not limits.unfit(made, singly=False)
    assert not limits.unfit(plan(), singly=False)


def test_what_the_broker_said_last_counts(limits: Limits, catalogue: Mock) -> None:
    assert limits.dlq == 300_000
    catalogue.origins["dlq"] = Origin(1, 700)
    assert limits.dlq == 700
    catalogue.want.assert_called_once()
    assert {SETTINGS.dlq_topic, SETTINGS.changelog_topic, SETTINGS.status_topic} == set(*catalogue.want.call_args.args)


def test_a_plan_is_made_on_what_was_learnt_and_with_what_was_read_ahead(limits: Limits, catalogue: Mock) -> None:
    failures, closed, ahead = Failures(HandClock(), Mock()), ClosedOrigins(catalogue), {3: Mock()}
    failures.oversize.unstorable[3, StoredOffset(7), 100] = "too large"
    terms = limits.terms(failures, closed, ahead)
    assert (terms.ahead, terms.origins, terms.compressed) == (ahead, catalogue.origins, True)
    assert (terms.dlq_max_message_bytes, terms.changelog_max_message_bytes) == (300_000, 1_114_124)
    assert (terms.unstorable, terms.deliveries_max, terms.dlq_open) == ({(3, 7, 100): "too large"}, 10_000, True)
    failures.oversize.singly = True
    terms = limits.terms(failures, closed, ahead)
    assert (terms.block_bytes_max, terms.deliveries_max) == (1, 500)


def test_batches_of_one_are_for_one_transaction(limits: Limits) -> None:
    assert limits.unfit(plan(), singly=True)
    assert limits.new_batch_bytes(singly=True) == 1
    assert not limits.unfit(plan(), singly=True)
    assert limits.unfit(plan(), singly=False)
    assert limits.new_batch_bytes(singly=False) == 1_000_000


def test_an_origin_that_takes_more_than_the_changelog_is_named_once_with_the_command(
    limits: Limits, catalogue: Mock
) -> None:
    catalogue.origins["orders"] = Origin(1, 1_048_588)
    with capture_logs() as lines:
        limits.maintain()
        assert not lines, "a changelog of the default size takes what an origin of the default size takes"
        catalogue.origins["large"] = Origin(1, 5_000_000)
        limits.maintain()
        limits.maintain()
        catalogue.origins["larger"] = Origin(1, 6_000_000)
        limits.maintain()
    assert [(line["event"], line["origin"]) for line in lines] == [
        ("changelog_takes_less", "large"),
        ("changelog_takes_less", "larger"),
    ]
    assert "--add-config max.message.bytes=5065536" in lines[0]["fix"]


def test_a_closed_dlq_is_tried_only_when_the_broker_says_that_it_can_be_written(
    limits: Limits, catalogue: Mock
) -> None:
    clock = HandClock()
    failures = Failures(clock, Mock())
    catalogue.denied, catalogue.leaderless = {"dlq"}, set()
    assert limits.closed_dlqs(failures) == frozenset(), "it was never refused"
    failures._close_dlq("dlq", "it is gone", clock.now_s)
    catalogue.want.reset_mock()
    for looks in range(1, 4):
        assert limits.closed_dlqs(failures) == {"dlq"}
        clock.now_s += DLQ_AGAIN_S
        assert limits.closed_dlqs(failures) == {"dlq"}
        assert catalogue.want.call_count == looks, "each time it may be tried, the broker is asked once"
    catalogue.origins["dlq"] = Origin(1, 1_000_000)
    clock.now_s += DLQ_AGAIN_S
    assert limits.closed_dlqs(failures) == {"dlq"}, "no permission"
    catalogue.denied = set()
    assert limits.closed_dlqs(failures) == {"dlq"}
    clock.now_s += DLQ_AGAIN_S
    assert limits.closed_dlqs(failures) == frozenset()


def test_each_dlq_has_its_own_limit_and_is_closed_by_itself(catalogue: Mock) -> None:
    settings = load(environ={"KAFKA_RETRY_ORIGIN_POLICIES": "{pay: {dlq_topic: pay-dlq}}"})
    limits = Limits(settings, catalogue, replace(FACTS, policy_dlqs_bytes_max={"pay-dlq": 5_000}))
    failures, closed = Failures(HandClock(), Mock()), ClosedOrigins(catalogue)
    assert limits.unfit(plan(dead_letters=1, dlq="pay-dlq"), singly=False)
    assert limits.new_batch_bytes(singly=False) == 5_000
    failures._close_dlq("pay-dlq", "it is gone", 0.0)
    terms = limits.terms(failures, closed, {}, lambda *_: "pay-dlq")
    assert (terms.dlq_open, terms.closed_dlqs, terms.dlq_topics) == (
        True,
        frozenset({"pay-dlq"}),
        frozenset({"dlq", "pay-dlq"}),
    )
    assert terms.policy_dlqs is not None
    assert terms.policy_dlqs.bytes_max == {"pay-dlq": 5_000}
    assert limits.terms(failures, closed, {}).policy_dlqs is None
