"""Topics that may not be looked at: a dead letter by repeated answers, unless they are known to be there."""

from __future__ import annotations

from dataclasses import replace

from sidecar.policy import PolicyConfig
from sidecar.spark.state.entries import META, decode_meta
from sidecar.spark.stream.topic_metadata import FORBIDDEN_AFTER_MS, UNKNOWN_MS, TopicMetadata
from sidecar.spark.stream.wire import OutputPart
from tests.spark.stream.test_partition_step import FORBIDDEN, World, order, outgoing


def test_a_message_for_a_topic_that_may_not_be_looked_at_is_a_dead_letter_by_two_answers() -> None:
    world = World(orders=FORBIDDEN)
    sent: list[OutputPart] = []
    came, began_ms = [world.record(*order(0)), world.record(("no", b"header"))], world.now_ms
    while not outgoing(sent):
        result, came = world.step(*came, wait_ms=500), []
        assert result is not None
        assert result.wakes_ms == world.now_ms + 1 or result.output_parts
        sent += result.output_parts
    assert outgoing(sent) == [("dlq", b"origin-not-allowed"), ("dlq", b"missing-header")]
    assert FORBIDDEN_AFTER_MS <= world.now_ms - began_ms <= FORBIDDEN_AFTER_MS + 1_500
    (detail,) = [value for name, value in sent[-1].records[0].headers if name == "retry-dlq-detail"]
    assert b"Describe and Write" in (detail or b"")


def test_when_the_permission_is_granted_before_the_second_answer_the_message_is_ingested() -> None:
    world = World(orders=FORBIDDEN)
    world.step(world.record(*order(0)))
    world.topics = {"orders": TopicMetadata(2, 1_000_000)}
    assert outgoing(world.settle()) == [("orders", None)]


def test_a_topic_that_messages_wait_for_is_closed_when_it_may_not_be_looked_at_any_more() -> None:
    world = World()
    world.settle(world.record(*order(20_000)))
    world.topics = {"orders": FORBIDDEN}
    world.step(wait_ms=16_000)
    sent = [*world.settle(world.record(*order(0))), *world.settle()]
    world.now_ms += 10_000
    sent += world.settle()
    assert outgoing(sent) == []
    assert sum(decode_meta(world.state.entries[META]).counted_deferred.values()) == 2


def test_what_is_said_of_topics_that_are_not_there_is_forgotten() -> None:
    world = World()
    names = [b"gone-%d" % at for at in range(5)]
    world.rules = replace(world.rules, policy=PolicyConfig(origin_topics=("*",)))
    world.settle(*(world.record(("retry-origin-topic", name)) for name in names))
    assert len(decode_meta(world.state.entries[META]).topics) == 5
    for _ in range(4):
        world.step(wait_ms=UNKNOWN_MS // 2 + 1)
    assert decode_meta(world.state.entries[META]).topics == {}
