"""Reloads of the policies: asked for by a signal or by HTTP, validated as a whole, taken over by the loop."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Final

import structlog

from sidecar.api.source import Reloaded
from sidecar.errors import SettingsInvalid, SidecarError
from sidecar.metrics import Metrics
from sidecar.policy import PolicyConfig
from sidecar.settings import SETTINGS, Settings
from sidecar.settings.policy import policy_config

log = structlog.get_logger(__name__)

RELOADED: Final = frozenset(
    {"POLICIES", "ORIGIN_POLICIES", "ORIGIN_TOPICS", "MAX_DELAY", *(each.name for each in SETTINGS if each.per_origin)}
) - {"DLQ_TOPIC"}
"""The settings that a running sidecar takes over; the others need a restart."""


class Reloads:
    """Reads the settings again, and keeps the policies that the loop is to take over.

    Args:
        settings: Those that the process started with.
        read: Reads all of their sources again; raises SettingsInvalid.
        metrics: Counts the reloads.
    """

    def __init__(self, settings: Settings, read: Callable[[], Settings], metrics: Metrics) -> None:
        self._settings = settings
        self._read = read
        self._metrics = metrics
        self._lock = threading.Lock()
        self._waiting: PolicyConfig | None = None

    def reload(self) -> Reloaded:
        """Read the settings again; a mistake in any of them changes nothing. Called from any thread.

        Raises:
            SettingsInvalid: With one line for every mistake.
        """
        try:
            done = self._reload()
        except SidecarError:
            self._count(accepted=False)
            raise
        self._count(accepted=True)
        return done

    def _count(self, *, accepted: bool) -> None:
        self._metrics.reloads.labels("accepted" if accepted else "rejected").inc()
        self._metrics.last_reload_successful.set(accepted)

    def _reload(self) -> Reloaded:
        with self._lock:
            found = self._read()
            changed = [
                each for each in SETTINGS if getattr(found, each.attribute) != getattr(self._settings, each.attribute)
            ]
            ours = [each for each in changed if each.name in RELOADED]
            taken = {each.attribute: getattr(found, each.attribute) for each in ours}
            settings = dataclasses.replace(self._settings, **taken, origins=found.origins)
            if unknown := sorted(set(settings.dlq_topics) - set(self._settings.dlq_topics)):
                raise SettingsInvalid(
                    [f"dlq_topic of a policy: {', '.join(unknown)} was not checked at the start: restart the sidecar"]
                )
            self._waiting = policy_config(settings)
            self._settings = settings
        return Reloaded([each.name for each in ours], [each.name for each in changed if each.name not in RELOADED])

    def reload_on_signal(self) -> None:
        """Do the same and log the result: a signal has no other answer."""
        try:
            done = self.reload()
        except SettingsInvalid as mistakes:
            log.error("policies_not_reloaded", problems=list(mistakes.problems))
        except SidecarError as cause:
            log.error("policies_not_reloaded", problems=[str(cause)])
        else:
            log.info("policies_reloaded", changed=done.changed, needs_restart=done.needs_restart)

    def take(self) -> PolicyConfig | None:
        """Return the policies to take over, once; for the loop only."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting
