"""A group that still has members is refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import CommandFailed
from sidecar.kafka import idle_group
from sidecar.kafka.probes import ConsumerGroup
from sidecar.settings import Settings


def test_members_are_named_and_that_a_static_one_stays_for_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ConsumerGroup("Stable", 1, ("/10.0.0.7",), frozenset())
    monkeypatch.setattr(idle_group, "describe_group", lambda *_: group)
    admin: Any = None
    with pytest.raises(CommandFailed, match=r"1 members \(/10.0.0.7\).*INSTANCE_ID.*CLIENT_SESSION_TIMEOUT_MS"):
        idle_group.require_no_members(admin, Settings(streams_app_id="app"))
