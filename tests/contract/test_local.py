"""The executor of jobs beside the loop, and the writer of single records."""

from __future__ import annotations

import pytest

from sidecar.errors import InvariantViolated, KafkaFailed, TransactionFailed
from sidecar.kafka.writer import Written
from tests.contract.side import Side

pytestmark = pytest.mark.broker


class TestExecutor:
    def test_a_job_is_busy_until_its_outcome_is_taken(self, side: Side) -> None:
        executor = side.executor()
        assert not executor.busy
        assert not executor.wait(0)
        executor.submit(lambda: "done")
        assert executor.busy
        assert executor.wait(60.0)
        assert executor.busy
        assert executor.take() == "done"
        assert not executor.busy

    def test_what_a_job_raises_is_raised_where_its_outcome_is_taken(self, side: Side) -> None:
        def job() -> None:
            raise TransactionFailed("refused", unknown=False, replace=False)

        executor = side.executor()
        executor.submit(job)
        assert executor.wait(60.0)
        with pytest.raises(TransactionFailed, match="refused"):
            executor.take()
        executor.submit(lambda: 2)
        assert executor.wait(60.0)
        assert executor.take() == 2

    def test_two_jobs_at_once_are_a_bug(self, side: Side) -> None:
        executor = side.executor()
        executor.submit(lambda: 1)
        with pytest.raises(InvariantViolated):
            executor.submit(lambda: 2)
        assert executor.wait(60.0)


class TestWriter:
    def test_each_record_is_reported_once_with_its_offset(self, side: Side) -> None:
        topic = side.name("status")
        side.create(topic, 2)
        writer = side.writer()
        told: list[Written | KafkaFailed] = []
        for number in range(2):
            writer.write(topic, b"k", b"%d" % number, partition=1, headers=[], report=told.append)

        def reported() -> bool:
            writer.poll(0)
            return len(told) >= 2

        side.eventually(reported, "both are reported")
        assert [each[:2] if isinstance(each, Written) else each for each in told] == [(1, 0), (1, 1)]
        assert writer.flush(1.0) == 0
