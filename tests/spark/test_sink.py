"""The sink against a broker: what is committed once stays so, whatever Spark runs again."""

from __future__ import annotations

import pytest

from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed, InvariantViolated
from sidecar.kafka.cluster import Admin
from sidecar.kafka.topics import ensure_topics
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.sink import Mark, Sender, TransactionalSink
from sidecar.spark.wire import Delivery, Note, encode_delivery
from tests.broker import read_committed
from tests.integration.sidecars import Stage, set_stage

pytestmark = pytest.mark.broker


@pytest.fixture
def stage(bootstrap: str) -> Stage:
    made = set_stage(bootstrap, 2)
    ensure_topics(Admin(settings_of(made)), settings_of(made))
    return made


def settings_of(stage: Stage) -> Settings:
    return Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        dlq_topic=stage.dlq_topic,
    )


def delivery(topic: str, before: int, after: int, *values: bytes, partition: int = 0, last: bool = True) -> Delivery:
    records = [Outgoing(topic, -1, b"k", value, [("h", None)], 1, b"\0" * 15 + value[:1]) for value in values]
    notes = [Note(b"p/%d" % partition, b"{}", [])]
    return Delivery(
        partition=partition,
        before=before,
        after=after,
        next_input_offset=after * 10,
        records=records,
        notes=notes,
        last=last,
    )


def test_a_micro_batch_that_runs_again_is_written_once(stage: Stage) -> None:
    """Another process does it: with a producer of its own, under the same transactional id."""
    settings = settings_of(stage)
    once = [delivery(stage.origin, 0, 3, b"a", b"b"), delivery(stage.origin, 0, 1, b"c", partition=1)]
    Sender(settings, "checkpoint", 0).deliver(once)
    again = Sender(settings, "checkpoint", 0)
    again.deliver(once)
    again.deliver([delivery(stage.origin, 3, 4, b"d")])
    fired = read_committed(stage.bootstrap, [stage.origin], until=lambda seen: len(seen) >= 4)
    assert sorted(record.value or b"" for record in fired) == [b"a", b"b", b"c", b"d"]
    committed = group.committed(settings, 2)
    assert committed == {0: (40, Mark(4, "checkpoint")), 1: (10, Mark(1, "checkpoint"))}


def test_a_micro_batch_of_an_old_checkpoint_is_refused(stage: Stage) -> None:
    settings = settings_of(stage)
    Sender(settings, "checkpoint", 0).deliver([delivery(stage.origin, 0, 5, b"a")])
    with pytest.raises(CommandFailed, match="another query runs"):
        Sender(settings, "checkpoint", 0).deliver([delivery(stage.origin, 2, 4, b"b")])
    with pytest.raises(CommandFailed, match="another query runs"):
        Sender(settings, "copy", 0).deliver([delivery(stage.origin, 0, 5, b"a")])


def test_what_can_not_be_fired_any_more_is_a_dead_letter_and_the_others_fire(stage: Stage) -> None:
    settings = settings_of(stage)
    gone = delivery(f"{stage.app_id}-gone", 0, 1, b"a", last=False)
    Sender(settings, "checkpoint", 0).deliver([gone, delivery(stage.origin, 0, 1, b"b")])
    assert [record.value for record in read_committed(stage.bootstrap, [stage.origin])] == [b"b"]
    (dead,) = read_committed(stage.bootstrap, [stage.dlq_topic])
    assert (dead.value, dead.header("retry-dlq-reason")) == (b"a", b"unfireable")


def test_rows_that_were_cut_off_are_not_committed(stage: Stage) -> None:
    """Spark ends the rows as if they were all when the operator before has failed."""
    sink = TransactionalSink(settings_of(stage), "checkpoint")
    assert sink.open(0, 7)
    sink.process({"payload": encode_delivery(delivery(stage.origin, 0, 1, b"a", last=False))})
    with pytest.raises(InvariantViolated, match="cut off"):
        sink.close(None)
    assert read_committed(stage.bootstrap, [stage.origin]) == []


def test_two_workers_may_take_turns_with_a_state_partition(stage: Stage) -> None:
    """Spark gives a task to any worker process; the producer that another one has kept is fenced."""
    settings = settings_of(stage)
    one, two = Sender(settings, "checkpoint", 0), Sender(settings, "checkpoint", 0)
    for sequence, sender in enumerate([one, two, one, two]):
        sender.deliver([delivery(stage.origin, sequence, sequence + 1, b"%d" % sequence)])
    fired = read_committed(stage.bootstrap, [stage.origin], until=lambda seen: len(seen) >= 4)
    assert sorted(record.value or b"" for record in fired) == [b"0", b"1", b"2", b"3"]
