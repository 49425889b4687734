"""Lost messages as timers: what a repair writes of them, and where the partition continues."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.changelog.entry import head, origin_of, retry_id_of
from sidecar.contract import dialects_of
from sidecar.engine.rows import Identity
from sidecar.engine.wholeness import Log, missing
from sidecar.errors import CommandFailed
from sidecar.model import Headers, Record
from sidecar.policy import Policy
from sidecar.spark.jobs.repair import Arm, Standing, message_of, require_idle
from sidecar.spark.marks import Mark, MarkedCheckpoint
from tests.spark.stream.test_partition_step import NOW, RULES

ID = "id of the topic"
BEFORE = Checkpoint(engine=Engine.SPARK, sequence=5, watermark_ms=NOW - 60_000, next_input_offset=3, input_topic_id=ID)


def standing(before: Checkpoint, *, offset: int = 40, sequence: int = 90) -> Standing:
    marked = MarkedCheckpoint(**asdict(before), mark=Mark(sequence, "c", next_input_offset=offset))
    return Standing(ID, 1, {0: offset}, {0: marked}, {0: 7})


def timer(before: Checkpoint, delay_ms: int, *taken: int, forgotten: dict[str, int] | None = None) -> tuple[Any, ...]:
    """Return the row of a message that was sent a minute ago."""
    headers: Headers = [
        ("retry-origin-topic", b"orders"),
        ("retry-delay-ms", b"%d" % delay_ms),
        ("retry-id", b"a"),
        ("retry-attempt", b"2"),
    ]
    record = Record(0, 11, NOW - 60_000, b"k", b"v", headers)
    message = message_of(record, Policy(RULES.policy), dialects_of(["native"]))
    assert message is not None
    arm = Arm(standing(before).checkpoints(), forgotten or {"orders": -1}, "dlq", NOW)
    return arm.timer(*message, taken=taken)


def test_a_message_comes_back_as_the_timer_that_it_was() -> None:
    partition, due_ms, offset, end_ms, level, entry, decided = timer(BEFORE, 3_660_000)
    fixed = head(entry)
    assert (partition, offset, due_ms) == (0, 11, NOW + 3_600_000)
    assert (fixed.first_ms, fixed.requested_ms, fixed.offset, fixed.attempt) == (due_ms, due_ms, 11, 2)
    assert (origin_of(entry, fixed), retry_id_of(entry, fixed)) == ("orders", b"a")
    assert (level, end_ms > due_ms, decided) == (fixed.level, True, True)


def test_records_that_become_no_timer_are_left_out() -> None:
    cancel: Headers = [("retry-control", b"cancel"), ("retry-target", b"id:a"), ("retry-control-id", b"c")]
    elsewhere: Headers = [("retry-origin-topic", b"elsewhere")]
    for headers in (cancel, None, elsewhere):
        record = Record(0, 11, NOW, b"k", b"v", headers)
        assert message_of(record, Policy(RULES.policy), dialects_of(["native"])) is None


def test_what_is_overdue_is_stored_above_the_watermark_and_keeps_its_own_due() -> None:
    before = replace(BEFORE, watermark_ms=NOW - 1_000, watermark_offset=99)
    _, due_ms, _, _, _, entry, _ = timer(before, 5_000)
    assert (due_ms, head(entry).requested_ms, head(entry).first_ms) == (NOW - 999, NOW - 55_000, NOW - 55_000)


def test_a_due_that_the_changelog_has_as_removed_is_not_used_again() -> None:
    due_ms = NOW + 3_600_000
    assert timer(BEFORE, 3_660_000, due_ms, due_ms + 1, due_ms + 3)[1] == due_ms + 2


def test_the_timer_of_a_topic_that_was_recreated_has_an_offset_above_those_of_the_former_one() -> None:
    before = replace(BEFORE, offset_base=1_000)
    assert timer(before, 3_660_000)[2] == 1_011


@pytest.mark.parametrize(
    ("forgotten", "decided"),
    [
        ({"orders": NOW - 55_001}, True),
        ({"orders": NOW - 55_000}, False),
        ({"orders": -1, "dlq": NOW - 55_000}, False),
        ({}, False),
    ],
)
def test_it_is_left_if_its_origin_or_the_dlq_may_have_had_it(forgotten: dict[str, int], *, decided: bool) -> None:
    """Due 55 s ago; nothing is known of a topic that does not exist."""
    assert timer(BEFORE, 5_000, forgotten=forgotten or {"another": 5})[-1] is decided


def test_a_partition_continues_behind_all_that_the_lost_query_sent() -> None:
    found = standing(BEFORE).checkpoint(0)
    assert (found.engine, found.sequence) == (Engine.EMBEDDED, 91)
    assert (found.next_input_offset, found.highest_input_offset) == (40, 40)
    assert found.watermark_ms == BEFORE.watermark_ms
    assert standing(BEFORE).state_lost
    assert not standing(replace(BEFORE, engine=Engine.EMBEDDED)).state_lost
    assert standing(BEFORE)._replace(before={}, committed={}).checkpoint(0).next_input_offset == 0


def test_a_changelog_that_a_repair_fills_is_not_taken_for_one_that_lacks_something() -> None:
    before = replace(BEFORE, changelog_topic_id="of a former changelog")
    found = standing(before).checkpoint(0)
    topic = Identity("cluster", "of this one", "changelog")
    assert missing(found, Log(topic, 0, 9), None) == ""
    embedded = standing(replace(before, engine=Engine.EMBEDDED)).checkpoint(0)
    assert "made anew" in missing(embedded, Log(topic, 0, 9), None), "only its state folders know what it lacks"


def test_offsets_of_a_former_topic_are_not_those_of_this_one() -> None:
    before = replace(BEFORE, input_topic_id="another", highest_input_offset=30)
    found = standing(before).checkpoint(0)
    assert (found.next_input_offset, found.offset_base, found.sequence) == (0, 30, 91)


@pytest.mark.parametrize("change", [{"status_ends": {0: 8}}, {"committed": {0: 41}}])
def test_a_sidecar_that_works_meanwhile_stops_the_repair(change: dict[str, Any]) -> None:
    then = standing(BEFORE)
    require_idle(then, then)
    with pytest.raises(CommandFailed, match="stop `spark run`"):
        require_idle(then._replace(**change), then)
