"""The stateful operator in PySpark's own harness, without a session: its state, its timer, its beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Engine, encode_checkpoint
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.state.entries import META, decode_meta
from sidecar.spark.stream import processor
from sidecar.spark.stream.placement import STEP
from sidecar.spark.stream.processor import WheelProcessor
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import Chunk, OutputPart, encode_chunk
from tests.output_parts import decode_output_part
from tests.spark.stream.test_partition_step import NOW, RULES, order

KEY = 3 + 2 * STEP
"""The key of input partition 3."""


class Topics:
    """Knows one origin."""

    now_ms = 0

    def __call__(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        return {name: TopicMetadata(2, 1_000_000, asked_ms=self.now_ms) for name in names}


@pytest.fixture
def tester(monkeypatch: pytest.MonkeyPatch) -> TwsTester:
    monkeypatch.setitem(processor._lookups, "nowhere:9092", Topics())
    initial = pd.DataFrame(
        {
            "key": [KEY],
            "record": [CHECKPOINT_KEY],
            "value": [encode_checkpoint(Checkpoint(sequence=7, next_input_offset=5, highest_input_offset=5))],
        }
    )
    return TwsTester(
        WheelProcessor(RULES, Settings(bootstrap_servers="nowhere:9092")),
        initialStatePandas=[(KEY, initial)],
        timeMode="ProcessingTime",
    )


def arrive(tester: TwsTester, delay_ms: int) -> None:
    record = Record(3, 5, NOW, b"k", b"v", list(order(delay_ms)))
    tester.testInPandas(KEY, pd.DataFrame({"key": [KEY], "payload": [encode_chunk(Chunk([], [record]))]}))


def output_parts(frame: pd.DataFrame) -> list[OutputPart]:
    return [decode_output_part(payload) for payload in frame["payload"]] if len(frame) else []


def test_a_partition_continues_from_the_checkpoint_that_it_is_given(tester: TwsTester) -> None:
    meta = decode_meta(tester.peekMapState("cells", KEY)[(META,)][0])
    assert (meta.checkpoint.engine, meta.checkpoint.sequence) == (Engine.SPARK, 7)
    (first,) = output_parts(tester.setProcessingTime(NOW))
    assert (first.partition, first.before, first.after) == (3, 7, 7)


def test_a_message_fires_by_the_timer_of_its_partition(tester: TwsTester) -> None:
    tester.setProcessingTime(NOW)
    arrive(tester, 2500)
    tester.setProcessingTime(NOW + 1)  # its origin is known by now
    assert [each.records for each in output_parts(tester.setProcessingTime(NOW + 2000))] in ([], [[]])
    (fired,) = output_parts(tester.setProcessingTime(NOW + 2600))
    assert [(each.topic, each.value) for each in fired.records] == [("orders", b"v")]
    assert (fired.partition, fired.next_input_offset, fired.last) == (3, 6, True)


def test_there_is_never_more_than_one_timer(tester: TwsTester) -> None:
    for step in range(1, 6):
        tester.setProcessingTime(NOW + step * 700)
        tester.handle.setGroupingKey(KEY)
        assert len(list(tester.handle.listTimers())) == 1
