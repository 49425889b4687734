"""A duplicate instance fences again and again; brokers that were silent fence too, and are none."""

from __future__ import annotations

import pytest

from sidecar.errors import DuplicateInstance
from sidecar.kafka.fences import FENCES_MAX, FENCES_WITHIN_S, Fences
from tests.clocks import HandClock

TIMEOUT_S = 20.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_the_third_fence_within_a_minute_means_a_duplicate_instance(clock: HandClock) -> None:
    fences = Fences(clock, None, TIMEOUT_S)
    for _ in range(FENCES_MAX - 1):
        fences.producer_fenced(0.1)
        clock.now_s += 10
    with pytest.raises(
        DuplicateInstance, match=r"uses the same transactional id; .* different STATE_DIR or INSTANCE_ID"
    ):
        fences.producer_fenced(0.1)


def test_with_an_instance_id_the_words_name_it_and_both_kinds_count(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S)
    fences.producer_fenced(0.1)
    fences.member_fenced(session_over=False)
    with pytest.raises(DuplicateInstance, match="has INSTANCE_ID pod-0 too"):
        fences.member_fenced(session_over=False)


def test_fences_far_apart_are_an_overlap_of_restarts(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S)
    for _ in range(10):
        fences.member_fenced(session_over=False)
        clock.now_s += FENCES_WITHIN_S / (FENCES_MAX - 1) + 1


def test_what_silent_brokers_fence_does_not_count(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S)
    for _ in range(10):
        fences.member_fenced(session_over=True)
        fences.producer_fenced(TIMEOUT_S)


def test_an_initialisation_that_failed_explains_all_fences_of_the_next_minute_and_none_later(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S)
    fences.init_failed()
    for _ in range(2 * FENCES_MAX):
        fences.producer_fenced(0.1)
    clock.now_s += FENCES_WITHIN_S
    for _ in range(FENCES_MAX - 1):
        fences.producer_fenced(0.1)
    with pytest.raises(DuplicateInstance):
        fences.producer_fenced(0.1)
