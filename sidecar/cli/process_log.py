"""The log of a command that runs until a signal stops it."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from sidecar import log
from sidecar.settings import Settings


def begin_log(settings: Settings, warnings: Iterable[str]) -> None:
    """Configure the log from the settings, and log their warnings first."""
    log.configure(
        level=settings.log_level,
        form=settings.log_format,
        librdkafka_level=settings.log_level_apache,
        secrets=settings.secrets,
    )
    logger = structlog.get_logger(__name__)
    for warning in warnings:
        logger.warning("setting_doubted", text=warning)
