"""Plans with several DLQs: where a dead letter goes, and what waits while one of them cannot be written."""

from __future__ import annotations

from dataclasses import replace

from sidecar.contract import DIALECTS
from sidecar.engine.dlqs import PolicyDlqs
from sidecar.engine.items import Dead
from sidecar.engine.ports import Origin
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import Headers, Reason
from sidecar.policy import Policy, PolicyConfig
from tests.simulation.stage import NOW, TERMS, Stage, fired

PAY_DLQ = "pay-dlq"
CONFIG = PolicyConfig(
    dlq_topics=frozenset({"dlq", PAY_DLQ}),
    by_origin=(PolicyConfig(name="B", dlq_topic=PAY_DLQ),),
    by_name=(PolicyConfig(name="slow", dlq_topic=PAY_DLQ),),
    by_exception=(("com.acme.Slow*", "slow"),),
)
POLICY = Policy(CONFIG)
FATAL = Reason.FATAL


def choose(key: bytes | None, value: bytes | None, headers: Headers) -> str:
    return POLICY.dlq_of(tuple(DIALECTS.values()), key, value, headers)


def terms(*closed: str, **more: object) -> Terms:
    dlqs = PolicyDlqs(choose, {PAY_DLQ: 700}, frozenset(closed) - {"dlq"})
    return replace(TERMS, policy_dlqs=dlqs, dlq_open="dlq" not in closed, **more)  # type: ignore[arg-type]  # fields of Terms


def dead(stage: Stage, origin: str, value: bytes = b"v") -> Dead:
    offset, stage.next_offset = stage.next_offset, stage.next_offset + 1
    return Dead(offset, FATAL, b"k", value, [("retry-origin-topic", origin.encode())])


def dlqs(partition_plan: PartitionPlan) -> list[str]:
    return [outgoing.topic for _, outgoing in partition_plan.dead_letters]


def test_the_dlq_is_that_of_the_policy_that_a_message_meets() -> None:
    def of(*headers: tuple[str, bytes]) -> str:
        return choose(b"k", b"v", list(headers))

    assert of(("retry-origin-topic", b"A")) == "dlq"
    assert of(("retry-origin-topic", b"B")) == PAY_DLQ
    assert of(("retry-origin-topic", b"A"), ("retry-policy", b"slow")) == PAY_DLQ
    assert of(("retry-origin-topic", b"A"), ("retry-exception", b"com.acme.SlowQuery")) == PAY_DLQ
    assert of(("retry-origin-topic", b"B"), ("retry-policy", b"unknown")) == PAY_DLQ, "its origin's"
    assert of(("retry-origin-topic", b"B"), ("retry-attempt", b"x")) == PAY_DLQ, "the origin can be read"
    assert of(("colour", b"red")) == "dlq"
    assert of(("retry-control", b"pause")) == "dlq"


def test_each_dead_letter_goes_to_its_own_dlq_and_is_cut_to_its_limit() -> None:
    stage = Stage()
    items = dead(stage, "A", bytes(2_000)), dead(stage, "B", bytes(2_000)), stage.send(NOW, "B", value=bytes(2_000))
    small = {"A": Origin(4, 1_000_000), "B": Origin(4, 1_500)}
    partition_plan = stage.commit(NOW, *items, terms=terms(origins=small))
    assert dlqs(partition_plan) == ["dlq", PAY_DLQ, PAY_DLQ]
    assert [len(outgoing.value or b"") for _, outgoing in partition_plan.dead_letters] == [2_000, 0, 0]


def test_a_dlq_that_cannot_be_written_stops_only_what_must_go_there() -> None:
    stage = Stage()
    items = dead(stage, "A"), stage.send(NOW, "B"), dead(stage, "B"), dead(stage, "A")
    made = stage.plan(NOW, *items, terms=terms(PAY_DLQ))
    (partition_plan,) = made.partition_plans
    assert (dlqs(partition_plan), fired(partition_plan)) == (["dlq"], [1])
    assert (made.left, made.waits_for) == ({0: items[2:]}, {0: PAY_DLQ})
    assert dlqs(stage.plan(NOW, *items[2:], terms=terms("dlq")).partition_plans[0]) == [PAY_DLQ]


def test_due_timers_wait_for_their_own_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, "A", value=bytes(2_000)), stage.send(NOW + 5, "B", value=bytes(2_000)))
    small = {"A": Origin(4, 1_500), "B": Origin(4, 1_500)}
    partition_plan = stage.commit(NOW + 10, terms=terms(PAY_DLQ, origins=small))
    assert (dlqs(partition_plan), dict(partition_plan.deferred)) == (["dlq"], {"B": 1})
