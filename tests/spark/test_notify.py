"""Notifications of a driver: the dead letters of completed micro-batches, by reason."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.cli.spark.http import Driver
from sidecar.clock import SystemClock
from sidecar.metrics import Metrics
from sidecar.notify import notifier as notifier_module
from sidecar.notify.notifier import Notifier
from sidecar.notify.summary import Source
from sidecar.notify.template import DEFAULT, Template
from sidecar.notify.webhook import Attempt
from sidecar.spark.stream.query import OBSERVATION
from sidecar.spark.stream.wire import Tally, encode_tally


def progress(*tallies: Tally) -> dict[str, Any]:
    """Return the progress of a micro-batch, in Spark's words."""
    return {
        "batchId": 1,
        "numInputRows": 1,
        "durationMs": {"triggerExecution": 5},
        "observedMetrics": {OBSERVATION: {"tallies": [encode_tally(each) for each in tallies]}},
    }


def test_a_driver_announces_the_dead_letters_of_a_micro_batch_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "STOP_S", 60.0)
    bodies: list[dict[str, Any]] = []

    def accept(body: bytes, _timeout_s: float) -> Attempt:
        bodies.append(json.loads(body))
        return Attempt()

    clock, metrics = SystemClock(), Metrics(version="1", now_ms=lambda: 0)
    notifier = Notifier(accept, Template(DEFAULT), Source("app", "spark", "dlq"), 3600, clock, metrics)
    cluster = Mock()
    cluster.views.return_value, cluster.error, cluster.refused = (), "", 0
    driver = Driver(cluster, clock, metrics, notifier)
    notifier.start()
    driver.progressed(progress(Tally(stored=1), Tally(dead={"fatal": 2}), Tally(dead={"fatal": 1, "too-large": 1})))
    driver.progressed(progress(Tally(fired={"orders": 1})))
    assert driver.health().details["notify"] == {"last_accepted_ms": None, "error": None}
    notifier.stop()
    (body,) = bodies
    assert (body["count"], body["examined"], body["by_reason"]) == (4, 0, {"fatal": 3, "too-large": 1})
    assert (body["by_origin"], body["samples"]) == ({}, [])
