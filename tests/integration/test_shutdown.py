"""How a sidecar starts, ends, and says why it can not."""

from __future__ import annotations

from tests.integration.sidecars import Sidecars, Stage


def test_sigterm_ends_it_with_status_0(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.start("one", stage)

    assert one.stop() == 0
    assert "sidecar_stopped" in one.log
