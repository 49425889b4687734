"""The decisions before a query starts: Java, the source's options, the checkpoint's identity, its start offsets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict, replace

from sidecar.changelog.codec import Checkpoint, Engine, decode_checkpoint, encode_checkpoint
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed, SettingsInvalid
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.policy import PolicyConfig
from sidecar.settings import Settings, load
from sidecar.spark.java import _problem, find_java
from sidecar.spark.manifest import Kept, Manifest, require_same
from sidecar.spark.marks import (
    ALL,
    CLOSINGS_MAX,
    Digest,
    Mark,
    MarkedCheckpoint,
    TopicsRefuse,
    decode_marked,
    replay_closings,
)
from sidecar.spark.stream import wire
from sidecar.spark.stream.start import _first_checkpoints, _refuse_what_was_exported, refuse_order, refuse_policy_dlqs
from sidecar.spark.stream.wire import Closing, OutputPart, StatusRecord, pack
from tests.output_parts import decode_output_part
from tests.spark.stream.test_partition_step import RULES

TOPICS = TopicFacts("cluster", 2, 2, "topic-id", "changelog-id", 1, 1, 1)
MANIFEST = Manifest(
    checkpoint="c",
    cluster_id="cluster",
    app_id="app",
    input_topic="retry",
    input_topic_id="topic-id",
    state_partitions=2,
    group_id="group",
    offsets={0: 40},
)


def fake_java(folder: Path, version: str, modules: str) -> Path:
    home = folder / version
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\ncase "$1" in -version) echo \'openjdk version "{version}"\';; *) echo {modules};; esac\n'
    )
    java.chmod(0o755)
    return home


def test_a_java_of_the_right_version_with_all_modules_is_taken(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "17.0.2", "jdk.incubator.vector")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_a_java_is_not_started_when_its_installation_says_what_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "11.0.1", "java.base")
    (home / "release").write_text('JAVA_VERSION="21.0.4"\nMODULES="java.base jdk.incubator.vector"\n')
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}) == home
    (home / "release").write_text('JAVA_VERSION="21.0.4"\nMODULES="java.base"\n')
    assert _problem(home) == "it lacks the module jdk.incubator.vector"
    (home / "release").write_text('JAVA_VERSION="21.0.4"\n')
    assert _problem(home) == "Java 11"


@pytest.mark.parametrize(
    ("version", "modules", "said"),
    [("11.0.1", "jdk.incubator.vector", "Java 11"), ("21.0.1", "java.base", "lacks the module jdk.incubator.vector")],
)
def test_another_java_is_not_and_the_text_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, modules: str, said: str
) -> None:
    monkeypatch.setattr("sidecar.spark.java._FOLDERS", ())
    home = fake_java(tmp_path, version, modules)
    with pytest.raises(CommandFailed, match=said) as failure:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert "apt install openjdk-17-jdk-headless" in str(failure.value)


def test_a_checkpoint_of_something_else_is_refused_and_each_difference_named() -> None:
    wanted = replace(MANIFEST, app_id="other", input_topic_id="another")
    with pytest.raises(SettingsInvalid) as failure:
        require_same(MANIFEST, wanted, "/checkpoint")
    assert len(failure.value.problems) == 2
    require_same(MANIFEST, MANIFEST, "/checkpoint")


def test_a_checkpoint_belongs_to_the_group_that_its_marks_are_in() -> None:
    with pytest.raises(SettingsInvalid, match="GROUP_ID"):
        require_same(replace(MANIFEST, group_id="one"), replace(MANIFEST, group_id="other"), "/checkpoint")


def test_the_rules_are_kept_as_they_are_but_for_the_token() -> None:
    config = PolicyConfig(
        origin_topics=("a", "b*"), droppable=("X",), by_origin=(PolicyConfig(name="a", delays_ms=(5,)),)
    )
    rules = dataclasses.replace(RULES, policy=config, input_partitions=7)
    kept = Kept("1.2.3", rules)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Kept) == kept


def test_a_query_that_was_killed_in_its_first_micro_batch_begins_where_it_had_begun() -> None:
    """Whatever the group and the changelog say by then: the sink may have committed already."""
    later = {
        0: MarkedCheckpoint(
            engine=Engine.SPARK, sequence=9, next_input_offset=90, highest_input_offset=90, mark=Mark(9, "c")
        )
    }
    first = _first_checkpoints(MANIFEST, TOPICS, {})
    assert _first_checkpoints(MANIFEST, TOPICS, later) == first
    assert [(each.engine, each.next_input_offset, each.sequence) for each in first.values()] == [
        (Engine.SPARK, 40, 0),
        (Engine.SPARK, 0, 0),
    ]


def test_a_query_that_takes_over_begins_with_the_checkpoints_of_the_changelog() -> None:
    importing = replace(MANIFEST, imports=True)
    known = MarkedCheckpoint(sequence=5, watermark_ms=77, next_input_offset=40, highest_input_offset=60)
    first = _first_checkpoints(importing, TOPICS, {0: known})
    sent = {0: MarkedCheckpoint(**asdict(first[0]) | {"mark": Mark(7, "c")})}
    assert _first_checkpoints(importing, TOPICS, sent)[0] == first[0], "also when its first micro-batch was sent"
    assert (first[0].sequence, first[0].watermark_ms, first[0].highest_input_offset) == (5, 77, 60)
    assert first[0].engine is Engine.SPARK


def test_a_query_that_takes_over_reads_a_topic_that_was_recreated_from_its_start() -> None:
    importing = replace(MANIFEST, imports=True, offsets={})
    known = MarkedCheckpoint(next_input_offset=40, highest_input_offset=60, input_topic_id="former", offset_base=7)
    first = _first_checkpoints(importing, TOPICS, {0: known})
    assert (first[0].input_topic_id, first[0].offset_base) == ("topic-id", 67)
    assert (first[0].next_input_offset, first[0].highest_input_offset) == (0, 0)
    fenced = {number: MarkedCheckpoint(**asdict(each)) for number, each in first.items()}
    assert _first_checkpoints(importing, TOPICS, fenced) == first, "also when it was killed behind the fence"


def test_a_checkpoint_whose_state_was_exported_is_refused() -> None:
    with pytest.raises(CommandFailed, match="exported to the embedded engine"):
        _refuse_what_was_exported({0: Checkpoint(engine=Engine.SPARK), 1: Checkpoint()}, "/checkpoint")


def test_marks_are_written_as_they_are_read() -> None:
    mark = Mark(12, "b3c5-7a", 3, "d1", "w", [Closing("orders", "unreachable", 11)])
    begun = Checkpoint(engine=Engine.SPARK, sequence=11, next_input_offset=40)
    marked = MarkedCheckpoint(**asdict(begun), mark=mark)
    value = encode_checkpoint(marked)
    assert decode_marked(value) == marked
    assert decode_checkpoint(value) == begun, "the embedded engine sees where Spark began"
    assert decode_marked(encode_checkpoint(begun)).mark is None


def test_what_refused_records_is_for_what_is_not_committed_yet() -> None:
    """A step whose mark says that it was committed, in part or as a whole, is decided as before."""
    known = Closing("orders", "vanished", -1)
    marks = {0: Mark(12, "c", 7, "d", "w", [known]), 1: Mark(9, "c", 6)}
    refusing = {"orders": "vanished", "silent": "unreachable"}
    found = replay_closings(1_000, 7, marks, refusing)
    assert found.of(0, 1_000) == [known, Closing("silent", "unreachable", 12)]
    for other in (1, 2, 3):
        assert found.of(other, 1_000) == [known, Closing("silent", "unreachable", -1)]
    assert found.of(0, 1_001) == ()


def test_a_mark_names_few_topics_and_beyond_them_all() -> None:
    many = {f"{at}".ljust(249, "x"): "unauthorised" for at in range(CLOSINGS_MAX)}
    closings = replay_closings(1, 7, {}, many).of(0, 1)
    assert len(closings) == CLOSINGS_MAX
    assert [each.topic for each in replay_closings(1, 7, {}, {**many, "more": "vanished"}).of(0, 1)] == [ALL]


def test_what_a_worker_says_of_topics_is_read_from_the_text_that_spark_hands_on() -> None:
    error = TopicsRefuse({'a"b': "unreachable", "c": "vanished"}, "Broker: no [topics x]")
    text = f"Job aborted\n  sidecar.spark.marks.TopicsRefuse: {error}\n\n\tat org.apache.spark"
    assert TopicsRefuse.read(text) == {'a"b': "unreachable", "c": "vanished"}
    assert TopicsRefuse.read("CommandFailed: [topics bm8=]") == {}


def test_a_digest_does_not_depend_on_how_what_is_sent_was_cut() -> None:
    records = [Outgoing("orders", -1, b"%d" % at, b"v", [("h", None)], at, b"") for at in range(40)]
    outcome, count = StatusRecord(b"o/1", b"{}", []), StatusRecord(b"p/0", b"{}", [])
    found = set()
    for size in (40, 15, 16, 1):
        digest = Digest()
        for at in range(0, 40, size):
            digest.add(pack(records[at : at + size]), [])
        digest.add(pack([]), [outcome, count])
        found.add(str(digest))
    assert len(found) == 1
    for other, status_records in (([*records[1:], records[0]], [outcome]), (records, []), (records[:-1], [outcome])):
        digest = Digest()
        digest.add(pack(other), status_records)
        assert str(digest) not in found


def test_order_per_key_is_refused() -> None:
    refuse_order(PolicyConfig(by_origin=(PolicyConfig(name="mail"),)))
    ordered = PolicyConfig(by_origin=(PolicyConfig(name="orders-*", order_by_key=True),))
    with pytest.raises(SettingsInvalid) as failure:
        refuse_order(ordered)
    assert str(failure.value) == "ORDER=key (orders-*): the Spark engine keeps no order per key: allowed is none"
    with pytest.raises(SettingsInvalid, match="general setting"):
        refuse_order(PolicyConfig(order_by_key=True))


def test_rows_hold_what_a_part_has_whatever_the_size_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CHUNK_BYTES_MAX", 300)
    monkeypatch.setattr(wire, "ROW_RECORDS_MAX", 7)
    records = [
        Outgoing(
            "orders", at % 3 - 1, None if at % 4 else b"k", b"v" * (at % 5 * 90), [("h", None), ("g", b"")], at, b"s"
        )
        for at in range(23)
    ]
    outcome = StatusRecord(b"o/1", b"{}", [("s", b"x")])
    part = OutputPart(
        partition=3, before=4, after=5, next_input_offset=6, records=records, status_records=[outcome], last=True
    )
    rows = [decode_output_part(row) for row in wire.rows_of(part)]
    assert [record for row in rows for record in row.records] == records
    assert [(row.ends, row.last, bool(row.status_records)) for row in rows] == [
        (False, False, False) for _ in rows[1:]
    ] + [(True, True, True)]
    assert all(len(row.records) <= 7 for row in rows)
    assert max(len(wire.pack(row.records).content) for row in rows if len(row.records) > 1) <= 300
    (empty,) = wire.rows_of(replace(part, records=[]))
    assert decode_output_part(empty) == replace(part, records=[])


def test_a_dlq_of_a_policy_is_refused() -> None:
    refuse_policy_dlqs(Settings())
    settings = load(environ={"KAFKA_RETRY_ORIGIN_POLICIES": json.dumps({"slow-*": {"dlq_topic": "dlq-slow"}})})
    with pytest.raises(CommandFailed, match="dlq-slow"):
        refuse_policy_dlqs(settings)
