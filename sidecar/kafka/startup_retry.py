"""At a start the brokers may be away, or be there and not know yet what is asked: they are asked again for a while."""

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
"""Longest wait for one answer before saying so and asking again."""
PAUSE_S: Final = 2.0
"""Least time between two questions: a refusal may come at once."""


def await_brokers(
    ask: Callable[[], T], settings: Settings, clock: Clock, stopping: Callable[[float], bool]
) -> T | None:
    """Return what is asked for once the brokers tell it; None when told to stop meanwhile.

    Args:
        ask: Raises BrokerUnavailable after some seconds without an answer.
        settings: Say how long to go on.
        clock: This machine's.
        stopping: Waits at most so many seconds and tells whether to stop.

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
