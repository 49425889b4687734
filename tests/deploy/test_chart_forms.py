"""The schema of `config` refuses what the program refuses: each setting's values are put to both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from deploy.chart_forms import decimals, numbers, schema_of
from deploy.chart_schema import SET_BY_THE_CHART, application
from sidecar.settings import SETTINGS, Setting, nodes
from sidecar.settings.forms import Duration, Entries, Words
from sidecar.settings.kinds import Kind, duration
from sidecar.settings.table import per_origin, per_policy

CONFIG: dict[str, Any] = json.loads(application())["properties"]["config"]["properties"]
GIVEN = [setting for setting in SETTINGS if setting.name not in SET_BY_THE_CHART]

# Each is right for some settings and wrong for others.
TEXTS = (
    "abc", "a/b", "a b", "a,b", "a,,b", ",", "a, b", " a ", ".", "..", "a.b", "x" * 249, "x" * 250, "orders-*", "[ab]?",
    "com.acme.*", "ä", "a\tb", "0", "1", "2", "0.5", "1.0", "1.5", "-1", "+1", "1_000", "1e3", "0x10", "50", "100",
    "101", "1000", "1001", "10000", "10001", "32767", "32768", "65535", "65536", "99999999999", "1767225600000",
    "20s", "1.5s", "20 s", "5m,1h", "20s,", "250ms", "7d", "36500d", "36501d", "365d", "1h1m", "1H", "soon",
    "20s,5m,abc", ",".join(["1s"] * 1000), ",".join(["1s"] * 1001), "latest", "EARLIEST", "2026-01-01",
    "2026-01-01T08:00:00Z", "2026-01-01 08:00:00+02:00", "2026-13-01", "2026-01-01T25:00", "20260101", "yesterday",
    "info", "INFO", "verbose", "json", "Console", "xml", "native", "native,ibm", "native,native", "ibm , native",
    "native, spring ,native", "Native", "kafka:9092", "kafka", "a:1,b:2", "kafka:0", "kafka:65535", "kafka:65536",
    "kafka:port", "[::1]:9092", "SSL://kafka:9093", "http://kafka:9092", "true", "false", "PLAIN",
)  # fmt: skip
NUMBERS = (0, 1, 2, 50, 99, 100, 101, 999, 1000, 1001, 10_000, 10_001, 32_767, 32_768, 60_000, 60_001, 3_600_000,
           3_600_001, 86_400_000, 86_400_001, 3_153_600_000_000, 3_153_600_000_001, 1_767_225_600_000, -1)  # fmt: skip
LISTS: tuple[list[Any], ...] = (
    [], ["a"], ["a", "b"], ["a", "a"], ["a b"], ["orders-*"], ["a/b"], ["20s"], ["20s", 1000], ["soon"], [-1],
    ["36501d"], ["native"], ["native", "native"], ["ibm", "native"], ["nothing"], ["1s"] * 1000, ["1s"] * 1001,
)  # fmt: skip
MAPPINGS: tuple[dict[str, Any], ...] = (
    {}, {"a": "b"}, {"a": "b c"}, {"a b": "c"}, {"a,b": "c"}, {"com.acme.*": "slow"}, {"a": 1}, {"a": {}},
    {"first": "1s", "attempts": 3}, {"first": "1s"}, {"first": "1x", "attempts": 3}, {"first": 0, "attempts": 3},
    {"first": "1s", "attempts": 3, "factor": 1.5, "max": "1h"}, {"first": "1s", "attempts": 3, "factor": 0.5},
    {"first": "1s", "attempts": 1001}, {"first": "1s", "attempts": 3, "last": 1},
    {"orders": {"max_attempts": 3}}, {"orders": {"max_attempts": 0}}, {"orders": {"max_attempts": None}},
    {"or ders": {"max_attempts": 3}}, {"orders": {"delays": ["1s", "soon"]}}, {"orders": {"delays": "1s,2s"}},
    {"orders": {"commit_interval_ms": 1}}, {"orders": {"jitter": 0.5}}, {"orders": {"jitter": 1.5}},
    {"orders-*": {"backoff": {"first": "1s", "attempts": 2}}}, {"orders": {"backoff": {"first": "1s"}}},
    {"orders": {"fatal_exception": []}}, {"orders": {"fatal_exception": ["a b"]}}, {"orders": 3}, {"orders": []},
    {"origin": "x-topic"}, {"origin": "x-topic", "due": "x-at", "due_unit": "s"}, {"due": "x-at"},
    {"origin": "x-topic", "due_unit": "h"}, {"origin": "x topic"}, {"origin": "retry-topic"},
    {"origin": "x-topic", "attempt": "retry-attempt"}, {"origin": "x-topic", "nothing": "x"}, {"origin": "x" * 256},
)  # fmt: skip
CANDIDATES = (*TEXTS, *NUMBERS, *LISTS, *MAPPINGS, 0.5, 1.5, 0.0001, 2_000_000.5)


def program_takes(kind: Kind, value: object) -> bool:
    """Tell whether the program takes a value that Helm has written as YAML."""
    node = yaml.compose(json.dumps(value), Loader=yaml.SafeLoader)
    assert node is not None
    try:
        kind.parse(nodes.text_of(node, kind).strip())
    except ValueError:
        return False
    return True


def is_of_another_type(setting: Setting, value: object) -> bool:
    """Tell whether the program takes a value by its text alone, which in YAML is written as another type."""
    if isinstance(setting.kind.form, Entries) and isinstance(value, dict):
        return any(isinstance(each, float) for each in value.values())
    if setting.kind.is_mapping:
        return not isinstance(value, dict)
    if setting.kind.is_switch:
        return True
    return isinstance(value, float) and not setting.kind.is_decimal


def candidates(setting: Setting) -> Iterator[Any]:
    """Yield values for every setting, and the words that this one takes."""
    yield from CANDIDATES
    if isinstance(setting.kind.form, Words):
        for word in setting.kind.form.words:
            yield from (word, word.upper(), f" {word} ", f"{word}x", f"{word},{word}")


@pytest.mark.parametrize("setting", GIVEN, ids=lambda setting: setting.yaml_key)
def test_schema_and_program_agree(setting: Setting) -> None:
    schema = Draft7Validator(CONFIG[setting.yaml_key])
    verdicts = [
        (value, schema.is_valid(value), program_takes(setting.kind, value))
        for value in candidates(setting)
        if not is_of_another_type(setting, value)
    ]
    assert [(value, taken, wanted) for value, taken, wanted in verdicts if taken != wanted] == []
    assert any(wanted for _, _, wanted in verdicts) or setting.kind.is_switch
    if not setting.kind.is_switch:
        assert not all(wanted for _, _, wanted in verdicts)


@pytest.mark.parametrize("setting", GIVEN, ids=lambda setting: setting.yaml_key)
def test_a_value_of_another_type_is_never_taken_if_the_program_refuses_it(setting: Setting) -> None:
    schema = Draft7Validator(CONFIG[setting.yaml_key])
    for value in (*CANDIDATES, True, False):
        assert not schema.is_valid(value) or program_takes(setting.kind, value), value
    assert schema.is_valid(None)
    assert not schema.is_valid("")


def test_policies_of_origins_and_of_names_have_their_own_fields() -> None:
    for name, fields in (("origin_policies", per_origin()), ("policies", per_policy())):
        assert CONFIG[name]["additionalProperties"]["properties"].keys() == {each.yaml_key for each in fields}


RANGES = st.tuples(st.integers(0, 10**13), st.integers(0, 10**13)).map(sorted)


def around(low: int, high: int) -> Iterator[int]:
    """Yield numbers at both ends."""
    for end in (low, high):
        yield from (each for each in (end - 1, end, end + 1) if each >= 0)


@given(RANGES, st.integers(0, 10**14))
def test_the_pattern_of_numbers_is_exact(ends: list[int], other: int) -> None:
    low, high = ends
    pattern = re.compile(numbers(low, high))
    for number in (*around(low, high), other, (low + high) // 2):
        assert bool(pattern.fullmatch(str(number))) == (low <= number <= high)
        assert bool(pattern.fullmatch(f"00{number}")) == (low <= number <= high)


@given(
    st.sampled_from([0, 0.001, 0.25, 1, 1.5, 7, 99.999]),
    st.integers(100, 2_000_000),
    st.decimals(0, 2_000_001, places=4),
)
def test_the_pattern_of_decimals_is_exact(low: float, high: int, number: object) -> None:
    pattern = re.compile(decimals(low, high))
    for text in (str(number), f"{low:.6f}", f"{low:g}", str(high), f"{high}.0", f"{high}.1", f"{low + 0.0001:.4f}"):
        assert bool(pattern.fullmatch(text)) == (low <= float(text) <= high), text


@given(RANGES, st.integers(0, 10**6), st.sampled_from(["", "ms", "s", "m", "h", "d"]))
def test_the_pattern_of_a_duration_is_exact(ends: list[int], number: int, unit: str) -> None:
    kind = duration(*ends)
    schema = Draft7Validator(schema_of(Duration(*ends)))
    assert schema.is_valid(f"{number}{unit}") == program_takes(kind, f"{number}{unit}")
    assert schema.is_valid(number) == program_takes(kind, number)
