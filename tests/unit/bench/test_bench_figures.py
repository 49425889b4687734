"""The output of the benchmark, and its arithmetic."""

from __future__ import annotations

import json
import math

import pytest

from bench.figures import TARGETS, json_line, measured, number, percentile, rate_between, spread, table
from bench.pending import restore_s
from bench.traffic import DAY_MS, over_a_day, within_a_second


@pytest.mark.parametrize(
    ("name", "value", "met"),
    [
        ("store", 0.85, True),
        ("store", 0.84, False),
        ("pending", 5.0, True),
        ("pending", 5.1, False),
        ("early", 0, True),
        ("early", 1, False),
        ("relay", 1.0, True),
    ],
)
def test_a_target_is_a_bound_that_still_counts_as_met(name: str, value: float, met: bool) -> None:
    assert measured(name, value).met is met


def test_a_value_that_was_not_had_meets_no_target() -> None:
    assert not any(figure.met for figure in TARGETS.values() if figure.target is not None)


def test_the_table_shows_target_measured_and_verdict_of_each_figure() -> None:
    lines = table([measured("relay", 96_400), measured("store", 0.864, "82,000 msg/s"), measured("restart", 6.2)])
    heading, relay, store, restart = lines.splitlines()
    assert heading.split() == ["figure", "target", "measured", "spread", "steal", "note"]
    assert relay.endswith("96,400 msg/s")
    assert "≥ 0.85" in store
    assert "0.86 ×" in store
    assert "pass" in store
    assert store.endswith("82,000 msg/s")
    assert "≤ 1" in restart
    assert restart.endswith("MISS")


def test_the_json_is_one_line_with_every_figure_and_the_verdict() -> None:
    line = json_line([measured("store", 0.85), measured("fire", math.nan)], {"cores": 2})
    assert "\n" not in line
    read = json.loads(line)
    assert read["missed"] == ["fire"]
    assert read["cores"] == 2
    store = read["figures"]["store"]
    assert (store["measured"], store["unit"], store["target"], store["met"]) == (0.85, "×", 0.85, True)
    assert read["figures"]["fire"]["measured"] is None


def test_a_rate_leaves_out_what_came_with_the_first_progress() -> None:
    progress = [(0.0, 0), (100.0, 0), (200.0, 10), (250.0, 10), (300.0, 30), (400.0, 30)]
    assert rate_between(progress) == 20 / 100


@pytest.mark.parametrize("progress", [[], [(1.0, 5)], [(1.0, 0), (2.0, 0)], [(1.0, 5), (1.0, 9)]])
def test_there_is_no_rate_without_two_moments_of_progress(progress: list[tuple[float, int]]) -> None:
    assert math.isnan(rate_between(progress))


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.8, "1,234,568"), (45.678, "45.7"), (0.7, "0.70"), (5, "5"), (math.nan, "-")]
)
def test_numbers_are_shown_with_the_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_repeated_figures_show_their_least_and_their_largest_value() -> None:
    assert spread([1500.0, 1000.0, 2000.0]) == "1,000 to 2,000"
    assert not spread([1000.0])


def test_due_times_fill_their_span() -> None:
    assert list(within_a_second(4, 1_000)) == [1_000, 1_250, 1_500, 1_750]
    dues = list(over_a_day(1_000, 5_000, 60_000))
    assert dues == list(over_a_day(1_000, 5_000, 60_000))
    assert 65_000 <= min(dues) < max(dues) <= 5_000 + DAY_MS
    assert max(dues) - min(dues) > DAY_MS * 0.9


def test_a_restore_lasts_from_the_assignment_to_the_last_restored_partition() -> None:
    events = [
        ("sidecar_started", "00.000"),
        ("partitions_assigned", "00.250"),
        ("partition_restored", "01.000"),
        ("partitions_assigned", "01.500"),
        ("partition_restored", "02.750"),
        ("readiness_gained", "09.000"),
    ]
    lines = [json.dumps({"event": name, "timestamp": f"2026-01-01T00:00:{at}Z"}) for name, at in events]
    assert restore_s(["a line of another program", *lines]) == 2.5
