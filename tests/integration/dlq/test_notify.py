"""Notifications of a running sidecar: dead letters of committed transactions, each once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.broker import create_topic, unique
from tests.integration.messages import Given, Pairs, World, now_ms, scrape
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.unit.notify.server import TOKEN, Answer, Hook, webhook
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 60.0
ANNOUNCED = 'retry_sidecar_notify_dead_letters_total{outcome="announced"}'
ABORTED = 'retry_sidecar_transactions_total{outcome="aborted"}'


def metric(sidecar: Sidecar, name: str) -> float:
    """Return the value of a series."""
    return next((float(line.split()[-1]) for line in scrape(sidecar).splitlines() if line.startswith(name)), 0.0)


def error(sidecar: Sidecar) -> Any:
    """Return the last error that /health shows."""
    return sidecar.get("/health")[1]["details"]["notify"]["error"]


def told(hook: Hook) -> Counter[str]:
    """Return what all notifications say, by reason."""
    total = Counter[str]()
    for request in hook.requests:
        total.update(request.body["reasons"])
    return total


def test_dead_letters_are_announced_once_though_their_transaction_was_aborted_first(
    stage: Stage, sidecars: Sidecars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted topic refuses a message without a key: that aborts the transaction with all its dead letters."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    compacted, marker = f"{stage.app_id}-compacted", unique("m").encode()
    create_topic(stage.bootstrap, compacted, config={"cleanup.policy": "compact"})
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"reasons": "$by_reason", "text": "$summary", "samples": "$samples"}))
    with webhook() as hook:
        one = sidecars.make(
            "one", stage, NOTIFY_URL=hook.url, NOTIFY_INTERVAL="1s", NOTIFY_TEMPLATE=str(template), LOG_LEVEL="debug"
        )
        world = World(stage, one)
        due: Pairs = [("retry-origin-topic", compacted.encode()), ("retry-due-ms", b"%d" % now_ms())]
        bad: Pairs = [("retry-origin-topic", stage.origin.encode()), ("retry-due-ms", b"soon")]
        headers = [due, bad, due, bad, bad]
        world.send(*(Given(b"payload", None, [*each, ("test", marker)]) for each in headers))
        one.start()
        one.await_ready()
        assert len(world.dead(marker, 5)) == 5
        eventually(lambda: metric(one, ANNOUNCED) == 5, WAIT_S, "all dead letters are announced")
        assert told(hook) == {"bad-header": 3, "unfireable": 2}
        assert metric(one, ABORTED) >= 1
        assert error(one) is None

        hook.answers.put(Answer(404))
        world.send(Given(b"payload", None, [*bad, ("test", marker)]))
        eventually(lambda: "notification_failed" in one.log, WAIT_S, "the refusal is logged")
        world.send(Given(b"payload", None, [*bad, ("test", marker)]))
        eventually(lambda: metric(one, ANNOUNCED) == 7, WAIT_S, "both are announced")
        eventually(lambda: error(one) is None, WAIT_S, "/health forgets the refusal")
        assert one.stop() == 0
    assert not any("payload" in str(request.body) for request in hook.requests)
    assert TOKEN not in one.last_lines() + one.log


def test_a_template_with_a_mistake_stops_the_start(stage: Stage, sidecars: Sidecars, tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_text('{"text": "$sumary"}')
    one = sidecars.make("one", stage, NOTIFY_URL=f"http://localhost/{TOKEN}", NOTIFY_TEMPLATE=str(template))
    one.start()
    assert one.wait() == 2
    assert f"NOTIFY_TEMPLATE: {str(template)!r} names $sumary, which is no field: allowed are app_id, " in one.log
    assert TOKEN not in one.log
