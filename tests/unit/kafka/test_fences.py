"""Of two duplicate instances one ends; brokers that were silent fence too, and are none."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sidecar.engine.group.merge import Start, StatusPosition
from sidecar.errors import DuplicateInstance
from sidecar.kafka.fences import EXPLAINED_S, FENCES_MAX, FENCES_WITHIN_S, Fences
from sidecar.kafka.writer import Written
from sidecar.runtime.reporting.starts import OwnStart
from tests.clocks import HandClock

TIMEOUT_S = 20.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def outrun() -> bool:
    return True


def test_the_third_fence_means_a_duplicate_instance(clock: HandClock) -> None:
    fences = Fences(clock, None, TIMEOUT_S, outrun)
    for _ in range(FENCES_MAX - 1):
        fences.producer_fenced(0.1)
        clock.now_s += FENCES_WITHIN_S / FENCES_MAX
    with pytest.raises(
        DuplicateInstance, match=r"uses the same transactional id; .* different STATE_DIR or INSTANCE_ID"
    ):
        fences.producer_fenced(0.1)


def test_with_an_instance_id_the_words_name_it_and_both_kinds_count(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S, outrun)
    fences.producer_fenced(0.1)
    fences.member_fenced(session_over=False)
    with pytest.raises(DuplicateInstance, match="has INSTANCE_ID pod-0 too"):
        fences.member_fenced(session_over=False)


def test_the_process_that_started_last_goes_on_and_says_why_it_is_fenced(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S, lambda: False)
    with capture_logs() as logs:
        for _ in range(10 * FENCES_MAX):
            fences.member_fenced(session_over=False)
    (only,) = logs
    assert only == {"event": "duplicate_outlasted", "fences": FENCES_MAX, "log_level": "warning"}


def test_a_process_ends_at_the_next_fence_once_it_knows_of_the_later_one(clock: HandClock) -> None:
    known: list[bool] = []
    fences = Fences(clock, "pod-0", TIMEOUT_S, lambda: bool(known))
    for _ in range(FENCES_MAX):
        fences.member_fenced(session_over=False)
    known.append(True)
    with pytest.raises(DuplicateInstance):
        fences.member_fenced(session_over=False)


def test_fences_far_apart_are_an_overlap_of_restarts(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S, outrun)
    for _ in range(10):
        fences.member_fenced(session_over=False)
        clock.now_s += FENCES_WITHIN_S / (FENCES_MAX - 1) + 1


def test_what_silent_brokers_fence_does_not_count(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S, outrun)
    for _ in range(10):
        fences.member_fenced(session_over=True)
        fences.producer_fenced(TIMEOUT_S)


def test_an_initialisation_that_failed_explains_all_fences_of_the_next_minute_and_none_later(clock: HandClock) -> None:
    fences = Fences(clock, "pod-0", TIMEOUT_S, outrun)
    fences.init_failed()
    for _ in range(2 * FENCES_MAX):
        fences.producer_fenced(0.1)
    clock.now_s += EXPLAINED_S
    for _ in range(FENCES_MAX - 1):
        fences.producer_fenced(0.1)
    with pytest.raises(DuplicateInstance):
        fences.producer_fenced(0.1)


class Group:
    """The view of the group."""

    last_start: Start | None = None


def test_of_two_starts_exactly_one_is_outrun_and_none_before_it_is_known() -> None:
    group = Group()
    one, two = OwnStart(group, "pod-0"), OwnStart(group, "pod-0")
    assert one.key == two.key
    assert one.value != two.value
    first, second = StatusPosition(1_000, 7), StatusPosition(1_000, 8)
    one.written(Written(0, first.offset, first.stamped_ms))
    group.last_start = Start(first, one.value)
    assert not one.is_outrun()
    assert not two.is_outrun(), "it is not written yet, so nothing can be later"
    two.written(Written(0, second.offset, second.stamped_ms))
    assert not one.is_outrun(), "it has not read that yet"
    group.last_start = Start(second, two.value)
    assert one.is_outrun()
    assert not two.is_outrun()


def test_the_start_is_ordered_by_the_broker_s_time_before_the_offset_which_begins_again_with_a_new_topic() -> None:
    group = Group()
    old = OwnStart(group, "pod-0")
    old.written(Written(0, 90, 1_000))
    group.last_start = Start(StatusPosition(2_000, 0), b"other")
    assert old.is_outrun()
