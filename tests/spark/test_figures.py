"""The driver's metrics and its last hour, from the progress of micro-batches; and which alerts they can fire."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.cli.spark.http import Driver, DriverSource
from sidecar.engine.group.activity import Minute, together
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import State
from sidecar.metrics import Metrics
from sidecar.notify.notifier import Notifier
from sidecar.notify.summary import Source
from sidecar.notify.template import DEFAULT, Template
from sidecar.notify.webhook import Attempt
from sidecar.spark.open_files import EXECUTOR_JVM, WORKER, OpenFiles
from sidecar.spark.stream import observation
from sidecar.spark.stream.query import OBSERVATION
from sidecar.spark.stream.wire import Tally, encode_tally
from tests.clocks import HandClock
from tests.deploy.test_alerts import RULES
from tests.spark.differences import unable_alerts
from tests.unit.engine.test_view import EMPTY

URL: Final = "http://driver:8080"


def progress(*tallies: Tally, batch: int = 1, lag: int = 5) -> dict[str, Any]:
    """Return the progress of a micro-batch, in Spark's words."""
    return {
        "batchId": batch,
        "numInputRows": 1,
        "durationMs": {"triggerExecution": 500},
        "observedMetrics": {OBSERVATION: {"tallies": [encode_tally(each) for each in tallies]}},
        "stateOperators": [{"customMetrics": {"rocksdbSstFileSize": 4096, "rocksdbFlushLatency": 7}}],
        "sources": [
            {
                "endOffset": json.dumps({"now_ms": 1, "offsets": {"0": 10, "1": 20}}),
                "latestOffset": json.dumps({"now_ms": 1, "offsets": {"0": 10 + lag, "1": 20}}),
            }
        ],
    }


