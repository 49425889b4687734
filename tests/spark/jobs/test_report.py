"""The report against a broker: all that is on two topics, once, and names without end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.model import Reason
from tests.broker import create_topic
from tests.integration.messages import Given, Pairs, now_ms, send
from tests.integration.sidecars import Sidecars, Stage
from tests.spark.jobs.dead_letters import dead

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HOUR_MS = 3_600_000
BEGIN_MS = now_ms() // HOUR_MS * HOUR_MS - 6 * HOUR_MS
"""Retention deletes what is a week old."""
HOSTILE = "<img src=x onerror=alert(1)>"


def fill(stage: Stage) -> None:
    """Send 60 retries over three hours, one record that is none, and 30 dead letters of 26 exceptions to two DLQs."""
    origin = ("retry-origin-topic", stage.origin.encode())
    retries = [
        Given(
            headers=[origin, ("retry-exception", b"Late"), ("retry-attempt", b"%d" % (each % 2))],
            partition=each % 2,
            timestamp_ms=BEGIN_MS + each % 3 * HOUR_MS,
        )
        for each in range(60)
    ]
    control: Pairs = [("retry-control", b"cancel"), ("retry-target", b"id:x"), ("retry-control-id", b"c")]
    send(stage.bootstrap, stage.input_topic, *retries, Given(headers=control))
    names = [HOSTILE] * 5 + [f"Odd{each}" for each in range(25)]
    letters = [
        Given(
            headers=dead([origin, ("retry-exception", name.encode())], Reason.FATAL if at else Reason.BAD_HEADER),
            timestamp_ms=BEGIN_MS,
        )
        for at, name in enumerate(names)
    ]
    create_topic(stage.bootstrap, policy_dlq(stage), 2)
    send(stage.bootstrap, stage.dlq_topic, *letters[:20])
    send(stage.bootstrap, policy_dlq(stage), *letters[20:])


def policy_dlq(stage: Stage) -> str:
    return f"{stage.dlq_topic}-of-a-policy"


def report(environment: dict[str, str], *more: str) -> dict[str, Any]:
    arguments = ["-m", "sidecar", "spark", "report", "--json", "--master", "local[2]", *more]
    answer = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def counts(body: dict[str, Any], kind: str, dimension: str) -> dict[str, int]:
    return {each["name"]: each["count"] for each in body[kind][f"by_{dimension}"]["names"]}


def test_retries_and_dead_letters_are_counted_and_all_of_them_are_in_the_parquet(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    import pyarrow.parquet

    fill(stage)
    policies = json.dumps({"pay*": {"dlq_topic": policy_dlq(stage)}})
    environment = sidecars.make("none", stage, ORIGIN_POLICIES=policies).environment
    html = tmp_path / "report.html"
    body = report(environment, "--top", "3", "--html", str(html), "--out", f"file://{tmp_path}/out")
    assert (body["retry"]["total"], body["dead-letter"]["total"]) == (60, 30)
    assert counts(body, "retry", "attempt") == {"0": 30, "1": 30}
    assert counts(body, "retry", "exception") == {"Late": 60}
    assert counts(body, "retry", "origin") == {stage.origin: 60}
    assert list(counts(body, "retry", "hour").values()) == [20, 20, 20]
    assert counts(body, "dead-letter", "reason") == {"fatal": 29, "bad-header": 1}
    assert counts(body, "dead-letter", "exception") == {HOSTILE: 5, "Odd0": 1, "Odd1": 1}
    exceptions = body["dead-letter"]["by_exception"]
    assert (exceptions["other_names"], exceptions["others"]) == (23, 23)

    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sum(row["count"] for row in rows if row["kind"] == "retry") == 60
    assert {row["exception"] for row in rows if row["kind"] == "dead-letter"} == {
        HOSTILE,
        *(f"Odd{each}" for each in range(25)),
    }
    assert {round(row["hour"].timestamp() * 1000) for row in rows} == {BEGIN_MS + each * HOUR_MS for each in range(3)}
    text = html.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_a_span_of_time_is_a_span_of_the_log(java: Path, stage: Stage, sidecars: Sidecars) -> None:
    send(
        stage.bootstrap,
        stage.input_topic,
        *(
            Given(headers=[("retry-origin-topic", stage.origin.encode())], timestamp_ms=BEGIN_MS + each * HOUR_MS)
            for each in range(6)
        ),
    )
    environment = sidecars.make("none", stage).environment
    since, until = str(BEGIN_MS + 2 * HOUR_MS), str(BEGIN_MS + 5 * HOUR_MS)
    body = report(environment, "--since", since, "--until", until)
    assert (body["retry"]["total"], body["dead-letter"]["total"]) == (3, 0)
