"""The alerts: known metrics, a section of the runbook for each, and when each of them fires, on synthetic series."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.deploy.queries import mistakes
from tests.deploy.tools import DEPLOY, REPOSITORY, run

RULES_FILE: Final = DEPLOY / "prometheus" / "rules.yaml"
RUNBOOK: Final = (REPOSITORY / "docs" / "how-to/runbook.md").read_text(encoding="utf-8")
RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
HERE: Final = 'namespace="shop",job="retry-sidecar",instance="a"'


class World(NamedTuple):
    """Series in promtool's notation, and how many alerts fire at a minute."""

    series: dict[str, str]
    minute: int
    firing: int
    every_min: int = 1
    """Minutes between two values."""


def own(name: str, *labels: str) -> str:
    """Return a series of one instance."""
    return f"retry_sidecar_{name}{{{','.join((HERE, *labels))}}}"


def lateness(at_most: dict[str, str]) -> dict[str, str]:
    """Return the buckets of the histogram of lateness."""
    return {own("lateness_seconds_bucket", f'le="{le}"'): values for le, values in at_most.items()}


UP: Final = f"up{{{HERE}}}"
FENCED: Final = own("transactions_total", 'outcome="fenced"')
LOST: Final = own("input_lost_total", 'partition="3"')
FATAL: Final = own("dead_lettered_total", 'reason="fatal"')
TOO_LARGE: Final = own("dead_lettered_total", 'reason="too-large"')
UNANNOUNCED: Final = own("notify_requests_total", 'outcome="failed"')
COMMITTED: Final = own("transactions_total", 'outcome="committed"')
ABORTED: Final = own("transactions_total", 'outcome="aborted"')
STARTED: Final = f"process_start_time_seconds{{{HERE}}}"
RESTORING: Final = own("state", 'partition="3"', 'state="restoring"')
ASSIGNED: Final = own("state", 'partition="3"', 'state="assigned"')
RUNNING: Final = own("state", 'partition="3"', 'state="running"')
FREE: Final = own("store_free_bytes")
OPEN: Final = own("open_files", 'process="worker"')
OPEN_MAX: Final = own("open_files_max", 'process="worker"')
NOT_KNOWN: Final = " ".join(["NaN"] * 40)

