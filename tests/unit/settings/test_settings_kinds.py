"""Values of settings as text, in and out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings import kinds
from sidecar.settings.kinds import Kind, parse_duration_ms, show_duration

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("20s", 20_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("7d", 7 * DAY_MS),
        ("10000", 10_000),
        ("0", 0),
    ],
)
def test_a_duration_has_a_unit_or_is_in_milliseconds(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "s", "5 m", "-5s", "+5s", "1.5s", "5M", "5min", "1_000", "٥s", "5m30s", "9" * 16])
def test_other_forms_of_a_duration_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_duration_ms(text)


@given(st.integers(min_value=0, max_value=10**14))
def test_a_shown_duration_reads_back_as_itself(duration_ms: int) -> None:
    assert parse_duration_ms(show_duration(duration_ms)) == duration_ms


@given(st.lists(st.integers(min_value=0, max_value=DAY_MS), min_size=1, max_size=20))
def test_a_shown_list_of_delays_reads_back_as_itself(delays_ms: list[int]) -> None:
    kind = kinds.durations(DAY_MS, most=20)
    assert kind.parse(kind.show(tuple(delays_ms))) == tuple(delays_ms)


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for kind in (
        kinds.SWITCH,
        kinds.TOPIC,
        kinds.SERVERS,
        kinds.TOPIC_GLOBS,
        kinds.CLASS_GLOBS,
        kinds.TOKENS,
        kinds.TEXT,
        kinds.URL,
    ):
        try:
            value = kind.parse(text)
        except ValueError:
            continue
        assert kind.parse(kind.show(value)) == value


ALLOWED: list[tuple[Kind, str, object]] = [
    (kinds.whole(0, 65_535), "0", 0),
    (kinds.whole(0, 65_535), "65535", 65_535),
    (kinds.duration(1_000, 5_000), "5s", 5_000),
    (kinds.durations(DAY_MS, most=3), "20s, 1m,300", (20_000, 60_000, 300)),
    (kinds.SWITCH, "TRUE", True),
    (kinds.SWITCH, "off", False),
    (kinds.LEVEL, "WARN", "warning"),
    (kinds.LEVEL, "TRACE", "debug"),
    (kinds.TOPIC, "a.B_c-1", "a.B_c-1"),
    (kinds.SERVERS, "a:1, [::1]:9092,SASL_SSL://b.example:65535,c", "a:1,[::1]:9092,SASL_SSL://b.example:65535,c"),
    (kinds.TOPIC_GLOBS, "orders-*,billing.[ab]", ("orders-*", "billing.[ab]")),
    (kinds.CLASS_GLOBS, "", ()),
    (kinds.CLASS_GLOBS, "com.acme.*, a.B$C", ("com.acme.*", "a.B$C")),
    (kinds.choice("SSL", "SASL_SSL"), "sasl_ssl", "SASL_SSL"),
    (kinds.choices("native", "ibm"), "ibm,native", ("ibm", "native")),
    (kinds.FOLDER, "/var/lib/x", Path("/var/lib/x")),
    (kinds.HOST, "::1", "::1"),
    (kinds.FILE, "/etc/x.json", Path("/etc/x.json")),
    (kinds.URL, "https://me:pass@hooks.example.com:8443/T/B?x=1", "https://me:pass@hooks.example.com:8443/T/B?x=1"),
    (kinds.URL, "http://[::1]:9093/api/v2/alerts", "http://[::1]:9093/api/v2/alerts"),
    (kinds.TOKENS, "0123456789-abc~!", "0123456789-abc~!"),
]


@pytest.mark.parametrize(("kind", "text", "value"), ALLOWED)
def test_allowed_text_becomes_its_value(kind: Kind, text: str, value: object) -> None:
    assert kind.parse(text) == value


REFUSED: list[tuple[Kind, str]] = [
    (kinds.whole(1, 10), "0"),
    (kinds.whole(1, 10), "11"),
    (kinds.whole(0, 10), "0" * 20 + "9"),
    (kinds.whole(1, 10), "1_0"),
    (kinds.duration(1_000, 5_000), "999ms"),
    (kinds.duration(1_000, 5_000), "5001"),
    (kinds.durations(DAY_MS, most=2), ""),
    (kinds.durations(DAY_MS, most=2), "1s,1s,1s"),
    (kinds.durations(DAY_MS, most=2), "1s,,1s"),
    (kinds.durations(DAY_MS, most=2), "2d"),
    (kinds.SWITCH, "maybe"),
    (kinds.URL, "hooks.example.com/T"),
    (kinds.URL, "ftp://hooks.example.com/T"),
    (kinds.URL, "https://"),
    (kinds.URL, "https://hooks.example.com:0/"),
    (kinds.URL, "https://hooks.example.com:65536/"),
    (kinds.URL, "https://[::1/"),
    (kinds.URL, "https://hooks.example.com/a b"),
    (kinds.URL, "https://hooks.example.com/é"),
    (kinds.URL, "https://h/" + "x" * 2_000),
    (kinds.LEVEL, "loud"),
    (kinds.TOPIC, ".."),
    (kinds.TOPIC, "a b"),
    (kinds.TOPIC, "x" * 250),
    (kinds.SERVERS, "http://a:1"),
    (kinds.SERVERS, "a:65536"),
    (kinds.SERVERS, "a:0"),
    (kinds.SERVERS, ","),
    (kinds.TOPIC_GLOBS, ""),
    (kinds.TOPIC_GLOBS, "or ders"),
    (kinds.CLASS_GLOBS, "a b"),
    (kinds.choices("native", "ibm"), ""),
    (kinds.choices("native", "ibm"), "ibm,ibm"),
    (kinds.choices("native", "ibm"), "spring"),
    (kinds.TEXT, "two\nlines"),
    (kinds.FOLDER, ""),
    (kinds.FOLDER, "~no-such-user/x"),
    (kinds.TOKENS, "a-token of the tests"),
    (kinds.TOKENS, "a-token-of-15-ch"[:15]),
    (kinds.TOKENS, "ein-langer-schlüssel"),
    (kinds.TOKENS, "a-token-of-the-tests,short"),
    (kinds.TOKENS, "a-token-of-the-tests,a-token-of-the-tests"),
    (kinds.TOKENS, "a-token-of-the-tests,"),
]


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_other_text_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        kind.parse(text)
