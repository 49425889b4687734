"""The sink against a broker: what is committed is not written again, whatever Spark runs again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.clock import SystemClock
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed, InvariantViolated, KafkaFailed
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import ensure_topics
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.checkpoints import CheckpointReader
from sidecar.spark.marks import Mark, TopicsRefuse
from sidecar.spark.state.entries import Meta
from sidecar.spark.stream import sink
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.restore_marks import marked
from sidecar.spark.stream.sender import Sender
from sidecar.spark.stream.sink import TransactionalSink, Worker
from sidecar.spark.stream.wire import OutputPart, StatusRecord
from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, Pairs, send
from tests.integration.sidecars import Stage, set_stage
from tests.output_parts import encode_output_part

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


def part(topic: str, before: int, after: int, *values: bytes, partition: int = 0, **more: Any) -> OutputPart:
    records = [Outgoing(topic, -1, b"k", value, [("h", None)], 1, b"\0" * 15 + value[:1]) for value in values]
    status_records = [StatusRecord(b"p/%d" % partition, b"{}", [])]
    return OutputPart(
        partition=partition,
        before=before,
        after=after,
        next_input_offset=after * 10,
        records=records,
        status_records=status_records,
        **more,
    )


def run(settings: Settings, batch: int, *rows: OutputPart, checkpoint: str = "checkpoint", former: str = "") -> None:
    """Run a micro-batch in the one state partition."""
    one = TransactionalSink(settings, checkpoint, (2, 1), former)
    assert one.open(0, batch)
    for each in rows:
        one.process({"payload": encode_output_part(each)})
    one.close(None)


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on without the clients that were there, as another worker process does."""

    def begin() -> None:
        monkeypatch.setattr(sink, "_workers", {})

    begin()
    return begin


def values(stage: Stage, count: int) -> list[bytes]:
    fired = read_committed(stage.bootstrap, [stage.origin], until=lambda seen: len(seen) >= count)
    return sorted(record.value or b"" for record in fired)


def test_a_micro_batch_that_runs_again_is_written_once(stage: Stage, another_process: Callable[[], None]) -> None:
    """Make the sink work as in another process: with a new producer under the same transactional id."""
    settings = settings_of(stage)
    once = [part(stage.origin, 0, 3, b"a", b"b"), part(stage.origin, 0, 1, b"c", partition=1)]
    run(settings, 0, *once)
    another_process()
    run(settings, 0, *once)
    run(settings, 1, part(stage.origin, 3, 4, b"d"))
    assert values(stage, 4) == [b"a", b"b", b"c", b"d"]
    assert group.committed(settings, 2) == {0: Committed(40, ""), 1: Committed(10, "")}, "for lag tools"
    marks = group.marks(group.last_checkpoints(settings, 2))
    assert {number: (mark.sequence, mark.next_input_offset) for number, mark in marks.items()} == {
        0: (4, 40),
        1: (1, 10),
    }


