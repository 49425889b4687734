"""What of a micro-batch was sent, by the changelog's last checkpoint; and what a changelog without marks is given."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.errors import CommandFailed
from sidecar.settings import Settings
from sidecar.spark.handover.import_export import require_sent
from sidecar.spark.marks import Mark, MarkedCheckpoint
from sidecar.spark.state.entries import Meta
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.progress import Progress
from sidecar.spark.stream.restore_marks import marked

PROGRESS = Progress(Settings(), "ours")
STEP = PlanOutput(0, 5, 6, 5, 60, digest="d")
"""Of micro-batch 7."""
SENT = Mark(6, "ours", 7, "d")


def is_sent(standing: MarkedCheckpoint) -> bool:
    return PROGRESS.is_sent(7, STEP, standing, "")


@pytest.mark.parametrize(
    "standing",
    [
        pytest.param(MarkedCheckpoint(), id="a changelog that was created anew"),
        pytest.param(MarkedCheckpoint(sequence=4), id="a checkpoint of before"),
        pytest.param(MarkedCheckpoint(mark=Mark(4, "ours", 6, "c")), id="a mark that was rolled back"),
        pytest.param(MarkedCheckpoint(mark=Mark(4, "another", 6, "c")), id="a mark of another checkpoint"),
    ],
)
def test_a_state_that_has_come_further_than_what_was_sent_is_refused_with_the_way_out(
    standing: MarkedCheckpoint,
) -> None:
    with pytest.raises(CommandFailed, match=r"is at sequence 5.*STORE_NAME.*--restore-marks"):
        is_sent(standing)


def test_what_was_imported_begins_behind_its_checkpoint_without_a_mark() -> None:
    assert not is_sent(MarkedCheckpoint(engine=Engine.SPARK, sequence=5))
    gained = PlanOutput(9, 0, 1, 0, 10, digest="d")
    assert not PROGRESS.is_sent(7, gained, MarkedCheckpoint(), ""), "the input has gained a partition"


def test_what_was_sent_is_known_by_its_mark() -> None:
    assert is_sent(MarkedCheckpoint(mark=SENT))
    assert not is_sent(MarkedCheckpoint(mark=Mark(5, "ours", 6, "c")))
    with pytest.raises(CommandFailed, match="makes other records"):
        is_sent(MarkedCheckpoint(mark=Mark(6, "ours", 7, "other")))
    for other in (Mark(6, "another", 7, "d"), Mark(9, "ours", 8, "d")):
        with pytest.raises(CommandFailed, match="another query runs"):
            is_sent(MarkedCheckpoint(mark=other))


def test_marks_of_the_state_are_restored_where_the_changelog_says_less_and_only_there() -> None:
    state = Checkpoint(engine=Engine.SPARK, sequence=5, watermark_ms=70, next_input_offset=50)
    standing = {number: Meta(checkpoint=state) for number in range(3)}
    before = {1: MarkedCheckpoint(sequence=2, mark=Mark(3, "ours", 6)), 2: MarkedCheckpoint(mark=SENT)}
    restored = marked(standing, before, "ours")
    assert restored.keys() == {0, 1}
    assert restored[0] == MarkedCheckpoint(**asdict(state), mark=Mark(5, "ours", next_input_offset=50))
    assert not is_sent(restored[0])
    assert marked(standing, {**before, **restored}, "ours") == {}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param(None, r"at sequence 5 .* at 0: the changelog was deleted.*--restore-marks", id="no record"),
        pytest.param(Checkpoint(sequence=4), r"at 4: the changelog was deleted", id="a record of before"),
        pytest.param(SENT, r"at 6: the query was cut off. Start `spark run` again", id="more was sent"),
        pytest.param(Checkpoint(sequence=5), "", id="imported, and nothing sent since"),
        pytest.param(Mark(3, "ours", 6, ahead=2), "", id="all of it was sent"),
    ],
)
def test_a_state_is_handed_over_or_copied_only_if_it_is_exactly_what_was_sent(
    before: Checkpoint | Mark | None, said: str
) -> None:
    known = {
        0: MarkedCheckpoint(mark=before)
        if isinstance(before, Mark)
        else MarkedCheckpoint(**asdict(before or Checkpoint()))
    }
    standing = {0: Meta(checkpoint=Checkpoint(engine=Engine.SPARK, sequence=5))}
    if not said:
        require_sent(standing, known)
        return
    with pytest.raises(CommandFailed, match=said):
        require_sent(standing, known if before else {})
