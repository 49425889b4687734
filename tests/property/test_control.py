"""Reading control records is total, and a signature covers every bit of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.contract import ControlRequest, parse
from sidecar.contract.control import SIGNATURE, SIGNED, sign_control, signature_problem
from sidecar.contract.filter import FILTER_BYTES_MAX, FILTER_PREFIX, MessageFilter
from sidecar.contract.status import OutcomeRecord, outcome_key, parse_outcome_key
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import BadControl, Control, Dead, target_text
from sidecar.model import Headers, Record, Rejection, TimerId
from sidecar.policy import Policy, PolicyConfig

NOW_MS = 1_700_000_000_000
good = st.sampled_from(
    [
        b"cancel",
        b"reschedule",
        b"fire",
        b"pause",
        b"resume",
        b"id:x",
        b"0-1-2",
        b"7-1-2",
        b"orders",
        b"*",
        b"1700000000000",
    ]
)
filters = st.builds(
    MessageFilter,
    origin=st.none() | st.just("orders"),
    due_to=st.integers(0, 2**63 - 1),
    exception=st.none() | st.text(max_size=20),
    header=st.lists(st.text(st.characters(codec="utf-8"), max_size=9).map("tenant:".__add__), max_size=3).map(tuple),
).map(lambda wanted: str(wanted).encode())
odd = st.sampled_from(
    [b"", b"id:", b"\xff", b"9" * 5000, b"1-2-" + b"9" * 40, "²-1-1".encode(), b"1:", b"1.", b"."]
) | st.binary().map(b"filter:".__add__)
values = good | odd | st.binary(max_size=300) | st.text(max_size=20).map(str.encode) | st.none()
names = st.sampled_from([*SIGNED, SIGNATURE, "retry-control-other", "trace"])
loose_lists = st.lists(st.tuples(names, values), max_size=8).map(lambda headers: [("retry-control", b"fire"), *headers])
tidy_lists = st.fixed_dictionaries(
    {"retry-control": good, "retry-control-id": st.text(min_size=1, max_size=9).map(str.encode)},
    optional={"retry-target": good | filters | odd, "retry-due-ms": st.integers(-1, 2**70).map(lambda n: b"%d" % n)},
).map(lambda headers: list(headers.items()))
INTAKES = [
    Ingest(Policy(PolicyConfig()), [], {}, (), input_topic="r", app_id="a", api_token=token) for token in (None, "t")
]


@settings(max_examples=400)
@given(headers=loose_lists | tidy_lists, ingest=st.sampled_from(INTAKES), partition=st.integers(0, 9))
def test_any_headers_give_a_command_an_answer_or_a_dead_letter(
    headers: Headers, ingest: Ingest, partition: int
) -> None:
    record = Record(partition, 5, NOW_MS, None, None, headers)
    parsed = parse(record, [])
    assert isinstance(parsed, ControlRequest | Rejection)
    item = ingest.examine(record, NOW_MS)
    if isinstance(parsed, Rejection):
        assert isinstance(item, Dead)
        return
    assert len(parsed.target_text) <= (FILTER_BYTES_MAX if parsed.target_text.startswith(FILTER_PREFIX) else 300)
    if isinstance(item, Control):
        assert not parsed.problem
        assert target_text(item.target) == parsed.target_text
        assert not isinstance(item.target, TimerId) or item.target.partition == partition
    else:
        assert isinstance(item, BadControl)
        assert 0 < len(item.detail) < 1000


@given(headers=tidy_lists, data=st.data())
def test_whatever_is_changed_the_signature_no_longer_fits(headers: Headers, data: st.DataObject) -> None:
    signature = sign_control(headers, "t", "r", 3, NOW_MS)
    assert signature_problem(dict([*headers, signature]), "t", "r", 3, NOW_MS) == ""
    at = data.draw(st.integers(0, len(headers) - 1))
    name, value = headers[at]
    changed = data.draw((st.binary(max_size=20) | good).filter(lambda other: other != value))
    tampered = dict([*headers[:at], (name, changed), *headers[at + 1 :], signature])
    assert signature_problem(tampered, "t", "r", 3, NOW_MS) != ""
    missing = dict([*headers[:at], *headers[at + 1 :], signature])
    assert signature_problem(missing, "t", "r", 3, NOW_MS) != ""


@given(value=st.binary(max_size=60), key=st.binary(max_size=40))
def test_any_bytes_on_the_status_topic_are_an_outcome_or_none(value: bytes, key: bytes) -> None:
    assert OutcomeRecord.from_json(value) is None
    assert parse_outcome_key(key) is None or key.startswith(b"o/")


@given(control_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60), offset=st.integers(0, 2**63 - 1))
def test_a_key_says_control_id_and_offset(control_id: str, offset: int) -> None:
    assert parse_outcome_key(outcome_key(control_id, offset)) == (control_id, offset)
