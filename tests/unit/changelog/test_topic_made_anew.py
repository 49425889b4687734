"""The input topic is deleted and recreated: its offsets start over, and none matches a former topic's timers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sidecar.changelog.codec import Checkpoint, Unfinished
from sidecar.changelog.entry import head
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.ports import Origin
from sidecar.model import Reason, TimerId
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes
from tests.unit.api.test_api_messages_local import local

DUE: Final = NOW + 60_000


def read_topic(stage: Stage, topic_id: str, start: int = 0) -> None:
    """Continue with the input topic that has this id now, as a recovery does."""
    stage.partition.checkpoint = stage.partition.checkpoint.of_topic(topic_id, start)
    stage.next_offset = stage.partition.checkpoint.next_input_offset


def three_generations() -> Stage:
    """Return a partition that ingested 4 messages of a first topic, 2 of a second and 1 of a third, all for one due."""
    stage = Stage()
    for topic_id, count in (("one", 4), ("two", 2), ("three", 1)):
        read_topic(stage, topic_id)
        stage.commit(NOW, *(stage.send(DUE) for _ in range(count)))
    return stage


def ids(stage: Stage) -> list[tuple[int, int]]:
    return sorted((timer.offset, timer.first_ms) for timer in stage.timers())


# The base


def test_no_two_messages_of_any_topics_share_a_key_though_offsets_and_dues_are_the_same() -> None:
    stage = three_generations()
    assert ids(stage) == [(offset, DUE) for offset in range(7)]
    assert stage.restored(MemoryStore()).counts.pending == 7
    assert fired(stage.commit(DUE)) == list(range(7))


def test_the_base_is_above_all_that_was_ever_taken_in_though_an_operator_set_the_offset_back() -> None:
    before = Checkpoint(next_input_offset=3, highest_input_offset=9, input_topic_id="one", offset_base=100)
    after = before.of_topic("two", 5)
    assert after.offset_base == 109
    assert (after.next_input_offset, after.highest_input_offset, after.input_topic_id) == (5, 5, "two")


def test_a_process_that_dies_before_its_first_transaction_leaves_the_same_choice_to_the_next() -> None:
    before = Checkpoint(next_input_offset=9, highest_input_offset=9, input_topic_id="one")
    anew = before.of_topic("two", 0)
    assert anew.of_topic("two", 7) == anew, "and who has committed it finds the topic that it knows"
    assert before.of_topic("three", 0).offset_base == anew.offset_base, "nothing of the second topic is stored"


def test_the_topic_is_the_same_where_a_checkpoint_names_none() -> None:
    known = Checkpoint(next_input_offset=9, highest_input_offset=9).of_topic("one", 3)
    assert known == Checkpoint(next_input_offset=9, highest_input_offset=9, input_topic_id="one")


def test_a_control_record_of_the_former_topic_does_not_go_on_in_the_new_one() -> None:
    before = Checkpoint(
        next_input_offset=2, highest_input_offset=2, input_topic_id="one", unfinished=Unfinished(2, acted=5)
    )
    assert before.of_topic("two", 2).unfinished is None
    assert before.of_topic("one", 2).unfinished == Unfinished(2, acted=5)


def test_a_message_that_comes_again_is_known_by_its_offset_in_its_own_topic() -> None:
    stage = three_generations()
    part = stage.commit(NOW, stage.send(DUE, offset=0), stage.send(DUE, offset=1))
    assert part.stored == 1
    assert len(stage.timers()) == 8


# Ids


def test_a_timer_is_found_by_its_id_and_by_the_one_of_its_delivery_report() -> None:
    stage = Stage()
    read_topic(stage, "one")
    stage.commit(NOW, stage.send(DUE), stage.send(DUE))
    read_topic(stage, "two")
    stage.commit(NOW, stage.send(DUE + 1))
    for offset in (0, 2):
        part = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, TimerId(0, offset, DUE + 1), DUE + 9))
        assert outcomes(part) == [(Outcome.RESCHEDULED, 1)]
        assert [timer.offset for timer in stage.timers() if timer.requested_ms == DUE + 9] == [2]
        found = local(stage).find(TimerId(0, offset, DUE + 1), payload=False)
        assert found is not None
        assert (found.id, found.offset) == (f"0-2-{DUE + 1}", 2)


def test_an_id_that_could_mean_two_means_the_timer_that_has_it() -> None:
    stage = three_generations()
    part = stage.commit(NOW, stage.control(ControlKind.CANCEL, TimerId(0, 0, DUE)))
    assert outcomes(part) == [(Outcome.CANCELLED, 1)]
    assert ids(stage) == [(offset, DUE) for offset in range(1, 7)]


def test_a_cancel_that_is_repeated_does_not_reach_a_message_at_the_same_offset_of_the_topic_of_today() -> None:
    stage = three_generations()
    timer = TimerId(0, 0, DUE)
    stage.commit(NOW, stage.control(ControlKind.CANCEL, timer))
    assert local(stage).find(timer, payload=False) is None
    part = stage.commit(NOW, stage.control(ControlKind.CANCEL, timer))
    assert outcomes(part) == [(Outcome.NOT_PENDING, 0)]
    assert len(stage.timers()) == 6


# Dead letters


def test_a_dead_letter_names_the_offset_in_the_topic_of_today_and_none_for_a_message_of_a_former_one() -> None:
    stage = Stage()
    read_topic(stage, "one")
    stage.commit(NOW, stage.send(DUE))
    read_topic(stage, "two", start=5)
    stage.commit(NOW, stage.send(DUE))
    assert [head(entry).offset for entry in stage.folded().pending.values()] == [0, 6]
    small = replace(TERMS, origins={"A": Origin(4, 10)})
    letters = [dict(letter.headers) for _, letter in stage.commit(DUE, terms=small).dead_letters]
    assert [letter["retry-dlq-reason"] for letter in letters] == [Reason.TOO_LARGE.encode()] * 2
    assert [letter.get("__connect.errors.offset") for letter in letters] == [None, b"5"]
    assert {letter["__connect.errors.topic"] for letter in letters} == {b"retry"}
