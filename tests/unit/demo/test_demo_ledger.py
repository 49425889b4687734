"""The demo's ledger: it holds when all is right, and names each kind of fault when one is planted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sidecar.demo.ledger import Content, InputRecord, Ledger, OutputRecord, Position, draw_up
from sidecar.demo.plan import FIRED, LATER_MS, Kind, Plan
from sidecar.demo.screen import verdict
from sidecar.model import Reason

NOW_MS = 1_700_000_100_000


def went_in(offset: int, plan: Plan, attempt: int = 0, due_ms: int | None = NOW_MS - 10_000) -> InputRecord:
    malformed = plan.outcome(attempt) != FIRED
    return InputRecord(Position(0, offset), plan, attempt, "orders", None if malformed else due_ms, content(offset))


def fired(record: InputRecord, late_ms: int = 20) -> OutputRecord:
    assert record.due_ms is not None
    return OutputRecord(record.position, FIRED, record.origin, record.due_ms + late_ms, record.due_ms, record.content)


def dead(record: InputRecord, reason: Reason) -> OutputRecord:
    return OutputRecord(record.position, reason.value, "dlq", NOW_MS, None, record.content)


def content(offset: int) -> Content:
    return Content(b"k", b"v%d" % offset, [("demo-id", b"%d" % offset), ("x", None)])


SECOND = [went_in(offset, Plan(Kind.SECOND_TRY, (1_000,))) for offset in range(10)]
FATAL = went_in(10, Plan(Kind.FATAL))
DROPPED = went_in(11, Plan(Kind.DROPPABLE))
LATER = went_in(12, Plan(Kind.LATER, (LATER_MS,)), due_ms=NOW_MS + 1)
NEVER = went_in(13, Plan(Kind.NEVER), attempt=3)
ALL_IN = [*SECOND, FATAL, DROPPED, LATER, NEVER]
ALL_OUT = [
    *(fired(record, late_ms) for late_ms, record in enumerate(SECOND, 1)),
    dead(FATAL, Reason.FATAL),
    dead(NEVER, Reason.ATTEMPTS_EXHAUSTED),
]


def ledger(
    entered: Iterable[InputRecord] = ALL_IN, outputs: Iterable[OutputRecord] = ALL_OUT, reported: int | None = 1
) -> Ledger:
    return draw_up(list(entered), outputs, planned=len(ALL_IN), read_at_ms=NOW_MS, reported_pending=reported)


def test_it_holds_when_each_record_came_out_as_planned() -> None:
    drawn = ledger()
    assert drawn.problems == []
    assert (drawn.entered, drawn.fired, drawn.dropped, drawn.pending) == (14, 10, 1, 1)
    assert drawn.dead_lettered == {"attempts-exhausted": 1, "fatal": 1}
    assert drawn.accounted == drawn.entered


def test_lateness_is_of_the_nearest_rank() -> None:
    late = ledger().lateness
    assert late is not None
    assert (late.p50_ms, late.p99_ms, late.max_ms) == (5, 10, 10)


def test_what_is_late_is_said_to_be_late_and_what_warmed_up_does_not_count() -> None:
    slow = [went_in(offset, Plan(Kind.SECOND_TRY, (1_000,)), due_ms=NOW_MS - 20_000) for offset in range(20, 30)]
    outputs = [fired(record, 9_000) for record in slow]
    cold = draw_up(slow, outputs, planned=10, read_at_ms=NOW_MS)
    assert cold.holds
    said, _ = verdict(cold.lateness)
    assert "LATE: one in a hundred more than 9.0 s" in said
    assert "in time" not in said
    warm = draw_up([*slow, *ALL_IN], [*outputs, *ALL_OUT], planned=24, read_at_ms=NOW_MS, warm_ms=NOW_MS - 15_000)
    assert warm.lateness == ledger().lateness
    assert "in time" in verdict(warm.lateness)[0]


def test_a_loss_is_found() -> None:
    drawn = ledger(outputs=ALL_OUT[1:])
    assert drawn.lost == ["0-0 (second-try:1000, to be fired)"]
    assert drawn.problems[0].startswith("1 lost: 0-0")
    assert "14 went in, but 13 are accounted for" in drawn.problems


def test_a_missing_dead_letter_is_a_loss_at_any_time() -> None:
    drawn = ledger(outputs=[out for out in ALL_OUT if out.outcome != "fatal"])
    assert drawn.lost == ["0-10 (fatal, to be fatal)"]


def test_what_is_due_when_the_reading_begins_cannot_be_pending() -> None:
    due_now = LATER._replace(due_ms=NOW_MS)
    drawn = ledger(entered=[*SECOND, FATAL, DROPPED, due_now, NEVER])
    assert (len(drawn.lost), drawn.pending) == (1, 0)


def test_a_message_that_is_fired_twice_is_found() -> None:
    drawn = ledger(outputs=[*ALL_OUT, ALL_OUT[3]])
    assert drawn.twice == ["0-3 (fired, fired)"]
    assert not drawn.holds


def test_a_message_that_is_fired_and_dead_lettered_is_found() -> None:
    drawn = ledger(outputs=[*ALL_OUT, dead(SECOND[3], Reason.UNFIREABLE)])
    assert drawn.twice == ["0-3 (fired, unfireable)"]
    assert drawn.unplanned == ["0-3 is unfireable, not fired"]


def test_a_message_that_is_fired_one_millisecond_early_is_found() -> None:
    drawn = ledger(outputs=[fired(SECOND[0], -1), *ALL_OUT[1:]])
    assert drawn.early == ["0-0 by 1 ms"]
    assert not drawn.holds


def test_the_due_time_is_the_ledgers_own_and_not_the_one_that_the_sidecar_names() -> None:
    assert SECOND[0].due_ms is not None
    too_soon = fired(SECOND[0], -500)._replace(was_due_ms=SECOND[0].due_ms - 500)
    drawn = ledger(outputs=[too_soon, *ALL_OUT[1:]])
    assert drawn.early == ["0-0 by 500 ms"]
    assert len(drawn.unplanned) == 1


@pytest.mark.parametrize(
    "changed",
    [
        content(0)._replace(key=None),
        content(0)._replace(value=b""),
        content(0)._replace(headers=[("demo-id", b"0"), ("x", b"")]),
        content(0)._replace(headers=[("x", None), ("demo-id", b"0")]),
    ],
    ids=["key", "value", "null header", "header order"],
)
def test_an_altered_message_is_found(changed: Content) -> None:
    drawn = ledger(outputs=[ALL_OUT[0]._replace(content=changed), *ALL_OUT[1:]])
    assert drawn.altered == ["0-0"]
    assert not drawn.holds


def test_a_dropped_message_that_comes_back_is_found() -> None:
    back = OutputRecord(DROPPED.position, FIRED, "orders", NOW_MS, None, DROPPED.content)
    drawn = ledger(outputs=[*ALL_OUT, back])
    assert drawn.unplanned == ["0-11 is fired, not dropped"]


def test_a_message_at_another_origin_is_found() -> None:
    drawn = ledger(outputs=[ALL_OUT[0]._replace(topic="emails"), *ALL_OUT[1:]])
    assert drawn.unplanned == ["0-0 was fired to emails, not to orders"]


def test_a_record_from_nowhere_is_found() -> None:
    drawn = ledger(outputs=[*ALL_OUT, ALL_OUT[0]._replace(position=Position(7, 7))])
    assert drawn.unplanned == ["7-7 came out, but never went in"]


def test_records_that_never_reached_the_retry_topic_are_found() -> None:
    drawn = ledger(entered=ALL_IN[1:], outputs=ALL_OUT[1:])
    assert drawn.problems == ["13 records are on the retry topic, 14 were planned"]


def test_a_sidecar_that_reports_another_number_is_found() -> None:
    assert ledger(reported=2).problems == ["GET /pending says 2, the topics say 1"]


def test_json_says_whether_it_holds_and_why_not() -> None:
    right, wrong = ledger().as_json(), ledger(outputs=ALL_OUT[1:]).as_json()
    assert (right["holds"], right["problems"], right["dead_lettered"]) == (True, [], 2)
    assert (wrong["holds"], wrong["lost"]) == (False, 1)


def test_a_long_list_is_cut() -> None:
    (first, *_) = ledger(outputs=ALL_OUT[8:]).problems
    assert first.startswith("8 lost: ")
    assert first.endswith("; and 3 more")