class Stage:
    """A driver whose query has two partitions."""

    def __init__(self, notifier: Notifier | None = None, metrics: Metrics | None = None) -> None:
        self.clock = HandClock()
        self.metrics = metrics or Metrics(version="1", now_ms=self.clock.wall_ms)
        observation.start_at_zero(self.metrics)
        view = replace(
            EMPTY,
            state=State.RUNNING,
            owner="spark-1",
            url=URL,
            next_due_ms=self.clock.wall_ms() - 3_000,
            closed_origins={"orders": ("vanished", 1)},
        )
        self.views: list[PartitionView] = [replace(view, partition=0), replace(view, partition=1)]
        cluster = Mock(error="", refused=0, partitions_total=2, alive=True)
        cluster.views.side_effect = lambda *_: self.views
        cluster.unread.return_value = None
        self.driver = Driver(cluster, self.clock, self.metrics, notifier)
        self.driver.url = URL
        self.source = DriverSource(self.driver, cluster)

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the values of each metric by its labels."""
        page, _ = self.metrics.render("")
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(page.decode() if isinstance(page, bytes) else page):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found


def test_the_progress_of_a_micro_batch_fills_the_metrics() -> None:
    stage = Stage()
    stage.clock.now_s = 9.0
    stage.driver.progressed(progress(Tally(fired={"orders": 3}, late={25: 2, 2_000: 1})))
    stage.driver.progressed(progress(batch=2, lag=7))
    stage.driver.skewed(-0.25)
    found = stage.samples()
    assert found["retry_sidecar_store_bytes"] == {(): 4096}
    assert found["retry_sidecar_input_lag"] == {("0",): 7, ("1",): 0}
    assert found["retry_sidecar_clock_skew_seconds"] == {(): -0.25}
    assert (found["retry_sidecar_restore_seconds_count"], found["retry_sidecar_restore_seconds_sum"]) == (
        {(): 1},
        {(): 9},
    )
    assert found["retry_sidecar_watermark_lag_seconds"][("0",)] == 12


@pytest.mark.parametrize(
    ("offsets", "latest", "lags"),
    [
        ({"offsets": {"0": 1}}, {"offsets": {"0": 4}}, {0: 3}),
        ('{"offsets": {"0": 1, "1": 5}}', '{"offsets": {"0": 4, "1": 2}}', {0: 3, 1: 0}),
        ('{"retry": {"0": 1}}', '{"offsets": {"0": 4}}', {}),
        ('{"offsets": {"0": 1}}', None, {}),
        ("not JSON", '{"offsets": {"0": 4}}', {}),
        (None, None, {}),
    ],
)
def test_the_lag_is_what_the_source_had_not_read(offsets: object, latest: object, lags: Mapping[int, int]) -> None:
    assert observation.lags({"sources": [{"endOffset": offsets, "latestOffset": latest}]}) == lags


def test_open_files_are_the_most_of_the_executors_that_counted_last_and_the_drivers_own() -> None:
    stage = Stage()
    stage.driver.progressed(progress(Tally(open_files={WORKER: OpenFiles(7, 100), EXECUTOR_JVM: OpenFiles(90, 1_000)})))
    assert stage.samples()["retry_sidecar_open_files"] == {("worker",): 7, ("executor-jvm",): 90}
    stage.driver.opened(os.getpid())
    one, other = (Tally(open_files={WORKER: OpenFiles(each, 100)}) for each in (8, 12))
    stage.driver.progressed(progress(one, other, Tally(stored=1)))
    found = stage.samples()
    assert found["retry_sidecar_open_files"].keys() == {("driver",), ("driver-jvm",), ("worker",), ("executor-jvm",)}
    assert found["retry_sidecar_open_files"][("worker",)] == 12
    assert found["retry_sidecar_open_files_max"][("executor-jvm",)] == 1_000
    assert found["retry_sidecar_open_files"][("driver-jvm",)] > 2
    stage.driver.progressed(progress(batch=3))
    assert stage.samples()["retry_sidecar_open_files"][("worker",)] == 12, "an idle micro-batch counts none"


def test_a_micro_batch_that_fails_is_a_transaction_that_failed() -> None:
    stage = Stage()
    stage.driver.progressed(progress(Tally(stored=1)))
    stage.driver.failed("TransactionFailed: the transaction was aborted")
    stage.driver.failed("this producer has been fenced by a newer instance")
    assert stage.samples()["retry_sidecar_transactions_total"] == {("committed",): 1, ("aborted",): 1, ("fenced",): 1}


def test_the_last_hour_is_what_the_micro_batches_did() -> None:
    stage = Stage()
    done = Tally(fired={"orders": 3, "mail": 1}, dead={"fatal": 2}, late={25: 3, 2_000: 1})
    stage.driver.progressed(progress(done, Tally(fired={"orders": 1})))
    views = stage.source.views()
    hours = [view.activity for view in views if view.activity is not None]
    assert together(hours, stage.clock.wall_ms())[-1] == Minute(5, 2, 1)
    assert len(hours) == 1
    stage.views = [replace(view, url="http://another:8080") for view in stage.views]
    assert [view.activity for view in stage.source.views()] == [None, None]


def test_each_alert_can_fire_on_spark_unless_the_table_says_that_it_cannot() -> None:
    stage = announcing()
    counted = {WORKER: OpenFiles(7, 100)}
    tally = Tally(fired={"orders": 1}, dead={"fatal": 1}, late={25: 1}, open_files=counted)
    stage.driver.progressed(progress(tally))
    stage.driver.skewed(0.5)
    stage.driver.failed("fenced")
    stage.metrics.notify_requests.labels("failed").inc(0)  # by the notifier, which both engines have
    stage.metrics.ready.set(1)
    stage.metrics.partitions_without_owner.set(0)
    known = {name for name, values in stage.samples().items() if not all(map(isnan, values.values()))}
    unable = set(unable_alerts())
    assert unable <= {rule["alert"] for rule in RULES}
    for rule in RULES:
        if rule["alert"] not in unable:
            assert any(_names(part) <= known for part in _alternatives(rule["expr"])), rule["alert"]


def announcing() -> Stage:
    """Return a driver that announces dead letters."""
    clock = HandClock()
    metrics = Metrics(version="1", now_ms=clock.wall_ms)
    notifier = Notifier(
        lambda _body, _timeout_s: Attempt(), Template(DEFAULT), Source("app", "spark", "dlq"), 3600, clock, metrics
    )
    return Stage(notifier, metrics)


def _alternatives(expression: str) -> Sequence[str]:
    return re.split(r"\bor\b", expression)


def _names(expression: str) -> set[str]:
    return set(re.findall(r"retry_sidecar_\w+", expression))
