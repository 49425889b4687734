"""Which runs of a measurement count, and what is made of them."""

from __future__ import annotations

import math

import pytest
from confluent_kafka import KafkaError, KafkaException

from bench.compare import row
from bench.figures import Figure, json_line, measured, table
from bench.runs import QUIET_STEAL, REPEATS_MAX, Run, attempt, once, repeat, summary, too_slow, wants_another
from bench.steal import Ticks, stolen, ticks
from bench.waiting import LateError

BEFORE = "cpu  100 10 50 800 20 5 5 10 70 3\ncpu0 100 10 50 800 20 5 5 10 70 3\nintr 1\n"
AFTER = "cpu  150 10 70 805 20 5 5 35 90 3\n"


def store(value: float, steal: float = 0.0) -> Run:
    return Run([measured("store", value, f"note of {value}")], steal)


def test_steal_is_the_eighth_column_of_all_processors() -> None:
    assert ticks(BEFORE) == Ticks(1000, 10)


def test_the_stolen_share_is_of_the_time_between_two_samples() -> None:
    # 50 user, 20 system, 5 idle and 25 stolen ticks; guests are part of user.
    assert stolen(ticks(BEFORE), ticks(AFTER)) == 0.25
    assert stolen(ticks(AFTER), ticks(AFTER)) == 0.0


@pytest.mark.parametrize("stat", ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4"])
def test_another_text_than_that_of_proc_stat_is_refused(stat: str) -> None:
    with pytest.raises(ValueError, match="/proc/stat"):
        ticks(stat)


def test_runs_are_repeated_until_enough_of_them_were_quiet() -> None:
    quiet, noisy = store(1, QUIET_STEAL), store(1, QUIET_STEAL + 0.001)
    assert wants_another([], 3)
    assert wants_another([quiet, quiet, noisy], 3)
    assert not wants_another([quiet, quiet, noisy, quiet], 3)


def test_a_noisy_run_is_repeated_five_times_at_most() -> None:
    noisy = store(1, 0.2)
    assert wants_another([noisy] * REPEATS_MAX, 1)
    assert not wants_another([noisy] * (REPEATS_MAX + 1), 1)
    assert not wants_another([noisy, store(1)] * (REPEATS_MAX + 1), 9)


def test_a_figure_is_the_median_of_its_quiet_runs_with_their_spread_and_steal() -> None:
    runs = [store(0.9), store(0.1, 0.5), store(0.7, 0.03), store(0.8)]
    [figure] = summary(["store"], runs, 3)
    assert figure.measured == 0.8
    assert figure.values == (0.7, 0.8, 0.9)
    assert figure.steal == 0.03
    assert figure.note == "note of 0.8"
    assert figure.verdict == "MISS"


def test_without_enough_quiet_runs_a_figure_is_noisy_and_neither_met_nor_missed() -> None:
    [figure] = summary(["store"], [store(0.9), *[store(0.1, 0.5)] * 6], 3)
    assert figure.verdict == "noisy"
    assert figure.measured == 0.1
    assert "1 of 3 runs count" in figure.noisy
    assert "6 had more than 5.0 % steal" in figure.noisy


def test_a_message_that_fired_early_counts_in_a_noisy_run_too() -> None:
    runs = [Run([measured("early", early)], steal) for early, steal in ((0, 0.0), (2, 0.5), (0, 0.0))]
    [figure] = summary(["early"], runs, 3)
    assert (figure.measured, figure.verdict) == (2, "MISS")


def test_a_machine_that_is_too_slow_makes_a_figure_noisy_and_the_reason_is_shown() -> None:
    calls = []

    def act() -> list[Figure]:
        calls.append(1)
        raise LateError("storing took until the messages were due")

    store_figure, rate_figure = repeat(("store", "store_rate"), act, 3)
    assert len(calls) == REPEATS_MAX + 1
    assert store_figure.verdict == rate_figure.verdict == "noisy"
    assert math.isnan(store_figure.measured)
    assert "storing took until the messages were due" in store_figure.noisy


def test_a_defect_fails_its_figures_at_once_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def act() -> list[Figure]:
        calls.append(1)
        raise AssertionError("messages came twice")

    [figure] = repeat(("store",), act, 3)
    assert calls == [1]
    assert (figure.verdict, figure.failed) == ("FAIL", "AssertionError: messages came twice")
    assert "messages came twice" in capsys.readouterr().err


def test_a_measurement_that_repeats_its_parts_itself_is_taken_as_it_is() -> None:
    def late() -> list[Figure]:
        raise TimeoutError("the broker")

    figure = measured("memory", 1.3)
    [taken] = once(("memory", "restore"), lambda: [figure])
    assert taken is figure
    assert [figure.verdict for figure in once(("memory", "restore"), late)] == ["noisy", "noisy"]


@pytest.mark.parametrize(
    ("error", "slow"),
    [
        (LateError("late"), True),
        (TimeoutError("late"), True),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), True),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), False),
        (RuntimeError("the sidecar ended with status 70"), False),
    ],
)
def test_only_what_was_not_done_in_time_is_blamed_on_the_machine(error: Exception, slow: bool) -> None:
    assert too_slow(error) is slow


def test_the_steal_of_a_run_is_between_none_and_all_of_the_time() -> None:
    assert 0 <= attempt(("store",), list).steal <= 1


def test_the_json_names_what_was_missed_and_what_was_noisy() -> None:
    noisy = summary(["restore"], [Run([measured("restore", 5.0)], 0.3)] * 6, 1)
    line = json_line([measured("store", 0.1), measured("fire", 1.0), *noisy], {})
    assert '"missed": ["store"], "noisy": ["restore"]' in line
    assert '"restore": {"measured": 5.0, "values": [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]' in line
    assert '"met": null' in line
    assert "30.0 %" in table(noisy)


def test_two_versions_are_compared_by_the_ratios_of_their_pairs() -> None:
    pairs = [
        (store(0.5), store(1.0)),
        (store(1.0), store(1.5)),
        (store(1.0), store(0.1, 0.4)),
        (store(1.0), store(1.0)),
    ]
    what, former, present, ratio, spread, steal, verdict, why = row("store", pairs, 3)
    assert (what, former, present) == ("store ÷ relay", "1 ×", "1 ×")
    assert (ratio, spread, steal, verdict, why) == ("1.50", "1 to 2", "40.0 %", "", "")


def test_a_comparison_with_too_few_quiet_pairs_is_noisy_and_a_failure_is_named() -> None:
    late = Run((), 0.0, "the machine")
    assert row("store", [(store(1.0), late)], 1)[-2:] == ("not measured", "the machine")
    assert row("store", [(store(1.0), store(2.0, 0.9)), (late, store(1.0))], 2)[-2:] == ("noisy", "the machine")
