"""The start of `spark run` asks the brokers again when a question fails, as a login that is refused once makes it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from sidecar.errors import BrokerUnavailable, KafkaFailed
from sidecar.policy import PolicyConfig
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config
from sidecar.spark import group
from sidecar.spark.stream import start
from sidecar.spark.stream.start import Options

SETTINGS = Settings(bootstrap_servers="broker:1", streams_app_id="app")
POLICY: PolicyConfig = policy_config(SETTINGS)
REFUSED = "no answer: SASL authentication failed"
QUESTIONS = ("Admin", "idle_topics", "_manifest", "ClockCheck", "last_checkpoints", "_initial")
"""What is asked of the brokers before the query runs; `last_checkpoints` with another number of state partitions."""


class World:
    """A start whose questions are answered, but not the first time for those that fail."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: dict[str, Exception], times: int = 1) -> None:
        self.asked: list[str] = []
        self.ran = 0
        self.session = MagicMock()
        manifest = SimpleNamespace(state_partitions=2, offsets={})
        answers: dict[str, Any] = {
            "idle_topics": SimpleNamespace(partitions=2),
            "_manifest": manifest,
            "last_checkpoints": {},
            "_initial": None,
        }

        def question(name: str) -> Callable[..., Any]:
            def ask(*_: object, **__: object) -> Any:
                self.asked.append(name)
                if name in failing and self.asked.count(name) <= times:
                    raise failing[name]
                return answers.get(name, MagicMock())

            return ask

        for name in QUESTIONS:
            patch.setattr(start if name in vars(start) else group, name, question(name))
        patch.setattr(start, "open_session", lambda *_, **__: self.session)
        patch.setattr(start, "CheckpointFolder", MagicMock())
        patch.setattr(start, "Starter", MagicMock())
        patch.setattr(start, "rescaled", lambda *_: manifest)
        patch.setattr(start, "TopicWatch", MagicMock())
        patch.setattr(start, "keep_running", self._run)

    def _run(self, *_: object) -> None:
        self.ran += 1

    def start(self, **options: Any) -> None:
        asked = iter(range(1_000))
        start.run(SETTINGS, POLICY, Options(checkpoint="file:///c", **options), stopping=lambda _: next(asked) > 10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of its own for each start: each look at it takes a second."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(start, "SystemClock", lambda: SimpleNamespace(monotonic_s=lambda: next(seconds)))


@pytest.mark.parametrize("failure", [BrokerUnavailable(REFUSED), KafkaFailed(REFUSED, away=True)])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_that_fails_once_is_asked_again_and_the_query_runs(
    monkeypatch: pytest.MonkeyPatch, name: str, failure: Exception
) -> None:
    world = World(monkeypatch, {name: failure})
    with capture_logs() as logs:
        world.start(state_partitions=3)
    assert world.ran == 1
    assert [each["reason"] for each in logs if each["event"] == "broker_awaited"] == [REFUSED]
    assert world.asked.count(name) == 2 + (name == "_initial")


def test_every_question_may_fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, dict.fromkeys(QUESTIONS, BrokerUnavailable(REFUSED)))
    world.start(state_partitions=3)
    assert world.ran == 1


def test_credentials_that_are_wrong_end_the_start_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {"_manifest": BrokerUnavailable(REFUSED)}, times=1_000)
    seconds = iter(range(0, 1_000_000, 10))
    monkeypatch.setattr(start, "SystemClock", lambda: SimpleNamespace(monotonic_s=lambda: next(seconds)))
    with pytest.raises(BrokerUnavailable, match=f"STARTUP_TIMEOUT, 60000 ms: {REFUSED}"):
        world.start()
    assert (world.ran, world.session.stop.call_count) == (0, 1)


def test_an_answer_that_is_definite_ends_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {"last_checkpoints": KafkaFailed("denied", denied=True)})
    with pytest.raises(KafkaFailed, match="denied"):
        world.start(state_partitions=3)
    assert world.asked.count("last_checkpoints") == 1


def test_a_stop_that_is_requested_meanwhile_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, {"_manifest": BrokerUnavailable(REFUSED)}, times=1_000)
    world.start()
    assert (world.ran, world.session.stop.call_count) == (0, 1)