WORLDS: Final = {
    "RetrySidecarDown": [
        World({UP: "1x5 0x10"}, 12, 1),
        World({}, 6, 1),
        World({UP: "1x5 0x3 1x10"}, 12, 0),
    ],
    "RetrySidecarNotReady": [
        World({own("ready"): "1x5 0x10"}, 12, 1),
        World({own("ready"): "1x5 0x3 1x10"}, 12, 0),
    ],
    "RetrySidecarLatenessHigh": [
        World(lateness({"5": "0x60", "10": "0+60x60", "+Inf": "0+60x60"}), 20, 1),
        World(lateness({"5": "0+60x60", "10": "0+60x60", "+Inf": "0+60x60"}), 20, 0),
        World({own("watermark_lag_seconds", 'partition="0"'): "0+60x60"}, 20, 1),
        World({own("watermark_lag_seconds", 'partition="0"'): "30x60"}, 20, 0),
    ],
    "RetrySidecarBacklogGrowing": [
        World({own("due_backlog", 'partition="0"'): "0+200x60"}, 40, 1),
        World({own("due_backlog", 'partition="0"'): "9000-100x60"}, 40, 0),
        World({own("due_backlog", 'partition="0"'): "0+10x60"}, 40, 0),
    ],
    "RetrySidecarRestoreTooLong": [
        World({ASSIGNED: "1x5 stale", RESTORING: "_x6 1x30"}, 20, 1),
        World({RESTORING: "1x10 stale", RUNNING: "_x11 1x30"}, 20, 0),
    ],
    "RetrySidecarRestoreFailed": [
        World({own("state", 'partition="3"', 'state="stopped"'): "1x10"}, 3, 1),
        World({RUNNING: "1x10"}, 3, 0),
    ],
    "RetrySidecarInputLost": [
        World({LOST: "0x10 5x30"}, 12, 1),
        World({LOST: "_x10 5x30"}, 12, 1),
        World({LOST: "0x10 5x90"}, 90, 0),
        World({LOST: "_x10 5x90"}, 90, 0),
        World({LOST: "0x30"}, 12, 0),
    ],
    "RetrySidecarDeadLetters": [
        World({FATAL: "0x10 1x30"}, 12, 1),
        World({FATAL: "_x10 1x30"}, 12, 1),
        World({FATAL: "0x10 1x10 2x30", TOO_LARGE: "0x10 1x40"}, 22, 2),
        World({FATAL: "0x10 1x40"}, 30, 0),
        World({FATAL: "7x60"}, 40, 0),
        World({FATAL: "0x30"}, 20, 0),
    ],
    "RetrySidecarInputLagging": [
        World({own("input_lag", 'partition="3"'): "0 12000x30"}, 20, 1),
        World({own("input_lag", 'partition="3"'): "0 12000x10 9000x30"}, 20, 0),
    ],
    "RetrySidecarDlqLarge": [
        World({own("dlq_records", 'topic="dlq"'): "12000x90"}, 70, 1),
        World({own("dlq_records", 'topic="dlq"'): "12000x30 200x60"}, 70, 0),
    ],
    "RetrySidecarReloadRejected": [
        World({own("last_reload_successful"): "1x5 0x10"}, 8, 1),
        World({own("last_reload_successful"): "1x5 0 1x10"}, 8, 0),
    ],
    "RetrySidecarDeadLettersRising": [
        World({FATAL: "0x288 0+25x12"}, 1470, 1, every_min=5),
        World({FATAL: "0+5x300"}, 1470, 0, every_min=5),
        World({FATAL: "0x288 8x12"}, 1450, 0, every_min=5),
    ],
    "RetrySidecarNotificationsFailing": [
        World({UNANNOUNCED: "0+0.9x60"}, 30, 1),
        World({UNANNOUNCED: "0x10 6x90"}, 12, 0),
    ],
    "RetrySidecarPartitionWithoutOwner": [
        World({own("partitions_without_owner"): "0x5 2x10"}, 12, 1),
        World({own("partitions_without_owner"): "0x5 2x3 0x10"}, 12, 0),
    ],
    "RetrySidecarStateDiskFilling": [
        World({FREE: "400000000x60"}, 30, 1),
        World({FREE: "180000000000-500000000x96"}, 450, 1, every_min=5),
        World({FREE: "50000000000x96"}, 450, 0, every_min=5),
        # A restore writes much at first; that goes on for no day.
        World({FREE: "50000000000-1000000000x30 20000000000x60"}, 60, 0),
        World({FREE: NOT_KNOWN}, 30, 0),
    ],
    "RetrySidecarOpenFiles": [
        World({OPEN: "60x60", OPEN_MAX: "100x60"}, 20, 1),
        World({OPEN: "40x60", OPEN_MAX: "100x60"}, 20, 0),
        World({OPEN: "60x5 40x60", OPEN_MAX: "100x60"}, 20, 0),
    ],
    "RetrySidecarFencedRepeatedly": [
        World({FENCED: "0x10 1x5 2x30"}, 30, 1),
        World({FENCED: "0x10 1x40"}, 30, 0),
        World({STARTED: "1 1 2 2 3 3 4 4 5x20", own("build_info", 'version="1"'): "1x40"}, 20, 1),
        World({STARTED: "1 1 2 2 3 3 4 4 5x20"}, 20, 0),
        World({STARTED: "1 1 2x30", own("build_info", 'version="1"'): "1x40"}, 20, 0),
    ],
    "RetrySidecarLastStableOffsetStuck": [
        World({own("last_stable_offset_stuck_seconds", 'partition="0"'): "0+60x30"}, 17, 1),
        World({own("last_stable_offset_stuck_seconds", 'partition="0"'): "0+60x30"}, 14, 0),
    ],
    "RetrySidecarClockSkew": [
        World({own("clock_skew_seconds"): "-15x20"}, 10, 1),
        World({own("clock_skew_seconds"): "3x20"}, 10, 0),
        World({own("clock_skew_seconds"): NOT_KNOWN}, 10, 0),
    ],
    "RetrySidecarOriginClosed": [
        World({own("origin_state", 'origin="orders"', 'state="vanished"'): "1x20"}, 15, 1),
        World({own("origin_state", 'origin="orders"', 'state="paused"'): "1x20"}, 15, 0),
        World({own("origin_state", 'origin="*"', 'state="stopped"'): "1x20"}, 15, 0),
        World({own("origin_state", 'origin="orders"', 'state="open"'): "1x20"}, 15, 0),
    ],
    "RetrySidecarTransactionsAborting": [
        World({COMMITTED: "0+10x40", ABORTED: "0+5x40"}, 30, 1),
        World({COMMITTED: "0+100x40", ABORTED: "0+1x40"}, 30, 0),
        World({COMMITTED: "0x40", ABORTED: "0x40"}, 30, 0),
    ],
}


