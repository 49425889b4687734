"""Profile custom: header names and units from the settings."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS, dialects_of, parse
from sidecar.contract.control import ControlRequest
from sidecar.contract.dialects.custom import MEANING, Custom, CustomHeaders
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival
from sidecar.errors import SettingsInvalid
from sidecar.model import Headers, Reason, Record, Rejection, Request, TimerId
from sidecar.policy import Policy, PolicyConfig
from sidecar.settings import load
from tests.simulation.stage import NOW, ORIGINS, Stage

GIVEN = CustomHeaders(
    origin="x-topic", due="x-at", due_unit="s", delay="x-wait", delay_unit="s", attempt="x-tries", exception="x-error",
    max_attempts="x-most", id="x-id",
)  # fmt: skip
AT_S = 1_893_456_000


def parsed(headers: Headers, given: CustomHeaders = GIVEN) -> Request | ControlRequest | Rejection:
    return parse(Record(0, 0, 5, b"k", b"v", headers), dialects_of([given]))


def test_each_header_is_read_by_its_name_and_unit() -> None:
    came = parsed(
        [
            ("x-topic", b'"orders"'),
            ("x-wait", b"30"),
            ("x-tries", b'"2"'),
            ("x-most", b"9"),
            ("x-error", b"com.acme.Busy"),
            ("x-id", b"o-7"),
        ]
    )
    assert isinstance(came, Request)
    assert came._replace(noted=()) == Request(
        8, "orders", delay_ms=30_000, attempt=2, max_attempts=9, exception="com.acme.Busy", retry_id=b"o-7"
    )


@pytest.mark.parametrize(
    ("unit", "value"), [("s", b"1893456000"), ("ms", b"1893456000000"), ("iso", b"2030-01-01T00:00:00Z")]
)
def test_a_due_time_is_in_its_unit(unit: str, value: bytes) -> None:
    came = parsed([("x-topic", b"orders"), ("x-at", value)], GIVEN._replace(due_unit=unit))
    assert isinstance(came, Request)
    assert came.due_ms == AT_S * 1000


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        ("s", b"1893456000000", "looks like milliseconds"),
        ("ms", b"1893456000", "looks like seconds"),
        ("iso", b"1893456000", "RFC 3339"),
    ],
)
def test_a_due_time_in_another_unit_is_recognised(unit: str, value: bytes, said: str) -> None:
    refused = parsed([("x-topic", b"orders"), ("x-at", value)], GIVEN._replace(due_unit=unit))
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.BAD_HEADER
    assert said in refused.detail


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([("x-at", b"1"), ("x-wait", b"1")], "contradict each other"),
        ([("x-tries", b"two")], "x-tries"),
        ([("x-id", b"")], "x-id"),
        ([("x-id", b"i" * 257)], "1 to 256 bytes"),
        ([("x-wait", b"1"), ("x-wait", b"1")], "more than once"),
    ],
)
def test_what_cannot_be_read_is_refused(headers: Headers, said: str) -> None:
    refused = parsed([("x-topic", b"orders"), *headers])
    assert isinstance(refused, Rejection)
    assert said in refused.detail


def test_a_record_without_the_origin_header_is_another_dialects() -> None:
    refused = parsed([("x-tries", b"1"), ("", b"1")])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.MISSING_HEADER
    assert "x-topic (profile custom)" in refused.detail


@pytest.mark.parametrize(("came", "left"), [(b"1", b"2"), (b'"1"', b'"2"')])
def test_a_delivery_has_one_attempt_more_in_its_place_and_no_due_time(came: bytes, left: bytes) -> None:
    headers: Headers = [("x-tries", came), ("a", None), ("x-topic", b"A"), ("x-wait", b"1"), ("b", b"2")]
    policy = Policy(PolicyConfig(delays_ms=(1000, 1000, 1000), origin_topics=("A",)))
    ingest = Ingest(policy, dialects_of(["native", GIVEN]), ORIGINS, (), input_topic="retry", app_id="app")
    item = ingest.examine(Record(0, 0, NOW, b"key", b"value", headers), NOW)
    assert isinstance(item, Arrival)
    stage = Stage()
    stage.commit(NOW, item)
    # By the dialect that is registered under the code, which knows no names.
    (fire,) = stage.commit(NOW + 1_000, *()).deliveries
    assert fire.headers == [("x-tries", left), ("a", None), ("x-topic", b"A"), ("b", b"2")]


def test_attempts_are_counted_even_if_no_header_of_theirs_is_named() -> None:
    given = CustomHeaders(origin="x-topic")
    came = parsed([("x-topic", b"orders")], given)
    assert isinstance(came, Request)
    stored: Headers = [("x-topic", b"orders"), *came.noted]
    out = DIALECTS["custom"].render(stored, attempt=0, limit=9, timer_id=TimerId(0, 0, 0), due_ms=1)
    assert out == [("x-topic", b"orders"), ("retry-attempt", b"1")]
    again = parsed(out, given)
    assert isinstance(again, Request)
    assert again.attempt == 1


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("unit", ["s", "ms", "iso"])
def test_a_redriven_record_is_due_then_or_within_a_second(unit: str, keep: bool) -> None:
    given = GIVEN._replace(due_unit=unit)
    dead: Headers = [("x-topic", b"orders"), ("x-tries", b"3"), ("x-wait", b"1"), (MEANING, b"x-tries\nx-at")]
    again = Custom(given).redriven(dead, AT_S * 1000 + 1, keep_attempts=keep, to_origin="other")
    assert MEANING not in dict(again)
    came = parsed(again, given)
    assert isinstance(came, Request)
    assert (came.origin, came.attempt) == ("other", 3 if keep else 0)
    assert AT_S * 1000 + 1 <= (came.due_ms or 0) <= AT_S * 1000 + 1_000


def test_where_only_a_delay_has_a_name_a_redriven_record_is_due_at_once() -> None:
    given = CustomHeaders(origin="x-topic", delay="x-wait")
    again = Custom(given).redriven([("x-topic", b"orders")], 1, keep_attempts=False, to_origin="")
    assert again == [("x-topic", b"orders"), ("x-wait", b"0")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{due: x-at}", "origin must be given"),
        ("{origin: x, due: x}", "x: is there with two meanings"),
        ("{origin: x, colour: y}", "colour: there is no such key here"),
        ("{origin: retry-origin-topic}", "does not begin with retry-"),
        ("{origin: a b}", "printable ASCII"),
        ("{origin: x, due_unit: min}", "one of ms, s, iso"),
        ("{origin: x, delay_unit: iso}", "one of ms, s"),
        ("[x]", "a mapping of meanings to header names"),
        ("{origin: [", "is no YAML"),
    ],
)
def test_names_that_cannot_be_used_stop_the_start(text: str, said: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        load(environ={"KAFKA_RETRY_CUSTOM_HEADERS": text, "KAFKA_RETRY_PROFILES": "custom"})
    assert any(said in line for line in refused.value.problems), refused.value.problems


def test_profile_and_names_go_together() -> None:
    with pytest.raises(SettingsInvalid, match="CUSTOM_HEADERS is not set"):
        load(environ={"KAFKA_RETRY_PROFILES": "native,custom"})
    with pytest.raises(SettingsInvalid, match="it must name custom"):
        load(environ={"KAFKA_RETRY_CUSTOM_HEADERS": "{origin: x}"})
    both = load(environ={"KAFKA_RETRY_PROFILES": "custom,native", "KAFKA_RETRY_CUSTOM_HEADERS": "{origin: x}"})
    assert both.dialects == (CustomHeaders(origin="x"), "native")
