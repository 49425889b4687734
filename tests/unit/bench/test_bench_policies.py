"""The measurement of policies and rates, with few origins."""

from __future__ import annotations

import pytest

from bench import policies


def test_the_memory_of_rates_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MANY_ORIGINS", 20)
    memory_bytes, checkpoint_bytes = policies.memory_bytes()
    assert memory_bytes > 0
    assert checkpoint_bytes > 20 * len("orders-") + 20 * 24
