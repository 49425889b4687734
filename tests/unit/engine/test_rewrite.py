"""A changelog that is written again from the rows of a store says what the rows say, and is whole."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from sidecar.changelog import codec
from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.entry import KEY_BYTES
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.contract.control import ControlKind
from sidecar.engine.ports import StoreReader
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rewrite import Present, given_up, rewriting, rewritten
from sidecar.engine.rows import Meta, Rows, decode_meta
from sidecar.engine.wholeness import Log, missing, replaces
from sidecar.model import TimerId
from tests.fold import fold
from tests.simulation.stage import IDENTITY, NOW, Stage

NEW = IDENTITY._replace(changelog_topic_id="new")
MAX_BYTES = 1_000_000


def lived(seed: int = 1) -> Stage:
    """Return a partition with timers of all levels, some moved, some cancelled, some deferred."""
    dice, stage = random.Random(seed), Stage()
    stage.partition.checkpoint = replace(
        stage.partition.checkpoint, assignment=7, changelog_topic_id=IDENTITY.changelog_topic_id
    )
    dues = [NOW + int(10 ** dice.uniform(1, 10)) for _ in range(200)]
    for at in range(0, len(dues), 20):
        stage.commit(NOW + at, *(stage.send(due_ms) for due_ms in dues[at : at + 20]))
    stage.commit(NOW + 200, stage.control(ControlKind.CANCEL, TimerId(0, 3, dues[3])))
    stage.commit(NOW + 201, stage.control(ControlKind.RESCHEDULE, TimerId(0, 5, dues[5]), NOW + 70_000))
    stage.commit(NOW + 600)
    return stage


def meta_of(store: StoreReader) -> Meta:
    value = store.get(Rows(0).meta)
    assert value is not None
    return decode_meta(value)


def log_of(records: Sequence[ChangelogRead]) -> Log:
    return Log(NEW, 0, len(records) + 1)


def appended(log: list[ChangelogRead], records: Sequence[tuple[bytes, bytes | None]]) -> None:
    log += [ChangelogRead(at, *each) for at, each in enumerate(records, len(log))]


def written(stage: Stage, log: list[ChangelogRead], mark: OffsetMark | None = None, limit: int | None = None) -> int:
    """Write a new log again, or the first records of what that takes; return how many timers were to be written."""
    present, counted = Present(), itertools.count()
    present.add(log)
    plan = rewriting(meta_of(stage.store), present, mark, NEW.changelog_topic_id, 99)
    assert not plan.behind
    records = list(rewritten(stage.store, 0, present, plan.checkpoint, MAX_BYTES, counted))
    appended(log, records[:limit])
    return next(counted)


def pending(log: Sequence[ChangelogRead]) -> set[bytes]:
    return {entry[:KEY_BYTES] for entry in fold((each.key, each.value) for each in log).pending.values()}


@pytest.mark.parametrize("seed", range(10))
def test_a_new_log_has_what_the_rows_have_and_replaces_them(seed: int) -> None:
    stage, log = lived(seed), list[ChangelogRead]()
    standing = meta_of(stage.store)
    mark = OffsetMark(standing.checkpoint.sequence, 0, "", IDENTITY.changelog_topic_id)
    assert missing(Checkpoint(), log_of(log), mark)
    assert written(stage, log, mark) == len(stage.folded().pending)
    assert pending(log) == {entry[:KEY_BYTES] for entry in stage.folded().pending.values()}
    last = codec.decode_checkpoint(log[-1].value or b"")
    assert not missing(last, log_of(log), mark)
    assert replaces(last, log_of(log), standing)
    assert (last.next_input_offset, last.watermark_ms) == (
        standing.checkpoint.next_input_offset,
        standing.checkpoint.watermark_ms,
    )


def test_a_rebuilt_log_replaces_the_rows_of_folders_that_are_no_further_for_ever() -> None:
    stage, log = lived(), list[ChangelogRead]()
    standing = meta_of(stage.store)
    written(stage, log)
    last = codec.decode_checkpoint(log[-1].value or b"")
    for number in range(1_000, 1_000 + 2 * codec.FORMER_ASSIGNMENTS_MAX):
        last = replace(last.assigned(number), sequence=last.sequence + 1)
    assert not last.follows(standing.checkpoint), "the history of assignments does not reach back so far"
    older = replace(standing, changelog_offset=standing.changelog_offset - 1)
    further = replace(standing, changelog_offset=standing.changelog_offset + 1)
    elsewhere = replace(standing, changelog_topic_id="never known")
    wiped = [replaces(last, log_of(log), each) for each in (standing, older, further, elsewhere)]
    assert wiped == [True, True, False, False]


def test_what_is_rebuilt_again_names_the_former_topics_up_to_a_bound() -> None:
    last = Checkpoint(sequence=1)
    for number in range(codec.REBUILT_FROM_MAX + 4):
        last = last.rebuilt(f"topic {number + 1}", f"topic {number}", number)
    last = last.rebuilt("the last", "topic 10", 5).rebuilt("the last", "the last", 99)
    named = [each.topic_id for each in last.rebuilt_from]
    assert len(named) == codec.REBUILT_FROM_MAX
    assert (named[0], named[-1]) == ("topic 4", "topic 10")
    assert (last.has("topic 10", 10), last.has("topic 10", 11), last.has("the last", 1)) == (True, False, False)


@pytest.mark.parametrize("seed", range(10))
def test_a_command_that_was_interrupted_at_any_record_goes_on(seed: int) -> None:
    stage, log = lived(seed), list[ChangelogRead]()
    standing, dice = meta_of(stage.store), random.Random(seed)
    for _ in range(3):
        written(stage, log, limit=dice.randint(1, 10))
        found = Present()
        found.add(log)
        assert not replaces(found.last, log_of(log), standing), "nothing continues from a part"
    written(stage, log)
    assert pending(log) == {entry[:KEY_BYTES] for entry in stage.folded().pending.values()}
    blocks = [each.key for each in log if each.key != codec.CHECKPOINT_KEY]
    assert len(blocks) == len(set(blocks)), "compaction keeps the last record of a key"


@pytest.mark.parametrize("applied", [True, False], ids=["rows have it", "rows lack it"])
def test_what_was_written_to_the_new_topic_unknowingly_is_kept(applied: bool) -> None:
    stage, log = lived(), list[ChangelogRead]()
    before = dict(stage.store.rows)
    records = len(stage.log.records)
    stage.commit(NOW + 700, stage.send(NOW + 9_999), stage.control(ControlKind.CANCEL, TimerId(0, 200, NOW + 9_999)))
    stage.commit(NOW + 701, *(stage.send(NOW + 5_000 + each) for each in range(5)))
    wanted = {entry[:KEY_BYTES] for entry in stage.folded().pending.values()}
    appended(log, [(each.key or b"", each.value) for each in stage.log.records[records:]])
    if not applied:
        stage.store.rows.clear()
        stage.store.rows.update(before)
    written(stage, log)
    assert pending(log) == wanted


def test_rows_that_lack_committed_transactions_say_how_many_and_read_their_input_again() -> None:
    stage = lived()
    standing = meta_of(stage.store)
    sequence = standing.checkpoint.sequence
    mark = OffsetMark(sequence + 4, 0, "", IDENTITY.changelog_topic_id)
    plan = rewriting(standing, Present(), mark, "new", 99)
    assert plan.behind == 4
    assert plan.checkpoint.sequence == sequence + 5
    assert plan.checkpoint.next_input_offset == standing.checkpoint.next_input_offset
    # The topic has transactions, but not the first of those that the rows lack.
    gap = Present(
        replace(standing.checkpoint, sequence=sequence + 3, next_input_offset=900), sequence + 2, sequence + 3
    )
    plan = rewriting(standing, gap, None, "new", 99)
    assert plan.behind == 3
    assert plan.checkpoint.next_input_offset == standing.checkpoint.next_input_offset


def test_what_is_given_up_goes_on_at_the_group_s_offset_and_is_whole() -> None:
    mark = OffsetMark(40, 100, "input", "former")
    checkpoint = given_up(Present(), mark, 120, "new", 99)
    assert (checkpoint.next_input_offset, checkpoint.highest_input_offset, checkpoint.input_topic_id) == (
        120,
        120,
        "input",
    )
    assert checkpoint.sequence == 41
    assert not missing(checkpoint, Log(NEW, 0, 2), mark)


@pytest.mark.parametrize(
    ("last", "mark", "bounds", "lost"),
    [
        (Checkpoint(), None, (0, 0), False),
        (Checkpoint(), OffsetMark(1, 0, "", "new"), (0, 5), False),
        (Checkpoint(), OffsetMark(1, 0, "", "former"), (0, 5), True),
        (Checkpoint(), OffsetMark(9, 0, "", "new"), (0, 0), True),
        (Checkpoint(), OffsetMark(9, 0, "", "new"), (7, 7), True),
        (Checkpoint(sequence=8, changelog_topic_id="new"), OffsetMark(9, 0, "", "new"), (0, 90), False),
        (Checkpoint(sequence=8, changelog_topic_id="new"), OffsetMark(9, 0, "", "former"), (0, 90), True),
        (Checkpoint(sequence=9, changelog_topic_id="new"), OffsetMark(9, 0, "", "former"), (0, 90), False),
        (Checkpoint(sequence=9, changelog_topic_id="former"), None, (0, 90), True),
        (Checkpoint(sequence=9), None, (0, 90), False),
    ],
    ids=[
        *(
            "a first start",
            "the first transaction was rolled back",
            "made anew and empty",
            "cut to nothing",
            "its records deleted",
        ),
        *("rolled back", "made anew and begun again", "rebuilt", "written unknowingly", "an older format"),
    ],
)
def test_what_a_changelog_lacks(last: Checkpoint, mark: OffsetMark | None, bounds: tuple[int, int], lost: bool) -> None:
    assert bool(missing(last, Log(NEW, *bounds), mark)) is lost
