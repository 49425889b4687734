"""Reading dead letters and redriving them is total, and what goes to the retry topic again is a request."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.contract import DIALECTS, DIALECTS_BY_CODE, Dialect, parse
from sidecar.contract.dead_letter import REDRIVES, DeadLetter
from sidecar.contract.redrive import MAX_REDRIVES, WOULD_DIE_AGAIN, RedriveTerms, Skipped, SkipReason, redrive, share_of
from sidecar.model import DUE_MS_MAX, Headers, Reason, Request
from tests.dead_letters import dead
from tests.property.test_header_parsing import accepted_lists, any_lists, foreign_lists, names, orders, record, values

NOW_MS = 1_800_000_000_000
OF_THE_DEATH = [
    "retry-timestamp-ms",
    "retry-dlq-reason",
    "retry-dlq-detail",
    "retry-dlq-truncated",
    "retry-dlq-of-a-newer-version",
    "__connect.errors.topic",
    "__connect.errors.partition",
    "__connect.errors.offset",
    "__connect.errors.exception.class.name",
    "__connect.errors.of.connect",
    REDRIVES,
]
MOVING = {"retry-due-ms", "retry-delay-ms", "retry-timer-id", "retry-was-due-ms", "retry-replace", "retry-target"}
COUNTING = {"retry-attempt", "retry-remaining", REDRIVES}
IBM_FRESH = {"x-ibm-retry-timestamp-ms", "x-ibm-retry-attempts", REDRIVES}
reasons = st.sampled_from(Reason)
mangled = st.lists(st.tuples(names | st.sampled_from(OF_THE_DEATH), values), max_size=14)
numbers = st.integers(0, 10**13).map(lambda number: b"%d" % number)
quoted = numbers.map(lambda digits: b'"%b"' % digits)
native_legal = accepted_lists | st.fixed_dictionaries(
    {"retry-origin-topic": st.just(b"orders")},
    optional={"retry-due-ms": numbers, "retry-max-attempts": numbers, "retry-origin-partition": st.just(b"1")},
).map(lambda ours: list(ours.items()))
ibm_legal = st.fixed_dictionaries(
    {
        "x-ibm-retry-origin-topic": st.sampled_from([b"orders", b'"orders"']),
        "x-ibm-retry-exception-type": st.sampled_from([b"E", b'"E"']),
        "x-ibm-retry-timestamp-ms": numbers | quoted,
    },
    optional={"x-ibm-retry-attempts": st.just(b"") | numbers | quoted, "retry-due-ms": values, "retry-id": values},
).map(lambda ours: list(ours.items()))
legal = st.tuples(native_legal | ibm_legal, foreign_lists).flatmap(lambda both: st.permutations([*both[0], *both[1]]))
terms = st.builds(
    RedriveTerms,
    delay_ms=st.integers(0, 2**63 - 1),
    spread_ms=st.integers(0, 2**63 - 1),
    keep_attempts=st.booleans(),
    max_redrives=st.integers(0, 9),
    to_origin=st.sampled_from(["", "payments"]),
    named=st.frozensets(reasons.map(str)),
)


@settings(max_examples=200)
@given(headers=st.none() | mangled | st.builds(dead, any_lists, reasons), given_terms=terms, dialects=orders)
@example([("retry-dlq-reason", b"fatal"), (REDRIVES, "²".encode())], RedriveTerms(), list(DIALECTS.values()))
@example([("retry-dlq-reason", b"fatal"), ("retry-control", None)], RedriveTerms(), list(DIALECTS.values()))
def test_any_headers_are_reported_and_give_a_request_or_a_reason_to_leave_the_record(
    headers: Headers | None, given_terms: RedriveTerms, dialects: list[Dialect]
) -> None:
    dead_letter = DeadLetter(headers, dialects)
    for text in (dead_letter.reason, dead_letter.detail, dead_letter.origin, dead_letter.exception, dead_letter.group):
        assert text.encode().decode() == text
    again = redrive(headers, given_terms, now_ms=NOW_MS, share=0.5, dialects=dialects)
    if isinstance(again, Skipped):
        assert again.detail
        assert again.why in SkipReason
        return
    assert headers is not None
    assert dead_letter.reason
    assert not dead_letter.truncated
    assert dead_letter.redrives is not None
    assert dead_letter.redrives < given_terms.max_redrives
    request = parse(record(again), dialects)
    assert isinstance(request, Request)
    assert dict(again)[REDRIVES] == b"%d" % (dead_letter.redrives + 1)
    assert [name for name, _ in again].count(REDRIVES) == 1


@given(headers=legal, reason=st.sampled_from(sorted(set(Reason) - WOULD_DIE_AGAIN)), keep=st.booleans())
def test_every_legal_message_that_died_goes_again_in_its_dialect_with_all_that_is_not_ours(
    headers: Headers, reason: Reason, keep: bool
) -> None:
    lives = parse(record(headers), list(DIALECTS.values()))
    assert isinstance(lives, Request)
    came = DeadLetter(dead(headers, reason))
    assert (came.reason, came.detail, came.came_from) == (reason, "because", ("retry", 3, 99))
    assert (came.origin, came.attempt, came.timestamp_ms) == (lives.origin, lives.attempt, 1_700)
    again = redrive(dead(headers, reason), RedriveTerms(delay_ms=1_000, keep_attempts=keep), now_ms=NOW_MS, share=0.0)
    assert not isinstance(again, Skipped)
    request = parse(record(again), list(DIALECTS.values()))
    assert isinstance(request, Request)
    assert (request.dialect, request.origin, request.exception) == (lives.dialect, lives.origin, lives.exception)
    assert (request.retry_id, request.origin_partition) == (lives.retry_id, lives.origin_partition)
    assert request.attempt == (lives.attempt if keep else 0)
    assert not request.replace
    if DIALECTS_BY_CODE[lives.dialect].name == "native":
        assert request.due_ms == NOW_MS + 1_000
        touched = MOVING | COUNTING
    else:
        assert request.base_ms == NOW_MS + 1_000
        touched = IBM_FRESH
    touched |= {"retry-dlq-reason"}
    kept = [header for header in headers if header[0] not in touched]
    assert [header for header in again if header[0] not in touched] == kept
    assert "retry-dlq-reason" not in dict(again)


@given(headers=any_lists, given_terms=terms)
def test_the_loop_guard_ends_every_loop(headers: Headers, given_terms: RedriveTerms) -> None:
    again: Headers | Skipped = headers
    for _ in range(given_terms.max_redrives + 1):
        assert not isinstance(again, Skipped)
        again = redrive(dead(again, Reason.FATAL), given_terms, now_ms=NOW_MS, share=0.0)
        if isinstance(again, Skipped):
            break
    assert isinstance(again, Skipped)


def test_a_redrive_that_is_not_bounded_by_the_operator_ends_after_three() -> None:
    again: Headers | Skipped = [("retry-origin-topic", b"orders")]
    count = 0
    while not isinstance(again, Skipped):
        again = redrive(dead(again, Reason.FATAL), RedriveTerms(), now_ms=NOW_MS, share=0.0)
        count += 1
    assert again.why is SkipReason.LOOP_GUARD
    assert count == MAX_REDRIVES + 1


@given(first=st.integers(0, 2**40), count=st.integers(1, 200))
def test_the_spread_is_even_wherever_it_begins(first: int, count: int) -> None:
    shares = sorted(share_of(number) for number in range(first, first + count))
    assert all(0 <= share < 1 for share in shares)
    gaps = [after - before for before, after in zip([0.0, *shares], [*shares, 1.0], strict=True)]
    assert max(gaps) < 3 / count


def test_a_due_time_that_no_calendar_holds_stays_one_that_can_be_written() -> None:
    dead_letter = dead([("retry-origin-topic", b"orders")], Reason.FATAL)
    again = redrive(dead_letter, RedriveTerms(delay_ms=DUE_MS_MAX), now_ms=NOW_MS, share=0.0)
    assert not isinstance(again, Skipped)
    assert dict(again)["retry-due-ms"] == b"%d" % DUE_MS_MAX
