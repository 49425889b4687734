"""The DLQs of policies, besides DLQ_TOPIC: which one a dead letter goes to, and which of them can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidecar.model import Headers

ChooseDlq = Callable[[bytes | None, bytes | None, Headers], str]
"""Returns the DLQ of a message by its key, value and headers: DLQ_TOPIC, or that of a policy."""


@dataclass(frozen=True, slots=True)
class PolicyDlqs:
    """The DLQs of policies."""

    choose: ChooseDlq
    bytes_max: Mapping[str, int] = field(default_factory=dict)
    """`max.message.bytes` of each."""
    closed: frozenset[str] = frozenset()
    """Those that cannot be written for now."""
