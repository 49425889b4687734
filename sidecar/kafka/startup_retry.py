"""Retries requests at startup, when brokers may be away or not ready to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from sidecar.clock import Clock
from sidecar.errors import BrokerUnavailable
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

T = TypeVar("T")

TRY_S: Final = 5.0
"""Longest wait for one answer before it is logged and the request is retried."""
PAUSE_S: Final = 2.0
"""Least time between two requests: a refusal may come at once."""


def await_brokers(
    ask: Callable[[], T], settings: Settings, clock: Clock, stopping: Callable[[float], bool]
) -> T | None:
    """Return the answer once there is one; None when asked to stop first.

    Args:
        ask: Sends the request; raises BrokerUnavailable after some seconds without an answer.
        settings: Have STARTUP_TIMEOUT.
        clock: The clock of this machine.
        stopping: Waits at most the given seconds and returns whether to stop.

    Raises:
        BrokerUnavailable: No answer within STARTUP_TIMEOUT.
    """
    deadline_s = clock.monotonic_s() + settings.startup_timeout_ms / 1000
    while True:
        asked_s = clock.monotonic_s()
        try:
            return ask()
        except BrokerUnavailable as cause:
            if clock.monotonic_s() >= deadline_s:
                raise BrokerUnavailable(
                    f"no broker answered within STARTUP_TIMEOUT, {settings.startup_timeout_ms} ms: {cause}"
                ) from cause
            logger.warning("broker_awaited", bootstrap_servers=settings.bootstrap_servers, reason=str(cause))
        if stopping(max(0.0, asked_s + PAUSE_S - clock.monotonic_s())):
            return None
