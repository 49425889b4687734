"""A checkpoint of the version that read with Kafka's Java source: the query goes on where it was, with what it planned.

What that version left is made of a checkpoint of this one: the positions in Spark's log are the only difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.spark import group
from tests.broker import read_committed
from tests.integration.messages import Given, native, send
from tests.integration.sidecars import Sidecars, Stage
from tests.spark.queries import command, deliveries
from tests.spark.stream.test_sink import settings_of
from tests.spark.test_unfinished import END_S, take_back, write

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]


def write_as_the_java_source(checkpoint: Path, topic: str) -> list[dict[str, dict[str, int]]]:
    """Write the positions in the form of the Java source; return them in their order."""
    found = []
    logged = (file for file in (checkpoint / "query" / "offsets").iterdir() if file.name.isdigit())
    for file in sorted(logged, key=lambda each: int(each.name)):
        *head, position = file.read_text().split("\n")
        found.append({topic: json.loads(position)["offsets"]})
        write(file, "\n".join([*head, json.dumps(found[-1], separators=(",", ":"))]))
    return found


def test_a_checkpoint_of_the_java_source_goes_on_and_completes_what_it_planned(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    one = sidecars.make("one", stage)
    one.start(command("run", tmp_path))
    send(stage.bootstrap, stage.input_topic, Given(b"before", b"k", native(stage, b"m", 0)))
    deliveries(stage, b"m", 1)
    send(
        stage.bootstrap, stage.input_topic, *(Given(b"%d" % n, b"k", native(stage, b"m", 0), n % 2) for n in range(20))
    )
    deliveries(stage, b"m", 21)
    assert one.stop(END_S) == 0
    mark = group.last_checkpoints(settings_of(stage), 2)[0].mark
    assert mark is not None
    take_back(tmp_path / "checkpoint", mark.batch)
    positions = write_as_the_java_source(tmp_path / "checkpoint", stage.input_topic)
    assert len(positions) >= 2
    assert sum(positions[-1][stage.input_topic].values()) >= 21

    send(stage.bootstrap, stage.input_topic, Given(b"after", b"k", native(stage, b"m", 0)))
    one.start(command("run", tmp_path))
    deliveries(stage, b"m", 22)
    assert one.stop(END_S) == 0
    assert "micro_batch_repeated" in one.log
    values = sorted(each.value or b"" for each in read_committed(stage.bootstrap, [stage.origin]))
    assert values == sorted([b"before", b"after", *(b"%d" % n for n in range(20))])
