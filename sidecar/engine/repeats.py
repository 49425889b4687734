"""Recognises a command that a partition has acted on before: a copy of it, or a sender that tries again, acts once.

A cancel or a fire of one timer is not remembered: a repeat finds nothing to act on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from sidecar.changelog.codec import Acted
from sidecar.contract.control import ControlKind
from sidecar.contract.signature import AGE_MAX_MS
from sidecar.engine.items import Control, target_text
from sidecar.model import TimerId

REMEMBERED_MS: Final = 2 * AGE_MAX_MS + 2 * 60_000
"""A signature counts from AGE_MAX_MS before its time to AGE_MAX_MS after it, by clocks that may differ."""
REMEMBERED_MAX: Final = 1_000
"""Most commands that a partition remembers, the newest: each checkpoint has them all."""


class Repeats:
    """The commands that a partition has acted on.

    Args:
        acted: Those of the checkpoint, oldest first.
        now_ms: Time of the plan.
    """

    def __init__(self, acted: Iterable[Acted], now_ms: int) -> None:
        self._now_ms = now_ms
        self._acted = {each.control_id: each for each in acted if each.until_ms > now_ms}

    def first(self, control: Control) -> Acted | None:
        """Return what is remembered of the command's control id."""
        return self._acted.get(_digest(control.control_id)) if self._acted else None

    def remember(self, control: Control, outcome: str, timers: int) -> None:
        """Remember a command that was acted on."""
        if control.kind in {ControlKind.CANCEL, ControlKind.FIRE} and isinstance(control.target, TimerId):
            return
        control_id = _digest(control.control_id)
        until_ms = self._now_ms + REMEMBERED_MS
        self._acted[control_id] = Acted(control_id, command_of(control), until_ms, outcome, timers)
        if len(self._acted) > REMEMBERED_MAX:
            del self._acted[next(iter(self._acted))]

    def kept(self) -> tuple[Acted, ...]:
        """Return what the next checkpoint has."""
        return tuple(self._acted.values())


def command_of(control: Control) -> bytes:
    """Return a digest of what a command asks for; not of a due time, which a sender may compute again."""
    group = [] if control.scope.group is None else [control.scope.group]
    return _digest(control.kind, target_text(control.target), control.scope.origin, *group)


def _digest(*parts: str) -> bytes:
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        made.update(len(encoded).to_bytes(4, "big") + encoded)
    return made.digest()
