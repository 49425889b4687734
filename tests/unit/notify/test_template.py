"""Templates: JSON with placeholders, checked at the start, in the forms that three receivers take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from sidecar.errors import SettingsInvalid
from sidecar.model import Reason
from sidecar.notify.summary import FIELDS, Source, Summary
from sidecar.notify.template import BYTES_MAX, DEFAULT, Template, read_template
from tests.unit.notify.test_summary import dead

EXAMPLES: Final = Path(__file__).parents[3] / "deploy" / "notify"
VALUES: Final[dict[str, Any]] = {
    **dict.fromkeys(FIELDS, "x"),
    "count": 3,
    "summary": '3 "dead" letters\\ ${count}',
    "by_reason": {"fatal": 3},
    "samples": [{"reason": "fatal"}],
}


def filled(name: str) -> Any:
    """Return an example as it is sent for one dead letter with the longest texts."""
    summary = Summary()
    summary.by_reason[Reason.FATAL.value] = 1
    summary.examine(dead(exception="<!channel> " + "x" * 5_000))
    fields = summary.fields(
        Source("kafka-retry", "sidecar-0", "dlq"), "2026-02-02T02:40:00.000Z", "2026-02-02T02:41:00.000Z", 1, 2
    )
    return json.loads(read_template(EXAMPLES / name).render(fields))


def test_the_default_has_every_field_under_its_name() -> None:
    assert json.loads(Template(DEFAULT).render(VALUES)) == VALUES


def test_a_placeholder_alone_gives_the_value_and_within_a_text_its_text() -> None:
    text = '{"a": "$count", "b": "$count of $app_id", "c": ["${by_reason}"], "d": "by $by_reason", "e": "$$5", "f": 7}'
    assert json.loads(Template(text).render(VALUES)) == {
        "a": 3,
        "b": "3 of x",
        "c": [{"fatal": 3}],
        "d": 'by {"fatal": 3}',
        "e": "$5",
        "f": 7,
    }


@given(st.text())
def test_no_value_changes_the_structure_or_is_filled_in_again(value: str) -> None:
    rendered = json.loads(Template('{"a": "$summary", "b": ["<${summary}>"]}').render({**VALUES, "summary": value}))
    assert rendered == {"a": value, "b": [f"<{value}>"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no JSON: "),
        (b'{"a": "$cuont"}', "names $cuont, which is no field: allowed are app_id, instance, dlq_topic, "),
        (b'{"a": ["costs 5 $"]}', "has a $ that begins no placeholder: write $$ for a dollar sign"),
        (b'{"a": "\xff"}', "is not UTF-8: it must be JSON in UTF-8"),
        (b" " * (BYTES_MAX + 1), f"is larger than {BYTES_MAX} bytes"),
        (b"[" * 50_000, "is no JSON: "),
    ],
)
def test_what_is_no_template_stops_the_start(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "template.json"
    path.write_bytes(content)
    with pytest.raises(SettingsInvalid) as refused:
        read_template(path)
    assert str(refused.value).startswith(f"NOTIFY_TEMPLATE: {str(path)!r} {said}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"NOTIFY_TEMPLATE: '.*gone.json' cannot be read: No such file"):
        read_template(tmp_path / "gone.json")


# The examples, by what their receivers take

TEXT: Final = {"type": "string", "minLength": 1}
LABELS: Final = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    "additionalProperties": TEXT,
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    # `postableAlerts` of Alertmanager's api/v2/openapi.yaml; a label without a value is none.
    "alertmanager": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["labels"],
            "properties": {
                "labels": {**LABELS, "required": ["alertname"]},
                "annotations": LABELS,
                "startsAt": {"type": "string", "format": "date-time"},
                "endsAt": {"type": "string", "format": "date-time"},
                "generatorURL": {"type": "string", "format": "uri"},
            },
        },
    },
    # The body of `/enqueue` in PagerDuty's OpenAPI document of the Events API v2, with the limits of its guide.
    "pagerduty": {
        "type": "object",
        "additionalProperties": False,
        "required": ["routing_key", "event_action", "payload"],
        "properties": {
            "routing_key": TEXT,
            "event_action": {"enum": ["trigger"]},
            "dedup_key": {**TEXT, "maxLength": 255},
            "client": TEXT,
            "client_url": {"type": "string", "format": "uri"},
            "links": {"type": "array"},
            "images": {"type": "array"},
            "payload": {
                "type": "object",
                "additionalProperties": False,
                "required": ["summary", "severity", "source"],
                "properties": {
                    "summary": {**TEXT, "maxLength": 1_024},
                    "timestamp": {"type": "string", "format": "date-time"},
                    "severity": {"enum": ["critical", "warning", "error", "info"]},
                    **dict.fromkeys(("source", "component", "group", "class"), TEXT),
                    "custom_details": {"type": "object"},
                },
            },
        },
    },
    # The reference of Slack's incoming webhooks and of the blocks `header` and `section`.
    "slack": {
        "type": "object",
        "additionalProperties": False,
        "required": ["text"],
        "properties": {
            "text": {**TEXT, "maxLength": 40_000},
            "blocks": {
                "type": "array",
                "maxItems": 50,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["type", "text"],
                    "properties": {
                        "type": {"enum": ["header", "section"]},
                        "text": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "plain_text"}, "text": {**TEXT, "maxLength": 3_000}},
                        },
                    },
                    "if": {"properties": {"type": {"const": "header"}}},
                    "then": {"properties": {"text": {"properties": {"text": {"maxLength": 150}}}}},
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_each_example_has_the_form_that_its_receiver_publishes(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    checked = Draft202012Validator(SCHEMAS[name], format_checker=FormatChecker())
    assert [each.message for each in checked.iter_errors(filled(f"{name}.json"))] == []


def test_slack_gets_plain_text_that_mentions_nobody() -> None:
    body = filled("slack.json")
    # https://api.slack.com/reference/block-kit/composition-objects#text: 3,000 characters in a section.
    (header, section) = body["blocks"]
    assert section["text"]["type"] == header["text"]["type"] == "plain_text"
    assert "<!channel>" in section["text"]["text"]
    assert len(section["text"]["text"]) <= 3_000
    assert len(header["text"]["text"]) <= 150
    assert "<" not in body["text"]


def test_pagerduty_gets_a_trigger_of_events_v2() -> None:
    body = filled("pagerduty.json")
    assert body.keys() == {"routing_key", "event_action", "dedup_key", "client", "payload"}
    assert body["event_action"] == "trigger"
    assert len(body["dedup_key"]) <= 255
    assert body["payload"].keys() >= {"summary", "source", "severity", "timestamp", "custom_details"}
    assert len(body["payload"]["summary"]) <= 1_024
    assert body["payload"]["severity"] in {"critical", "error", "warning", "info"}
    assert body["payload"]["custom_details"]["by_reason"] == {"fatal": 1}


def test_alertmanager_gets_alerts_of_api_v2() -> None:
    (alert,) = filled("alertmanager.json")
    assert alert.keys() <= {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}
    assert alert["labels"]["alertname"] == "RetrySidecarDeadLetters"
    for name, value in {**alert["labels"], **alert["annotations"]}.items():
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
        assert isinstance(value, str), name
        assert value, name
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", alert["startsAt"])


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "how-to" / "notify.md").read_text(encoding="utf-8")
    examples = sorted(EXAMPLES.iterdir())
    assert [each.stem for each in examples] == ["alertmanager", "pagerduty", "slack"]
    for each in examples:
        assert f"```json\n{each.read_text(encoding='utf-8')}```" in page
