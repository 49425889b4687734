"""A redrive task against a broker: whatever Spark runs again, each dead letter is sent once. No JVM is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest

from sidecar.contract import DIALECTS
from sidecar.contract.redrive import RedriveTerms, SkipReason
from sidecar.dlq import redrive
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.job import RedriveJob, take_over
from sidecar.dlq.reader import OffsetRange, require_topic, run_identity, where_run_stopped
from sidecar.dlq.redrive import RedriveLimits
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Topic
from sidecar.model import Reason, Record
from sidecar.settings import Settings
from sidecar.spark.jobs.redrive import RedriveRequest, _Looking, _Sending
from sidecar.spark.jobs.task_report import TaskReport, combined
from tests.broker import read_committed
from tests.integration.messages import Given, Pairs, send
from tests.integration.sidecars import Stage
from tests.spark.jobs.dead_letters import dead
from tests.waiting import eventually

pytestmark = pytest.mark.broker

END = 30


class RedriveStage:
    """One run over partition 0 of a DLQ, as its driver has begun it."""

    def __init__(self, stage: Stage) -> None:
        self.settings = Settings(
            bootstrap_servers=stage.bootstrap,
            streams_app_id=stage.app_id,
            input_topic=stage.input_topic,
            dlq_topic=stage.dlq_topic,
        )
        self.topic: Topic = require_topic(Admin(self.settings), stage.input_topic, "WRITE")
        self.run = run_identity(self.settings, "r")
        self.request = RedriveRequest(self.settings, DeadLetterFilter(origins=("orders",)), RedriveTerms(), self.run)
        assert where_run_stopped(self.settings, self.run, [0]) == {0: None}
        whole = {0: OffsetRange(0, 0, END, END)}
        assert take_over(self.settings, self.run, self.topic, whole, restart=False) == whole

    def attempt(self, slices: Iterator[Sequence[Record]], end: int = END) -> TaskReport:
        """Run the task as Spark does."""
        return only(_Sending(self.request, self.topic, {0: end})(slices))

    def job(self) -> RedriveJob:
        """Return the same run as the command and HTTP start it."""
        limits = RedriveLimits(None, None)
        return RedriveJob(self.settings, self.request.wanted, self.request.terms, limits, self.run)

    def sent(self) -> Counter[bytes]:
        """Return the values on the retry topic, all from partition 1, where they came from."""
        records = read_committed(self.settings.bootstrap_servers, [self.settings.input_topic])
        assert {record.partition for record in records} <= {1}
        return Counter(record.value or b"" for record in records)


def only(rows: Iterator[pa.RecordBatch]) -> TaskReport:
    (batch,) = rows
    (payload,) = batch.column("payload").to_pylist()
    return msgspec.msgpack.decode(payload, type=TaskReport)


def batch(stage: Stage, *offsets: int) -> list[Record]:
    """Return a dead letter for `orders` at each offset: one in ten is truncated, one in ten has another origin."""
    records = []
    for offset in offsets:
        origin: Pairs = [("retry-origin-topic", b"payments" if offset % 10 == 8 else b"orders")]
        headers = dead(origin, Reason.FATAL, topic=stage.input_topic, partition=1, truncated=offset % 10 == 9)
        records.append(Record(0, offset, 0, b"k", b"%d" % offset, headers))
    return records


SENT = Counter({b"%d" % offset: 1 for offset in range(END - 2) if offset % 10 < 8})


def test_a_task_that_is_tried_again_sends_nothing_twice(stage: Stage) -> None:
    run = RedriveStage(stage)
    every = [batch(stage, *range(10)), batch(stage, *range(10, 28))]
    first = run.attempt(iter(every))
    assert (first.read, first.redriven, first.filtered, first.skipped) == (28, 24, 2, {"truncated": {"fatal": 2}})
    again = run.attempt(iter(every))
    assert (again.read, again.redriven, again.passed, again.failure) == (0, 0, 28, "")
    assert run.sent() == SENT
    assert where_run_stopped(run.settings, run.run, [0]) == {0: END}, "behind the markers at the end"


def test_a_task_that_was_lost_in_the_middle_is_gone_on_with(stage: Stage) -> None:
    run = RedriveStage(stage)

    def lost() -> Iterator[list[Record]]:
        yield batch(stage, *range(10))
        raise RuntimeError("the executor is gone")

    with pytest.raises(RuntimeError):
        run.attempt(lost())
    again = run.attempt(iter([batch(stage, *range(28))]))
    assert (again.read, again.redriven, again.passed) == (18, 16, 10)
    assert run.sent() == SENT


def test_a_task_that_was_thought_dead_can_send_nothing_more(stage: Stage) -> None:
    run = RedriveStage(stage)
    later: list[TaskReport] = []

    def slow() -> Iterator[list[Record]]:
        yield batch(stage, *range(10))
        # It is committed while this slice is made ready.
        eventually(lambda: where_run_stopped(run.settings, run.run, [0]) == {0: 10}, 30, "the first slice is committed")
        later.append(run.attempt(iter([batch(stage, *range(28))])))
        yield batch(stage, *range(10, 28))

    first = run.attempt(slow())
    assert "another process has taken over run r" in first.failure
    assert (first.redriven, later[0].redriven, later[0].failure) == (8, 16, "")
    assert run.sent() == SENT


def test_a_run_that_is_started_by_command_and_on_spark_at_once_sends_each_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start ends the one before, which says so, on whichever engine it is."""
    every = batch(stage, *range(28))
    given = [Given(each.value or b"", each.key or b"", list(each.headers or ()), 0) for each in every]
    send(stage.bootstrap, stage.dlq_topic, *given)
    run = RedriveStage(stage)
    job: list[RedriveJob] = []
    later: list[TaskReport] = []

    def advanced(_remaining: int) -> None:
        if job[0].sent and not later:
            later.append(run.attempt(iter([every]), 28))

    def slow() -> Iterator[list[Record]]:
        yield every[:10]
        eventually(lambda: where_run_stopped(run.settings, run.run, [0]) == {0: 10}, 30, "the first slice is committed")
        monkeypatch.setattr(redrive, "BATCH_MAX", 4)
        job.append(run.job())
        with pytest.raises(CommandFailed, match="another process has taken over run r"):
            job[0].carry_out(lambda: False, advanced)
        yield every[10:]

    first = run.attempt(slow(), 28)
    assert "another process has taken over run r" in first.failure
    assert first.redriven == 8
    assert job[0].sent >= 4
    assert (later[0].failure, later[0].redriven > 0) == ("", True)
    assert run.sent() == SENT


