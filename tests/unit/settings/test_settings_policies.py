"""POLICIES, backoffs, shares and exception rules: from text, shown, checked."""

from __future__ import annotations

import pytest
import yaml

from sidecar.errors import SettingsInvalid
from sidecar.policy.backoff import Backoff
from sidecar.settings import Settings, load, nodes, rows
from sidecar.settings.policy import policy_config

NAMED = "{slow: {backoff: {first: 1m, factor: 2, max: 1h, attempts: 8}, jitter: 0.2, max_age: 2d}, card: {delays: 1s}}"


def given(**settings: str) -> Settings:
    return load(environ={f"KAFKA_RETRY_{name}": text for name, text in settings.items()})


def problems_of(**settings: str) -> list[str]:
    with pytest.raises(SettingsInvalid) as caught:
        given(**settings)
    return [problem.partition(" (from ")[0] for problem in caught.value.problems]


def test_a_backoff_gives_the_delays_of_its_expression() -> None:
    settings = given(BACKOFF="{first: 1s, factor: 3, max: 20s, attempts: 5}")
    assert settings.backoff == Backoff(1_000, 3.0, 20_000, 5)
    config = policy_config(settings)
    assert config.delays_ms == (1_000, 3_000, 9_000, 20_000, 20_000)
    assert given(BACKOFF="{first: 1s, attempts: 2}").backoff == Backoff(1_000, 2.0, 365 * 86_400_000, 2)


def test_what_is_shown_reads_back_as_itself() -> None:
    texts = {
        "BACKOFF": "{first: 90s, factor: 1.5, max: 1h, attempts: 8}",
        "POLICIES": NAMED,
        "EXCEPTION_POLICIES": "{com.acme.*: slow, E: card}",
        "ORIGIN_POLICIES": "{a: {policy: slow, exception_policies: {}, backoff: {first: 1, attempts: 1}}}",
        "JITTER": "0.25",
    }
    settings = given(**texts)
    shown = {row.name: row.value for row in rows(settings) if row.name in texts}
    assert given(**shown) == settings


def test_an_origin_has_the_settings_of_the_policy_that_it_names_and_its_own_before_them() -> None:
    origins = "{a: {policy: slow, max_age: 1d}, b: {policy: slow, delays: 5s}, c: {policy: card}, d: {jitter: 0}}"
    config = policy_config(given(POLICIES=NAMED, ORIGIN_POLICIES=origins, BACKOFF="{first: 7s, attempts: 1}"))
    a, b, c, d = config.by_origin
    assert (a.delays_ms[:2], len(a.delays_ms), a.jitter, a.max_age_ms) == ((60_000, 120_000), 8, 0.2, 86_400_000)
    assert (b.delays_ms, b.jitter) == ((5_000,), 0.2)
    assert (c.delays_ms, c.jitter, c.max_age_ms) == ((1_000,), 0.0, None)
    assert d.delays_ms == (7_000,)
    assert [each.name for each in config.by_name] == ["slow", "card"]


PARTS = "a mapping such as {first: 1s, factor: 2, max: 1h, attempts: 8}; factor is 2 and max 365d when left out"
ALLOWED = "is no policy: allowed are the names in POLICIES"
NAME = "a name of 1 to 64 characters out of a-z, A-Z, 0-9, '.', '_', '-'"


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"BACKOFF": "7"}, [f"BACKOFF: '7' is not allowed: it must be {PARTS}"]),
        ({"BACKOFF": "{first: 1s}"}, [f"BACKOFF: attempts must be given: it must be {PARTS}"]),
        (
            {"BACKOFF": "{first: 1s, attempts: 0, factor: 0.5, base: 2}"},
            [
                "BACKOFF: attempts: '0' is not allowed: it must be a whole number from 1 to 1000",
                "BACKOFF: factor: '0.5' is not allowed: it must be a number from 1 to 100, such as 2",
                "BACKOFF: base: there is no such key here; allowed are first, factor, max, attempts",
            ],
        ),
        ({"JITTER": "1.5"}, ["JITTER: '1.5' is not allowed: it must be a number from 0 to 1, such as 0.2"]),
        ({"JITTER": "-0.1"}, ["JITTER: '-0.1' is not allowed: it must be a number from 0 to 1, such as 0.2"]),
        (
            {"DELAYS": "1s", "BACKOFF": "{first: 1s, attempts: 1}"},
            ["DELAYS and BACKOFF: both are set: give the delays as one of them, a list or an expression"],
        ),
        (
            {"POLICIES": "{a: {delays: 1s, backoff: {first: 1s, attempts: 1}}}"},
            ["POLICIES: a: DELAYS and BACKOFF: both are set: give the delays as one of them, a list or an expression"],
        ),
        (
            {"BACKOFF": "{first: 1h, factor: 10, attempts: 3}", "MAX_DELAY": "1d"},
            ["BACKOFF: 100h is above MAX_DELAY 1d: no delay may be longer"],
        ),
        (
            {"DELAYS": "1h", "JITTER": "0.5", "MAX_DELAY": "1h"},
            ["JITTER: 0.5 of 1h (DELAYS) exceeds MAX_DELAY 1h: no delay may be longer"],
        ),
        ({"POLICIES": "{a b: {}}"}, [f"POLICIES: a b: is not allowed: it must be {NAME}"]),
        (
            {"EXCEPTION_POLICIES": "{E: slwo}", "POLICIES": NAMED},
            ["EXCEPTION_POLICIES: E: 'slwo' is no policy: allowed are the names in POLICIES: card, slow"],
        ),
        (
            {"ORIGIN_POLICIES": "{a: {policy: slow}}"},
            [
                f"ORIGIN_POLICIES: a: POLICY: 'slow' {ALLOWED}: none, POLICIES is empty",
            ],
        ),
        (
            {"POLICIES": "{a: {exception_policies: {E: b}}}"},
            ["POLICIES: a: EXCEPTION_POLICIES: E: 'b' is no policy: allowed are the names in POLICIES: a"],
        ),
        (
            {"EXCEPTION_POLICIES": "{'a b': slow, E: [slow]}"},
            [
                "EXCEPTION_POLICIES: 'a b' is not allowed: it must be a class name or a glob such as com.acme.*",
                f"EXCEPTION_POLICIES: E: '' is not allowed: it must be {NAME}",
            ],
        ),
    ],
)
def test_every_mistake_names_the_setting_the_value_and_what_is_allowed(
    settings: dict[str, str], lines: list[str]
) -> None:
    assert problems_of(**settings) == lines


@pytest.mark.parametrize("text", ["[" * 2_000, "{a: " * 1_000, "[[]" * 1_000, "x: '" + "[" * 100 + "'"])
def test_yaml_that_is_nested_too_deeply_never_reaches_the_library(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time grows with the square of the depth."""
    monkeypatch.setattr(yaml, "compose", lambda *_, **__: pytest.fail("the library reads it"))
    with pytest.raises(yaml.YAMLError, match="nested more than 32 deep"):
        nodes.compose(text)


def test_yaml_of_a_usual_depth_is_read_however_many_lists_it_has() -> None:
    nodes.compose("[" * 20 + "]" * 20)
    assert nodes.compose("[" + "[a], " * 500 + "]") is not None
