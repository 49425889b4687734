"""The demo's plans, what it reads out of records and pages, and its command."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from rich.console import Console

from sidecar import cli
from sidecar.cli import demo as demo_command
from sidecar.clock import SystemClock
from sidecar.demo import process, screen, show
from sidecar.demo.ledger import Ledger, Position, draw_up
from sidecar.demo.plan import (
    DELAY_MAX_MS,
    DELAY_MIN_MS,
    ID,
    INPUT_TOPIC,
    ORIGINS,
    PLAN,
    DemoMessage,
    Kind,
    Plan,
    make_messages,
    totals,
)
from sidecar.demo.process import SidecarProcess
from sidecar.demo.reading import Row, as_input, as_output
from sidecar.errors import CommandFailed
from sidecar.metrics import Metrics
from sidecar.model import Headers, Reason
from sidecar.spark import java, session
from tests.dead_letters import dead


def row(topic: str, headers: Headers, timestamp_ms: int = 1_000) -> Row:
    return Row(topic, 2, 7, timestamp_ms, b"k", None, headers)


def test_each_kind_occurs_and_the_same_seed_gives_the_same_messages() -> None:
    messages = make_messages(3_000, seed=1)
    assert len(messages) == 3_000
    assert Counter(message.plan.kind for message in messages).keys() == set(Kind)
    assert messages == make_messages(3_000, seed=1)
    assert messages != make_messages(3_000, seed=2)
    assert {message.plan.kind for message in make_messages(len(Kind), seed=1)} == set(Kind)


def test_delays_span_from_a_fifth_of_a_second_to_twenty_seconds() -> None:
    plans = [message.plan for message in make_messages(3_000, seed=1) if message.plan.kind is not Kind.LATER]
    delays = [delay for plan in plans for delay in plan.delays_ms]
    assert DELAY_MIN_MS <= min(delays) < 1.1 * DELAY_MIN_MS
    assert 0.9 * DELAY_MAX_MS < max(delays) <= DELAY_MAX_MS
    assert max(sum(plan.delays_ms) for plan in plans) <= DELAY_MAX_MS


def test_a_plan_survives_its_header() -> None:
    for message in make_messages(200, seed=3):
        assert Plan.parse(str(message.plan)) == message.plan


def test_only_malformed_messages_are_sent_straight_to_the_retry_topic() -> None:
    for message in make_messages(500, seed=4):
        straight = message.plan.outcome(0) in {
            *(Reason.MISSING_HEADER, Reason.BAD_HEADER, Reason.DELAY_OUT_OF_RANGE),
            *(Reason.ORIGIN_UNKNOWN, Reason.ORIGIN_NOT_ALLOWED),
        }
        assert (message.topic == INPUT_TOPIC) == straight
        assert straight or message.topic in ORIGINS


@pytest.mark.parametrize(
    ("kind", "trips", "deliveries"),
    [
        (Kind.FIRST_TRY, 0, 0),
        (Kind.SECOND_TRY, 1, 1),
        (Kind.THIRD_TRY, 2, 2),
        (Kind.NEVER, 4, 3),
        (Kind.LATER, 1, 0),
        (Kind.FATAL, 1, 0),
        (Kind.DROPPABLE, 1, 0),
        (Kind.BAD_DELAY, 1, 0),
    ],
)
def test_a_plan_knows_how_often_it_goes_and_comes_back(kind: Kind, trips: int, deliveries: int) -> None:
    plan = Plan(kind)
    assert (plan.trips, plan.deliveries) == (trips, deliveries)
    outcomes = [plan.outcome(attempt) for attempt in range(trips)]
    assert outcomes.count("fired") == (1 if kind is Kind.LATER else deliveries)


def test_totals_add_the_plans_up() -> None:
    messages = [message for message in make_messages(400, seed=5) if message.plan.kind in {Kind.NEVER, Kind.LATER}]
    never = sum(message.plan.kind is Kind.NEVER for message in messages)
    later = len(messages) - never
    assert totals(messages) == (4 * never + later, 3 * never, later)


def test_the_due_time_is_worked_out_from_the_record_itself() -> None:
    plan = (PLAN, b"third-try:300:900")
    origin = ("retry-origin-topic", b"orders")
    asked = as_input(row("retry", [plan, origin, ("retry-delay-ms", b"300")]))
    assert (asked.position, asked.due_ms, asked.attempt, asked.origin) == (Position(2, 7), 1_300, 0, "orders")
    policy = as_input(row("retry", [(PLAN, b"never"), origin, ("retry-attempt", b"1")]))
    assert policy.due_ms == 2_000
    assert as_input(row("retry", [(PLAN, b"fatal"), origin])).due_ms is None


def test_the_sidecars_own_headers_are_no_content() -> None:
    plain = as_input(row("retry", [(PLAN, b"fatal"), ("a", None), ("retry-exception", b"E"), ("a", b"")]))
    assert plain.content.headers == [(PLAN, b"fatal"), ("a", None), ("a", b"")]


def test_a_fired_record_names_the_position_it_came_from() -> None:
    out = as_output(row("orders", [("retry-timer-id", b"3-15-900"), ("retry-was-due-ms", b"950")], 1_010))
    assert (out.position, out.outcome, out.topic, out.at_ms, out.was_due_ms) == (
        Position(3, 15),
        "fired",
        "orders",
        1010,
        950,
    )


def test_a_dead_letter_names_the_position_it_came_from() -> None:
    headers = dead([(PLAN, b"bad-delay")], Reason.BAD_HEADER, partition=1, offset=22)
    out = as_output(row("dlq", headers))
    assert (out.position, out.outcome) == (Position(1, 22), "bad-header")
    assert out.content.headers == [(PLAN, b"bad-delay")]


def test_a_record_without_what_the_ledger_needs_is_named() -> None:
    with pytest.raises(CommandFailed, match="retry 2/7 has no header demo-plan"):
        as_input(row("retry", []))
    with pytest.raises(CommandFailed, match="retry-timer-id is malformed"):
        as_output(row("orders", [("retry-timer-id", b"x"), ("retry-was-due-ms", b"1")]))


def test_figures_are_read_from_the_metrics_page() -> None:
    metrics = Metrics(version="1", now_ms=lambda: 0)
    metrics.start_at_zero(reasons=["fatal", "bad-header"])
    metrics.received.labels("stored").inc(7)
    metrics.received.labels("dropped").inc(2)
    metrics.dead_lettered.labels("fatal").inc(3)
    metrics.fired.labels("orders").inc(4)
    metrics.fired.labels("emails").inc(1)
    metrics.lateness.observe(1_000, [990, 980, 980, 500])
    figures = process._figures(6, metrics.render()[0].decode())
    assert (figures.pending, figures.received, figures.fired, figures.dropped) == (6, 9, 5, 2)
    assert figures.dead_lettered == {"fatal": 3}
    assert (figures.lateness_p50_ms, figures.lateness_p99_ms) == (25, 500)


def test_without_a_fired_message_there_is_no_lateness() -> None:
    figures = process._figures(0, Metrics(version="1", now_ms=lambda: 0).render()[0].decode())
    assert (figures.lateness_p50_ms, figures.lateness_p99_ms) == (None, None)


def test_a_sidecar_that_ends_at_its_start_is_reported_with_its_log(tmp_path: Path) -> None:
    sidecar = SidecarProcess({"DELAYS": "soon"}, tmp_path)
    try:
        with pytest.raises(CommandFailed, match=r"ended with status 2; its log says:\n  .*DELAYS"):
            sidecar.start()
    finally:
        assert sidecar.stop() == 2


def wrong_ledger() -> Ledger:
    entered = as_input(row("retry", [(PLAN, b"second-try:1"), ("retry-delay-ms", b"1")]))
    return draw_up([entered], [], planned=1, read_at_ms=SystemClock().wall_ms())


def test_a_ledger_that_does_not_hold_is_shown_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_options: object, screen: screen.Screen, _progress: object) -> Ledger:
        screen.report(wrong_ledger())
        raise show.LedgerBroken(wrong_ledger())

    monkeypatch.setattr(demo_command, "run_demo", broken)
    result = CliRunner().invoke(cli.main, ["demo", "--json"])
    assert result.exit_code == 1
    assert "WRONG: 1 lost: 2-7 (second-try:1, to be fired)" in result.stderr
    assert json.loads(result.stdout)["lost"] == 1


def test_without_what_spark_needs_the_demo_says_so_before_it_starts_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> Ledger:
        raise CommandFailed("the demo has begun")

    def lacking() -> None:
        raise CommandFailed("Spark needs a JDK 17 or 21")

    monkeypatch.setattr(demo_command, "run_demo", started)
    monkeypatch.setattr(session, "require_pyspark", lambda: None)
    monkeypatch.setattr(java, "find_java", lacking)
    result = CliRunner().invoke(cli.main, ["demo", "--spark"])
    assert (result.exit_code, result.output) == (1, "Spark needs a JDK 17 or 21\n")
    monkeypatch.setattr(java, "find_java", lambda: Path("/jdk"))
    assert CliRunner().invoke(cli.main, ["demo", "--spark"]).output == "the demo has begun\n"


@pytest.mark.parametrize(
    ("rounds_s", "rounds"), [([2, 2, 2, 2], 3), ([9, 9, 4, 2], 3), ([9, 9, 9, 4], 4), ([9] * 9, 6)]
)
def test_a_query_is_warm_after_some_rounds_of_which_the_last_was_quick(
    rounds_s: list[int], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, sent = 0.0, list[list[int]]()

    def run(_broker: object, _sidecar: object, messages: list[DemoMessage], *rest: object) -> None:
        nonlocal now_s
        sent.append([int(dict(message.headers)[ID] or b"") for message in messages])
        now_s += rounds_s[len(sent) - 1]

    monkeypatch.setattr(show, "_run_traffic", run)
    monkeypatch.setattr(show, "SystemClock", lambda: SimpleNamespace(monotonic_s=lambda: now_s))
    with screen.Screen(Console(record=True)) as view:
        messages = show._warm_up(Mock(), Mock(), 5_000, view)
    assert len(sent) == rounds
    assert [number for numbers in sent for number in numbers] == list(range(5_001, 5_001 + len(messages)))


def test_on_no_terminal_the_view_is_plain_lines() -> None:
    console = Console(record=True, force_terminal=False, width=60)
    figures = process.Figures(5, 100, 90, 3, {"fatal": 2}, 25.0, 100.0)
    moment = screen.Moment(0.0, 10, 20, 4, 6, figures, 120, 110)
    with screen.Screen(console) as view:
        view.show(moment)
        view.show(moment._replace(elapsed_s=0.5))
        view.show(moment._replace(elapsed_s=2.5))
    lines = console.export_text().splitlines()
    assert len(lines) == 2
    assert "pending 5, fired 90 of 110, late p50 ≤ 25 ms p99 ≤ 100 ms, dropped 3, DLQ 2" in lines[0]


def test_on_a_terminal_the_picture_has_the_reasons_of_the_dlq() -> None:
    console = Console(record=True, force_terminal=True, width=100)
    figures = process.Figures(5, 100, 90, 3, {"fatal": 2, "bad-header": 7}, None, None)
    with screen.Screen(console) as view:
        view.show(screen.Moment(0.0, 10, 20, 4, 6, figures, 120, 110))
    text = console.export_text()
    assert text.index("bad-header") < text.index("fatal")
    assert "90 of 110" in text
