"""Where `spark run --from-changelog` begins to read the input."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.manifest import Manifest, new_manifest
from sidecar.spark.stream import start
from sidecar.spark.stream.start import Options

TOPIC = "an-id"
HERE = Checkpoint(sequence=7, next_input_offset=40, input_topic_id=TOPIC)


def begun(monkeypatch: pytest.MonkeyPatch, committed: Committed) -> int:
    """Return the first offset of a partition, whose changelog has a checkpoint of the embedded engine."""
    monkeypatch.setattr(group, "last_checkpoints", lambda *_: {0: HERE})
    monkeypatch.setattr(group, "committed_offsets", lambda *_: {0: committed})
    topics = TopicFacts("cluster", 1, 1, TOPIC, "changelog-id", 1, 1, 1, 1)
    manifest: Manifest = new_manifest("cluster", "app", "retry", TOPIC, 1, "group")
    options = Mock(spec=Options, from_changelog=True)
    return start._begin(Mock(), Settings(), topics, manifest, options).offsets[0]


def test_an_offset_of_the_embedded_engine_is_read_with_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, Committed(60, str(OffsetMark(8, 38, TOPIC)))) == 38, "the changelog was rolled back"
    assert begun(monkeypatch, Committed(30, str(OffsetMark(6, 25, TOPIC)))) == 40, "the offset was rolled back"


def test_an_offset_that_an_operator_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(monkeypatch, Committed(12, "")) == 12