def test_a_micro_batch_that_runs_again_when_the_offsets_of_the_group_have_expired_is_written_once(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    """The group has no members, so a broker deletes its offsets a week after the last commit."""
    settings = settings_of(stage)
    once = [part(stage.origin, 0, 3, b"a", b"b"), part(stage.origin, 0, 1, b"c", partition=1)]
    run(settings, 0, *once)
    another_process()
    admin = Admin(settings)
    admin.delete_consumer_groups([settings.group_id])[settings.group_id].result(20)
    assert group.committed(settings, 2) == {}
    run(settings, 0, *once)
    assert values(stage, 3) == [b"a", b"b", b"c"]


def test_a_state_of_which_the_changelog_does_not_say_that_it_was_sent_is_refused_with_the_way_out(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    settings = settings_of(stage)
    run(settings, 0, part(stage.origin, 0, 3, b"a"))
    group.write_checkpoints(settings, {0: Checkpoint(engine=Engine.SPARK)})
    another_process()
    with pytest.raises(CommandFailed, match="--restore-marks"):
        run(settings, 1, part(stage.origin, 3, 4, b"b"))
    meta = Meta(checkpoint=Checkpoint(engine=Engine.SPARK, sequence=3, next_input_offset=30))
    group.write_checkpoints(settings, marked({0: meta}, group.last_checkpoints(settings, 2), "checkpoint"))
    run(settings, 1, part(stage.origin, 3, 4, b"b"))
    assert values(stage, 2) == [b"a", b"b"]
    last = group.last_checkpoints(settings, 2)
    assert marked({0: meta}, last, "checkpoint") == {}, "nothing is missing"


def test_marks_are_read_when_no_transaction_of_another_program_hides_them(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    """A frozen instance of the embedded engine has a transaction open in front of them."""
    settings = settings_of(stage)
    frozen = Producer({"bootstrap.servers": stage.bootstrap, "transactional.id": f"{stage.app_id}-frozen"})
    frozen.init_transactions(30)
    frozen.begin_transaction()
    frozen.produce(settings.changelog_topic, b"a block", b"b", 0)
    frozen.flush(30)
    group.write_checkpoints(settings, {0: Checkpoint(engine=Engine.SPARK, sequence=3)})
    reader = CheckpointReader(settings)
    with pytest.raises(KafkaFailed, match="no stable end"):
        reader.last([0], 0.1)
    frozen.abort_transaction()
    assert reader.last([0, 1], 30)[0].sequence == 3
    reader.close()
    another_process()


def test_a_step_that_was_sent_in_part_continues_behind_it(stage: Stage, another_process: Callable[[], None]) -> None:
    settings = settings_of(stage)
    first = part(stage.origin, 0, 1, b"a", last=False)
    second = part(stage.origin, 1, 2, b"b")
    one = TransactionalSink(settings, "checkpoint", (2, 1))
    one.open(0, 0)
    one.process({"payload": encode_output_part(first)})
    one._deliver()  # as it does when a transaction is full; then it is killed
    another_process()
    run(settings, 0, first, second)
    assert values(stage, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("once", "then"),
    [
        pytest.param([(0, 1, b"a")], [(0, 1, b"x")], id="another-record"),
        pytest.param([(0, 1, b"a")], [(0, 2, b"a")], id="more-steps"),
        pytest.param([(0, 1, b"a"), (1, 2, b"b")], [(0, 1, b"a")], id="fewer-steps"),
        pytest.param([(0, 1, b"a")], [(0, 1)], id="nothing"),
    ],
)
def test_a_micro_batch_that_would_send_other_records_than_it_has_is_refused_with_the_way_out(
    stage: Stage, another_process: Callable[[], None], once: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    settings = settings_of(stage)

    def of(outputs: list[tuple[Any, ...]]) -> list[OutputPart]:
        return [
            part(stage.origin, before, after, *what, last=at == len(outputs))
            for at, (before, after, *what) in enumerate(outputs, 1)
        ]

    run(settings, 0, *of(once))
    another_process()
    with pytest.raises(CommandFailed, match=r"other records.*Run version 0\.0\.1"):
        run(settings, 0, *of(then), former="0.0.1")
    assert values(stage, len(once)) == sorted(output[2] for output in once)


def test_counts_may_differ_in_a_micro_batch_that_runs_again(stage: Stage, another_process: Callable[[], None]) -> None:
    settings = settings_of(stage)
    once = part(stage.origin, 0, 1, b"a")
    run(settings, 0, once)
    another_process()
    run(settings, 0, replace(once, status_records=[StatusRecord(b"p/0", b'{"more": 1}', [])]))
    assert values(stage, 1) == [b"a"]


def test_a_micro_batch_of_an_old_checkpoint_is_refused(stage: Stage, another_process: Callable[[], None]) -> None:
    settings = settings_of(stage)
    run(settings, 5, part(stage.origin, 0, 5, b"a"))
    another_process()
    with pytest.raises(CommandFailed, match="another query runs"):
        run(settings, 3, part(stage.origin, 2, 4, b"b"))
    with pytest.raises(CommandFailed, match="another query runs"):
        run(settings, 5, part(stage.origin, 0, 5, b"a"), checkpoint="copy")


def test_an_origin_that_is_gone_is_named_and_nothing_is_committed(stage: Stage) -> None:
    settings = settings_of(stage)
    gone = f"{stage.app_id}-gone"
    with pytest.raises(TopicsRefuse) as failure:
        run(settings, 0, part(gone, 0, 1, b"a", last=False), part(stage.origin, 1, 2, b"b"))
    assert TopicsRefuse.read(f"Traceback: sidecar.spark.marks.TopicsRefuse: {failure.value}\n") == {gone: "vanished"}
    assert read_committed(stage.bootstrap, [stage.origin]) == []


def test_a_dlq_that_cannot_be_written_is_named_like_an_origin(stage: Stage) -> None:
    settings = dataclasses.replace(settings_of(stage), dlq_topic=f"{stage.app_id}-nowhere")
    with pytest.raises(TopicsRefuse) as failure:
        run(settings, 0, part(settings.dlq_topic, 0, 1, b"a"))
    assert TopicsRefuse.read(f"TopicsRefuse: {failure.value}") == {settings.dlq_topic: "vanished"}


def test_a_record_that_its_topic_will_not_have_is_a_dead_letter_and_the_others_fire(stage: Stage) -> None:
    settings = settings_of(stage)
    compacted = f"{stage.app_id}-compacted"
    create_topic(stage.bootstrap, compacted, 1, {"cleanup.policy": "compact"})
    bad = part(compacted, 0, 1, b"a", last=False)
    bad = replace(bad, records=[each._replace(key=None) for each in bad.records])
    run(settings, 0, bad, part(stage.origin, 1, 2, b"b"))
    assert values(stage, 1) == [b"b"]
    (dead,) = read_committed(stage.bootstrap, [stage.dlq_topic])
    assert (dead.value, dead.header("retry-dlq-reason")) == (b"a", b"unfireable")


def test_a_dead_letter_of_the_sink_is_the_message_at_its_place_in_the_input_topic_of_today(stage: Stage) -> None:
    headers: Pairs = [("retry-origin-topic", b"any"), ("came", b"with it")]
    send(stage.bootstrap, stage.input_topic, Given(b"a", headers=headers))
    compacted = f"{stage.app_id}-compacted"
    create_topic(stage.bootstrap, compacted, 1, {"cleanup.policy": "compact"})
    bad = part(compacted, 0, 1, b"a", b"A", offset_base=ord("a"))
    run(settings_of(stage), 0, replace(bad, records=[each._replace(key=None) for each in bad.records]))
    today, former = read_committed(stage.bootstrap, [stage.dlq_topic])
    assert (today.value, today.header("came"), today.header("__connect.errors.offset")) == (b"a", b"with it", b"0")
    assert (former.value, former.header("h")) == (b"A", None)
    assert "__connect.errors.offset" not in dict(former.headers)


def test_rows_that_were_cut_off_are_not_committed(stage: Stage) -> None:
    """Spark ends the rows as if they were all when the operator before has failed."""
    one = TransactionalSink(settings_of(stage), "checkpoint", (2, 1))
    assert one.open(0, 7)
    one.process({"payload": encode_output_part(part(stage.origin, 0, 1, b"a", ends=False, last=False))})
    with pytest.raises(InvariantViolated, match="cut off"):
        one.close(None)
    assert read_committed(stage.bootstrap, [stage.origin]) == []


def test_a_transaction_has_an_end_however_much_one_state_partition_sends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "TRANSACTION_RECORDS_MAX", 2)
    sizes: list[int] = []
    deliver = Sender.deliver

    def counted(self: Sender, batch: int, outputs: Sequence[PlanOutput], former: str = "") -> None:
        sizes.append(sum(output.count for output in outputs))
        deliver(self, batch, outputs, former)

    monkeypatch.setattr(Sender, "deliver", counted)
    run(
        settings_of(stage),
        0,
        *(part(stage.origin, at, at + 1, b"%d" % at, partition=0, last=at == 4) for at in range(5)),
        part(stage.origin, 0, 1, b"p", b"q", b"r", partition=1),
    )
    assert sizes == [2, 2, 4]
    assert values(stage, 8) == [b"0", b"1", b"2", b"3", b"4", b"p", b"q", b"r"]


def test_workers_take_turns_with_a_state_partition_without_a_failed_attempt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives a task to any worker process; the producer that another one has kept is fenced."""
    settings = settings_of(stage)
    failed: list[str] = []
    handle_refusals = Sender._handle_refusals

    def noted(self: Sender, *more: Any) -> None:
        failed.append("attempt")
        handle_refusals(self, *more)

    monkeypatch.setattr(Sender, "_handle_refusals", noted)
    workers: list[dict[tuple[str, str, str, int], Worker]] = [{}, {}]
    for sequence, worker in enumerate([0, 1, 1, 0, 1, 0, 0]):
        monkeypatch.setattr(sink, "_workers", workers[worker])
        run(settings, sequence, part(stage.origin, sequence, sequence + 1, b"%d" % sequence))
    assert values(stage, 7) == [b"%d" % sequence for sequence in range(7)]
    assert failed == []


def handed(topic: str, before: int, value: bytes, *, wait_ms: int, **more: Any) -> OutputPart:
    """Return what is handed out ahead, or sent by the step that follows."""
    release_ms = SystemClock().wall_ms() + wait_ms
    output = part(topic, before, before + 1, value, release_ms=release_ms, **more)
    return replace(output, status_records=[], next_input_offset=10)


def settled_mark(settings: Settings, until: Callable[[Mark], bool]) -> Mark:
    """Return the mark of partition 0 once it is so."""
    deadline = Deadline(20.0)
    while True:
        mark = group.last_checkpoints(settings, 2)[0].mark
        if mark is not None and until(mark):
            return mark
        assert not deadline.passed, f"not within 20 s: {mark}"
        deadline.pause()


def test_what_is_handed_out_is_sent_when_it_is_due_and_not_again_by_the_step_that_follows(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    settings = settings_of(stage)
    soon = handed(stage.origin, 1, b"b", wait_ms=200, ahead=True, last=False)
    far = handed(stage.origin, 2, b"c", wait_ms=50_000, ahead=True, last=False)
    run(settings, 0, part(stage.origin, 0, 1, b"a"), soon, far)
    mark = settled_mark(settings, lambda mark: mark.ahead > 0)
    assert (mark.sequence, mark.reached, mark.batch) == (1, 2, 0)
    assert values(stage, 2) == [b"a", b"b"]
    another_process()
    run(settings, 0, part(stage.origin, 0, 1, b"a"), soon, far)  # Spark runs it again
    another_process()
    following = [replace(each, ahead=False, release_ms=0) for each in (soon, far)]
    run(settings, 1, *following, part(stage.origin, 3, 4, b"d"))
    assert values(stage, 4) == [b"a", b"b", b"c", b"d"]
    mark = settled_mark(settings, lambda mark: mark.batch == 1)
    assert (mark.sequence, mark.ahead) == (4, 0)


def test_a_step_that_was_sent_ahead_as_a_whole_still_publishes_its_counts_and_its_mark(stage: Stage) -> None:
    settings = settings_of(stage)
    soon = handed(stage.origin, 1, b"b", wait_ms=1, ahead=True, last=False)
    run(settings, 0, part(stage.origin, 0, 1, b"a"), soon)
    settled_mark(settings, lambda mark: mark.ahead > 0)
    counts = StatusRecord(b"p/0", b'{"after": 1}', [])
    run(settings, 1, replace(soon, ahead=False, last=True, release_ms=0, status_records=[counts]))
    assert values(stage, 2) == [b"a", b"b"]
    mark = settled_mark(settings, lambda mark: mark.batch == 1)
    assert (mark.sequence, mark.ahead) == (2, 0)
    published = read_committed(stage.bootstrap, [settings.status_topic])
    assert b'{"after": 1}' in [record.value for record in published]


def test_a_step_that_begins_otherwise_than_what_was_sent_ahead_is_refused(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    settings = settings_of(stage)
    run(settings, 0, part(stage.origin, 0, 1, b"a"), handed(stage.origin, 1, b"b", wait_ms=1, ahead=True, last=False))
    settled_mark(settings, lambda mark: mark.ahead > 0)
    another_process()
    with pytest.raises(CommandFailed, match="other records"):
        run(settings, 1, part(stage.origin, 1, 2, b"x"))
    assert values(stage, 2) == [b"a", b"b"]


def test_a_worker_that_lost_its_state_partition_sends_nothing_ahead_any_more(
    stage: Stage, another_process: Callable[[], None]
) -> None:
    settings = settings_of(stage)
    far = handed(stage.origin, 1, b"b", wait_ms=50_000, ahead=True, last=False)
    run(settings, 0, part(stage.origin, 0, 1, b"a"), far)
    (zombie,) = sink._workers.values()
    another_process()
    run(settings, 1, replace(far, ahead=False, last=True, release_ms=0))
    zombie.ahead.pause()
    for _, output in zombie.ahead._left:
        output.release_ms = 0
    assert zombie.ahead.send_released()
    assert zombie.ahead._left == []
    assert values(stage, 2) == [b"a", b"b"]


def test_the_sink_waits_for_what_is_not_due_when_the_step_that_follows_comes_early(stage: Stage) -> None:
    settings = settings_of(stage)
    run(settings, 0, part(stage.origin, 0, 1, b"a"))
    soon = handed(stage.origin, 1, b"b", wait_ms=700, last=False)
    run(settings, 1, soon, part(stage.origin, 2, 3, b"c"))
    times = [record.timestamp_ms for record in read_committed(stage.bootstrap, [stage.origin])]
    assert len(times) == 3
    assert sum(time_ms >= soon.release_ms for time_ms in times) == 2
