"""Events of the log: one style, each explained, and the document made from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidecar.events import LEVELS, MEANINGS, calls, document
from sidecar.runtime.reporting.snapshot import Snapshots
from tests.clocks import HandClock

CALLS = list(calls())
ROOT = Path(__file__).parents[2]
OF_LIBRARIES = {"client_logged"}
"""Events that the logging itself makes of other libraries' lines."""


def test_every_event_of_the_code_is_explained_and_no_other() -> None:
    assert {call.event for call in CALLS} | OF_LIBRARIES == MEANINGS.keys()


def test_every_call_that_logs_is_found() -> None:
    """Each module that asks for a logger logs under one of the names that the search knows."""
    modules = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "sidecar").rglob("*.py")}
    asking = {name: text for name, text in modules.items() if "structlog.get_logger(" in text}
    for name in ("sidecar/log.py", "sidecar/events.py"):  # which only speak of it
        del asking[name]
    assert {call.place.partition(":")[0] for call in CALLS} == asking.keys()


@pytest.mark.parametrize("name", sorted({*MEANINGS, *(field for call in CALLS for field in call.fields)}))
def test_names_are_words_joined_by_underscores(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)


def test_events_have_two_words_at_least_and_a_level() -> None:
    assert all("_" in event for event in MEANINGS)
    assert {call.level for call in CALLS} <= set(LEVELS)


def test_no_field_takes_the_place_of_one_that_every_line_has() -> None:
    taken = {"event", "level", "logger", "timestamp"}
    assert not [call for call in CALLS if taken & set(call.fields)]


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference/logs.md").read_text() == document(), (
        "run: python -m sidecar.events > docs/reference/logs.md"
    )


def test_readiness_is_logged_when_it_changes_and_not_while_it_lasts() -> None:
    snapshots = Snapshots(HandClock())
    with capture_logs() as lines:
        for reasons in ([], [], ["no broker answers"], ["no broker answers", "another"], []):
            snapshots.show([], reasons, {})
    assert [line["event"] for line in lines] == ["readiness_gained", "readiness_lost", "readiness_gained"]
    assert lines[1]["reasons"] == ("no broker answers",)
