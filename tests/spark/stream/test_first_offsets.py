"""Where `spark run --from-changelog` begins to read the input."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.wholeness import ChangelogLost
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.manifest import Manifest, new_manifest
from sidecar.spark.marks import MarkedCheckpoint
from sidecar.spark.stream import start
from sidecar.spark.stream.start import Options

TOPIC, CHANGELOG = "an-id", "changelog-id"
HERE = MarkedCheckpoint(sequence=7, next_input_offset=40, input_topic_id=TOPIC)


def begun(monkeypatch: pytest.MonkeyPatch, committed: Committed, here: MarkedCheckpoint = HERE) -> int:
    """Return the first offset of a partition, whose changelog has a checkpoint of the embedded engine."""
    monkeypatch.setattr(group, "last_checkpoints", lambda *_: {0: here})
    monkeypatch.setattr(group, "committed", lambda *_: {0: committed})
    monkeypatch.setattr(start, "first_offsets", lambda *_: {0: 0})
    monkeypatch.setattr(start, "end_offsets", lambda *_: {0: 9})
    topics = TopicFacts("cluster", 1, 1, TOPIC, CHANGELOG, 1, 1, 1, 1)
    manifest: Manifest = new_manifest("cluster", "app", "retry", TOPIC, 1, "group")
    options = Mock(spec=Options, from_changelog=True)
    return start._begin(Mock(), Settings(), topics, manifest, options).offsets[0]


def test_an_offset_of_the_embedded_engine_is_read_with_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, Committed(60, str(OffsetMark(8, 38, TOPIC)))) == 38, "the changelog was rolled back"
    assert begun(monkeypatch, Committed(30, str(OffsetMark(6, 25, TOPIC)))) == 40, "the offset was rolled back"


def test_an_offset_that_an_operator_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, Committed(12, "")) == 12


def test_a_changelog_that_was_made_anew_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChangelogLost, match=r"partition 0: .*made anew.*rebuild-changelog"):
        begun(monkeypatch, Committed(60, ""), replace(HERE, changelog_topic_id="another"))
    with pytest.raises(ChangelogLost, match=r"transaction 8 .* in a topic with the id another"):
        begun(monkeypatch, Committed(60, str(OffsetMark(8, 38, TOPIC, "another"))))
    assert begun(monkeypatch, Committed(60, str(OffsetMark(8, 38, TOPIC, CHANGELOG)))) == 38
