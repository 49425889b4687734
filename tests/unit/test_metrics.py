"""The metrics' names, values and document."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sidecar.changelog.codec import NextTurn
from sidecar.engine.group import view as engine_view
from sidecar.engine.group.view import PartitionView
from sidecar.metrics import (
    DECLARATIONS,
    DECLARED,
    LATENESS_BUCKETS_S,
    ORIGINS_MAX,
    OTHERS,
    PREFIX,
    BatchHistogram,
    Metrics,
)
from sidecar.metrics.__main__ import document
from tests.unit.engine.test_view import EMPTY, NOW_MS

CONTRACT = {
    "pending": ("partition", "origin"),
    "due_backlog": ("partition",),
    "received_total": ("verdict",),
    "fired_total": ("origin",),
    "dead_lettered_total": ("reason",),
    "cancelled_total": (),
    "lateness_seconds": (),
    "commit_seconds": (),
    "transactions_total": ("outcome",),
    "restore_seconds": (),
    "restore_remaining": ("partition",),
    "state": ("partition", "state"),
    "origin_state": ("origin", "state"),
    "deferred_total": ("origin",),
    "clock_skew_seconds": (),
    "watermark_lag_seconds": ("partition",),
    "store_bytes": (),
    "changelog_bytes_total": (),
    "build_info": ("version", "hot_path"),
}
ADDED = {
    "changelog_rolled_back_total": ("partition",),
    "delivered_before_total": ("origin",),
    "input_lost_total": ("partition",),
    "store_free_bytes": (),
    "ready": (),
    "partitions_without_owner": (),
    "last_stable_offset_stuck_seconds": ("partition",),
    "input_lag": ("partition",),
    "dlq_records": ("topic",),
    "reloads_total": ("outcome",),
    "last_reload_successful": (),
    "held_total": ("origin",),
    "held_messages": ("partition", "origin"),
    "put_behind_total": ("origin",),
    "notify_requests_total": ("outcome",),
    "notify_dead_letters_total": ("outcome",),
    "open_files": ("process",),
    "open_files_max": ("process",),
}
"""What the alerts of docs/how-to/runbook.md need besides, what rates hold, and what notifications say."""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3", now_ms=lambda: NOW_MS)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def test_exactly_the_contracts_metrics_and_those_of_the_alerts_are_declared() -> None:
    assert {declaration.name: declaration.labels for declaration in DECLARATIONS} == CONTRACT | ADDED


def test_every_declared_metric_is_on_the_page_with_its_help(metrics: Metrics) -> None:
    page = metrics.render()[0].decode()
    for name, declaration in DECLARED.items():
        assert f"# HELP {PREFIX}{name} {declaration.help}\n" in page


def test_no_other_metric_of_our_prefix_is_on_the_page(metrics: Metrics) -> None:
    shown = {line.split()[2] for line in metrics.render()[0].decode().splitlines() if line.startswith("# TYPE")}
    assert {name for name in shown if name.startswith(PREFIX)} == {PREFIX + name for name in DECLARED}


def test_the_page_can_be_read_as_openmetrics_too(metrics: Metrics) -> None:
    metrics.publish([replace(EMPTY, by_origin={"orders": 2}, pending=2)])
    metrics.lateness.observe(NOW_MS, [NOW_MS - 7])
    page, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    parsed = text_string_to_metric_families(page.decode())  # type: ignore[no-untyped-call]
    families = {family.name for family in parsed}
    assert {PREFIX + "pending", PREFIX + "received", PREFIX + "build"} <= families


def test_gauges_come_from_the_views_published_last(metrics: Metrics) -> None:
    first = replace(EMPTY, by_origin={"orders": 2, "payments": 1}, due_backlog=5, restore_remaining=9)
    first = replace(first, turns={"orders": NextTurn((first.as_of_ms + 2) * 1_000_000, 1_000_000)})
    metrics.publish([first, replace(EMPTY, partition=1, by_origin={"orders": 4}, state="restoring")])
    assert value(metrics, "pending", partition="0", origin="orders") == 2
    assert value(metrics, "pending", partition="0", origin="payments") == 1
    assert value(metrics, "pending", partition="1", origin="orders") == 4
    assert value(metrics, "due_backlog", partition="0") == 5
    assert value(metrics, "held_messages", partition="0", origin="orders") == 1
    assert value(metrics, "restore_remaining", partition="0") == 9
    assert value(metrics, "state", partition="1", state="restoring") == 1
    assert value(metrics, "state", partition="1", state="running") is None
    metrics.publish([EMPTY])
    assert value(metrics, "pending", partition="0", origin="orders") is None
    assert value(metrics, "state", partition="1", state="restoring") is None


@pytest.mark.parametrize(
    ("next_due_ms", "lag_seconds"), [(None, 0.0), (NOW_MS + 5_000, 0.0), (NOW_MS - 2_500, 2.5), (NOW_MS, 0.0)]
)
def test_the_watermark_lags_by_the_age_of_what_should_have_fired(
    metrics: Metrics, next_due_ms: int | None, lag_seconds: float
) -> None:
    metrics.publish([replace(EMPTY, next_due_ms=next_due_ms)])
    assert value(metrics, "watermark_lag_seconds", partition="0") == lag_seconds


def test_the_lag_of_the_input_is_shown_where_it_is_known(metrics: Metrics) -> None:
    metrics.publish([replace(EMPTY, lag=7), replace(EMPTY, partition=1, lag=None)])
    assert value(metrics, "input_lag", partition="0") == 7
    assert value(metrics, "input_lag", partition="1") is None


def test_an_origin_is_shown_once_for_each_state_that_a_partition_sees(metrics: Metrics) -> None:
    closed = replace(EMPTY, by_origin={"orders": 1, "mail": 1}, closed_origins={"orders": ("paused", NOW_MS)})
    metrics.publish([closed, replace(closed, partition=1), replace(EMPTY, partition=2, by_origin={"orders": 1})])
    assert value(metrics, "origin_state", origin="orders", state="paused") == 1
    assert value(metrics, "origin_state", origin="orders", state="open") == 1
    assert value(metrics, "origin_state", origin="mail", state="open") == 1


def test_of_thousands_of_origins_those_with_the_most_pending_have_labels_of_their_own(metrics: Metrics) -> None:
    counts = {f"origin-{n}": n for n in range(1, 5_001)}
    closed = dict.fromkeys(counts, ("vanished", NOW_MS))
    metrics.publish([replace(EMPTY, partition=n, by_origin=counts, closed_origins=closed) for n in range(2)])
    page = metrics.render()[0].decode().splitlines()
    assert sum(line.startswith(PREFIX + "pending{") for line in page) == 2 * (ORIGINS_MAX + 1)
    assert sum(line.startswith(PREFIX + "origin_state{") for line in page) == ORIGINS_MAX + 1
    assert value(metrics, "pending", partition="0", origin="origin-5000") == 5_000
    assert value(metrics, "pending", partition="1", origin=OTHERS) == sum(range(1, 4_001))
    assert value(metrics, "origin_state", origin=OTHERS, state="vanished") == 1


def test_of_thousands_of_origins_the_first_ones_are_counted_by_name_and_every_message_is_counted(
    metrics: Metrics,
) -> None:
    for n in range(3 * ORIGINS_MAX):
        metrics.fired.labels(f"origin-{n}").inc(2)
        metrics.deferred.labels(f"origin-{n}").inc(1)
    metrics.fired.labels("origin-0").inc(5)
    assert value(metrics, "fired_total", origin="origin-0") == 7
    assert value(metrics, "fired_total", origin=OTHERS) == 4 * ORIGINS_MAX
    assert value(metrics, "deferred_total", origin=OTHERS) == 2 * ORIGINS_MAX
    assert value(metrics, "fired_total", origin=f"origin-{ORIGINS_MAX}") is None


def test_other_origins_have_one_name_everywhere() -> None:
    assert OTHERS == engine_view.OTHERS


def test_events_are_counted_under_their_labels(metrics: Metrics) -> None:
    metrics.start_at_zero(verdicts=["stored"], reasons=["fatal"], outcomes=["committed"])
    metrics.received.labels("stored").inc(10)
    metrics.fired.labels("orders").inc(3)
    metrics.cancelled.inc()
    metrics.commit_seconds.observe(0.004)
    assert value(metrics, "received_total", verdict="stored") == 10
    assert value(metrics, "dead_lettered_total", reason="fatal") == 0
    assert value(metrics, "transactions_total", outcome="committed") == 0
    assert value(metrics, "fired_total", origin="orders") == 3
    assert value(metrics, "cancelled_total") == 1
    assert value(metrics, "commit_seconds_bucket", le="0.005") == 1
    assert value(metrics, "commit_seconds_bucket", le="0.0025") == 0
    assert value(metrics, "build_info", version="1.2.3", hot_path="python") == 1


def test_the_clock_skew_is_not_a_number_until_it_is_measured(metrics: Metrics) -> None:
    skew = value(metrics, "clock_skew_seconds")
    assert skew is not None
    assert math.isnan(skew)


def test_a_gauge_by_partition_forgets_what_is_given_up(metrics: Metrics) -> None:
    name = "last_stable_offset_stuck_seconds"
    metrics.stable_offset_stuck_seconds.publish({0: 0.0, 1: 12.5})
    assert (value(metrics, name, partition="0"), value(metrics, name, partition="1")) == (0.0, 12.5)
    metrics.stable_offset_stuck_seconds.publish({0: 0.0})
    assert value(metrics, name, partition="1") is None


def test_a_process_without_a_store_says_nothing_of_free_space(metrics: Metrics) -> None:
    free = value(metrics, "store_free_bytes")
    assert free is not None
    assert math.isnan(free)


def test_a_scrape_reads_as_much_at_a_million_pending_as_at_one(metrics: Metrics) -> None:
    """Its size is that of the partitions and origins; the wheel's slots and the timers are not looked at."""

    class Untouchable(dict[tuple[int, int], int]):
        def _touched(self, *_: object) -> None:
            raise AssertionError("the slots were read")

        __iter__ = items = values = keys = __getitem__ = _touched  # type: ignore[assignment]

    def lines(pending: int) -> int:
        metrics.publish([replace(EMPTY, pending=pending, by_origin={"orders": pending}, slots=Untouchable())])
        return metrics.render()[0].count(b"\n")

    assert lines(1) == lines(1_000_000)


