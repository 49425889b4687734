"""The audit finds what was planted: lost, twice, too soon, lost behind a cancel that was refused or another's id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sidecar.changelog.codec import REMOVED, removed_key
from sidecar.model import StoredOffset
from tests.broker import make_topic_anew
from tests.integration.messages import Given, Pairs, Sent, native, now_ms, send
from tests.integration.sidecars import Sidecars, Stage
from tests.spark.queries import deliveries
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_planted_faults_are_found_and_nothing_else(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    embedded = sidecars.start("embedded", stage, DROPPABLE_EXCEPTION="Boring")
    sent = send(
        stage.bootstrap,
        stage.input_topic,
        Given(b"0", b"k", native(stage, b"near", 0)),
        Given(b"1", b"k", native(stage, b"near", 0)),
        Given(b"2", b"k", native(stage, b"far", 3_600_000)),
        Given(b"3", b"k", native(stage, b"far", 3_600_000, ("retry-id", b"gone"))),
        Given(b"4", b"k", native(stage, b"far", 0, ("retry-exception", b"Boring"))),
        Given(b"5", b"k", [("no", b"origin")]),
        Given(b"6", b"k", native(stage, b"far", 3_600_000)),
    )
    fired = deliveries(stage, b"near", 2)
    eventually(lambda: embedded.pending() == 3, 40, "three wait")
    refused = b"0-%d-1" % sent[2].offset
    send(stage.bootstrap, stage.input_topic, Given(headers=_cancel(b"id:gone")), Given(headers=_cancel(refused)))
    eventually(lambda: embedded.pending() == 2, 40, "it is cancelled")
    again = send(
        stage.bootstrap,
        stage.input_topic,
        *[Given(b"7", b"k", native(stage, b"far", 3_600_000, ("retry-id", b"gone"))) for _ in range(3)],
    )
    elsewhere = Given(b"8", b"k", native(stage, b"far", 3_600_000), 1)
    send(stage.bootstrap, stage.input_topic, elsewhere)
    eventually(lambda: embedded.pending() == 6, 40, "one waits in the other partition")
    by_filter = _cancel(b'filter:{"origin":"%b","partition":1}' % stage.origin.encode())
    send(stage.bootstrap, stage.input_topic, Given(headers=by_filter, partition=1))
    eventually(lambda: embedded.pending() == 5, 40, "it is cancelled by a filter")
    clean = _audit(embedded.environment)
    assert clean["fates"] == {"fired": 2, "pending": 5, "cancelled": 2, "dropped": 1, "dead-lettered": 1}
    assert clean["offenders"] == []

    assert embedded.stop() == 0
    lost, early = sent[2], sent[6]
    _forget(stage, lost)
    _forget(stage, early)
    _forget(stage, again[1])
    _plant(stage, fired[0].headers, due_ms=fired[0].timestamp_ms)
    _plant(stage, _named(fired[1].headers, f"0-{early.offset}-99999999999999"), due_ms=99_999_999_999_999)
    found = _audit(embedded.environment, "--out", f"file://{tmp_path}/fates")
    twice = int((fired[0].header("retry-timer-id") or b"").split(b"-")[1])
    by_offset = {each["offset"]: each["fate"] for each in found["offenders"]}
    assert by_offset == {
        twice: "twice",
        lost.offset: "lost",
        early.offset: "early",
        again[1].offset: "lost",
    }
    assert list((tmp_path / "fates").glob("*.parquet"))

    bad = _run(embedded.environment, "--out", "nosuch://host/fates")
    assert bad.returncode == 1
    assert 'No FileSystem for scheme "nosuch"' in bad.stderr.splitlines()[-1]


def _cancel(target: bytes) -> Pairs:
    return [("retry-control", b"cancel"), ("retry-target", target), ("retry-control-id", b"c")]


def test_messages_of_a_topic_recreated_are_not_taken_for_those_of_the_former_one(
    java: Path, stage: Stage, sidecars: Sidecars
) -> None:
    embedded = sidecars.start("embedded", stage)
    both = (Given(b"0", b"k", native(stage, b"near", 0)), Given(b"1", b"k", [("no", b"origin")]))
    send(stage.bootstrap, stage.input_topic, *both, Given(b"2", b"k", native(stage, b"far", 3_600_000)))
    eventually(lambda: embedded.pending() == 1, 40, "one waits")
    make_topic_anew(stage.bootstrap, stage.input_topic, stage.partitions)
    eventually(lambda: min(map(embedded.recoveries, (0, 1))) >= 2, 60, "the new topic is noticed")
    due_ms = now_ms() + 3_600_000
    origin, _, mark = native(stage, b"far", 0)
    far = Given(b"3", b"k", [origin, ("retry-due-ms", b"%d" % due_ms), mark])
    cancelled = send(stage.bootstrap, stage.input_topic, *both, far, far)[-1]
    eventually(lambda: embedded.pending() == 3, 40, "two more wait")
    target = b"0-%d-%d" % (cancelled.offset, due_ms)
    cancel: Pairs = [("retry-control", b"cancel"), ("retry-target", target), ("retry-control-id", b"c")]
    send(stage.bootstrap, stage.input_topic, Given(headers=cancel))
    eventually(lambda: embedded.pending() == 2, 40, "it is cancelled")
    assert len(deliveries(stage, b"near", 2)) == 2
    found = _audit(embedded.environment)
    assert found["fates"] == {"fired": 1, "dead-lettered": 1, "pending": 1, "cancelled": 1}


def _forget(stage: Stage, sent: Sent) -> None:
    """Take a message out of the changelog, as no sidecar does."""
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    key = removed_key(StoredOffset(sent.offset), sent.timestamp_ms + 3_600_000)
    producer.produce(stage.changelog_topic, REMOVED, key, sent.partition)
    assert producer.flush(30) == 0


def _named(headers: tuple[tuple[str, bytes | None], ...], timer_id: str) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, timer_id.encode() if name == "retry-timer-id" else value) for name, value in headers)


def _plant(stage: Stage, headers: tuple[tuple[str, bytes | None], ...], due_ms: int) -> None:
    planted = [(name, b"%d" % due_ms if name == "retry-was-due-ms" else value) for name, value in headers]
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    producer.produce(stage.origin, b"planted", b"k", headers=planted)  # type: ignore[arg-type]  # bytes and null
    assert producer.flush(30) == 0


def _audit(environment: dict[str, str], *more: str) -> dict[str, Any]:
    answer = _run(environment, "--json", *more)
    found: dict[str, Any] = json.loads(answer.stdout or "{}")
    assert found, answer.stderr
    assert answer.returncode == (1 if found["offenders"] else 0)
    return found


def _run(environment: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "sidecar", "spark", "audit", "--master", "local[2]", *more]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
