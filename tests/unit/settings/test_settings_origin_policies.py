"""ORIGIN_POLICIES: settings of single origins, from each source, shown, checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import SettingsInvalid
from sidecar.policy import Policy
from sidecar.settings import Settings, load, rows
from sidecar.settings.origin_policies import OriginPolicy
from sidecar.settings.policy import policy_config

TEXT = "{payments: {delays: [1s, 10s], max_attempts: 5}, 'mail-*': {fatal_exception: 'A,b.*', droppable_exception: []}}"
POLICIES = (
    OriginPolicy("payments", {"DELAYS": (1_000, 10_000), "MAX_ATTEMPTS": 5}),
    OriginPolicy("mail-*", {"FATAL_EXCEPTION": ("A", "b.*"), "DROPPABLE_EXCEPTION": ()}),
)
FIELDS = (
    "policy, dlq_topic, delays, backoff, jitter, max_age, max_attempts, first_delay_ms, second_delay_ms, "
    "third_delay_ms, "
    "droppable_exception, retriable_exception, fatal_exception, exception_policies, max_per_second, order"
)
CLASSES = "it must be class names or globs such as com.acme.*, separated by commas, without spaces"
FORM = "a mapping of topics or globs to settings of their own, such as {payments: {delays: [1s, 10s], max_attempts: 2}}"


def given(text: str, **others: str) -> Settings:
    return load(environ={f"KAFKA_RETRY_{name}": value for name, value in {"ORIGIN_POLICIES": text, **others}.items()})


def test_policies_are_taken_from_a_file_the_environment_and_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.yaml"
    config.write_text(
        "origin_policies:\n"
        "  payments:\n    delays: 1s,10s\n    max_attempts: 5\n"
        "  mail-*:\n    fatal_exception: [A, b.*]\n    droppable_exception: []\n",
        encoding="utf-8",
    )
    assert load(config=config).origin_policies == POLICIES
    assert given(TEXT).origin_policies == POLICIES
    assert load(flags={"origin_policies": TEXT}).origin_policies == POLICIES
    assert given("").origin_policies == given("{}").origin_policies == ()


def test_what_is_shown_reads_back_as_itself() -> None:
    shown = next(row.value for row in rows(given(TEXT)) if row.name == "ORIGIN_POLICIES")
    assert shown == (
        '{"payments": {"delays": "1s,10s", "max_attempts": "5"}, '
        '"mail-*": {"fatal_exception": "A,b.*", "droppable_exception": []}}'
    )
    assert given(shown).origin_policies == POLICIES


def test_values_are_taken_as_they_are_written() -> None:
    assert given("{a: {fatal_exception: [0123, no]}}").origin_policies == (
        OriginPolicy("a", {"FATAL_EXCEPTION": ("0123", "no")}),
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("7", [f"'7' is not allowed: it must be {FORM}"]),
        ("[payments]", [f"'[payments]' is not allowed: it must be {FORM}"]),
        ("{a: [", [f"is no YAML: expected the node content, but found '<stream end>' in line 1: it must be {FORM}"]),
        ("{a b: {}}", ["a b: is not allowed: it must be a topic name or a glob such as orders-*"]),
        ("{a: 5}", ["a: must be a mapping such as {max_attempts: 3}"]),
        ("{a: {}, a: {}}", ["a: is there more than once: it must be given once"]),
        ("{a: {delay: 1s}}", [f"a: delay: there is no such key here; did you mean delays?; allowed are {FIELDS}"]),
        ("{a: {max_delay: 1d}}", [f"a: max_delay: there is no such key here; allowed are {FIELDS}"]),
        (
            "{a: {max_attempts: 3, max_attempts: 4}, b: {fatal_exception: {c: d}, max_attempts: many}}",
            [
                "a: max_attempts: is there more than once: it must be given once",
                f"b: fatal_exception: a mapping is not allowed: {CLASSES}",
                "b: max_attempts: 'many' is not allowed: it must be a whole number from 1 to 1000",
            ],
        ),
    ],
)
def test_every_mistake_is_one_line_with_its_place(text: str, lines: list[str]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        given(text)
    source = "(from environment KAFKA_RETRY_ORIGIN_POLICIES)"
    assert list(caught.value.problems) == [f"ORIGIN_POLICIES: {line} {source}" for line in lines]


@pytest.mark.parametrize(
    ("text", "others", "line"),
    [
        ("{a: {delays: 3h}}", {"MAX_DELAY": "2h"}, "a: DELAYS: 3h is above MAX_DELAY 2h: no delay may be longer"),
        (
            "{a: {fatal_exception: E}}",
            {"DROPPABLE_EXCEPTION": "E"},
            "a: DROPPABLE_EXCEPTION and FATAL_EXCEPTION: both name 'E': it must be in one of them only",
        ),
        (
            "{a: {first_delay_ms: 1s}}",
            {"PROFILES": "native"},
            (
                "a: FIRST_DELAY_MS: 1s is set, but PROFILES is 'native': it must name ibm, or FIRST_DELAY_MS must not "
                "be set; DELAYS is for profile native"
            ),
        ),
        (
            "{dlq: {max_attempts: 1}}",
            {},
            "'dlq' is the input, the DLQ or an internal topic: it cannot be an origin",
        ),
    ],
)
def test_a_policy_that_contradicts_the_general_settings_is_one_line(
    text: str, others: dict[str, str], line: str
) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        given(text, **others)
    assert list(caught.value.problems) == [f"ORIGIN_POLICIES: {line}"]


def test_a_contradiction_among_the_general_settings_is_reported_once() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        given("{a: {max_attempts: 1}}", DROPPABLE_EXCEPTION="E", FATAL_EXCEPTION="E")
    assert len(caught.value.problems) == 1


def test_a_policy_for_an_origin_that_is_not_allowed_is_warned_of() -> None:
    settings = given("{orders: {max_attempts: 1}, mail: {max_attempts: 1}, 'x*': {}}", ORIGIN_TOPICS="mail*")
    assert settings.warnings == ("ORIGIN_POLICIES: 'orders' is not allowed by ORIGIN_TOPICS: it is not used",)


def test_a_policy_names_its_dlq_which_is_never_an_origin() -> None:
    settings = given("{pay: {dlq_topic: pay-dlq}, mail: {dlq_topic: dlq}}", POLICIES="{slow: {dlq_topic: a-dlq}}")
    assert settings.dlq_topics == ("dlq", "a-dlq", "pay-dlq")
    assert {"dlq", "a-dlq", "pay-dlq"} <= settings.own_topics
    policy = Policy(policy_config(settings))
    assert not any(policy.origin_allowed(topic) for topic in settings.dlq_topics)
    own = policy_config(settings).by_origin[0]
    assert own.dlq_topic == "pay-dlq"
    assert not any(Policy(own).origin_allowed(topic) for topic in settings.dlq_topics)


@pytest.mark.parametrize("topic", ["retry", "kafka-retry-status", "kafka-retry-retry-queue-changelog"])
def test_a_topic_of_the_sidecar_is_no_dlq_of_a_policy(topic: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"dlq_topic of policy pay: '{topic}' is a topic of the sidecar itself"):
        given(f"{{pay: {{dlq_topic: {topic}}}}}")


def test_the_order_of_messages_is_none_or_key() -> None:
    assert load(environ={}).order == "none"
    assert given("{payments: {order: key}}").origin_policies == (OriginPolicy("payments", {"ORDER": "key"}),)
    with pytest.raises(SettingsInvalid, match="order: 'strict' is not allowed: it must be one of none, key"):
        given("{payments: {order: strict}}")
    with pytest.raises(SettingsInvalid, match="there is no such key here"):
        load(environ={"KAFKA_RETRY_POLICIES": "{slow: {order: key}}"})