def test_two_registries_do_not_share_anything(metrics: Metrics) -> None:
    metrics.cancelled.inc()
    assert value(Metrics(version="1", now_ms=lambda: 0), "cancelled_total") == 0


@given(st.lists(st.lists(st.integers(0, 2 * 86_400_000), max_size=20), max_size=5))
def test_a_batch_counts_as_the_librarys_histogram_counts_its_members(batches: list[list[int]]) -> None:
    ours = BatchHistogram(DECLARED["lateness_seconds"])
    theirs = Histogram("x", "x", buckets=LATENESS_BUCKETS_S, registry=None)
    for batch in batches:
        ours.observe(NOW_MS, [NOW_MS - late_ms for late_ms in batch])
        for late_ms in batch:
            theirs.observe(late_ms / 1000)
    expected = {
        (sample.name.removeprefix("x"), sample.labels.get("le")): sample.value
        for metric in theirs.collect()
        for sample in metric.samples
        if sample.name != "x_created"
    }
    name = PREFIX + "lateness_seconds"
    found = {
        (sample.name.removeprefix(name), sample.labels.get("le")): sample.value
        for metric in ours.collect()
        for sample in metric.samples
    }
    assert found.keys() == expected.keys()
    for key, count in expected.items():
        assert found[key] == pytest.approx(count)


def test_a_scrape_during_a_swap_sees_the_old_views_or_the_new(metrics: Metrics) -> None:
    """The views are one tuple: changing the published list changes nothing."""
    published: list[PartitionView] = [EMPTY]
    metrics.publish(published)
    published.clear()
    assert value(metrics, "state", partition="0", state="running") == 1


def test_the_document_is_up_to_date() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference/metrics.md"
    assert path.read_text() == document(), "run: python -m sidecar.metrics > docs/reference/metrics.md"
