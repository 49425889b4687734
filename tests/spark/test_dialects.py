"""Messages in the headers of other programs on Spark: the tests of the embedded engine, to the letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.messages import Launch, World, one_sidecar
from tests.integration.origins.test_dialects import (
    SETTINGS,
    marker,
    test_a_mistake_in_the_unit_is_a_dead_letter_that_says_so,
    test_a_schedule_of_the_same_key_replaces_and_a_tombstone_cancels_though_a_token_is_set,
    test_schedules_of_karafka_and_etf1_reach_their_target_under_its_key,
    test_spring_dead_letters_are_counted_until_they_are_exhausted,
    test_spring_returns_to_the_original_topic_at_the_backoff_timestamp,
    test_timebridge_sky_and_custom_reach_their_target,
)
from tests.spark.queries import WAIT_S, command

__all__ = [
    "marker",
    "test_a_mistake_in_the_unit_is_a_dead_letter_that_says_so",
    "test_a_schedule_of_the_same_key_replaces_and_a_tombstone_cancels_though_a_token_is_set",
    "test_schedules_of_karafka_and_etf1_reach_their_target_under_its_key",
    "test_spring_dead_letters_are_counted_until_they_are_exhausted",
    "test_spring_returns_to_the_original_topic_at_the_backoff_timestamp",
    "test_timebridge_sky_and_custom_reach_their_target",
]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(java: Path, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    launch = Launch(command("run", tmp_path_factory.mktemp("query")), WAIT_S)
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("dialects"), launch=launch, **SETTINGS) as world:
        yield world
