"""What the runtime, its adapters and the Spark engine must never do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock, patch

from confluent_kafka import KafkaError

from sidecar.changelog.codec import Checkpoint
from sidecar.clock import SystemClock
from sidecar.contract.dead_letter import DeadLetter
from sidecar.dlq.reader import DlqRecord
from sidecar.engine.items import Item
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import Plan
from sidecar.errors import TransactionFailed
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.kafka.changelog import ChangelogReader
from sidecar.kafka.input import InputConsumer, decode_membership
from sidecar.kafka.producer import Refusal, Refused, TransactionalProducer
from sidecar.runtime.jobs import Jobs
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.partitions.recovery import Recovery
from sidecar.runtime.partitions.start_offsets import PartitionOffsets, Topics
from sidecar.runtime.transaction.commit import Committer, Work, Writing, _apply, unobserved
from sidecar.settings import Settings
from sidecar.spark.handover.changelog import sorted_blocks
from sidecar.spark.jobs.task_report import ArrowDeadLetterReader
from sidecar.spark.state.entries import Meta, decode_meta, encode
from sidecar.spark.stream.sink import TransactionalSink
from sidecar.spark.stream.wire import OutputPart
from sidecar.store.rocks import RocksStore
from tests.clocks import HandClock
from tests.output_parts import encode_output_part
from tests.simulation.fakes.membership import pack
from tests.simulation.memory_store import MemoryBatch
from tests.simulation.stage import NOW, Stage
from tests.unit.runtime.harness import LoopHarness

NOWHERE: Final = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0}
OFFLINE: Final = {"bootstrap.servers": "127.0.0.1:9", "transactional.id": "t", "batch.size": 1_000, "log_level": 0}


# Transactions


def work(stage: Stage | None = None, **changes: Any) -> Work:
    """Return a transaction that stores a timer, with other fields."""
    at = stage or Stage()
    made = at.plan(NOW, at.send(NOW + 500), at.send(NOW))
    good = Work(
        made, {0: at.partition}, pack("member", 1), Identity("cluster", "topic"), "retry", "changelog", "status"
    )
    return replace(good, **changes)


def write(transaction: Work) -> Writing:
    return Writing(transaction, Mock(), Stage().store, SystemClock(), unobserved)


def no_offsets() -> None:
    write(work(plan=Plan(NOW, [], frozenset())))


def two_plans() -> None:
    good = work().plan
    write(work(plan=replace(good, partition_plans=good.partition_plans * 2)))


def of_a_stopped_partition() -> None:
    write(work(partitions={0: Partition(0)}))


def fire_to_the_changelog() -> None:
    write(work(changelog_topic="A"))


def no_changelog_offset() -> None:
    _apply(write(work()), {})


def no_producer() -> None:
    jobs: Any = SimpleNamespace(_producer=None)
    Jobs._ready_producer(jobs)


def two_jobs() -> None:
    committer = Committer(SystemClock())
    try:
        committer.submit(int)
        committer.submit(int)
    finally:
        committer.close()


def nothing_to_take() -> None:
    committer = Committer(SystemClock())
    try:
        committer.take()
    finally:
        committer.close()


def producer(**state: Any) -> TransactionalProducer:
    """Return a producer in some state; there is no broker."""
    made = TransactionalProducer(OFFLINE, HandClock())
    for name, value in state.items():
        setattr(made, f"_{name}", value)
    return made


REFUSED: Final = Refused(0, Mock(), Refusal.RECORD, "the broker rejects it")
FAILED: Final = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


def written(**state: Any) -> Callable[[], None]:
    return lambda: producer(open=True, **state)._committed()


def go_on_after_a_refusal() -> None:
    producer(fenced_others=True, changelog_error=FAILED).begin()


# Partitions


def assign_twice() -> None:
    harness = LoopHarness()
    try:
        harness.assignment.assign([1])
        harness.assignment.assign([1])
    finally:
        harness.jobs.close()


def buffer(*offsets: int) -> Buffer:
    made = Buffer(Mock())
    made.begin(0, 0)
    made.put_back({0: items(*offsets)})
    return made


def items(*offsets: int) -> Sequence[Item]:
    stage = Stage()
    return [stage.send(NOW, offset=offset) for offset in offsets]


def buffer_twice() -> None:
    buffer(0).begin(0, 0)


def put_back_behind() -> None:
    buffer(3).put_back({0: items(4)})


def out_of_order() -> None:
    buffer(3, 2).batches([0], 9, 10**6)


def lose_count() -> None:
    made = buffer(2, 3)
    made._partitions[0].bytes = 7
    made.batches([0], 1, 10**6)


def recover(committed: int | None = None, log_start: int = 0, times: int = 1) -> None:
    recovery = Recovery(
        *(Mock(), Mock(), HandClock(), Topics("retry", "changelog", "g"), Identity("cluster", "topic"), Mock()),
        running=Mock(),
        restored=Mock(),
        input_lost=Mock(),
        rolled_back=Mock(),
    )
    for _ in range(times):
        found = None if committed is None else Committed(committed, "")
        offsets = PartitionOffsets(Partition(0), found, "id", "topic", Bounds(0, 0), Bounds(log_start, 9))
        recovery._begin(Stage().store, offsets)


def restore_outside() -> None:
    with patch("sidecar.runtime.partitions.recovery.Restore") as restore:
        restore.return_value.begin.return_value = 10
        recover()


# Adapters


def consumer(act: Callable[[InputConsumer], object]) -> Callable[[], None]:
    def run() -> None:
        made = InputConsumer(NOWHERE, "retry", Mock(), Mock())
        try:
            act(made)
        finally:
            made.close()

    return run


def read_changelog_from_nowhere() -> None:
    reader = ChangelogReader(NOWHERE, "changelog")
    try:
        reader.start(0, -1001)
    finally:
        reader.close()


def store(act: Callable[[RocksStore], object]) -> Callable[[], None]:
    def run() -> None:
        with TemporaryDirectory() as folder:
            made = RocksStore(Path(folder) / "rocksdb")
            try:
                act(made)
            finally:
                made.close()

    return run


def delete_backwards() -> Sequence[Mutations]:
    changes = Mutations()
    changes.ranges.append((b"t2", b"t1"))
    return [changes]


# Spark


def part(partition: int = 0, before: int = 0, after: int = 1, *, ends: bool = True) -> OutputPart:
    return OutputPart(
        partition=partition, before=before, after=after, next_input_offset=1, records=[], ends=ends, last=False
    )


def sent(*parts: OutputPart) -> Callable[[], None]:
    """Return what hands parts to the sink of the first of two state partitions, and ends the micro-batch."""

    def run() -> None:
        sink = TransactionalSink(Settings(), "checkpoint", (4, 2))
        sink.open(0, 1)
        for each in parts:
            sink.process({"payload": encode_output_part(each)})
        sink.close(None)

    return run


def wake_in_the_past() -> None:
    import pytest

    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install -e '.[spark]'")
    from sidecar.spark.state.map_state import AccessTimes
    from sidecar.spark.stream.processor import WheelProcessor

    steps = Mock(step=Mock(return_value=SimpleNamespace(wakes_ms=NOW, woke_ms=0, output_parts=[])))
    operator: Any = SimpleNamespace(_lookup=Mock(), _steps=steps, _state=Mock(times=AccessTimes()), _handle=Mock())
    list(WheelProcessor._step(operator, 0, [], NOW))


def state_of_the_other_engine() -> None:
    decode_meta(encode(Meta(checkpoint=Checkpoint(sequence=3))))


def read_another_partition() -> None:
    record = DlqRecord(1, 0, NOW, None, None, [], DeadLetter([]))
    ArrowDeadLetterReader(0, iter([[record]]), 0, 9, b"").read()


def export_unsorted() -> None:
    at = Stage()
    entries = [at.commit(NOW, at.send(NOW + due)).records[0] for due in (90_000, 500)]
    from sidecar.changelog.codec import decode_block

    rows = [(0, entry) for _, value in entries for entry in decode_block(value or b"").entries]
    list(sorted_blocks(rows, {0: 1}))


BREAKS: Final[dict[str, Callable[[], object]]] = {
    "offsets to commit": no_offsets,
    "a transaction has two plans of a partition": two_plans,
    "a transaction of no member of the group: nothing would fence it": lambda: write(work(membership=pack("", -1))),
    "a transaction has a plan of a partition that does not run": of_a_stopped_partition,
    "a delivery goes to a topic of the sidecar itself": fire_to_the_changelog,
    "no changelog offset was reported": no_changelog_offset,
    "a transaction has no producer": no_producer,
    "two jobs at once": two_jobs,
    "no outcome to take": nothing_to_take,
    "a transaction begins before older producers are fenced": lambda: producer().begin(),
    "a transaction begins while the one before is open or its outcome is unknown": lambda: producer(
        fenced_others=True, open=True
    ).begin(),
    "a producer goes on after a record was refused": go_on_after_a_refusal,
    "a call needs a transaction, and none is open": lambda: producer().commit(),
    "a transaction commits no offsets, or offsets that are none": lambda: producer(open=True).send_offsets(
        "retry", {0: -1001}, pack("member", 1)
    ),
    "a transaction was committed without a record that was refused": written(refused=[REFUSED]),
    "a transaction was committed without all of its changelog records": lambda: producer(
        open=True, written={0: 2}, acknowledged={0: 1}
    )._committed(),
    "a producer is kept that is fenced or has an unknown outcome": lambda: TransactionFailed(
        "late", unknown=True, replace=False
    ),
    "a partition is assigned that is owned already": assign_twice,
    "a partition is buffered twice": buffer_twice,
    "messages are put back behind later ones": put_back_behind,
    "a batch is not in the order of its offsets": out_of_order,
    "a buffer has lost count of its size": lose_count,
    "a committed offset is none": lambda: recover(committed=-1001),
    "a log ends before it starts": lambda: recover(log_start=10),
    "a restore begins outside of the changelog": restore_outside,
    "a partition is restored twice at once": lambda: recover(times=2),
    "group metadata has no member id": lambda: decode_membership(b"CGMDv2:" + bytes(4) + b"group"),
    "a partition is fetched that is not assigned": consumer(lambda made: made.resume([3])),
    "the input is to be read from an offset that is none": consumer(lambda made: made.seek(0, -1001)),
    "the changelog is to be read from an offset that is none": read_changelog_from_nowhere,
    "changes that another store prepared": store(lambda made: made.write(MemoryBatch([Mutations()]))),
    "a scan ends before it begins": store(lambda made: made.keys(b"t2", b"t1", limit=1)),
    "a range to delete ends before it begins": store(lambda made: made.prepare(delete_backwards())),
    "a task handles one partition of the DLQ": read_another_partition,
    "the micro-batch was cut off, so its incomplete plans are not committed": sent(part(ends=False)),
    "the output of a partition came to a state partition that is not its own": sent(part(1)),
    "parts of two plans are mixed": sent(part(ends=False), part(after=2)),
    "the output of a plan does not continue the one before": sent(part(), part(before=3, after=4)),
    "a partition step is to wake at an instant that is over": wake_in_the_past,
    "the state of a partition has a checkpoint of the other engine": state_of_the_other_engine,
    "timers to export are not sorted, and one block would replace another": export_unsorted,
}