def test_the_alerts_are_those_of_the_runbook_with_its_expressions() -> None:
    said = re.findall(r"^## (RetrySidecar\w+)\n\nExpression: `(.+?)`, for (\w+), (\w+)", RUNBOOK, re.MULTILINE)
    assert said
    assert [(rule["alert"], rule["expr"], rule["for"], rule["labels"]["severity"]) for rule in RULES] == said


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_leads_to_its_section(rule: dict[str, Any]) -> None:
    assert mistakes(rule["expr"]) == []
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOK


def test_promtool_has_nothing_to_say(promtool: Path) -> None:
    done = run(promtool, ["check", "rules", str(RULES_FILE)])
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_fires_when_it_should_and_only_then(promtool: Path, tmp_path: Path, rule: dict[str, Any]) -> None:
    worlds = WORLDS[rule["alert"]]
    assert {bool(world.firing) for world in worlds} == {True, False}
    path = tmp_path / "test.yaml"
    text = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": f"{max(world.every_min for world in worlds)}m",
        "tests": [as_test(rule["alert"], world) for world in worlds],
    }
    path.write_text(yaml.safe_dump(text), encoding="utf-8")
    done = run(promtool, ["test", "rules", str(path)])
    assert done.returncode == 0, done.stdout + done.stderr


def as_test(alert: str, world: World) -> dict[str, Any]:
    """Return the world as promtool's test: how many alerts of this name fire."""
    return {
        "interval": f"{world.every_min}m",
        "input_series": [{"series": series, "values": values} for series, values in world.series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{world.minute}m",
                "exp_samples": [{"labels": "{}", "value": world.firing}] if world.firing else [],
            }
        ],
    }


def test_what_an_alert_says_can_be_read(promtool: Path, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    expected = {
        "exp_labels": {"namespace": "shop", "job": "retry-sidecar", "severity": "critical"},
        "exp_annotations": {
            "summary": "Partitions have no owner",
            "description": "2 partitions of the retry topic have had no owner for 5 minutes. "
            "Their messages do not fire.",
            "runbook_url": "docs/how-to/runbook.md#retrysidecarpartitionwithoutowner",
        },
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": own("partitions_without_owner"), "values": "2x10"}],
        "alert_rule_test": [
            {"eval_time": "6m", "alertname": "RetrySidecarPartitionWithoutOwner", "exp_alerts": [expected]}
        ],
    }
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES_FILE)], "tests": [test]}), encoding="utf-8")
    done = run(promtool, ["test", "rules", str(path)])
    assert done.returncode == 0, done.stdout + done.stderr
