"""Control records: reading them, their signature, their outcomes on the status topic, and ingest."""

from __future__ import annotations

import pytest

from sidecar.contract import ControlRequest, parse
from sidecar.contract.control import (
    CONTROL_ID_BYTES_MAX,
    SIGNATURE,
    ControlKind,
    Outcome,
    Target,
    parse_target,
    render_control,
    sign_control,
    signature_problem,
)
from sidecar.contract.filter import FILTER_BYTES_MAX, MessageFilter
from sidecar.contract.status import OutcomeRecord, outcome_key, parse_outcome_key
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import BadControl, Control, ControlOutcome, Dead, outcome_records
from sidecar.model import DUE_MS_MAX, Headers, Reason, Record, Rejection, Scope, TimerId
from sidecar.policy import Policy, PolicyConfig
from tests.clocks import NOW_MS

TIMER = TimerId(3, 41, NOW_MS)
CANCEL: Headers = [("retry-control", b"cancel"), ("retry-target", str(TIMER).encode()), ("retry-control-id", b"c-1")]


def record(headers: Headers, partition: int = 3) -> Record:
    return Record(partition, 7, NOW_MS, None, None, headers)


def read(*changes: tuple[str, bytes | None], without: str = "", partition: int = 3) -> ControlRequest | Rejection:
    """Read a good record with some headers changed, and one left out."""
    headers = {**dict(CANCEL), **dict(changes)}
    parsed = parse(record([header for header in headers.items() if header[0] != without], partition), [])
    assert isinstance(parsed, ControlRequest | Rejection)
    return parsed


def problem(*changes: tuple[str, bytes | None], without: str = "", partition: int = 3) -> str:
    parsed = read(*changes, without=without, partition=partition)
    assert isinstance(parsed, ControlRequest)
    assert parsed.control_id == "c-1"
    return parsed.problem


# Reading


@pytest.mark.parametrize(
    ("kind", "target", "due_ms"),
    [
        (ControlKind.CANCEL, TIMER, None),
        (ControlKind.FIRE, b"order-7", None),
        (ControlKind.RESCHEDULE, "größe id:x".encode(), NOW_MS),
        (ControlKind.RESCHEDULE, TimerId(3, 2**63 - 1, DUE_MS_MAX), DUE_MS_MAX),
        (ControlKind.CANCEL, MessageFilter(), None),
        (ControlKind.FIRE, MessageFilter("orders", 3, 5, 9, "com.*", "größe", "k", ("a:b", "c:d:e")), None),
        (ControlKind.RESCHEDULE, MessageFilter(due_to=NOW_MS), NOW_MS),
        (ControlKind.PAUSE, "orders", None),
        (ControlKind.RESUME, "orders", None),
        (ControlKind.PAUSE, "*", None),
        (ControlKind.STOP, "*", None),
    ],
)
def test_what_is_rendered_is_read_again(kind: ControlKind, target: Target, due_ms: int | None) -> None:
    parsed = parse(record(render_control(kind, target, "c-1", due_ms)), [])
    assert isinstance(parsed, ControlRequest)
    assert parsed._replace(target_text="") == ControlRequest("c-1", "", kind, target, due_ms or 0)


@pytest.mark.parametrize("scope", [Scope("orders"), Scope(group="billing"), Scope("orders", "größe")])
def test_a_record_can_name_the_origin_and_the_group_of_its_targets(scope: Scope) -> None:
    parsed = parse(record(render_control(ControlKind.CANCEL, b"order-7", "c-1", scope=scope)), [])
    assert isinstance(parsed, ControlRequest)
    assert (parsed.problem, parsed.scope) == ("", scope)


