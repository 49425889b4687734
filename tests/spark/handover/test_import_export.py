"""The handover between the engines: one fires once what the other had pending, also after the input was recreated."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.broker import make_topic_anew, read_committed
from tests.integration.messages import Given, marked, native, send
from tests.integration.sidecars import Sidecars, Stage
from tests.spark.queries import WAIT_S, command, deliveries
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

EACH = 200


def test_from_the_embedded_engine_to_spark_and_back(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    embedded = sidecars.start("embedded", stage)
    near = [
        Given(b"n%d" % n, b"k", native(stage, b"near", 1_800_000 + n, ("retry-id", b"n")), n % 2) for n in range(EACH)
    ]
    far = [Given(b"f%d" % n, b"k", native(stage, b"far", 3_600_000, ("retry-id", b"f"))) for n in range(EACH)]
    gone = [Given(b"g%d" % n, b"k", native(stage, b"gone", 3_600_000, ("retry-id", b"g"))) for n in range(3)]
    send(stage.bootstrap, stage.input_topic, *far, *gone)
    eventually(lambda: embedded.pending() == EACH + 3, 40, "what is far waits")
    _make_input_anew(stage)
    eventually(lambda: min(map(embedded.recoveries, (0, 1))) >= 2, 60, "the new topic is noticed")
    send(stage.bootstrap, stage.input_topic, *near)
    eventually(lambda: embedded.pending() == 2 * EACH + 3, 40, "all of it waits")
    _does(embedded.environment, "cancel", "id:g")

    refused = _run(embedded.environment, *command("run", tmp_path, "--from-changelog"))
    assert refused.returncode == 1
    assert "has 1 members" in refused.stderr
    assert embedded.stop() == 0
    refused = _run(embedded.environment, *command("run", tmp_path))
    assert "--from-changelog" in refused.stderr

    _make_input_anew(stage)
    send(stage.bootstrap, stage.input_topic, *[Given(b"mid", b"k", native(stage, b"mid", 1))] * 3)
    spark = sidecars.make("spark", stage)
    spark.start(command("run", tmp_path, "--from-changelog"))
    spark.await_ready(WAIT_S)
    _does(embedded.environment, "fire", "id:n", "--timeout", "60")
    assert len(deliveries(stage, b"near", EACH)) == EACH
    assert len(deliveries(stage, b"mid", 3)) == 3
    eventually(lambda: (spark.group() or {}).get("total") == EACH, 60, "what is far still waits")
    assert spark.stop(60) == 0

    stopped = sidecars.make("too-early", stage)
    stopped.start()
    eventually(lambda: "spark" in stopped.log, 60, "the embedded engine says whose state it is")
    assert stopped.stop() == 0

    _make_input_anew(stage)
    refused = _run(embedded.environment, *command("run", tmp_path))
    assert "was deleted and recreated" in refused.stderr
    assert "spark export" in refused.stderr
    exported = _run(embedded.environment, *command("export", tmp_path))
    assert f"{EACH} pending messages" in exported.stdout, exported.stderr

    send(stage.bootstrap, stage.input_topic, *[Given(b"last", b"k", native(stage, b"last", 1))] * 3)
    back = sidecars.start("back", stage)
    assert len(deliveries(stage, b"last", 3)) == 3
    eventually(lambda: back.pending() == EACH, 40, "all that is far waits here")
    _does(back.environment, "fire", "id:f")
    assert len(deliveries(stage, b"far", EACH)) == EACH
    seen = read_committed(stage.bootstrap, [stage.origin])
    counts = [len(marked(seen, marker)) for marker in (b"near", b"far", b"gone", b"mid", b"last")]
    assert counts == [EACH, EACH, 0, 3, 3]


def test_what_is_handed_over_fires_when_it_is_due_though_nothing_comes_in(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    embedded = sidecars.start("embedded", stage)
    # One that is over before Spark can begin, one that comes due in the midst of it, one that is held.
    dues_ms = {b"soon": 15_000, b"later": 90_000, b"far": 3_600_000}
    for marker, delay_ms in dues_ms.items():
        messages = (Given(marker, b"k", native(stage, marker, delay_ms), partition) for partition in (0, 1))
        send(stage.bootstrap, stage.input_topic, *messages)
    eventually(lambda: embedded.pending() == 6, 40, "all of it waits")
    assert embedded.stop() == 0
    assert read_committed(stage.bootstrap, [stage.origin]) == []
    spark = sidecars.make("spark", stage)
    spark.start(command("run", tmp_path, "--from-changelog"))
    assert len(deliveries(stage, b"soon", 2)) == 2
    assert len(deliveries(stage, b"later", 2)) == 2
    eventually(lambda: (spark.group() or {}).get("total") == 2, 60, "what is far still waits")
    assert spark.stop(60) == 0
    seen = read_committed(stage.bootstrap, [stage.origin])
    assert [len(marked(seen, marker)) for marker in dues_ms] == [2, 2, 0]


def test_a_topic_that_is_recreated_under_a_query_ends_it_and_the_embedded_engine_reads_all_of_the_new_one(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    """The source would go on at its offset, which the new topic has too."""
    spark = sidecars.make("spark", stage)
    spark.start(command("run", tmp_path))
    former = [Given(b"former", b"k", native(stage, b"near", 1))] * 5
    send(stage.bootstrap, stage.input_topic, *former, Given(b"far", b"k", native(stage, b"far", 3_600_000)))
    deliveries(stage, b"near", 5)
    eventually(lambda: (spark.group() or {}).get("total") == 1, WAIT_S, "what is far waits")
    _make_input_anew(stage)
    new = [b"new %02d" % n for n in range(20)]
    send(stage.bootstrap, stage.input_topic, *(Given(each, b"k", native(stage, b"near", 1)) for each in new))
    eventually(lambda: not spark.running, WAIT_S, "the query ends")
    assert "spark export" in spark.log
    exported = _run(spark.environment, *command("export", tmp_path))
    assert exported.returncode == 0, exported.stderr
    back = sidecars.start("back", stage)

    def fired() -> Counter[bytes]:
        records = marked(read_committed(stage.bootstrap, [stage.origin], WAIT_S), b"near")
        return Counter(record.value or b"" for record in records)

    eventually(lambda: fired().keys() == {b"former", *new}, WAIT_S, "nothing of the new topic is lost")
    eventually(lambda: back.pending() == 1, 60, "what is far waits here")
    assert fired()[b"former"] == 5
    assert all(fired()[each] == 1 for each in new[:6]), "at most what was read at the old offset comes again"


def _make_input_anew(stage: Stage) -> None:
    make_topic_anew(stage.bootstrap, stage.input_topic, stage.partitions)


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=240
    )


def _does(environment: dict[str, str], *arguments: str) -> None:
    answer = _run(environment, "-m", "sidecar", *arguments)
    assert answer.returncode == 0, answer.stderr
