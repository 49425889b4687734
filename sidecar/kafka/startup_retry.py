"""Retries requests at startup, when brokers may be away or not ready to answer, and topics or permissions missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import structlog

from sidecar.clock import Clock
from sidecar.errors import BrokerUnavailable, KafkaFailed, TopicsInvalid
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

T = TypeVar("T")

TRY_S: Final = 5.0
"""Longest wait for one answer before it is logged and the request is retried."""
PAUSE_S: Final = 2.0
"""Least time between two requests: a refusal may come at once."""
PAUSE_MAX_S: Final = 15.0
"""Longest time between two checks of topics that cannot be used."""
REMIND_EVERY_S: Final = 300.0
"""Time between two log lines with the same reasons."""


def await_brokers(
    ask: Callable[[], T], settings: Settings, clock: Clock, stopping: Callable[[float], bool]
) -> T | None:
    """Return the answer once there is one; None when asked to stop first.

    Args:
        ask: Sends the request; raises BrokerUnavailable, or a KafkaFailed that says `away`, after some seconds without
            an answer. It may have been sent before.
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
        except (BrokerUnavailable, KafkaFailed) as cause:
            if isinstance(cause, KafkaFailed) and not cause.away:
                raise
            if clock.monotonic_s() >= deadline_s:
                raise BrokerUnavailable(
                    f"no broker answered within STARTUP_TIMEOUT, {settings.startup_timeout_ms} ms: {cause}"
                ) from cause
            logger.warning("broker_awaited", bootstrap_servers=settings.bootstrap_servers, reason=str(cause))
        if stopping(max(0.0, asked_s + PAUSE_S - clock.monotonic_s())):
            return None


def await_topics(
    ask: Callable[[], T],
    settings: Settings,
    clock: Clock,
    stopping: Callable[[float], bool],
    show: Callable[[Sequence[str]], None],
) -> T | None:
    """Return the answer once the brokers give one and the topics can be used; None when asked to stop first.

    It waits without end for what another user can create, change or grant while this process runs.

    Args:
        ask: Sends the request; raises TopicsInvalid while a topic or a permission is missing or wrong.
        settings: As in `await_brokers`.
        clock: The clock of this machine.
        stopping: As in `await_brokers`.
        show: Called with the reasons before each wait.

    Raises:
        BrokerUnavailable: As in `await_brokers`; the time begins again with each answer.
    """

    def ask_and_show() -> T:
        try:
            return ask()
        except BrokerUnavailable as cause:
            show([f"no broker answers: {cause}"])
            raise

    pause_s, said, said_s = PAUSE_S, "", 0.0
    while True:
        try:
            return await_brokers(ask_and_show, settings, clock, stopping)
        except TopicsInvalid as cause:
            reasons, now_s = str(cause).splitlines(), clock.monotonic_s()
            show(reasons)
            if str(cause) != said:
                pause_s = PAUSE_S
            if str(cause) != said or now_s - said_s >= REMIND_EVERY_S:
                logger.warning("topics_awaited", reasons=reasons)
                said, said_s = str(cause), now_s
        if stopping(pause_s):
            return None
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