@pytest.mark.parametrize("scope", [Scope("no topic"), Scope(group=""), Scope("orders*")])
def test_an_origin_that_is_no_topic_and_an_empty_group_are_refused(scope: Scope) -> None:
    with pytest.raises(ValueError, match=r"retry-origin-topic|retry-group"):
        render_control(ControlKind.CANCEL, b"order-7", "c-1", scope=scope)
    with pytest.raises(ValueError, match="is for the targets of cancel, reschedule and fire, not for pause"):
        render_control(ControlKind.PAUSE, "orders", "c-1", scope=Scope("orders"))


@pytest.mark.parametrize(
    ("kind", "target", "control_id", "due_ms"),
    [
        (ControlKind.CANCEL, "orders", "c", None),
        (ControlKind.CANCEL, b"", "c", None),
        (ControlKind.CANCEL, bytes(257), "c", None),
        (ControlKind.PAUSE, b"order-7", "c", None),
        (ControlKind.PAUSE, MessageFilter(), "c", None),
        (ControlKind.CANCEL, MessageFilter("no topic"), "c", None),
        (ControlKind.CANCEL, MessageFilter(due_from=9, due_to=8), "c", None),
        (ControlKind.CANCEL, MessageFilter(due_from=-1), "c", None),
        (ControlKind.CANCEL, MessageFilter(header=("tenant",)), "c", None),
        (ControlKind.CANCEL, MessageFilter(header=("a:b",) * 9), "c", None),
        (ControlKind.CANCEL, MessageFilter(key="k" * 501), "c", None),
        (ControlKind.CANCEL, MessageFilter(header=("a:" + "b" * 990,) * 8), "c", None),
        (ControlKind.PAUSE, "orders*", "c", None),
        (ControlKind.STOP, "orders", "c", None),
        (ControlKind.FIRE, "*", "c", None),
        (ControlKind.RESCHEDULE, TIMER, "c", None),
        (ControlKind.RESCHEDULE, TIMER, "c", -1),
        (ControlKind.CANCEL, TIMER, "c", 5),
        (ControlKind.CANCEL, TIMER, "", None),
    ],
)
def test_what_would_be_refused_is_not_rendered(
    kind: ControlKind, target: Target, control_id: str, due_ms: int | None
) -> None:
    with pytest.raises(ValueError, match="retry-"):
        render_control(kind, target, control_id, due_ms)


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"x" * (CONTROL_ID_BYTES_MAX + 1)])
def test_without_a_usable_control_id_it_is_a_dead_letter(value: bytes | None) -> None:
    parsed = read(("retry-control-id", value))
    assert isinstance(parsed, Rejection)
    assert parsed.reason is Reason.BAD_HEADER
    assert "retry-control-id" in parsed.detail


def test_so_is_one_with_two_control_ids_or_none() -> None:
    assert isinstance(read(without="retry-control-id"), Rejection)
    assert isinstance(parse(record([*CANCEL, ("retry-control-id", b"c-1")]), []), Rejection)


@pytest.mark.parametrize(
    "target", [b"", b"orders", b"3-41", b"3-41-x", b"03-41-5", b"-1-2-3", b"id:", b"9" * 5000, b"3-%d-5" % 2**63, None]
)
def test_a_target_that_names_nothing_is_a_bad_request(target: bytes | None) -> None:
    assert "retry-target" in problem(("retry-target", target))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"origins":"a"}',
        '{"due_to":"1"}',
        '{"due_to":1.5}',
        '{"key":null,"x":1}',
        "ÿ",
        '"\\ud800"',
        "[" * (FILTER_BYTES_MAX - 7),
        "[" * FILTER_BYTES_MAX,
        '{"origin":"orders\\n"}',
    ],
)
def test_a_filter_that_cannot_be_read_is_a_bad_request(text: str) -> None:
    said = problem(("retry-target", b"filter:" + text.encode("latin-1")))
    assert "retry-target=" in said
    assert len(said) < 500


def test_a_filter_for_one_partition_is_not_for_another() -> None:
    target = str(MessageFilter(partition=3)).encode()
    assert target == b'filter:{"partition":3}'
    assert problem(("retry-target", target)) == ""
    assert "for partition 3 and the record was sent to 4" in problem(("retry-target", target), partition=4)


def test_a_timer_of_another_partition_is_a_bad_request() -> None:
    assert "of partition 3 and the record was sent to 4" in problem(partition=4)


def test_kind_target_and_due_must_fit_together() -> None:
    assert "allowed are cancel, reschedule, fire, pause, resume, stop" in problem(("retry-control", b"Cancel"))
    assert "retry-target is missing" in problem(without="retry-target")
    assert "retry-due-ms is missing" in problem(("retry-control", b"reschedule"))
    assert "retry-due-ms" in problem(("retry-control", b"reschedule"), ("retry-due-ms", b"1_0"))
    assert "is for reschedule, not for cancel" in problem(("retry-due-ms", b"5"))
    assert "topic name" in problem(("retry-control", b"pause"), ("retry-target", b"id:x"))
    assert "a stop is of the whole group" in problem(("retry-control", b"stop"), ("retry-target", b"orders"))


def test_a_header_of_ours_that_repeats_is_a_bad_request_and_others_may() -> None:
    repeated = parse(record([*CANCEL, CANCEL[0]]), [])
    assert isinstance(repeated, ControlRequest)
    assert "retry-control comes more than once" in repeated.problem
    foreign = parse(record([*CANCEL, ("trace", b"1"), ("trace", b"1")]), [])
    assert isinstance(foreign, ControlRequest)
    assert foreign.problem == ""


def test_a_target_of_a_command_line_is_a_timer_or_a_retry_id() -> None:
    assert parse_target("3-41-5") == TimerId(3, 41, 5)
    assert parse_target("id:ü") == "ü".encode()
    with pytest.raises(ValueError, match="timer id"):
        parse_target("orders")


# Signatures


def signed(headers: Headers, token: str = "t", topic: str = "retry", partition: int = 3) -> dict[str, bytes | None]:
    return dict([*headers, sign_control(headers, token, topic, partition, NOW_MS)])


def why(values: dict[str, bytes | None], now_ms: int = NOW_MS) -> str:
    return signature_problem(values, "t", "retry", 3, now_ms)


def test_a_signature_of_the_same_token_and_record_is_trusted_in_any_order_of_headers() -> None:
    assert why(signed(CANCEL)) == ""
    assert why(dict(reversed(signed(CANCEL).items()))) == ""
    assert why({**signed(CANCEL), "trace": b"1"}) == ""


@pytest.mark.parametrize(
    "values",
    [
        dict(CANCEL),
        signed(CANCEL, token="u"),
        signed(CANCEL, topic="other"),
        signed(CANCEL, partition=2),
        {**signed(CANCEL), "retry-control": b"fire"},
        {**signed(CANCEL), "retry-due-ms": b"5"},
        {**signed(CANCEL), "retry-target": b"3-42-5"},
        {**signed(CANCEL), SIGNATURE: None},
        {**signed(CANCEL), SIGNATURE: b"\xff"},
        {name: value for name, value in signed(CANCEL).items() if name != "retry-control-id"},
    ],
)
def test_any_other_is_not(values: dict[str, bytes | None]) -> None:
    assert why(values).startswith("signature: retry-control-signature")


def test_a_signature_grows_old() -> None:
    values = signed(CANCEL)
    assert why(values, NOW_MS + 600_000) == ""
    assert "was made 600 s before an owner read it" in why(values, NOW_MS + 600_001)
    assert "was made 600 s after an owner read it" in why(values, NOW_MS - 600_001)
    assert "counts for 10 minutes: nothing was done, send it again" in why(values, NOW_MS + 600_001)


def test_an_old_record_that_others_changed_looks_like_any_other_false_one() -> None:
    values = {**signed(CANCEL), "retry-target": b"3-42-5"}
    assert why(values, NOW_MS + 600_001) == why(values)


def test_without_a_token_nothing_is_asked_for() -> None:
    assert signature_problem(dict(CANCEL), None, "retry", 3, NOW_MS) == ""


# Outcomes


def test_an_outcome_is_found_by_its_control_id_whatever_is_in_it() -> None:
    for control_id in ("c-1", "a/b/1", "ü"):
        assert parse_outcome_key(outcome_key(control_id, 41)) == (control_id, 41)


@pytest.mark.parametrize(
    "key", [None, b"", b"p/3", b"o/", b"o//5", b"o/c", b"o/c/", b"o/c/x", b"o/\xff/5", b"d/doctor"]
)
def test_keys_of_other_records_are_no_outcomes(key: bytes | None) -> None:
    assert parse_outcome_key(key) is None


def test_the_form_of_an_outcome_does_not_change() -> None:
    answer = ControlOutcome(41, "c-1", Outcome.CANCELLED, 2, "id:x", "a word")
    ((key, value),) = outcome_records([answer], 3, NOW_MS)
    assert key == b"o/c-1/41"
    assert value == (
        b'{"outcome":"cancelled","count":2,"target":"id:x","partition":3,"at_ms":%d,"detail":"a word"}' % NOW_MS
    )
    assert OutcomeRecord.from_json(value) == OutcomeRecord(Outcome.CANCELLED, 2, "id:x", 3, NOW_MS, "a word")
    assert OutcomeRecord.from_json(value[:-1]) is None
    assert OutcomeRecord.from_json(b'{"outcome":"eaten","count":2,"target":"","partition":3,"at_ms":5}') is None


# Intake


def ingest(**config: object) -> Ingest:
    policy = Policy(PolicyConfig(origin_topics=("orders*",), max_delay_ms=10**10))
    return Ingest(policy, [], {}, (), input_topic="retry", app_id="app", **config)  # type: ignore[arg-type]


def test_ingest_makes_a_control_item_of_it() -> None:
    assert ingest().examine(record(CANCEL), NOW_MS) == Control(7, "c-1", ControlKind.CANCEL, TIMER)


def test_a_fault_is_an_item_that_is_answered_and_one_without_an_id_a_dead_letter() -> None:
    bad = ingest().examine(record([*CANCEL[:1], *CANCEL[2:]]), NOW_MS)
    assert bad == BadControl(7, "c-1", "", "retry-target is missing: it says what to cancel")
    dead = ingest().examine(record(CANCEL[:2]), NOW_MS)
    assert isinstance(dead, Dead)
    assert dead.reason is Reason.BAD_HEADER


def test_with_a_token_a_record_must_be_signed() -> None:
    with_token = ingest(api_token="t")
    bad = with_token.examine(record(CANCEL), NOW_MS)
    assert isinstance(bad, BadControl)
    assert bad.detail.startswith("signature")
    assert isinstance(with_token.examine(record(list(signed(CANCEL).items())), NOW_MS), Control)


def test_a_reschedule_beyond_max_delay_and_a_pause_of_what_is_never_fired_to_are_refused() -> None:
    far = render_control(ControlKind.RESCHEDULE, TIMER, "c-1", NOW_MS + 10**10 + 1)
    bad = ingest().examine(record(far), NOW_MS)
    assert isinstance(bad, BadControl)
    assert "MAX_DELAY" in bad.detail
    for topic in ("retry", "dlq", "payments"):
        bad = ingest().examine(record(render_control(ControlKind.PAUSE, topic, "c-1")), NOW_MS)
        assert isinstance(bad, BadControl)
        assert "ORIGIN_TOPICS" in bad.detail
    assert isinstance(ingest().examine(record(render_control(ControlKind.RESUME, "payments", "c-1")), NOW_MS), Control)
    assert isinstance(ingest().examine(record(render_control(ControlKind.PAUSE, "*", "c-1")), NOW_MS), Control)
