"""Parsing is total, and what leaves is what came."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.contract import DIALECTS, DIALECTS_BY_CODE, ControlRequest, Dialect, parse
from sidecar.contract.dialects.native import CONTROL
from sidecar.model import ATTEMPTS_MAX, DUE_MS_MAX, Drop, Headers, Reason, Record, Rejection, Request, Schedule, TimerId
from sidecar.policy import Policy, PolicyConfig
from tests.dead_letters import dead

OURS = [
    "retry-origin-topic",
    "retry-due-ms",
    "retry-delay-ms",
    "retry-attempt",
    "retry-max-attempts",
    "retry-remaining",
    "retry-exception",
    "retry-group",
    "retry-origin-partition",
    "retry-id",
    "retry-replace",
    "retry-timer-id",
    "retry-was-due-ms",
    "retry-target",
    "x-ibm-retry-origin-topic",
    "x-ibm-retry-exception-type",
    "x-ibm-retry-timestamp-ms",
    "x-ibm-retry-attempts",
    *(
        name
        for dialect in DIALECTS.values()
        for name in sorted(dialect.names)
        if not name.startswith(("retry-", "x-ibm"))
    ),
]
names = st.sampled_from([*OURS, CONTROL, "trace", "retry-colour"]) | st.text(max_size=8)
numbers = st.integers(-1, 2**70).map(lambda number: str(number).encode())
good = st.sampled_from([b"orders", b'"orders"', b"true", b"false", b"com.acme.Broken", b"0", b"1", b"1700000000000"])
odd = st.sampled_from(
    [b"", b"\x00", b'"', b'""', "٣".encode(), "²".encode(), b"\xff", b"\xed\xa0\x80", b"1_0", b"9" * 5000, b"NaN", b"."]
)
values = good | numbers | odd | st.binary(max_size=300) | st.text(max_size=20).map(str.encode) | st.none()
header_lists = st.lists(st.tuples(names, values), max_size=12)
# Each name once, so that lists get past the check for repeats and into the readers.
tidy_lists = st.lists(st.tuples(names, values), max_size=8, unique_by=lambda header: header[0]).map(
    lambda headers: [("retry-origin-topic", b"orders"), *(h for h in headers if h[0] != "retry-origin-topic")]
)
ibm_lists = st.fixed_dictionaries(
    {
        "x-ibm-retry-origin-topic": st.sampled_from([b"orders", b'"orders"', b'"']),
        "x-ibm-retry-exception-type": good | odd,
        "x-ibm-retry-timestamp-ms": st.sampled_from([b"1", b'"1700000000000"']) | numbers,
    },
    optional={"x-ibm-retry-attempts": st.sampled_from([b"0", b'"2"', b"", b"\xff"]) | numbers, "trace": values},
).map(lambda headers: list(headers.items()))
any_lists = header_lists | tidy_lists | ibm_lists
accepted_lists = st.fixed_dictionaries(
    {"retry-origin-topic": st.just(b"orders")},
    optional={
        "retry-delay-ms": st.integers(0, 10**12).map(lambda n: b"%d" % n),
        "retry-attempt": st.integers(0, 2000).map(lambda n: b"%d" % n),
        "retry-remaining": st.integers(0, 2000).map(lambda n: b"%d" % n),
        "retry-exception": st.just(b"E"),
        "retry-group": st.just(b"g"),
        "retry-id": st.binary(min_size=1, max_size=64).map(lambda raw: raw.hex().encode()),
        "retry-timer-id": st.binary(max_size=8),
    },
).flatmap(lambda ours: st.permutations(list(ours.items())))
foreign_lists = st.lists(
    st.tuples(st.sampled_from(["a", "b", "retry-colour", "retry-dlq-reason"]), st.none() | st.binary(max_size=9)),
    max_size=5,
)
orders = st.permutations(list(DIALECTS.values()))
timestamps = st.integers(-1, 2**63 - 1)
POLICY = Policy(PolicyConfig(fatal=("com.*",), droppable=("E",)))


def record(headers: Headers | None) -> Record:
    return Record(partition=0, offset=0, timestamp_ms=0, key=None, value=None, headers=headers)


@settings(max_examples=500)
@given(headers=st.none() | any_lists, dialects=orders, timestamp_ms=timestamps, arrived_ms=timestamps)
def test_any_headers_give_a_request_or_a_rejection_and_any_request_a_verdict(
    headers: Headers | None, dialects: list[Dialect], timestamp_ms: int, arrived_ms: int
) -> None:
    parsed = parse(record(headers), dialects)
    if isinstance(parsed, Rejection):
        assert parsed.reason in {Reason.MISSING_HEADER, Reason.BAD_HEADER}
        assert 0 < len(parsed.detail.encode()) < 1000
        return
    if isinstance(parsed, ControlRequest):
        assert CONTROL in dict(headers or [])
        return
    assert isinstance(parsed, Request)
    assert parsed.dialect in DIALECTS_BY_CODE
    assert parsed.due_ms is None or parsed.delay_ms is None
    assert not parsed.replace or parsed.retry_id
    verdict = POLICY.decide(parsed, timestamp_ms=timestamp_ms, arrived_ms=arrived_ms)
    assert isinstance(verdict, Schedule | Drop | Rejection)
    if isinstance(verdict, Schedule):
        assert 0 <= verdict.due_ms <= DUE_MS_MAX
        assert parsed.attempt < verdict.limit <= ATTEMPTS_MAX


payloads = st.none() | st.binary(max_size=40) | st.just(b'{"time":1,"topic":"orders","key":""}')


@settings(max_examples=500)
@given(headers=header_lists, key=payloads, value=payloads, dialects=orders)
def test_any_record_gives_an_answer_and_any_request_a_delivery(
    headers: Headers, key: bytes | None, value: bytes | None, dialects: list[Dialect]
) -> None:
    parsed = parse(Record(0, 0, 0, key, value, headers), dialects)
    if isinstance(parsed, Request):
        dialect = DIALECTS_BY_CODE[parsed.dialect]
        stored = [*headers, *parsed.noted]
        out = dialect.render(stored, attempt=parsed.attempt, limit=1000, timer_id=TimerId(0, 1, 2), due_ms=3)
        assert len(dialect.delivered((key, value, out), 4)) == 3
    elif isinstance(parsed, ControlRequest) and CONTROL not in dict(headers):
        assert not value or "schedule_source_type" in dict(headers)


@given(
    ours=accepted_lists, foreign=foreign_lists, attempt=st.integers(0, 999), limit=st.integers(0, 1000), data=st.data()
)
def test_a_fired_record_keeps_foreign_headers_byte_for_byte_and_can_be_sent_again(
    ours: Headers, foreign: Headers, attempt: int, limit: int, data: st.DataObject
) -> None:
    headers = list(foreign)
    for header in ours:
        headers.insert(data.draw(st.integers(0, len(headers))), header)
    # Inserting keeps the foreign ones in their order.
    native = DIALECTS["native"]
    assert isinstance(parse(record(headers), [native]), Request)
    fired = native.render(headers, attempt=attempt, limit=limit, timer_id=TimerId(0, 1, 2), due_ms=3)
    assert fired[: len(foreign)] == foreign
    tail = [name for name, _ in fired[len(foreign) :]]
    assert len(tail) == len(set(tail))
    again = parse(record(fired), [native])
    assert isinstance(again, Request)
    assert again.attempt == attempt + 1
    assert again.max_attempts == attempt + 1 + max(0, limit - attempt - 1)
    assert again.due_ms is None
    assert again.delay_ms is None


@given(headers=st.none() | any_lists, reason=st.sampled_from(Reason), detail=st.text(), timestamp_ms=timestamps)
def test_a_dead_letter_keeps_all_headers_and_dying_twice_adds_nothing(
    headers: Headers | None, reason: Reason, detail: str, timestamp_ms: int
) -> None:
    once = dead(headers, reason, detail=detail, timestamp_ms=timestamp_ms)
    assert once[: len(headers or [])] == (headers or [])
    assert dead(once, reason, detail=detail, timestamp_ms=timestamp_ms) == once
