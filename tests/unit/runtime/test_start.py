"""What a start remembers of the retry topic while it waits for topics and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.errors import TopicsInvalid
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.runtime import start
from sidecar.settings import Settings
from tests.clocks import HandClock

FACTS = TopicFacts("cluster", 1, 1, "input-id", "changelog-id", 1_000, 1_000, 1_000)


def _placed_as_empty(monkeypatch: pytest.MonkeyPatch, looks: list[bool], refusals: int) -> bool:
    """Return what the new group is placed by, after so many looks that found topics missing."""
    seen: Iterator[bool] = iter(looks)
    left = [TopicsInvalid("topic dlq: does not exist")] * refusals
    placed: list[bool] = []

    def ensure(*_: object) -> TopicFacts:
        if left:
            raise left.pop()
        return FACTS

    def place(*_: object, was_empty: bool) -> str:
        placed.append(was_empty)
        return "placed"

    made: dict[str, Any] = {
        "Admin": lambda *_: object(),
        "has_nothing_to_read": lambda *_: next(seen),
        "ensure_topics": ensure,
        "place_new_group": place,
    }
    for name, replacement in made.items():
        monkeypatch.setattr(start, name, replacement)
    assert start.await_cluster(Settings(), HandClock(), lambda _: False, lambda _: None) is not None
    (was_empty,) = placed
    return was_empty


@pytest.mark.parametrize(
    ("looks", "was_empty"),
    [([True], True), ([False], False), ([True, False, False], True), ([False, True], True), ([False, False], False)],
)
def test_a_topic_that_was_seen_missing_or_empty_once_counts_as_empty(
    monkeypatch: pytest.MonkeyPatch, looks: list[bool], was_empty: bool
) -> None:
    assert _placed_as_empty(monkeypatch, looks, len(looks) - 1) is was_empty