def test_a_look_counts_the_same_and_sends_nothing(stage: Stage) -> None:
    run = RedriveStage(stage)
    looked = only(_Looking(run.request, run.topic)(iter([batch(stage, *range(28))])))
    assert (looked.read, looked.redriven, looked.filtered, looked.skipped) == (28, 24, 2, {"truncated": {"fatal": 2}})
    assert not run.sent()


def test_what_tasks_did_is_added_up_with_the_first_of_each_kind(stage: Stage) -> None:
    run = RedriveStage(stage)
    looked = only(_Looking(run.request, run.topic)(iter([batch(stage, *range(28))])))
    parts = [msgspec.structs.replace(looked, partition=number) for number in (2, 0, 1)]
    outcome = combined([*parts, TaskReport(partition=3, failure="fenced")], [DIALECTS["native"]])
    tally = outcome.tally
    assert (tally.read, tally.redriven, tally.filtered) == (84, 72, 6)
    assert tally.skipped == {SkipReason.TRUNCATED: {"fatal": 6}}
    assert [each.offset for each in tally.first] == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert {(each.dead_letter.origin, each.dead_letter.detail, each.value) for each in tally.first} == {
        ("orders", "because", None)
    }
    assert len(tally.first_skipped) == 5
    assert outcome.failures == {3: "fenced"}
