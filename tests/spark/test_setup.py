"""What is decided before a query starts: Java, the source's options, the checkpoint's identity, where it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.errors import CommandFailed, SettingsInvalid
from sidecar.kafka.topics import TopicFacts
from sidecar.settings import Settings
from sidecar.spark.java import find_java
from sidecar.spark.manifest import Manifest, require_same
from sidecar.spark.sink import Mark
from sidecar.spark.source import EARLIEST, source_options, starting_offsets
from sidecar.spark.start import _first_checkpoints

FACTS = TopicFacts("cluster", 2, 2, "topic-id", "changelog-id", 1, 1, 1)
MANIFEST = Manifest(
    checkpoint="c",
    cluster_id="cluster",
    app_id="app",
    input_topic="retry",
    input_topic_id="topic-id",
    state_partitions=2,
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


def test_the_login_is_put_into_the_words_of_the_java_client() -> None:
    settings = Settings(
        bootstrap_servers="kafka:9092",
        security_protocol="SASL_SSL",
        client={
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'a"b',
            "ssl.ca.location": "/ca",
        },
    )
    options = source_options(settings, {"maxOffsetsPerTrigger": "5"})
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert options["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="me" password="a\\"b";')
    assert options["kafka.ssl.truststore.location"] == "/ca"
    assert options["maxOffsetsPerTrigger"] == "5"


def test_what_the_guarantees_rest_on_can_not_be_set() -> None:
    with pytest.raises(SettingsInvalid, match="isolation"):
        source_options(Settings(), {"kafka.isolation.level": "read_uncommitted"})


def test_a_client_certificate_must_be_given_in_the_form_of_the_java_client() -> None:
    settings = Settings(client={"ssl.certificate.location": "/cert", "ssl.key.location": "/key"})
    with pytest.raises(SettingsInvalid, match=r"kafka\.ssl\.keystore"):
        source_options(settings, {})
    assert source_options(settings, {"kafka.ssl.keystore.location": "/both"})["kafka.ssl.keystore.location"] == "/both"


def test_a_checkpoint_of_something_else_is_refused_and_each_difference_named() -> None:
    wanted = replace(MANIFEST, app_id="other", input_topic_id="anew")
    with pytest.raises(SettingsInvalid) as failure:
        require_same(MANIFEST, wanted, "/checkpoint", 7)
    assert len(failure.value.problems) == 3
    assert "made with 2" in failure.value.problems[-1]
    require_same(MANIFEST, MANIFEST, "/checkpoint", None)


def test_a_query_that_was_killed_in_its_first_micro_batch_begins_where_it_had_begun() -> None:
    """Whatever the group and the changelog say by then: the sink may have committed already."""
    later = {0: Checkpoint(engine=Engine.SPARK, sequence=9, next_input_offset=90, highest_input_offset=90)}
    first = _first_checkpoints(MANIFEST, FACTS, {})
    assert _first_checkpoints(MANIFEST, FACTS, later) == first
    assert [(each.engine, each.next_input_offset, each.sequence) for each in first.values()] == [
        (Engine.SPARK, 40, 0),
        (Engine.SPARK, 0, 0),
    ]


def test_a_query_that_takes_over_begins_with_the_checkpoints_of_the_changelog() -> None:
    importing = replace(MANIFEST, imports=True)
    known = Checkpoint(sequence=5, watermark_ms=77, next_input_offset=40, highest_input_offset=60)
    first = _first_checkpoints(importing, FACTS, {0: known})
    assert (first[0].sequence, first[0].watermark_ms, first[0].highest_input_offset) == (5, 77, 60)
    assert first[0].engine is Engine.SPARK


def test_offsets_and_marks_are_written_as_they_are_read() -> None:
    assert json.loads(starting_offsets("retry", {1: 5, 0: EARLIEST})) == {"retry": {"0": -2, "1": 5}}
    mark = Mark(12, "b3c5-7a")
    assert Mark.parse(str(mark)) == mark
    assert Mark.parse("") is None
    assert Mark.parse("spark twelve x") is None
