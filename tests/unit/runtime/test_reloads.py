"""Policies that are read again while the sidecar runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidecar.contract import dialects_of
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival
from sidecar.engine.ports import Origin
from sidecar.errors import SettingsInvalid
from sidecar.metrics import Metrics
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.runtime.reloads import Reloads
from sidecar.runtime.stop import Stop
from sidecar.settings import load

NOW_MS = 1_700_000_000_000


class Sources:
    """A settings file that is read again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sidecar.yaml"
        self.write("delays: 1s\n")
        self.metrics = Metrics(version="1", now_ms=lambda: NOW_MS)
        self.reloads = Reloads(load(config=self.path), lambda: load(config=self.path), self.metrics)

    def write(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_changed_policies_are_taken_over_once(sources: Sources) -> None:
    assert sources.reloads.take() is None
    sources.write("delays: 2s\npolicies: {slow: {delays: 1h}}\nmax_per_second: 5\n")
    assert sorted(sources.reloads.reload().changed) == ["DELAYS", "MAX_PER_SECOND", "POLICIES"]
    config = sources.reloads.take()
    assert config is not None
    assert (config.delays_ms, config.by_name[0].delays_ms, config.max_per_second) == ((2_000,), (3_600_000,), 5.0)
    assert sources.reloads.take() is None
    assert sources.reloads.reload().changed == []


def test_the_metrics_count_reloads_and_show_a_rejected_one_until_the_next_is_accepted(sources: Sources) -> None:
    def found(name: str, **labels: str) -> float | None:
        return sources.metrics.registry.get_sample_value(f"retry_sidecar_{name}", labels)

    assert found("last_reload_successful") == 1
    sources.write("max_attempts: many\n")
    with pytest.raises(SettingsInvalid):
        sources.reloads.reload()
    sources.reloads.reload_on_signal()
    assert (found("reloads_total", outcome="rejected"), found("last_reload_successful")) == (2, 0)
    sources.write("delays: 2s\n")
    sources.reloads.reload()
    assert (found("reloads_total", outcome="accepted"), found("last_reload_successful")) == (1, 1)


def test_a_file_with_mistakes_changes_nothing_and_says_why(sources: Sources) -> None:
    sources.write("delays: 2s\nmax_attempts: many\norigin_policies: {a: {policy: slow}}\n")
    with pytest.raises(SettingsInvalid) as caught:
        sources.reloads.reload()
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["MAX_ATTEMPTS", "ORIGIN_POLICIES"]
    assert sources.reloads.take() is None
    with capture_logs() as lines:
        sources.reloads.reload_on_signal()
    assert [(line["event"], len(line["problems"])) for line in lines] == [("policies_not_reloaded", 2)]


def test_other_settings_keep_their_values_and_are_named(sources: Sources) -> None:
    sources.write("delays: 2s\ninput_topic: another\n")
    with capture_logs() as lines:
        sources.reloads.reload_on_signal()
    (line,) = lines
    assert (line["event"], line["changed"], line["needs_restart"]) == (
        "policies_reloaded", ["DELAYS"], ["INPUT_TOPIC"],
    )  # fmt: skip
    config = sources.reloads.take()
    assert config is not None
    assert config.input_topic == "retry"


def test_the_next_record_meets_the_new_policy() -> None:
    ingest = Ingest(
        *(Policy(PolicyConfig(delays_ms=(1_000,))), dialects_of(("native",)), {"orders": Origin(1, 10**6)}, ()),
        input_topic="retry",
        app_id="app",
    )
    record = Record(0, 0, NOW_MS, None, None, [("retry-origin-topic", b"orders")])
    before = ingest.examine(record, NOW_MS)
    ingest.use(Policy(PolicyConfig(delays_ms=(5_000,))))
    after = ingest.examine(record, NOW_MS)
    assert isinstance(before, Arrival)
    assert isinstance(after, Arrival)
    assert (before.due_ms - NOW_MS, after.due_ms - NOW_MS) == (1_000, 5_000)


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_a_hangup_asks_for_a_reload_once() -> None:
    stop = Stop()
    stop.listen_for_reloads()
    assert not stop.take_reload()
    os.kill(os.getpid(), signal.SIGHUP)
    assert stop.take_reload()
    assert not stop.take_reload()
    assert not stop.asked


def test_a_dlq_that_was_not_there_at_the_start_needs_a_restart(sources: Sources) -> None:
    sources.write("delays: 2s\npolicies: {slow: {dlq_topic: slow-dlq}}\n")
    with pytest.raises(SettingsInvalid, match="slow-dlq was not checked at the start: restart the sidecar"):
        sources.reloads.reload()
    assert sources.reloads.take() is None
    sources.write("delays: 2s\npolicies: {slow: {dlq_topic: dlq}}\n")
    assert sorted(sources.reloads.reload().changed) == ["DELAYS", "POLICIES"]
